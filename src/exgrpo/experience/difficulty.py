"""Difficulty: a question's accuracy over fresh completions, as a bucket.

With `latest` difficulty there are K + 1 buckets, k of K right. A window of completions is finer, and has a bucket for each of
its own accuracies.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import ReplayConfig
from .trajectory import FloatArray, IntArray

UNKNOWN = -1
"""The bucket of a question that was never observed."""
EASY, MEDIUM, HARD, UNSOLVED = "easy", "medium", "hard", "unsolved"


def bucket_of(successes: int, scorable: int, resolution: int) -> int:
    """Return the bucket of an accuracy: round(accuracy * R), half up, in 0..R [ExGRPO, sec. 3.1].

    Accuracies over K and over K-1 completions fall into one scale. Exact in integers: 2 of 7 at R=8 is bucket 2.

    Args:
        successes: right ones among the scorable fresh completions.
        scorable: how many of them could be scored, at least 1.
        resolution: R; K where difficulty is that of the latest group.
    """
    if not 0 <= successes <= scorable or scorable < 1:
        raise ValueError(f"an accuracy needs 0 <= successes <= scorable and scorable >= 1, not {successes}/{scorable}")
    return (2 * successes * resolution + scorable) // (2 * scorable)


def tier_of(bucket: int, resolution: int) -> str:
    """Label a bucket: Easy [75, 100) %, Medium (25, 75) %, Hard (0, 25] %, or unsolved at 0 [ExGRPO, sec. 3.1]."""
    if bucket == 0:
        return UNSOLVED
    if 4 * bucket <= resolution:
        return HARD
    return MEDIUM if 4 * bucket < 3 * resolution else EASY


def resolution_of(config: ReplayConfig, num_generations: int) -> int:
    """Return R, the number of steps between accuracies 0 and 1."""
    return max(num_generations, config.difficulty_window) if config.difficulty == "window" else num_generations


def buckets_of(successes: IntArray, scorable: IntArray, resolution: int) -> IntArray:
    """Return the buckets of many accuracies; see `bucket_of`."""
    return np.asarray(
        (2 * np.asarray(successes, np.int64) * resolution + scorable) // (2 * np.asarray(scorable, np.int64))
    )


def sizes_of(ready: NDArray[Any], resolution: int) -> NDArray[np.int64]:
    """Count the questions in each bucket, (R+1,)."""
    if resolution > 16:
        return np.bincount(ready[ready != UNKNOWN], minlength=resolution + 1)
    return np.array([np.count_nonzero(ready == bucket) for bucket in range(resolution + 1)], np.int64)


def scaled(reward_std: FloatArray) -> FloatArray:
    """Scale to [0, 1] [ExGRPO v2, sec. 5.3]; 0.5 where all are equal, NaN stays."""
    values = reward_std.astype(np.float64)
    if np.isnan(values).all():
        return values
    low, high = np.nanmin(values), np.nanmax(values)
    return np.where(np.isnan(values), np.nan, 0.5) if low == high else (values - low) / (high - low)


def by_reward_std(ready: NDArray[Any], reward_std: FloatArray, resolution: int) -> tuple[NDArray[Any], FloatArray]:
    """Return other buckets and accuracies, (Q,) each, by the scaled standard deviation of a question's rewards."""
    known = np.flatnonzero(ready != UNKNOWN)
    found, values = np.full_like(ready, UNKNOWN), np.full(len(ready), np.nan)
    values[known] = scaled(reward_std[known])
    known = known[~np.isnan(values[known])]
    found[known] = np.floor(values[known] * resolution + 0.5)
    return found, values


class Windows:
    """The latest fresh groups of each question.

    A window keeps as many groups as hold at most `size` scorable completions together, and always the latest one.
    """

    def __init__(self, size: int):
        self.size = size
        self._groups: dict[int, deque[tuple[int, int]]] = {}
        self._sums: dict[int, tuple[int, int]] = {}

    def add_many(self, questions: IntArray, successes: IntArray, scorable: IntArray) -> tuple[IntArray, IntArray]:
        """Add a group to each of n questions; return successes and scorable completions in their windows, (n,)."""
        groups = zip(questions.tolist(), successes.tolist(), scorable.tolist(), strict=True)
        right, total = np.array([self.add(*group) for group in groups], np.int32).reshape(-1, 2).T
        return right, total

    def add(self, question: int, successes: int, scorable: int) -> tuple[int, int]:
        """Add a group; return successes and scorable completions in the window."""
        groups = self._groups.setdefault(question, deque())
        groups.append((successes, scorable))
        right, total = self._sums.get(question, (0, 0))
        right, total = right + successes, total + scorable
        while total > self.size and len(groups) > 1:
            left = groups.popleft()
            right, total = right - left[0], total - left[1]
        self._sums[question] = right, total
        return right, total

    def snapshot(self) -> dict[str, NDArray[np.int32]]:
        """Return all groups, oldest first per question: `window_question`, (n,), and `window_groups`, (n, 2)."""
        rows = [(question, *group) for question, groups in self._groups.items() for group in groups]
        array = np.array(rows, np.int32).reshape(-1, 3)
        return {"window_question": array[:, 0], "window_groups": array[:, 1:]}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore groups from `snapshot`."""
        for question, group in zip(arrays["window_question"].tolist(), arrays["window_groups"].tolist(), strict=True):
            self._groups.setdefault(question, deque()).append(tuple(group))
            right, total = self._sums.get(question, (0, 0))
            self._sums[question] = right + group[0], total + group[1]
