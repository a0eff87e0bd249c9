"""The experience buffer: which trajectories are stored, under which question, in which bucket.

Every call takes a batch, and its cost is proportional to the batch. Which questions are replayable, and in which bucket, is
derived when asked for. Token arrays are kept by a `TrajectoryStore`, so that they can live outside memory. Nothing here is
random: callers that draw pass a generator. The buffer at an earlier time can be rebuilt from its events (`replayed.py`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..config import ReplayConfig
from .candidates import Candidates
from .difficulty import UNKNOWN
from .events import Admitted, Evicted, Listener, Measured, ignore
from .policy_stats import PolicyStats, columns_of
from .queries import BufferQueries
from .questions import QuestionStats
from .room import Room
from .store import MemoryStore, TrajectoryStore
from .table import TrajectoryTable
from .trajectory import FloatArray, IntArray, Trajectory


class ExperienceBuffer(BufferQueries):
    """The stored trajectories by question, and the questions by bucket.

    A question is *replayable* while its accuracy is known, it has a stored trajectory (with `prompt` mixing it needs none),
    is not retired and does not rest; only such a question is in a bucket.

    Args:
        num_questions: questions are numbered 0..num_questions-1.
        num_generations: K.
        config: capacities, eviction, difficulty, cooldown and limits; the defaults if None.
        store: where token arrays live; memory by default.
        listener: sees `Admitted`, `Evicted` and `Measured` as they happen.
        types: problem type of each question, (Q,), 0 and up; each type has its own buckets. One for all by default.

    Attributes:
        questions: statistics of each question.
        table: records of the stored trajectories.
        resolution: R, buckets run over 0..R.
        now: optimizer steps done.
    """

    def __init__(
        self, num_questions: int, num_generations: int, config: ReplayConfig | None = None,
        store: TrajectoryStore | None = None, listener: Listener = ignore, types: IntArray | None = None,
    ):  # fmt: skip
        self.config = config = config or ReplayConfig()
        self.num_questions = num_questions
        self.num_generations = num_generations
        self.store: TrajectoryStore = store if store is not None else MemoryStore()
        self.listener = listener
        self.questions = QuestionStats(num_questions, num_generations, config)
        self.table = TrajectoryTable(num_questions, config.capacity_per_question)
        self.resolution = self.questions.resolution
        self.now = 0
        self.types = np.zeros(num_questions, np.int32) if types is None else np.asarray(types, np.int32)
        self.num_types = int(self.types.max(initial=0)) + 1

    # What is stored ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.table.size

    @property
    def retired(self) -> NDArray[np.bool_]:
        """A view of which questions are retired, (Q,)."""
        return self.questions.retired

    def candidates(self, questions: Sequence[int] | IntArray, step: int, rng: np.random.Generator) -> Candidates:
        """Return the trajectories of questions, for a choice among them."""
        return Candidates(self, *self.table.slots_of_each(np.asarray(questions, np.int64)), step, self.config, rng)

    def get_many(self, slots: Sequence[int] | IntArray) -> list[Trajectory]:
        return self.store.get_many(self.column("serial")[np.asarray(slots, np.int64)].tolist())

    # What can be replayed ---------------------------------------------------------------------------------------

    def ready(self, problem_type: int | None = None, despite_rest: bool = False) -> NDArray[Any]:
        """Return the bucket of each replayable question, of one problem type or of all; -1 for the others, (Q,)."""
        found = self.questions.ready(self.count, self.now, despite_rest)
        if problem_type is None or self.num_types == 1:
            return found
        return np.where(self.types == problem_type, found, UNKNOWN)

    def rests(self, questions: IntArray) -> NDArray[np.bool_]:
        """Return whether questions are within their cooldown."""
        return self.questions.rests(questions, self.now)

    # What happens -----------------------------------------------------------------------------------------------

    def advance(self, step: int) -> None:
        """Set the current step: questions whose cooldown is over can be replayed again."""
        self.now = step

    def observe(
        self, questions: ArrayLike, successes: ArrayLike, scorable: ArrayLike, reward_std: ArrayLike = np.nan,
    ) -> None:  # fmt: skip
        """Set accuracies from the latest fresh groups; ignore those without a scorable completion."""
        arrays = (np.atleast_1d(values) for values in (questions, successes, scorable, reward_std))
        self.questions.observe(*np.broadcast_arrays(*arrays))

    def retire(self, questions: ArrayLike) -> None:
        """Take questions out of replay, and evict their trajectories."""
        questions = np.atleast_1d(questions)
        self.questions.retire(questions)
        slots, valid = self.table.slots_of_each(questions)
        self.remove(slots[valid], "retired")

    def admit(self, trajectories: Sequence[Trajectory]) -> list[int | None]:
        """Store trajectories, as if they came one by one; return their serials.

        The serial is None where a trajectory was not stored: its question already holds these token ids, its question is
        retired, or the capacity is 0.
        """
        questions = np.array([one.question for one in trajectories if self.config.capacity], np.int64)
        coming: list[int] = np.flatnonzero(~self.retired[questions]).tolist()
        room = Room(self, len(coming))
        new = [coming[place] for place in room.admit([trajectories[place] for place in coming])] if coming else []
        serials = np.arange(self.next_serial - len(new), self.next_serial)
        admitted = tuple(trajectories[place] for place in new)
        if new:
            self.store.put_many(serials.tolist(), admitted)
            self.listener(Admitted(serials, admitted))
        self.remove(np.array(room.left, np.int64), tuple(room.reasons))
        serial_at = dict(zip(new, serials.tolist(), strict=True))
        return [serial_at.get(place) for place in range(len(trajectories))]

    def update_stats(
        self, slots: Sequence[int] | IntArray, scores: Sequence[PolicyStats] | FloatArray, step: int
    ) -> None:
        """Store measurements under the policy of `step`: `PolicyStats`, or entropies alone (nats)."""
        slots = np.asarray(slots, np.int64)
        event = Measured(self.column("serial")[slots], self.column("question")[slots], step, *columns_of(scores))
        self.table.measure(slots, event)
        self.listener(event)

    def count_uses(self, slots: ArrayLike) -> None:
        """Count a use of trajectories."""
        self.table.use(np.atleast_1d(slots))

    def expire(self, step: int) -> int:
        """Evict trajectories from before a step; return how many."""
        slots = self.table.older_than(step)
        self.remove(slots, "age")
        return len(slots)

    def wear_out(self, slots: ArrayLike) -> None:
        """Evict trajectories that reached the limit of uses."""
        self.remove(np.atleast_1d(slots), "uses")

    def shrink(self) -> None:
        """Evict what exceeds the capacities: those of a restored buffer may have been larger."""
        room = Room(self)
        room.shrink()
        self.remove(np.array(room.left, np.int64), tuple(room.reasons))

    def remove(self, slots: IntArray, reason: str | tuple[str, ...]) -> None:
        """Evict trajectories, for one reason or one each."""
        if not len(slots):
            return
        serials, questions = self.column("serial")[slots], self.column("question")[slots]
        self.table.remove(slots)
        self.store.drop_many(serials.tolist())
        self.listener(Evicted(serials, questions, reason))
