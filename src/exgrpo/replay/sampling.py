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
from ..experience.buffer import ExperienceBuffer
from ..experience.difficulty import UNKNOWN, by_spread, sizes_of
from ..experience.trajectory import FloatArray, IntArray
from ..registry import Rule, register
from .members import draw_members, draw_single, draw_uniform
from .validation import checked

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
    weights = checked("question_choice", name, sampler(strata), strata.sizes.shape)
    if np.isposinf(weights).any():
        raise ConfigurationError(f"question_choice {name!r} must answer with log-weights below infinity: {weights}.")
    return weights


def gaussian(strata: Strata) -> FloatArray:
    """Return log of exp(-(a - mu)^2 / (2 sigma^2)), whatever the size of the bucket [ExGRPO, Eq. 3]."""
    config = strata.config
    with np.errstate(over="ignore"):  # a sigma so small that all but the nearest weigh nothing
        return np.asarray(-(((strata.accuracy - config.mu) / config.sigma) ** 2) / 2)


register("question_choice", "gaussian", gaussian)


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
    buffer: ExperienceBuffer, n: int, config: ReplayConfig, rng: np.random.Generator, step: int = 0,
    eligible: Eligible | None = None, ready: NDArray[Any] | None = None,
) -> list[int]:  # fmt: skip
    """Draw n different replayable questions, or as many as there are, in random order; inside a stratum uniform without
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
    by_type = [n] if len(pools) == 1 else rng.multivariate_hypergeometric(available, n).tolist()
    drawn: list[int] = []
    for pool, log_weights, room, wanted in zip(pools, weights, rooms, by_type, strict=True):
        if sampler.traits["per_question"]:
            assert pool.strata.questions is not None
            drawn += draw_single(pool.strata.questions, wanted, log_weights, room, rng)
        else:
            counts = (draw_uniform if sampler.traits["uniform"] else draw_counts)(wanted, log_weights, room, rng)
            for stratum in np.flatnonzero(counts).tolist():
                drawn += draw_members(pool.ready, stratum, int(room[stratum]), int(counts[stratum]), rng)
    rng.shuffle(drawn)
    return drawn


def pools_of(
    buffer: ExperienceBuffer, sampler: Rule, config: ReplayConfig, step: int, eligible: Eligible | None = None,
    ready: NDArray[Any] | None = None,
) -> list[Pool]:  # fmt: skip
    """Return what is drawn from, of each problem type."""
    ready = buffer.ready() if ready is None else ready
    several = range(buffer.num_types) if buffer.num_types > 1 else ()
    parts = [np.where(buffer.types == number, ready, UNKNOWN) for number in several] or [ready]
    return [_pool_of(buffer, sampler, config, step, eligible, part) for part in parts]


def _pool_of(
    buffer: ExperienceBuffer, sampler: Rule, config: ReplayConfig, step: int, eligible: Eligible | None,
    ready: NDArray[Any],
) -> Pool:  # fmt: skip
    resolution, values = buffer.resolution, None
    if config.difficulty == "spread":
        ready, values = by_spread(ready, buffer.questions.spread, resolution)
    if eligible is not None:
        questions = np.flatnonzero(ready != UNKNOWN)
        ready = ready.copy()
        ready[questions[~eligible(questions)]] = UNKNOWN
    if sampler.traits["per_question"]:
        questions = np.flatnonzero(ready != UNKNOWN)
        accuracy = buffer.questions.accuracy(questions) if values is None else values[questions]
        return Pool(Strata(accuracy, np.ones(len(questions), np.int64), config, buffer, questions, step), ready)
    accuracy = np.arange(resolution + 1) / resolution
    return Pool(Strata(accuracy, sizes_of(ready, resolution), config, buffer, None, step), ready)


def bucket_probabilities(log_weights: FloatArray, room: NDArray[np.int64]) -> FloatArray:
    """Return weights over the strata that still have room, summing to 1.

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
    """Draw how many questions come from each stratum: multinomial over the non-empty ones, overflow drawn again over those
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
