"""Candidates: the stored trajectories that a trajectory choice ranks or an eviction rule looks at, as arrays."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import ReplayConfig
from .queries import BufferQueries
from .trajectory import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Candidates:
    """The trajectories of n questions, oldest first in each row; arrays are (n, W).

    Args:
        buffer: that holds them.
        slots: (n, W).
        valid: which places hold one; what stands elsewhere in the other arrays means nothing.
        step: optimizer steps done.
        config: the options.
        rng: for choices that draw; to be used for the valid places only (`draw`).
    """

    buffer: BufferQueries
    slots: IntArray
    valid: NDArray[np.bool_]
    step: int
    config: ReplayConfig
    rng: np.random.Generator

    def column(self, name: str) -> NDArray[Any]:
        """Return a column of the table, (n, W)."""
        return np.asarray(self.buffer.column(name)[self.slots])

    def scores(self, name: str) -> FloatArray:
        """Return a column of numbers as float64, NaN where not known, (n, W)."""
        return np.asarray(self.column(name), np.float64)

    def draw(self) -> FloatArray:
        """Draw a number in [0, 1) for each valid place; all others get 1."""
        drawn = np.ones(self.valid.shape)
        drawn[self.valid] = self.rng.random(int(self.valid.sum()))
        return drawn

    @property
    def serial(self) -> IntArray:
        return self.column("serial")

    @property
    def accuracy(self) -> FloatArray:
        """Accuracy of each trajectory's question now, NaN where never observed."""
        return self.buffer.questions.accuracy(self.column("question"))

    @property
    def age(self) -> IntArray:
        """Optimizer steps since each was generated."""
        return np.asarray(self.step - self.column("step"))

    @property
    def uses(self) -> IntArray:
        return self.column("uses")

    @property
    def correct(self) -> NDArray[np.bool_]:
        return self.column("correct")

    @property
    def entropy(self) -> FloatArray:
        """Mean token entropy in nats, as last measured."""
        return self.scores("entropy")

    @property
    def nll(self) -> FloatArray:
        return self.scores("nll")

    @property
    def confidence(self) -> FloatArray:
        return self.scores("confidence")

    @property
    def confidence_variance(self) -> FloatArray:
        return self.scores("confidence_variance")

    @property
    def drift(self) -> FloatArray:
        """Mean squared log-ratio to the behaviour policy, as last measured."""
        return self.scores("drift")

    @property
    def quality(self) -> FloatArray:
        return self.scores("quality")

    @property
    def advantage(self) -> FloatArray:
        """Advantage in the group it came from, rounded to float16 and always finite."""
        return self.scores("advantage")

    @property
    def headroom(self) -> FloatArray:
        """Distance that the token probability can still move in the direction of the advantage.

        With pi the token mean: 1 - pi where the advantage is positive, pi where it is negative, 0 where it is zero, NaN
        where it is not known.

        With pi the token mean: 1 - pi where the advantage is positive, pi where it is negative, 0 where it is zero, NaN
        where it is not known.
        """
        advantage, confidence = self.advantage, self.confidence
        headroom = np.where(advantage > 0, 1 - confidence, np.where(advantage < 0, confidence, 0.0))
        return np.asarray(np.where(np.isnan(advantage), np.nan, headroom))
