"""Recent groups without variance: how many in a row each question has had, and since when it has not been asked."""

import numpy as np
from numpy.typing import NDArray

from .trajectory import FloatArray, IntArray

NEVER = -(1 << 31)


class GroupVariance:
    """Flat arrays of one row a question.

    Args:
        num_questions: Q.

    Attributes:
        streak: z, groups in a row without variance, (Q,): above 0 where the latest was all right, below 0 where it was not.
        skips: passes in a row in which the question was left out, (Q,).
        asked_at: generation in which it was last asked, (Q,), or `NEVER`.
    """

    def __init__(self, num_questions: int):
        self.streak = np.zeros(num_questions, np.int32)
        self.skips = np.zeros(num_questions, np.int32)
        self.asked_at = np.full(num_questions, NEVER, np.int32)

    def observe(
        self, questions: IntArray, successes: IntArray, scorable: IntArray, reward_std: FloatArray, generation: int
    ) -> None:
        """Update from fresh groups, (n,) each; ignore those with fewer than two scorable completions."""
        self.asked_at[questions], self.skips[questions] = generation, 0
        solved = successes == scorable
        equal = np.where(np.isnan(reward_std), solved | (successes == 0), reward_std == 0)
        z = np.where(equal, np.abs(self.streak[questions]) + 1, 0)
        told = scorable > 1
        self.streak[questions[told]] = np.where(solved, z, -z)[told]

    def skip(self, questions: IntArray) -> None:
        """Count that questions were left out."""
        np.add.at(self.skips, questions, 1)

    def least_recent(self, among: NDArray[np.bool_]) -> IntArray:
        """Return some questions, (Q,) of bool, those first that were asked longest ago."""
        questions = np.flatnonzero(among)
        return np.asarray(questions[np.argsort(self.asked_at[questions], kind="stable")])
