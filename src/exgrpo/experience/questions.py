"""Statistics of each question: its current accuracy, whether it is retired, and when it was replayed.

Flat arrays of one row a question, updated for whole batches. Derived values, such as the
questions in a bucket, are computed when asked for.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import ReplayConfig
from .difficulty import UNKNOWN, Windows, buckets_of, resolution_of
from .trajectory import FloatArray, IntArray
from .variance import GroupVariance

NEVER = -(1 << 31)
"""The step of a replay that never was."""


class QuestionStats:
    """Accuracy, reward standard deviation, retirement and replays of each question.

    Args:
        num_questions: Q; questions are numbered 0..Q-1.
        num_generations: K.
        config: difficulty, cooldown and limits.

    Attributes:
        resolution: R, buckets run over 0..R; K where difficulty is that of the latest group.
        successes, scorable: over which the accuracy is, (Q,); 0 scorable: never observed.
        bucket: of the accuracy, (Q,), or `UNKNOWN`.
        reward_std: standard deviation of the rewards of the latest fresh group, (Q,); NaN: never known.
        retired: (Q,).
        replayed_at: optimizer step of the latest replay, (Q,), or `NEVER`.
        replays: how often replay chose the question, (Q,).
        windows: latest groups, where difficulty is over a window.
        variance: which of the latest groups had none.
    """

    def __init__(self, num_questions: int, num_generations: int, config: ReplayConfig):
        self.config = config
        self.resolution = resolution_of(config, num_generations)
        self.successes = np.zeros(num_questions, np.int32)
        self.scorable = np.zeros(num_questions, np.int32)
        self.bucket: NDArray[Any] = np.full(num_questions, UNKNOWN, np.int8 if self.resolution < 127 else np.int32)
        self.reward_std = np.full(num_questions, np.nan, np.float32)
        self.retired = np.zeros(num_questions, bool)
        self.replayed_at = np.full(num_questions, NEVER, np.int32)
        self.replays = np.zeros(num_questions, np.int32)
        self.windows = Windows(config.difficulty_window) if config.difficulty == "window" else None
        self.variance = GroupVariance(num_questions)

    def __len__(self) -> int:
        return len(self.bucket)

    # What happens -----------------------------------------------------------------------------------------------

    def observe(self, questions: IntArray, successes: IntArray, scorable: IntArray, reward_std: FloatArray) -> None:
        """Set accuracies from the latest fresh groups, (n,) each; ignore groups without a scorable completion."""
        known = scorable > 0
        questions, successes, scorable = questions[known], successes[known], scorable[known]
        self.reward_std[questions] = reward_std[known]
        if self.windows is not None:
            successes, scorable = self.windows.add_many(questions, successes, scorable)
        self.successes[questions], self.scorable[questions] = successes, scorable
        self.bucket[questions] = buckets_of(successes, scorable, self.resolution)

    def chosen(self, questions: IntArray, step: int) -> None:
        """Count that replay chose these questions, and start their cooldown."""
        np.add.at(self.replays, questions, 1)
        self.replayed(questions, step)

    def replayed(self, questions: IntArray, step: int) -> None:
        """Start the cooldown of questions: one of their trajectories was replayed."""
        self.replayed_at[questions] = step

    def retire(self, questions: IntArray) -> None:
        """Take questions out of replay."""
        self.retired[questions] = True

    def bring_back(self, questions: IntArray) -> None:
        """Undo the retirement of questions."""
        self.retired[questions] = False

    # What follows -----------------------------------------------------------------------------------------------

    def accuracy(self, questions: IntArray) -> FloatArray:
        """Return accuracies, NaN where never observed."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.successes[questions] / self.scorable[questions])

    def rests(self, questions: IntArray | slice, now: int) -> NDArray[np.bool_]:
        """Return whether questions are within their cooldown at step `now`."""
        return np.asarray(self.replayed_at[questions].astype(np.int64) >= now - self.config.cooldown)

    def ready(self, count: NDArray[np.int32], now: int, despite_rest: bool = False) -> NDArray[Any]:
        """Return the bucket of every question that can be replayed, `UNKNOWN` for all others, (Q,).

        Args:
            count: stored trajectories, (Q,).
            now: optimizer steps done.
            despite_rest: whether those count that rest.
        """
        limit, cooldown = self.config.max_uses, self.config.cooldown and not despite_rest
        if self.config.mixing != "prompt":
            can = count > 0
        else:
            can = self.replays < limit if limit else np.ones(len(self), bool)
        can &= ~self.retired
        if cooldown:
            can &= ~self.rests(slice(None), now)
        found: NDArray[Any] = self.bucket - self.bucket.dtype.type(
            UNKNOWN
        )  # in place from here: four times as fast as np.where
        found *= can
        found += self.bucket.dtype.type(UNKNOWN)
        return found
