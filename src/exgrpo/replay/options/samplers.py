"""Samplers beside the Gaussian of accuracy: a log-weight per question."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...experience.trajectory import FloatArray, IntArray
from ...registry import register
from ..question_candidates import QuestionCandidates

STEEP = 1e9
"""A weight so steep that a draw becomes a ranking."""


def variance(candidates: QuestionCandidates) -> FloatArray:
    """Return log of p (1 - p), the variance of the reward; -inf where all or none are right."""
    return _log(candidates.accuracy * (1 - candidates.accuracy))


def linear(candidates: QuestionCandidates) -> FloatArray:
    """Return log of 1 - |a - mu| / max(mu, 1 - mu): falls from mu to 0 at the farther end; mu = 0 prefers the hard."""
    mu = candidates.config.mu
    return _log(1 - np.abs(candidates.accuracy - mu) / max(mu, 1 - mu))


def uniform(candidates: QuestionCandidates) -> FloatArray:
    """Weigh every question the same."""
    return np.zeros(len(candidates.accuracy))


def inside_range(candidates: QuestionCandidates) -> NDArray[np.bool_]:
    """Return which questions have an accuracy between two bounds, exclusive (recipe A).

    Or, by quantiles of the accuracies of these questions, inclusive.
    """
    config, a = candidates.config, candidates.accuracy
    if config.range_adapts:
        low, high = (quantile(a, candidates.bucket_size, q) for q in (config.range_low, config.range_high))
        return np.asarray((a >= low) & (a <= high))
    return np.asarray((a > config.range_low) & (a < config.range_high))


def tiers(candidates: QuestionCandidates) -> FloatArray:
    """Return log-weights that give tiers of equal width in accuracy their shares, uniform within a tier."""
    shares, tier = _tiers(candidates)
    filled = np.bincount(tier, candidates.bucket_size, len(shares))
    return _log(shares[tier] / np.maximum(filled[tier], 1))


def in_a_tier_with_a_share(candidates: QuestionCandidates) -> NDArray[np.bool_]:
    """Return which questions are in a tier with a share above 0."""
    shares, tier = _tiers(candidates)
    return np.asarray(shares[tier] > 0)


def _tiers(candidates: QuestionCandidates) -> tuple[FloatArray, IntArray]:
    shares = np.array(candidates.config.tier_shares, float)
    return shares, np.minimum((candidates.accuracy * len(shares)).astype(int), len(shares) - 1)


def headroom(candidates: QuestionCandidates) -> FloatArray:
    """Rank questions by the most headroom that one of their trajectories has, as last measured; ties at random."""
    stored = candidates.buffer.candidates(candidates.numbers, candidates.step, np.random.default_rng(0))
    best = np.where(stored.valid, np.nan_to_num(stored.headroom, nan=-1.0), -1.0).max(1, initial=-1.0)
    return np.asarray(best * STEEP)


def quantile(values: FloatArray, sizes: NDArray[np.int64], q: float) -> float:
    """Return the smallest value with at least a share q of all at or below it.

    Values ascend; `sizes` says how often each occurs.
    """
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(sizes[order])
    if not reached.size or not reached[-1]:
        return float("nan")
    return float(values[order][np.searchsorted(reached, max(1.0, np.ceil(q * reached[-1] - 1e-9)))])


def _log(weights: NDArray[Any]) -> FloatArray:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.maximum(weights, 0).astype(np.float64)))


register("question_choice", "uniform", uniform, by_accuracy=True)
register("question_choice", "range", uniform, by_accuracy=True, eligible=inside_range)
register("question_choice", "variance", variance, by_accuracy=True)
register("question_choice", "linear", linear, by_accuracy=True)
register("question_choice", "tiers", tiers, by_accuracy=True, eligible=in_a_tier_with_a_share)
register("question_choice", "headroom", headroom)
