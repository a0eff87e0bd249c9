"""What is logged, under two prefixes: `replay/` for stored experience, `fresh/` for fresh completions alone."""

import math
from typing import Any

import numpy as np
import torch

from ..config import ObjectiveConfig
from ..experience.difficulty import EASY, HARD, MEDIUM, UNSOLVED, tier_of
from ..experience.trajectory import RIGHT, UNSCORABLE
from ..objective import effective_sample_size, gradient_weights, weight_positive
from ..objective.ratio import MAX_LOG_RATIO
from ..replay.plan import ReplayPlanner
from .batch import Generation

MAX_BUCKET_METRICS = 16
TINY = 1e-30


def fresh_metrics(outcomes: np.ndarray, stored: set[int]) -> dict[str, float]:
    """Of fresh completions only; what is not known is left out.

    Args:
        outcomes: (B, K), before any rescue.
        stored: global rows of planned replays.
    """
    fresh = np.ones(outcomes.shape, bool)
    fresh.flat[list(stored)] = False
    right = (outcomes == RIGHT) & fresh
    scorable = int(((outcomes != UNSCORABLE) & fresh).sum())
    any_fresh = fresh.any(1)
    metrics = {"replay/skipped_unscorable": float(((outcomes == UNSCORABLE) & fresh).sum())}
    if any_fresh.any():
        metrics["fresh/groups_unsolved"] = float(np.mean(~right.any(1)[any_fresh]))
        metrics["fresh/groups_solved"] = float(np.mean((right | ~fresh).all(1)[any_fresh]))
    if scorable:
        metrics["fresh/pass_at_1"] = float(right.sum() / scorable)
    return metrics


def batch_metrics(generation: Generation) -> dict[str, float]:
    """Of what a generation's batch was made, rescues included. Ages in optimizer steps; uses before this one.

    `replay/share` is the share of groups that replay chose or mended; with `added` mixing, added trajectories per group.
    """
    plan = generation.plan
    rows = sorted(generation.replayed_rows)
    choices = [choice for row in rows if (choice := generation.stored_at(row)) is not None]
    rescued = sum(kind == "rescue" for _, kind in generation.stored.values())
    metrics = {
        "replay/share": (plan.num_replayed + rescued) / len(plan.questions),
        "replay/injected": float(len(choices)),
        "replay/refused": float(plan.refused),
        "replay/expired": float(plan.expired),
        "replay/returned": float(plan.returned),
        "fresh/refilled": float(plan.refilled),
    }
    if choices:
        ages = np.array([plan.step - choice.trajectory.step for choice in choices])
        uses = np.array([choice.uses for choice in choices])
        middle, late = np.percentile(ages, [50, 90])
        metrics |= {
            "replay/age_mean": float(ages.mean()),
            "replay/age_p50": float(middle),
            "replay/age_p90": float(late),
            "replay/age_max": float(ages.max()),
            "replay/uses_mean": float(uses.mean()),
            "replay/uses_max": float(uses.max()),
            "replay/first_use_share": float((uses == 0).mean()),
        }
    return metrics


def push_metrics(
    generation: Generation,
    harvest: dict[str, dict[int, Any]],
    objective: ObjectiveConfig,
    epsilon: float,
    vocabulary: int,
) -> dict[str, float]:
    """`replay/net_push`: over groups with a stored member, the mean of the sum of advantage times gradient weight of the
    members; fresh ones weigh 1, a stored one what its correction gives at its mean log-ratio. Below 0, learning from such a
    group makes its completions less likely as a whole."""
    k, ratios = generation.num_generations, harvest["ratios"]
    rows = [row for row in generation.stored if row in ratios and ratios[row][3]]
    if not rows or generation.advantages is None:
        return {}
    advantages = weight_positive(generation.advantages.float().cpu(), objective.positive_weight)
    pushes = advantages.nan_to_num()
    moved = [row for row in rows if pushes[row]]
    weights = gradient_weights(
        objective,
        [math.exp(max(-MAX_LOG_RATIO, min(ratios[row][0], MAX_LOG_RATIO))) for row in moved],
        advantage=pushes[moved].tolist(),
        epsilon=epsilon,
        vocabulary=vocabulary,
        probability=[max(math.exp(-harvest["scores"][row][0]), TINY) for row in moved],
    )
    pushes[moved] *= torch.tensor(weights)
    groups = sorted({row // k for row in rows})
    return {"replay/net_push": float(pushes.view(-1, k)[groups].sum(1).mean())}


def pool_metrics(planner: ReplayPlanner) -> dict[str, float]:
    """The experience as it is now, after a generation's successes were stored."""
    buffer = planner.buffer
    sizes, resolution = buffer.bucket_sizes(), buffer.resolution
    tiers = dict.fromkeys((UNSOLVED, HARD, MEDIUM, EASY), 0)
    for bucket, size in enumerate(sizes):
        tiers[tier_of(bucket, resolution)] += int(size)
    metrics = {
        "replay/size": float(len(buffer)),
        "replay/questions": float(buffer.num_replayable),
        "replay/retired": float(buffer.num_retired),
        "replay/gate_open": float(planner.gate.open),
        "fresh/data_pass": float(planner.stream.pass_number),
        **{f"replay/{name}": float(count) for name, count in tiers.items()},
    }
    if resolution <= MAX_BUCKET_METRICS:
        metrics |= {f"replay/bucket_{bucket}": float(size) for bucket, size in enumerate(sizes)}
    return metrics


def loss_metrics(harvest: dict[str, dict[int, Any]], stored: set[int]) -> dict[str, float]:
    """What the loss forwards of a generation revealed: entropies of fresh and replayed apart, and the replay ratio.

    `replay/ratio_mean` is the token mean of w; `replay/ess` is (sum w)^2 / (n sum w^2) over tokens, in (0, 1];
    `replay/clamped_share` is the share of replayed tokens that the correction cut.
    """
    metrics = {}
    for name, wanted in (("fresh/entropy", False), ("replay/entropy", True)):
        known = {row: v for row, v in harvest["entropies"].items() if (row in stored) == wanted and v[1]}
        counted = {row: value for row, value in known.items() if row not in harvest["fillers"]}
        rows = list((counted or ({} if wanted else known)).values())
        if rows:
            means, tokens, _ = np.array(rows).T
            metrics[name] = float((means * tokens).sum() / tokens.sum())
    if ratios := [value for value in harvest["ratios"].values() if value[3]]:
        log_ratio, log_sum, log_squares, tokens, clamped = torch.tensor(ratios, dtype=torch.float64).T
        metrics["replay/clamped_share"] = float(clamped.sum() / tokens.sum())
        metrics["replay/ratio_mean"] = float(torch.exp(log_sum.logsumexp(0)) / tokens.sum())
        metrics["replay/log_ratio_mean"] = float((log_ratio * tokens).sum() / tokens.sum())
        metrics["replay/ess"] = effective_sample_size(log_sum, log_squares, tokens)
    return metrics
