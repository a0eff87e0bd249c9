"""Which questions are replayed: weights over strata of questions, then counts, then places inside a stratum.

A stratum is a bucket of accuracy, or a single question. A *question sampler* answers with log-weights of the strata.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import QUESTION_SAMPLERS, ReplayConfig
from ..errors import ConfigurationError
from ..experience.buffer import ExperienceBuffer, sizes_of
from ..experience.questions import UNKNOWN
from ..experience.trajectory import FloatArray, IntArray
from ..registry import Rule, register
from .answers import answer

Eligible = Callable[[IntArray], NDArray[np.bool_]]
"""Questions -> which of them hold a trajectory that may be replayed now."""


@dataclass(frozen=True, eq=False)
class Strata:
    """Questions that can be replayed, by accuracy.

    Args:
        accuracy: of the questions of each stratum, (S,), in [0, 1]; with `spread` difficulty their scaled spread.
        sizes: how many questions, (S,).
        config: the options.
        buffer: that holds them.
        questions: number of the one question of each stratum, (S,), for samplers that look at each; else None.
        step: optimizer steps done.
    """

    accuracy: FloatArray
    sizes: NDArray[np.int64]
    config: ReplayConfig
    buffer: ExperienceBuffer
    questions: IntArray | None = None
    step: int = 0


def weights_of(sampler: Rule, strata: Strata) -> FloatArray:
    """Return a sampler's log-weights of strata, checked, (S,). -inf: only where nothing else is left; NaN: never."""
    name = strata.config.question_choice
    weights = answer("question_choice", name, sampler(strata), strata.sizes.shape)
    if np.isposinf(weights).any():
        raise ConfigurationError(f"question_choice {name!r} must answer with log-weights below infinity: {weights}.")
    return weights


# The samplers -----------------------------------------------------------------------------------------------------------


def gaussian(strata: Strata) -> FloatArray:
    """log of exp(-(a - mu)^2 / (2 sigma^2)), whatever the size of the bucket [ExGRPO, Eq. 3]."""
    config = strata.config
    with np.errstate(over="ignore"):  # a sigma so small that all but the nearest weigh nothing
        return np.asarray(-(((strata.accuracy - config.mu) / config.sigma) ** 2) / 2)


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


STEEP = 1e9
"""So steep a weight that a draw is a ranking."""

register("question_choice", "gaussian", gaussian)
register("question_choice", "uniform", uniform, alike=True)
register("question_choice", "range", inside_range, alike=True)
register("question_choice", "variance", variance)
register("question_choice", "linear", linear)
register("question_choice", "tiers", tiers)
register("question_choice", "headroom", headroom, per_question=True)


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


# Drawing ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Pool:
    """What is drawn from: the questions of one problem type, in strata.

    Args:
        strata: of the questions.
        ready: bucket of each question that may be drawn, -1 for all others, (Q,).
    """

    strata: Strata
    ready: NDArray[Any]

    def members(self, stratum: int) -> IntArray:
        """Questions of a stratum, in the order of their numbers."""
        questions = self.strata.questions
        return np.flatnonzero(self.ready == stratum) if questions is None else questions[stratum : stratum + 1]


def draw_questions(
    buffer: ExperienceBuffer,
    n: int,
    config: ReplayConfig,
    rng: np.random.Generator,
    step: int = 0,
    eligible: Eligible | None = None,
    ready: NDArray[Any] | None = None,
) -> list[int]:
    """n different replayable questions, or as many as there are, in random order; inside a stratum uniform without
    replacement.

    Args:
        buffer: that knows them.
        n: how many.
        config: which sampler, and its options.
        rng: of this draw.
        step: optimizer steps done.
        eligible: only these.
        ready: what `buffer.ready` answers now, where the caller knows.
    """
    sampler = QUESTION_SAMPLERS[config.question_choice]
    pools = pools_of(buffer, sampler, config, step, eligible, ready)
    weights = [np.where(p.strata.sizes > 0, weights_of(sampler, p.strata), np.nan) for p in pools]
    rooms = [np.where(np.isnan(w), 0, p.strata.sizes) for p, w in zip(pools, weights, strict=True)]
    available = np.array([room.sum() for room in rooms], np.int64)
    n = min(n, int(available.sum()))
    by_kind = [n] if len(pools) == 1 else rng.multivariate_hypergeometric(available, n).tolist()
    drawn: list[int] = []
    for pool, log_weights, room, wanted in zip(pools, weights, rooms, by_kind, strict=True):
        if sampler.traits["per_question"]:
            assert pool.strata.questions is not None
            drawn += draw_single(pool.strata.questions, wanted, log_weights, room, rng)
        else:
            counts = (draw_alike if sampler.traits["alike"] else draw_counts)(wanted, log_weights, room, rng)
            for stratum in np.flatnonzero(counts).tolist():
                drawn += draw_members(pool.ready, stratum, int(room[stratum]), int(counts[stratum]), rng)
    rng.shuffle(drawn)
    return drawn


