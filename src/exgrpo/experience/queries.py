"""Queries of a buffer for commands, metrics and tests; the method itself uses none of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import ReplayConfig
from .difficulty import UNKNOWN, sizes_of
from .questions import QuestionStats
from .table import TrajectoryTable
from .trajectory import IntArray, Trajectory


class BufferQueries:
    """Questions to the arrays of an `ExperienceBuffer`; most take time that grows with the pool."""

    questions: QuestionStats
    table: TrajectoryTable
    config: ReplayConfig
    now: int

    @property
    def next_serial(self) -> int:
        """Serial of the next trajectory to be stored."""
        return self.table.next_serial

    @property
    def count(self) -> NDArray[np.int32]:
        """Number of stored trajectories of each question, (Q,)."""
        return self.table.count

    def column(self, name: str) -> NDArray[Any]:
        """Return a view of one column of the table, over all slots."""
        return self.table.records[name]

    def ready(self, problem_type: int | None = None, despite_rest: bool = False) -> NDArray[Any]:
        """See `ExperienceBuffer.ready`."""
        raise NotImplementedError

    def get_many(self, slots: Sequence[int] | IntArray) -> list[Trajectory]:
        """See `ExperienceBuffer.get_many`."""
        raise NotImplementedError

    @property
    def num_retired(self) -> int:
        return int(np.count_nonzero(self.questions.retired))

    def slots_of(self, question: int) -> list[int]:
        """Return the slots of a question's trajectories, newest first."""
        slots: list[int] = self.table.slots_of(question)[::-1].tolist()
        return slots

    def find(self, question: int, serial: int) -> int | None:
        """Return the slot of a trajectory, or None if it has left."""
        return self.table.find(question, serial)

    def live_slots(self) -> IntArray:
        """Return the slots in use, in ascending order; time and memory grow with the pool."""
        return self.table.live()

    def get(self, slot: int) -> Trajectory:
        """Read a trajectory."""
        return self.get_many([slot])[0]

    def bucket_sizes(self, problem_type: int | None = None) -> NDArray[np.int64]:
        """Return the replayable questions in each bucket, (R+1,), of all problem types or of one."""
        return sizes_of(self.ready(problem_type), self.questions.resolution)

    def questions_in(self, bucket: int, problem_type: int | None = None) -> IntArray:
        """Return the replayable questions in a bucket, of all problem types or of one, in number order."""
        return np.flatnonzero(self.ready(problem_type) == bucket)

    def replayable(self, problem_type: int | None = None) -> IntArray:
        """Return all replayable questions, of all problem types or of one, in number order."""
        return np.flatnonzero(self.ready(problem_type) != UNKNOWN)

    @property
    def num_replayable(self) -> int:
        return int(np.count_nonzero(self.ready() != UNKNOWN))

    @property
    def num_resting(self) -> int:
        """Number of questions that only their cooldown keeps from being replayed."""
        return int(np.count_nonzero(self.ready(despite_rest=True) != UNKNOWN)) - self.num_replayable
