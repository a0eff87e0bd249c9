"""Intervals for a few questions: of a mean of question accuracies, and of the difference of two models on the same questions.

Samples of a question are no independent evidence: all is clustered by question (Miller, arXiv 2411.00640). The central limit
theorem says too much below some hundred questions (Bowyer, arXiv 2503.01747): neither is a plain normal interval.
Coverage on simulated truth is in benchmarks/results/intervals.json.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import ConfigurationError
from .paired import MANY, t_quantile

CONFIDENCE = 0.95
HALF = 0.5  # of a question won and half of one lost, added to a paired difference
FEWEST = 2


@dataclass(frozen=True)
class Interval:
    """An estimate, its standard error clustered by question (None for one question), and its interval at 95 %."""

    mean: float
    error: float | None
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """The difference of two models on the same questions."""

    mean: float
    low: float
    high: float
    questions: int
    questions_needed: int | None
    """With which a difference of this size would be told apart half of the time; None where none is seen."""
    samples_help: float | None
    """Share of the variance that more samples of each question would take away; None where that is not known."""

    @property
    def told_apart(self) -> bool:
        """True if 0 lies outside the interval."""
        return not self.low <= 0.0 <= self.high


def of_mean(values: ArrayLike, samples: int) -> Interval:
    """Return the mean of question accuracies with the Korn-Graubard interval.

    Clopper-Pearson at the effective number of samples.

    That number is p (1 - p) / variance of the mean over questions, corrected for how few questions the variance is known from,
    and at most `samples`; where all questions agree it is their number. With one sample a question it is Clopper-Pearson.

    Args:
        values: (N,) accuracies in [0, 1], or unbiased pass@k, of N questions.
        samples: of all questions together.
    """
    x = _unit(values)
    n, p = len(x), float(x.mean())
    error = float(x.std(ddof=1)) / math.sqrt(n) if n >= FEWEST else None
    effective = float(n)
    if error and 0 < p < 1:
        design = error**2 * (n - 1) / (p * (1 - p))  # the variance, over that of n questions with one sample each
        effective = min(float(samples), n / design * (_t(samples - 1) / _t(n - 1)) ** 2)
    return Interval(p, error, *clopper_pearson(p * effective, effective))


def of_difference(ours: ArrayLike, theirs: ArrayLike, within: float | None = None) -> Difference:
    """Return the mean difference of two models' accuracies.

    With Student's t, after half a question won and half of one lost are added.

    Without these an interval of five questions that all tie would have no width, and one of eight with one sample each would
    hold the truth 84 times of a hundred.

    Args:
        ours, theirs: (N,) accuracies in [0, 1] of the same questions.
        within: variance of a question's difference that comes from sampling, mean over the questions, where that is known.
    """
    a, b = _unit(ours), _unit(theirs)
    if a.shape != b.shape or len(a) < FEWEST:
        raise ConfigurationError(
            f"A paired comparison needs the same questions, at least {FEWEST}; {len(a)} and {len(b)} came."
        )
    d, n = a - b, len(a)
    weight = n + 2 * HALF
    mean = float(d.sum()) / weight
    squares = float(((d - mean) ** 2).sum()) + HALF * ((1 - mean) ** 2 + (1 + mean) ** 2)
    error = math.sqrt(squares / (weight - 1) / weight)
    half = _t(n - 1) * error
    spread = float(d.var(ddof=1))
    share = None if within is None or spread == 0 else min(1.0, within / spread)
    return Difference(float(d.mean()), mean - half, mean + half, n, _needed(float(d.mean()), spread, n), share)


def _t(df: int) -> float:
    """Return the half width of an interval in standard errors, for so many degrees of freedom."""
    return t_quantile(0.5 + CONFIDENCE / 2, min(max(df, 1), MANY))


def _needed(mean: float, variance: float, n: int) -> int | None:
    if mean == 0.0:
        return None
    needed = max(n, FEWEST)
    while _t(needed - 1) * math.sqrt((variance + 1 / needed) / needed) > abs(mean):
        needed = max(needed + 1, needed * 21 // 20)
    return needed


def within_variance(accuracies: Sequence[float], counts: Sequence[int]) -> float | None:
    """Return the mean sampling variance of question accuracies; None where a question has one sample."""
    if not counts or min(counts) < FEWEST:
        return None
    return math.fsum(p * (1 - p) / (n - 1) for p, n in zip(accuracies, counts, strict=True)) / len(counts)


def clopper_pearson(successes: float, trials: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the exact interval of a proportion; numbers may be fractional."""
    tail = (1 - confidence) / 2
    failures = max(0.0, trials - successes)
    low = beta_quantile(tail, successes, failures + 1) if successes > 0 else 0.0
    high = beta_quantile(1 - tail, successes + 1, failures) if failures > 1e-9 else 1.0
    return low, high


def beta_quantile(p: float, a: float, b: float) -> float:
    """Return the `p` quantile of the beta distribution, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if beta_cdf(middle, a, b) < p else (low, middle)
    return (low + high) / 2


def beta_cdf(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function, by its continued fraction (Numerical Recipes, 6.4)."""
    if x <= 0 or x >= 1:
        return float(x > 0)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1 - front * _fraction(1 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    """Evaluate the continued fraction by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    result = d
    for m in range(1, 1000):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + numerator * d
            d = 1 / (d if abs(d) > tiny else tiny)
            c = 1 + numerator / c
            c = c if abs(c) > tiny else tiny
            result *= c * d
        if abs(c * d - 1) < 1e-12:
            break
    return result


def _unit(values: ArrayLike) -> NDArray[np.float64]:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or not len(x) or not np.all((x >= 0) & (x <= 1)):
        raise ConfigurationError("An interval needs the accuracies of at least one question, each in [0, 1].")
    return x