def draw_members(ready: NDArray[Any], bucket: int, size: int, n: int, rng: np.random.Generator) -> list[int]:
    """n different questions of a bucket, every set of n alike.

    Questions are guessed while a few guesses do, so that a small draw from a large pool need not list the bucket: of numbers
    drawn alike, those of the bucket that are not there yet are members drawn alike.

    Args:
        ready: bucket of each question, (Q,).
        bucket: which.
        size: how many questions it holds.
        n: how many are drawn, at most `size`.
    """
    guesses = 4 * n * (len(ready) // size + 1)
    if 2 * n <= size and guesses < len(ready) // 16:
        numbers = rng.integers(len(ready), size=guesses)
        found = list(dict.fromkeys(numbers[ready[numbers] == bucket].tolist()))
        if len(found) >= n:
            return found[:n]
    members = np.flatnonzero(ready == bucket)
    drawn: list[int] = members[rng.choice(size, n, replace=False, shuffle=False)].tolist()
    return drawn


def pools_of(
    buffer: ExperienceBuffer,
    sampler: Rule,
    config: ReplayConfig,
    step: int,
    eligible: Eligible | None = None,
    ready: NDArray[Any] | None = None,
) -> list[Pool]:
    """What is drawn from, of each problem type."""
    ready = buffer.ready() if ready is None else ready
    if buffer.num_types == 1:
        return [_pool_of(buffer, sampler, config, step, eligible, ready)]
    by_kind = (np.where(buffer.types == kind, ready, UNKNOWN) for kind in range(buffer.num_types))
    return [_pool_of(buffer, sampler, config, step, eligible, mine) for mine in by_kind]


def _pool_of(
    buffer: ExperienceBuffer,
    sampler: Rule,
    config: ReplayConfig,
    step: int,
    eligible: Eligible | None,
    ready: NDArray[Any],
) -> Pool:
    resolution, spreads = buffer.resolution, config.difficulty == "spread"
    if spreads:
        known = np.flatnonzero(ready != UNKNOWN)
        ready, values = np.full_like(ready, UNKNOWN), np.full(len(ready), np.nan)
        values[known] = scaled(buffer.questions.spread[known])
        known = known[~np.isnan(values[known])]
        ready[known] = np.floor(values[known] * resolution + 0.5)
    if eligible is not None:
        questions = np.flatnonzero(ready != UNKNOWN)
        ready = ready.copy()
        ready[questions[~eligible(questions)]] = UNKNOWN
    if sampler.traits["per_question"]:
        questions = np.flatnonzero(ready != UNKNOWN)
        accuracy = values[questions] if spreads else buffer.questions.accuracy(questions)
        return Pool(Strata(accuracy, np.ones(len(questions), np.int64), config, buffer, questions, step), ready)
    accuracy = np.arange(resolution + 1) / resolution
    return Pool(Strata(accuracy, sizes_of(ready, resolution), config, buffer, None, step), ready)


def scaled(spread: FloatArray) -> FloatArray:
    """Spreads so that the least is 0 and the greatest 1, [ExGRPO v2, sec. 5.3]; all 0.5 where they are equal; NaN stays."""
    values = spread.astype(np.float64)
    if np.isnan(values).all():
        return values
    low, high = np.nanmin(values), np.nanmax(values)
    return np.where(np.isnan(values), np.nan, 0.5) if low == high else (values - low) / (high - low)


def bucket_probabilities(log_weights: FloatArray, room: NDArray[np.int64]) -> FloatArray:
    """Weights over the strata that still have room, summing to 1.

    Computed from log-weights relative to the largest, so that a pool of extremes alone never underflows to nothing;
    where every stratum with room weighs 0, they are weighted by their room.
    """
    log_weights = np.where(room > 0, log_weights, -np.inf)
    if np.isneginf(log_weights.max()):
        return np.asarray(room / room.sum())
    weights = np.exp(log_weights - log_weights.max())
    return np.asarray(weights / weights.sum())


def draw_counts(
    n: int, log_weights: FloatArray, sizes: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """How many questions come from each stratum: multinomial over the non-empty ones, overflow drawn again over those
    with room left, until all n are placed [ExGRPO, sec. 3.2].

    Args:
        n: how many questions, at most sizes.sum().
        log_weights: (S,).
        sizes: (S,).
    """
    counts = np.zeros_like(sizes)
    while (left := n - int(counts.sum())) > 0:
        drawn = rng.multinomial(left, bucket_probabilities(log_weights, sizes - counts))
        counts = np.minimum(counts + drawn, sizes)
    return counts


def draw_alike(n: int, log_weights: FloatArray, room: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """How many of n questions come from each stratum, where every set of n is alike; those of weight 0 only once the others
    are exhausted."""
    first = np.where(np.isneginf(log_weights), 0, room)
    if (n_first := min(n, int(first.sum()))) == n:
        return rng.multivariate_hypergeometric(first, n, method="marginals")
    return first + rng.multivariate_hypergeometric(room - first, n - n_first, method="marginals")


def draw_single(
    questions: IntArray, n: int, log_weights: FloatArray, room: NDArray[np.int64], rng: np.random.Generator
) -> list[int]:
    """n of some questions: one after the other in proportion to their weights, without replacement (the n largest of
    log-weight plus Gumbel noise); those of weight 0 last, those without room never."""
    keys = rng.gumbel(size=len(log_weights))
    last = ~np.isfinite(log_weights)
    keys = np.where(last, keys, keys + np.where(last, 0.0, log_weights))
    drawn: list[int] = questions[np.lexsort((-keys, last, room == 0))[:n]].tolist()
    return drawn
