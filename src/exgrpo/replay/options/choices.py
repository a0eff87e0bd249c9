"""Choices of a trajectory beside the lowest entropy: what candidates are ranked by, and which may compete."""

import numpy as np
from numpy.typing import NDArray

from ...experience.candidates import Candidates
from ...experience.quality import tier_of_each
from ...experience.trajectory import FloatArray
from ...registry import register


def low_entropy(candidates: Candidates) -> NDArray[np.bool_]:
    """Return which trajectories are at or below a percentile of all stored entropies, as last measured (recipe A)."""
    buffer = candidates.buffer
    stored = buffer.column("entropy")[buffer.live_slots()]
    stored = stored[~np.isnan(stored)]
    if not stored.size:
        return candidates.valid
    return np.asarray(
        candidates.entropy <= np.percentile(stored, candidates.config.entropy_percentile, method="inverted_cdf")
    )


def in_quality_tier(candidates: Candidates) -> FloatArray:
    """Rank a random member of a randomly drawn quality tier first (recipe B).

    The tier is drawn by `quality_tier_shares` among the question's non-empty tiers, best first.
    """
    keys, shares = candidates.draw(), np.array(candidates.config.quality_tier_shares)
    for row, valid in enumerate(candidates.valid):
        tier = tier_of_each(candidates.quality[row][valid])
        filled = np.unique(tier[tier < len(shares)])
        if (total := shares[filled].sum()) > 0:
            keys[row][valid] += tier != candidates.rng.choice(filled, p=shares[filled] / total)
    return keys


def drawn(candidates: Candidates) -> FloatArray:
    """Draw an exponential arrival time for each: the first wins, all with equal probability.

    With a rate of exp(-age/tau) in place of 1 this draws in proportion to that rate.
    """
    with np.errstate(divide="ignore"):
        return np.asarray(-np.log1p(-candidates.draw()))


register("trajectory_choice", "random", drawn)
register("trajectory_choice", "advantage", lambda c: -np.abs(c.advantage))
register("trajectory_choice", "newest", lambda c: -c.serial.astype(np.float64))
register("trajectory_choice", "lowest_nll", lambda c: c.nll, measured=True)
register("trajectory_choice", "lowest_confidence_variance", lambda c: c.confidence_variance, measured=True)
register("trajectory_choice", "entropy_percentile", lambda c: c.draw(), eligible=low_entropy)
register("trajectory_choice", "highest_quality", lambda c: -c.quality)
register("trajectory_choice", "quality_tiers", in_quality_tier)
register("trajectory_choice", "highest_entropy", lambda c: -c.entropy, measured=True)
register(
    "trajectory_choice", "headroom", lambda c: -c.headroom, measured=True, eligible=lambda c: ~np.isnan(c.advantage)
)
