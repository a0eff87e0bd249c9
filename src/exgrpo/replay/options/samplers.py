"""Samplers beside the Gaussian of accuracy: log-weights of strata of questions."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...experience.trajectory import FloatArray
from ...registry import register
from ..sampling import Strata

STEEP = 1e9
"""So steep a weight that a draw is a ranking."""


def variance(strata: Strata) -> FloatArray:
    """log of size * p (1 - p): each question by the variance of its reward. Buckets 0 and K have weight 0."""
    return _log(strata.sizes * strata.accuracy * (1 - strata.accuracy))


def linear(strata: Strata) -> FloatArray:
    """log of size * (1 - |a - mu| / max(mu, 1 - mu)): falls from mu to 0 at the farther end; mu = 0 prefers the hard."""
    mu = strata.config.mu
    return _log(strata.sizes * (1 - np.abs(strata.accuracy - mu) / max(mu, 1 - mu)))


def uniform(strata: Strata) -> FloatArray:
    """Every question alike."""
    return _log(strata.sizes)


def inside_range(strata: Strata) -> FloatArray:
    """Questions alike whose accuracy lies between two bounds (recipe A): exclusive; or between two quantiles of the
    accuracies of the questions at hand, inclusive. Others never."""
    config, a = strata.config, strata.accuracy
    if config.range_adapts:
        low, high = (quantile(a, strata.sizes, q) for q in (config.range_low, config.range_high))
        inside = (a >= low) & (a <= high)
    else:
        inside = (a > config.range_low) & (a < config.range_high)
    return np.where(inside, _log(strata.sizes), np.nan)


def tiers(strata: Strata) -> FloatArray:
    """Tiers of equal width in accuracy have given shares, the questions of a tier share its alike; a share of 0: never."""
    shares = np.array(strata.config.tier_shares)
    tier = np.minimum((strata.accuracy * len(shares)).astype(int), len(shares) - 1)
    filled = np.bincount(tier, strata.sizes, len(shares))
    weights = shares[tier] * strata.sizes / np.maximum(filled[tier], 1)
    return np.where(shares[tier] > 0, _log(weights), np.nan)


def headroom(strata: Strata) -> FloatArray:
    """Questions in the order of the most headroom that one of their trajectories has, as last measured; ties at random."""
    assert strata.questions is not None
    candidates = strata.buffer.candidates(strata.questions, strata.step, np.random.default_rng(0))
    best = np.where(candidates.held, np.nan_to_num(candidates.headroom, nan=-1.0), -1.0).max(1, initial=-1.0)
    return np.asarray(best * STEEP)


def quantile(values: FloatArray, sizes: NDArray[np.int64], q: float) -> float:
    """The smallest value that at least a share q of all lies at or below; values ascending, with how often each occurs."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(sizes[order])
    if not reached.size or not reached[-1]:
        return float("nan")
    return float(values[order][np.searchsorted(reached, max(1.0, np.ceil(q * reached[-1] - 1e-9)))])


def _log(weights: NDArray[Any]) -> FloatArray:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.maximum(weights, 0).astype(np.float64)))


register("question_choice", "uniform", uniform, uniform=True)
register("question_choice", "range", inside_range, uniform=True)
register("question_choice", "variance", variance)
register("question_choice", "linear", linear)
register("question_choice", "tiers", tiers)
register("question_choice", "headroom", headroom, per_question=True)
