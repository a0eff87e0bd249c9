"""Which questions are replayed: weights over the buckets, then counts, then places inside a bucket.

A *question choice* is a function of the bucket accuracies and sizes that answers with log-weights of the buckets.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import ReplayConfig
from ..experience.buffer import ExperienceBuffer
from ..experience.trajectory import FloatArray

QuestionChoice = Callable[[FloatArray, NDArray[np.int64], ReplayConfig], FloatArray]


def gaussian(accuracies: FloatArray, sizes: NDArray[np.int64], config: ReplayConfig) -> FloatArray:
    """log of exp(-(a - mu)^2 / (2 sigma^2)), whatever the size of the bucket [ExGRPO, Eq. 3]."""
    with np.errstate(over="ignore"):  # a sigma so small that all but the nearest weigh nothing
        return np.asarray(-(((accuracies - config.mu) / config.sigma) ** 2) / 2)


def variance(accuracies: FloatArray, sizes: NDArray[np.int64], config: ReplayConfig) -> FloatArray:
    """log of size * p (1 - p): each question by the variance of its reward. Buckets 0 and K have weight 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(sizes * accuracies * (1 - accuracies)))


def uniform(accuracies: FloatArray, sizes: NDArray[np.int64], config: ReplayConfig) -> FloatArray:
    """log of size: every question alike."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(sizes.astype(np.float64)))


QUESTION_CHOICES: dict[str, QuestionChoice] = {"gaussian": gaussian, "variance": variance, "uniform": uniform}


def bucket_probabilities(log_weights: FloatArray, room: NDArray[np.int64]) -> FloatArray:
    """Weights over the buckets that still have room, summing to 1.

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
    """How many questions come from each bucket: multinomial over the non-empty ones, overflow drawn again over those
    with room left, until all n are placed [ExGRPO, sec. 3.2].

    Args:
        n: how many questions, at most sizes.sum().
        log_weights: (K+1,).
        sizes: (K+1,).
    """
    counts = np.zeros_like(sizes)
    while (left := n - int(counts.sum())) > 0:
        drawn = rng.multinomial(left, bucket_probabilities(log_weights, sizes - counts))
        counts = np.minimum(counts + drawn, sizes)
    return counts


def draw_questions(buffer: ExperienceBuffer, n: int, config: ReplayConfig, rng: np.random.Generator) -> list[int]:
    """n different replayable questions, in random order; inside a bucket uniform without replacement."""
    sizes = buffer.bucket_sizes()
    if config.question_choice == "uniform":  # exactly uniform without replacement, which a multinomial is not
        counts: NDArray[Any] = rng.multivariate_hypergeometric(sizes, n, method="marginals")
    else:
        accuracies = np.arange(len(sizes)) / buffer.num_generations
        counts = draw_counts(n, QUESTION_CHOICES[config.question_choice](accuracies, sizes, config), sizes, rng)
    drawn: list[int] = []
    for bucket in np.flatnonzero(counts):
        places = rng.choice(int(sizes[bucket]), int(counts[bucket]), replace=False, shuffle=False)
        drawn += buffer.questions_in(int(bucket), places).tolist()
    rng.shuffle(drawn)
    return drawn
