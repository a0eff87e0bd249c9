"""Is one arm better than the other? The mean of paired differences, with two confidence intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigurationError

MIN_PAIRS = 5
TIES = 0.2
"""Of fewer than `ENOUGH` pairs more than this share may not tie exactly, or Student's t would hold the truth too rarely."""
ENOUGH = 30
MANY = 500  # degrees of freedom beyond which the t distribution is as good as normal


@dataclass(frozen=True)
class PairedDifference:
    """Mean of `a - b` over pairs, with its bootstrap and its Student-t interval at `confidence`.

    With few pairs (seeds) the percentile bootstrap is too narrow: with 5 pairs of normal data a nominal 95 % covers
    about 83 %. Quote the t interval then; the bootstrap shows whether skewed data would change the picture.
    """

    mean: float
    bootstrap_low: float
    bootstrap_high: float
    t_low: float
    t_high: float
    pairs: int
    confidence: float

    @property
    def significant(self) -> bool:
        """True if 0 lies outside the t interval."""
        return not self.t_low <= 0.0 <= self.t_high

    def pairs_needed(self) -> int | None:
        """Return the pairs that would tell a difference of this size apart half of the time; None where it is 0.

        That many at which the half width of the t interval is the mean, if pairs go on to scatter as these do.
        """
        if self.mean == 0.0:
            return None
        half = (self.t_high - self.t_low) / 2
        tail = 0.5 + self.confidence / 2
        scatter = half * math.sqrt(self.pairs) / t_quantile(tail, self.pairs - 1)
        needed = self.pairs
        while t_quantile(tail, min(needed, MANY) - 1) * scatter / math.sqrt(needed) > abs(self.mean):
            needed = max(needed + 1, needed * 11 // 10)
        return needed


def paired_difference(
    a: Sequence[float],
    b: Sequence[float],
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> PairedDifference:
    """Return how much larger `a` is than `b` on average, where `a[i]` and `b[i]` are a pair (the same seed).

    Args:
        a, b: (N,) finite numbers, N >= 5, in the same order.
        confidence: of both intervals, in (0, 1).
        resamples: of the percentile bootstrap over pairs.
        seed: of the bootstrap's own generator.

    Raises:
        ConfigurationError: fewer than 5 pairs, lengths that differ, numbers that are not finite.
    """
    left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if left.ndim != 1 or left.shape != right.shape:
        raise ConfigurationError(
            f"A paired comparison needs two lists of equal length, got shapes {left.shape} and {right.shape}."
        )
    if len(left) < MIN_PAIRS:
        raise ConfigurationError(
            f"A paired comparison needs at least {MIN_PAIRS} pairs, got {len(left)}: an interval from fewer says "
            "nothing. Run more seeds."
        )
    if not 0.0 < confidence < 1.0 or resamples < 1:
        raise ConfigurationError(
            f"`confidence` must be in (0, 1) and `resamples` positive, got {confidence} and {resamples}."
        )
    difference = left - right
    if not np.all(np.isfinite(difference)):
        raise ConfigurationError("A paired comparison needs finite numbers; NaN or infinity came.")
    mean = float(difference.mean())
    low, high = _bootstrap(difference, confidence, resamples, np.random.default_rng(seed))
    half = t_quantile(0.5 + confidence / 2, len(left) - 1) * float(difference.std(ddof=1)) / math.sqrt(len(left))
    return PairedDifference(mean, low, high, mean - half, mean + half, len(left), confidence)


def ties_spoil(differences: Sequence[float]) -> bool:
    """Return whether too many pairs tie exactly for an interval by Student's t.

    Where every third of eight pairs ties it covers 93 % instead of 95, of five 91 (benchmarks/intervals.py).
    """
    ties = sum(difference == 0 for difference in differences)
    return len(differences) < ENOUGH and ties > TIES * len(differences)


def _bootstrap(
    values: NDArray[np.float64], confidence: float, resamples: int, rng: np.random.Generator
) -> tuple[float, float]:
    means = values[rng.integers(len(values), size=(resamples, len(values)))].mean(axis=1)
    tail = (1.0 - confidence) / 2
    low, high = np.quantile(means, (tail, 1.0 - tail))
    return float(low), float(high)


@lru_cache(maxsize=1024)
def t_quantile(p: float, df: int) -> float:
    """Return the `p` quantile of Student's t distribution with `df` >= 1 degrees of freedom, for 0.5 <= p < 1."""
    low, high = 0.0, 1.0
    while _t_cdf(high, df) < p and high < 1e12:
        high *= 2.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_cdf(middle, df) < p else (low, middle)
    return (low + high) / 2


def _t_cdf(t: float, df: int) -> float:
    """Return P(T <= t) for t >= 0 by the finite series of Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    theta = math.atan2(t, math.sqrt(df))
    sin, cos = math.sin(theta), math.cos(theta)
    odd = df % 2
    term, total = (cos, cos) if odd else (1.0, 1.0)
    if df == 1:
        total = 0.0
    for j in range(2 + odd, df - 1, 2):
        term *= (j - 1) / j * cos * cos
        total += term
    central = 2 / math.pi * (theta + sin * total) if odd else sin * total
    return 0.5 + central / 2
