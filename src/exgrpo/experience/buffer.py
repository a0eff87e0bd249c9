"""The experience buffer: which trajectories are stored, under which question, in which bucket.

Everything comes in batches and costs in proportion to them. Who is replayable, and in which bucket, is derived when it is
asked for. Token arrays stay behind `TrajectoryStore`, so that they can live elsewhere than in memory. No randomness: who
draws passes a generator. What the buffer was at some moment follows from its events: `replayed.py`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..config import ReplayConfig
from .candidates import Candidates
from .events import Admitted, Evicted, Listener, Measured, Stored, ignore
from .index import TrajectoryIndex
from .questions import UNKNOWN, QuestionStats
from .room import Room
from .store import MemoryStore, TrajectoryStore
from .trajectory import FloatArray, IntArray, Scores, Trajectory


class ExperienceBuffer:
    """Trajectories by question, questions by bucket.

    A question is *replayable* while its accuracy is known, it has a stored trajectory (with `prompt` mixing it needs none),
    is not retired and does not rest; only such a question is in a bucket.

    Args:
        num_questions: questions are numbered 0..num_questions-1.
        num_generations: K.
        config: capacities, eviction, difficulty, cooldown and limits; the defaults if None.
        store: where token arrays live; memory by default.
        listener: sees `Admitted`, `Evicted` and `Measured` as they happen.
        types: problem type of each question, (Q,), 0 and up; buckets are told apart for each. One for all by default.

    Attributes:
        questions: what is known of each question.
        index: what is known of each stored trajectory.
        resolution: R, buckets run over 0..R.
        now: optimizer steps done.
    """

    def __init__(
        self,
        num_questions: int,
        num_generations: int,
        config: ReplayConfig | None = None,
        store: TrajectoryStore | None = None,
        listener: Listener = ignore,
        types: IntArray | None = None,
    ):
        self.config = config = config or ReplayConfig()
        self.num_questions = num_questions
        self.num_generations = num_generations
        self.store: TrajectoryStore = store if store is not None else MemoryStore()
        self.listener = listener
        self.questions = QuestionStats(num_questions, num_generations, config)
        self.index = TrajectoryIndex(num_questions, config.capacity_per_question)
        self.resolution = self.questions.resolution
        self.now = 0
        self.types = np.zeros(num_questions, np.int32) if types is None else np.asarray(types, np.int32)
        self.num_types = int(self.types.max(initial=0)) + 1

    # What is stored ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.index.size

    @property
    def next_serial(self) -> int:
        return self.index.next_serial

    @property
    def count(self) -> NDArray[np.int32]:
        """Stored trajectories of each question, (Q,)."""
        return self.index.count

    @property
    def retired(self) -> NDArray[np.bool_]:
        """Whether each question is retired, (Q,)."""
        return self.questions.retired

    @property
    def num_retired(self) -> int:
        return int(np.count_nonzero(self.retired))

    def slots_of(self, question: int) -> list[int]:
        """Slots of a question's trajectories, newest first."""
        slots: list[int] = self.index.slots_of(question)[::-1].tolist()
        return slots

    def column(self, name: str) -> NDArray[Any]:
        """A view of one column of the index over all slots."""
        return self.index.records[name]

    def find(self, question: int, serial: int) -> int | None:
        """The slot of a trajectory, or None if it has left."""
        return self.index.find(question, serial)

    def live_slots(self) -> IntArray:
        """Slots in use, in ascending order; time and memory grow with the pool."""
        return self.index.live()

    def candidates(self, questions: Sequence[int] | IntArray, step: int, rng: np.random.Generator) -> Candidates:
        """The trajectories of questions, for a choice among them."""
        return Candidates(self, *self.index.slots_of_each(np.asarray(questions, np.int64)), step, self.config, rng)

    def get(self, slot: int) -> Trajectory:
        return self.get_many([slot])[0]

    def get_many(self, slots: Sequence[int] | IntArray) -> list[Trajectory]:
        return self.store.get_many(self.column("serial")[np.asarray(slots, np.int64)].tolist())

    # What can be replayed ---------------------------------------------------------------------------------------

    def ready(self, kind: int | None = None, despite_rest: bool = False) -> NDArray[Any]:
        """The bucket of every question that can be replayed, of all problem types or of one; -1 for all others, (Q,)."""
        found = self.questions.ready(self.count, self.now, despite_rest)
        return found if kind is None or self.num_types == 1 else np.where(self.types == kind, found, UNKNOWN)

    def bucket_sizes(self, kind: int | None = None) -> NDArray[np.int64]:
        """Replayable questions in each bucket, (R+1,), of all problem types or of one."""
        return sizes_of(self.ready(kind), self.resolution)

    def questions_in(self, bucket: int, kind: int | None = None) -> IntArray:
        """Replayable questions in a bucket, of all problem types or of one, in the order of their numbers."""
        return np.flatnonzero(self.ready(kind) == bucket)

    def replayable(self, kind: int | None = None) -> IntArray:
        """All questions that can be replayed, of all problem types or of one, in the order of their numbers."""
        return np.flatnonzero(self.ready(kind) != UNKNOWN)

    @property
    def num_replayable(self) -> int:
        return int(np.count_nonzero(self.ready() != UNKNOWN))

    @property
    def num_resting(self) -> int:
        """Questions that could be replayed but for their cooldown."""
        return int(np.count_nonzero(self.ready(despite_rest=True) != UNKNOWN)) - self.num_replayable

    def rests(self, questions: IntArray) -> NDArray[np.bool_]:
        """Whether questions are within their cooldown."""
        return self.questions.rests(questions, self.now)

    # What happens -----------------------------------------------------------------------------------------------

    def advance(self, step: int) -> None:
        """Time passes: questions whose cooldown is over can be replayed again."""
        self.now = step

    def observe(
        self, questions: ArrayLike, successes: ArrayLike, scorable: ArrayLike, spread: ArrayLike = np.nan
    ) -> None:
        """Set the accuracies of questions from their latest fresh groups; one without a scorable completion says nothing."""
        arrays = (np.atleast_1d(values) for values in (questions, successes, scorable, spread))
        self.questions.observe(*np.broadcast_arrays(*arrays))

    def retire(self, questions: ArrayLike) -> None:
        """Take questions out of replay; their trajectories leave."""
        questions = np.atleast_1d(questions)
        self.questions.retire(questions)
        slots, valid = self.index.slots_of_each(questions)
        self.remove(slots[valid], "retired")

    def admit(self, trajectories: Sequence[Trajectory]) -> list[int | None]:
        """Store trajectories, as if they came one by one; return their serials.

        None where one was not stored: its question already holds these token ids, its question is retired, or the capacity
        is 0.
        """
        serials: list[int | None] = [None] * len(trajectories)
        retired, capacity = self.retired, self.config.capacity
        coming = [place for place, one in enumerate(trajectories) if capacity and not retired[one.question]]
        if not coming:
            return serials
        new = [trajectories[place] for place in coming]
        stored, room = Stored.of(np.empty(0, np.int64), new), Room(self, len(new))
        slots = self.index.stage(stored)
        try:
            places = room.admit(slots, stored.question, stored.digest)
        except BaseException:  # a rule of the user's may raise
            self.index.release(slots)
            raise
        self.index.link(slots[places], first := np.arange(self.next_serial, self.next_serial + len(places)))
        self.index.release(np.delete(slots, places))
        admitted = tuple(new[place] for place in places)
        for place, serial in zip(places, first.tolist(), strict=True):
            serials[coming[place]] = serial
        self.store.put_many(first.tolist(), admitted)
        if admitted:
            self.listener(Admitted(first, admitted))
        self.remove(np.array(room.left, np.int64), tuple(room.reasons))
        return serials

    def measured(self, slots: Sequence[int] | IntArray, scores: Sequence[Scores] | FloatArray, step: int) -> None:
        """Write down what was measured under the policy of `step`: `Scores`, or entropies alone (nats)."""
        slots = np.asarray(slots, np.int64)
        given = [s if isinstance(s, Scores) else Scores(float(s)) for s in scores]
        rows = [(s.entropy, s.nll, s.confidence, s.confidence_variance, s.drift) for s in given]
        event = Measured(
            self.column("serial")[slots], self.column("question")[slots], step, *np.array(rows, float).reshape(-1, 5).T
        )
        self.index.measure(slots, event)
        self.listener(event)

    def used(self, slots: ArrayLike) -> None:
        """Count a use of trajectories."""
        self.index.use(np.atleast_1d(slots))

    def expire(self, step: int) -> int:
        """Trajectories from before a step leave; returns how many."""
        slots = self.index.older_than(step)
        self.remove(slots, "age")
        return len(slots)

    def wear_out(self, slots: ArrayLike) -> None:
        """Trajectories leave because they were used as often as is allowed."""
        self.remove(np.atleast_1d(slots), "uses")

    def shrink(self) -> None:
        """Let trajectories leave that are too many for the capacities: those of a restored buffer may have been larger."""
        room = Room(self)
        room.shrink()
        self.remove(np.array(room.left, np.int64), tuple(room.reasons))

    def remove(self, slots: IntArray, reason: str | tuple[str, ...]) -> None:
        """Let trajectories leave, for one reason or one each."""
        if not len(slots):
            return
        serials, questions = self.column("serial")[slots], self.column("question")[slots]
        self.index.remove(slots)
        self.store.drop_many(serials.tolist())
        self.listener(Evicted(serials, questions, reason))


def sizes_of(ready: NDArray[Any], resolution: int) -> NDArray[np.int64]:
    """How many questions are in each bucket, (R+1,)."""
    if resolution > 16:
        return np.bincount(ready[ready != UNKNOWN], minlength=resolution + 1)
    return np.array([np.count_nonzero(ready == bucket) for bucket in range(resolution + 1)], np.int64)
