"""Drawing of questions: uniformly from large buckets, or one by one by weight."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..experience.trajectory import FloatArray, IntArray


def draw_members(ready: NDArray[Any], bucket: int, size: int, n: int, rng: np.random.Generator) -> list[int]:
    """Draw n different questions of a bucket, every set of n being equally likely.

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


def draw_uniform(
    n: int, log_weights: FloatArray, room: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw how many of n questions come from each bucket, every set of n being equally likely.

    Buckets of weight 0 are used only once the others are exhausted.
    """
    first = np.where(np.isneginf(log_weights), 0, room)
    if (n_first := min(n, int(first.sum()))) == n:
        return rng.multivariate_hypergeometric(first, n, method="marginals")
    return first + rng.multivariate_hypergeometric(room - first, n - n_first, method="marginals")


def draw_single(
    questions: IntArray, n: int, log_weights: FloatArray, room: NDArray[np.int64], rng: np.random.Generator
) -> list[int]:
    """Draw n questions one by one in proportion to their weights, without replacement.

    The n largest of log-weight plus Gumbel noise; those of weight 0 come last, those without room never.
    """
    keys = rng.gumbel(size=len(log_weights))
    last = ~np.isfinite(log_weights)
    keys = np.where(last, keys, keys + np.where(last, 0.0, log_weights))
    drawn: list[int] = questions[np.lexsort((-keys, last, room == 0))[:n]].tolist()
    return drawn
