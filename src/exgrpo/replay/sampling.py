"""Question sampling: a weight for each question, a count for each bucket, then questions of each bucket.

A *question sampler* returns one log-weight per question. One that reads accuracy alone is called once per bucket.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import ReplayConfig
from ..experience.buffer import ExperienceBuffer
from ..experience.difficulty import UNKNOWN, by_reward_std, sizes_of
from ..experience.trajectory import FloatArray, IntArray
from ..registry import Rule, register
from .members import draw_members, draw_single, draw_uniform
from .old_samplers import sampler_of
from .question_candidates import QuestionCandidates
from .validation import weights_of

Eligible = Callable[[IntArray], NDArray[np.bool_]]
"""Questions -> which of them hold a trajectory that may be replayed now."""


def gaussian(candidates: QuestionCandidates) -> FloatArray:
    """Return log-weights exp(-(a - mu)^2 / (2 sigma^2)), shared by the questions of a bucket [ExGRPO, Eq. 3]."""
    config = candidates.config
    with np.errstate(over="ignore"):  # with a tiny sigma only the nearest keep weight
        of_buckets = -(((candidates.accuracy - config.mu) / config.sigma) ** 2) / 2
    return np.asarray(of_buckets - np.log(np.maximum(candidates.bucket_size, 1)))


register("question_choice", "gaussian", gaussian, by_accuracy=True)


@dataclass(frozen=True, eq=False)
class Pool:
    """The questions of one problem type that a draw is made from, bucket by bucket or one by one.

    Args:
        candidates: an entry for each bucket, or for each question.
        log_weights: log-weight of one question of each entry, (n,); -inf: drawn only where nothing else is left.
        room: number of questions of each entry that may be drawn, (n,).
        ready: bucket of each question, -1 for those that cannot be replayed, (Q,).
    """

    candidates: QuestionCandidates
    log_weights: FloatArray
    room: NDArray[np.int64]
    ready: NDArray[Any]

    @property
    def of_buckets(self) -> FloatArray | None:
        """Log-weights of whole buckets, (R+1,); None where questions are drawn one by one."""
        if self.candidates.questions is not None:
            return None
        with np.errstate(divide="ignore"):
            return np.asarray(self.log_weights + np.log(self.room))

    @property
    def uniform(self) -> bool:
        """True if all weights but those of -inf are equal."""
        weights = self.log_weights[np.isfinite(self.log_weights)]
        return bool(weights.size and (weights == weights[0]).all())

    def draw(self, n: int, rng: np.random.Generator) -> list[int]:
        """Draw n different questions, at most as many as there is room for."""
        if (of_buckets := self.of_buckets) is None:
            return draw_single(self.candidates.numbers, n, self.log_weights, self.room, rng)
        if self.uniform:
            counts = draw_uniform(n, self.log_weights, self.room, rng)
        else:
            counts = draw_counts(n, of_buckets, self.room, rng)
        drawn: list[int] = []
        for bucket in np.flatnonzero(counts).tolist():
            drawn += draw_members(self.ready, bucket, int(self.room[bucket]), int(counts[bucket]), rng)
        return drawn


def draw_questions(
    buffer: ExperienceBuffer, n: int, config: ReplayConfig, rng: np.random.Generator, step: int = 0,
    eligible: Eligible | None = None, ready: NDArray[Any] | None = None,
) -> list[int]:  # fmt: skip
    """Draw n different replayable questions, or as many as there are, in random order.

    Within a bucket the draw is uniform without replacement.

    Args:
        buffer: the experience.
        n: number of questions.
        config: the sampler and its options.
        rng: generator of this draw.
        step: optimizer steps done.
        eligible: filter of questions; None: all.
        ready: result of `buffer.ready()`, if the caller has it.
    """
    pools = pools_of(buffer, config, step, eligible, ready)
    available = np.array([pool.room.sum() for pool in pools], np.int64)
    n = min(n, int(available.sum()))
    by_type = [n] if len(pools) == 1 else rng.multivariate_hypergeometric(available, n).tolist()
    drawn = [question for pool, wanted in zip(pools, by_type, strict=True) for question in pool.draw(wanted, rng)]
    rng.shuffle(drawn)
    return drawn


def pools_of(
    buffer: ExperienceBuffer, config: ReplayConfig, step: int, eligible: Eligible | None = None,
    ready: NDArray[Any] | None = None,
) -> list[Pool]:  # fmt: skip
    """Return the pools to draw from, one for each problem type."""
    ready = buffer.ready() if ready is None else ready
    several = range(buffer.num_types) if buffer.num_types > 1 else ()
    parts = [np.where(buffer.types == number, ready, UNKNOWN) for number in several] or [ready]
    sampler = sampler_of(config.question_choice)
    return [_pool_of(buffer, sampler, config, step, eligible, part) for part in parts]


def _pool_of(
    buffer: ExperienceBuffer, sampler: Rule, config: ReplayConfig, step: int, eligible: Eligible | None,
    ready: NDArray[Any],
) -> Pool:  # fmt: skip
    resolution, values = buffer.resolution, None
    if config.difficulty == "spread":
        ready, values = by_reward_std(ready, buffer.questions.reward_std, resolution)
    if eligible is not None:
        questions = np.flatnonzero(ready != UNKNOWN)
        ready = ready.copy()
        ready[questions[~eligible(questions)]] = UNKNOWN
    sizes = room = sizes_of(ready, resolution)
    if sampler.traits["by_accuracy"]:
        candidates = QuestionCandidates(np.arange(resolution + 1) / resolution, sizes, config, buffer, None, step)
    else:
        questions = np.flatnonzero(ready != UNKNOWN)
        accuracy = buffer.questions.accuracy(questions) if values is None else values[questions]
        candidates = QuestionCandidates(accuracy, sizes[ready[questions]], config, buffer, questions, step)
        room = np.ones(len(questions), np.int64)
    weights, eligible_now = weights_of(sampler, candidates)
    return Pool(candidates, weights, np.where(eligible_now, room, 0), ready)


def bucket_probabilities(log_weights: FloatArray, room: NDArray[np.int64]) -> FloatArray:
    """Return weights over the buckets that still have room, summing to 1.

    Computed from log-weights relative to the largest, so that a pool of extremes alone never underflows to nothing;
    where every bucket with room weighs 0, they are weighted by their room.
    """
    log_weights = np.where(room > 0, log_weights, -np.inf)
    if np.isneginf(log_weights.max()):
        return np.asarray(room / room.sum())
    weights = np.exp(log_weights - log_weights.max())
    return np.asarray(weights / weights.sum())


def draw_counts(
    n: int, log_weights: FloatArray, sizes: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw how many questions come from each bucket: multinomial over the non-empty ones [ExGRPO, sec. 3.2].

    Overflow is drawn again over the buckets with room left, until all n are placed.

    Args:
        n: number of questions, at most sizes.sum().
        log_weights: of whole buckets, (R+1,).
        sizes: (R+1,).
    """
    counts = np.zeros_like(sizes)
    while (left := n - int(counts.sum())) > 0:
        drawn = rng.multinomial(left, bucket_probabilities(log_weights, sizes - counts))
        counts = np.minimum(counts + drawn, sizes)
    return counts
