"""What is logged, under two prefixes: `replay/` for stored experience, `fresh/` for fresh completions alone."""

import math
from typing import Any

import numpy as np
import torch

from ..experience.difficulty import EASY, HARD, MEDIUM, UNSOLVED, tier_of
from ..experience.trajectory import RIGHT, UNSCORABLE
from ..objective.loss import effective_sample_size
from ..replay.plan import ReplayPlanner
from .generation import Generation

MAX_BUCKET_METRICS = 16


def fresh_metrics(outcomes: np.ndarray, rewards: torch.Tensor, stored: set[int]) -> dict[str, float]:
    """Of fresh completions only.

    Args:
        outcomes: (B, K), before any rescue.
        rewards: (B*K,), weighted sums; NaN where unscorable.
        stored: global rows of planned replays.
    """
    fresh = np.ones(outcomes.shape, bool)
    fresh.flat[list(stored)] = False
    right = (outcomes == RIGHT) & fresh
    scorable = int(((outcomes != UNSCORABLE) & fresh).sum())
    values = rewards.float().cpu().numpy().reshape(outcomes.shape)[fresh]
    any_fresh = fresh.any(1)
    return {
        "fresh/pass_at_1": float(right.sum() / scorable) if scorable else math.nan,
        "fresh/reward": float(np.nanmean(values)) if np.isfinite(values).any() else math.nan,
        "replay/skipped_unscorable": float(((outcomes == UNSCORABLE) & fresh).sum()),
        "fresh/groups_unsolved": float(np.mean(~right.any(1))),
        "fresh/groups_solved": float(np.mean((right | ~fresh).all(1) & any_fresh)),
    }


def batch_metrics(generation: Generation) -> dict[str, float]:
    """Of what a generation's batch was made, rescues included. Ages in optimizer steps."""
    plan = generation.plan
    ages = [plan.step - choice.trajectory.step for choice, _ in generation.stored.values()]
    metrics = {"replay/share": len(ages) / len(plan.questions), "fresh/refilled": float(plan.refilled)}
    if ages:
        metrics |= {"replay/age_mean": float(np.mean(ages)), "replay/age_max": float(max(ages))}
    return metrics


def pool_metrics(planner: ReplayPlanner) -> dict[str, float]:
    """The experience as it is now, after a generation's successes were stored."""
    buffer = planner.buffer
    sizes, k = buffer.bucket_sizes(), buffer.num_generations
    tiers = dict.fromkeys((UNSOLVED, HARD, MEDIUM, EASY), 0)
    for bucket, size in enumerate(sizes):
        tiers[tier_of(bucket, k)] += int(size)
    metrics = {
        "replay/size": float(len(buffer)),
        "replay/questions": float(buffer.num_replayable),
        "replay/retired": float(buffer.num_retired),
        "replay/gate_open": float(planner.gate.open),
        "fresh/pass": float(planner.stream.pass_number),
        **{f"replay/{name}": float(count) for name, count in tiers.items()},
    }
    if k <= MAX_BUCKET_METRICS:
        metrics |= {f"replay/bucket_{bucket}": float(size) for bucket, size in enumerate(sizes)}
    return metrics


def loss_metrics(harvest: dict[str, dict[int, Any]], stored: set[int]) -> dict[str, float]:
    """What the loss forwards of a generation revealed: entropies of fresh and replayed apart, and the replay ratio.

    `replay/ratio_mean` is the token mean of w; `replay/ess` is (sum w)^2 / (n sum w^2) over tokens, in (0, 1].
    """
    metrics = {}
    for name, wanted in (("fresh/entropy", False), ("replay/entropy", True)):
        rows = [value for row, value in harvest["entropies"].items() if (row in stored) == wanted and value[1]]
        if rows:
            means, tokens, _ = np.array(rows).T
            metrics[name] = float((means * tokens).sum() / tokens.sum())
    if ratios := [value for value in harvest["ratios"].values() if value[3]]:
        log_ratio, log_sum, log_squares, tokens = torch.tensor(ratios, dtype=torch.float64).T
        metrics["replay/ratio_mean"] = float(torch.exp(log_sum.logsumexp(0)) / tokens.sum())
        metrics["replay/log_ratio_mean"] = float((log_ratio * tokens).sum() / tokens.sum())
        metrics["replay/ess"] = effective_sample_size(log_sum, log_squares, tokens)
    return metrics
