"""Metrics of two prefixes: `replay/` for stored experience, `fresh/` for fresh completions alone."""

import math
from collections.abc import Collection

import numpy as np
import torch

from ..config import ObjectiveConfig
from ..experience.difficulty import EASY, HARD, MEDIUM, UNSOLVED, tier_of
from ..experience.trajectory import RIGHT, UNSCORABLE
from ..objective import effective_sample_size, gradient_weights, weight_positive
from ..objective.loss import MAX_LOG_RATIO
from ..replay import ReplayPlanner
from .batch import ReplayBatch, ScoredBatch
from .row_stats import RowStats

MAX_BUCKET_METRICS = 16
TINY = 1e-30


def fresh_metrics(outcomes: np.ndarray, stored: set[int]) -> dict[str, float]:
    """Compute metrics of fresh completions only; unknown ones are left out.

    Args:
        outcomes: (B, K), before any rescue.
        stored: global rows of planned replays, and of completions that go on from a stored one.
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


def prefix_metrics(batch: ReplayBatch, outcomes: np.ndarray) -> dict[str, float]:
    """Compute metrics of groups that continue a stored success; outcomes: (B, K)."""
    prefixes = batch.plan.prefixes
    if not prefixes:
        return {}
    own = outcomes[sorted(prefixes)]
    lengths = np.array([prefix.length for prefix in prefixes.values()])
    tokens = np.array([len(prefix.choice.trajectory) for prefix in prefixes.values()])
    metrics = {
        "prefix/share": len(prefixes) / len(outcomes),
        "prefix/length_mean": float(lengths.mean()),
        "prefix/fraction": float((lengths / tokens).mean()),
    }
    if scorable := int((own != UNSCORABLE).sum()):
        metrics["prefix/pass_at_1"] = float((own == RIGHT).sum() / scorable)
    return metrics


def batch_metrics(batch: ReplayBatch) -> dict[str, float]:
    """Compute the composition of an iteration's batch, rescues included.

    Ages are in optimizer steps; uses are before this one.

    `replay/share` is the share of groups that replay chose or mended; with `added` mixing, added trajectories per group.
    """
    plan = batch.plan
    choices = [choice for row in sorted(batch.replayed_rows) if (choice := batch.stored_at(row)) is not None]
    injected = len(choices)
    choices += [prefix.choice for prefix in plan.prefixes.values()]
    rescued = sum(stage == "rescue" for _, stage in batch.stored.values())
    metrics = {
        "replay/share": (plan.num_replayed + rescued) / len(plan.questions),
        "replay/injected": float(injected),
        "replay/refused": float(plan.refused),
        "replay/expired": float(plan.expired),
        "replay/returned": float(plan.returned),
        "fresh/refilled": float(plan.refilled),
        "fresh/skipped": float(plan.skipped),
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
    scored: ScoredBatch, stats: RowStats, objective: ObjectiveConfig, epsilon: float, vocabulary: int
) -> dict[str, float]:
    """Compute `replay/net_push`, the mean over groups with a stored member of their summed push.

    A member's push is its advantage times its gradient weight: 1 for a fresh one, for a stored one what its correction
    gives at its mean log-ratio. Below 0, training on such a group makes its completions less likely as a whole.
    """
    k, table = scored.batch.num_generations, stats.table
    table = table[(table["ratio_tokens"] > 0) & np.isin(table["row"], list(scored.batch.stored))]
    if not len(table):
        return {}
    pushes = weight_positive(scored.advantages.float().cpu(), objective.positive_weight).nan_to_num()
    moved = table[pushes.numpy()[table["row"]] != 0]
    rows = moved["row"].tolist()
    weights = gradient_weights(
        objective,
        [math.exp(max(-MAX_LOG_RATIO, min(value, MAX_LOG_RATIO))) for value in moved["log_ratio"].tolist()],
        advantage=pushes[rows].tolist(),
        epsilon=epsilon,
        vocabulary=vocabulary,
        probability=[max(math.exp(-nll), TINY) for nll in moved["nll"].tolist()],
    )
    pushes[rows] *= torch.tensor(weights)
    groups = np.unique(table["row"] // k).tolist()
    return {"replay/net_push": float(pushes.view(-1, k)[groups].sum(1).mean())}


def pool_metrics(planner: ReplayPlanner) -> dict[str, float]:
    """Measure the experience as it is now, after an iteration's completions were stored."""
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


def loss_metrics(stats: RowStats, stored: set[int], prefixed: Collection[int] = ()) -> dict[str, float]:
    """Compute metrics of the forwards: entropies of fresh and replayed rows, and the replay ratio.

    `replay/ratio_mean` is the token mean of w; `replay/ess` is (sum w)^2 / (n sum w^2) over tokens, in (0, 1];
    `replay/clamped_share` is the share of replayed tokens that the correction cut.

    Fresh rows that were computed without need count where no row of the batch was needed: how many such there are depends on
    how the batch is cut.
    """
    metrics = {}
    known = stats.table[stats.table["tokens"] > 0]
    is_stored, needed = np.isin(known["row"], list(stored)), ~known["filler"]
    fresh = ~is_stored & ~np.isin(known["row"], list(prefixed)) & (needed if needed.any() else True)
    for name, rows in (("fresh/entropy", known[fresh]), ("replay/entropy", known[is_stored & needed])):
        if len(rows):
            metrics[name] = float((rows["entropy"] * rows["tokens"]).sum() / rows["tokens"].sum())
    if len(ratios := stats.table[stats.table["ratio_tokens"] > 0]):
        names = ("log_ratio", "log_sum", "log_sum_squares", "ratio_tokens", "clamped")
        columns = (torch.as_tensor(ratios[name].astype(np.float64)) for name in names)
        log_ratio, log_sum, log_squares, tokens, clamped = columns
        metrics["replay/clamped_share"] = float(clamped.sum() / tokens.sum())
        metrics["replay/ratio_mean"] = float(torch.exp(log_sum.logsumexp(0)) / tokens.sum())
        metrics["replay/log_ratio_mean"] = float((log_ratio * tokens).sum() / tokens.sum())
        metrics["replay/ess"] = effective_sample_size(log_sum, log_squares, tokens)
    return metrics
