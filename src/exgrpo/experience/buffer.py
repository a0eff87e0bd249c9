"""The experience buffer: which trajectories are stored, under which question, in which bucket.

Flat arrays, a record of 64 bytes a trajectory (`index.py`) and some forty bytes a question, so that a change touches few
cache lines; every change takes constant time (it grows with the trajectories of one question only), and nothing slows
down as the pool grows. Token arrays stay behind `TrajectoryStore`, so that they can live elsewhere than in memory. No
randomness: who draws passes a generator.

The same buffer follows from the events it told of (`apply`), or from what it was at some moment (`snapshot`, `restore`).
"""

import hashlib
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import ReplayConfig
from .candidates import Candidates
from .difficulty import Windows, bucket_of, resolution_of
from .events import (
    Admitted,
    Event,
    Evicted,
    Listener,
    Measured,
    Observed,
    Planned,
    Replayed,
    Retired,
    Returned,
    Stored,
    ignore,
)  # fmt: skip
from .eviction import eviction_named, oldest
from .index import NONE, TrajectoryIndex
from .pools import Pool
from .store import MemoryStore, TrajectoryStore
from .trajectory import FloatArray, IntArray, Scores, Trajectory

NEVER = -(1 << 31)
"""The step of a replay that never was."""

_QUESTION = np.dtype(
    [
        ("successes", "i4"), ("scorable", "i4"), ("place", "i4"), ("pool", "i4"), ("replayed_at", "i4"), ("replays", "i4"),
        ("spread", "f4"), ("retired", "?"),
    ],
    align=True,
)  # fmt: skip

SNAPSHOT_BY_QUESTION = ("accuracy", "retired", "replayed_at", "replays", "spread")
"""Arrays of a snapshot with one row for each question."""
SNAPSHOT_OF_QUESTIONS = ("question", "pools", "window_question", "resting")
"""Arrays of a snapshot that hold question numbers."""
SNAPSHOT_FILL: Mapping[str, float] = MappingProxyType({"replayed_at": NEVER, "spread": float("nan")})
"""What stands in an array by question where a question was never seen; 0 elsewhere."""


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
        types: problem type of each question, (Q,), 0 and up; buckets are kept for each. One for all by default.

    Attributes:
        resolution: R, buckets run over 0..R; K where difficulty is that of the latest group.
        now: optimizer steps done, as `advance` was told.
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
        self.resolution = resolution_of(config, num_generations)
        self.store: TrajectoryStore = store if store is not None else MemoryStore()
        self.listener = listener
        self.index = TrajectoryIndex(num_questions, config.capacity_per_question)
        self.num_retired = 0
        self.now = 0
        self.types = np.zeros(num_questions, np.int32) if types is None else np.asarray(types, np.int32)
        self.num_types = int(self.types.max(initial=0)) + 1
        self._needs_trajectory = config.mixing != "prompt"
        self._eviction = eviction_named(config.eviction)
        self._questions = np.zeros(num_questions, _QUESTION)
        self._questions["pool"] = self._questions["place"] = NONE
        self._questions["replayed_at"], self._questions["spread"] = NEVER, np.nan
        self._pools = self._no_pools()
        self._resting: deque[int] = deque()
        self._windows = Windows(config.difficulty_window) if config.difficulty == "window" else None

    def _no_pools(self) -> list[Pool]:
        return [Pool() for _ in range(self.num_types * (self.resolution + 1))]

    # Of each question, (Q,): views ------------------------------------------------------------------------------

    @property
    def successes(self) -> NDArray[np.int32]:
        return self._questions["successes"]

    @property
    def scorable(self) -> NDArray[np.int32]:
        """Scorable completions that the accuracy is over; 0: never observed."""
        return self._questions["scorable"]

    @property
    def spread(self) -> NDArray[np.float32]:
        """Standard deviation of the rewards of the latest fresh group; NaN: never known."""
        return self._questions["spread"]

    @property
    def replays(self) -> NDArray[np.int32]:
        """How often a question was replayed."""
        return self._questions["replays"]

    @property
    def retired(self) -> NDArray[np.bool_]:
        return self._questions["retired"]

    @property
    def count(self) -> NDArray[np.int32]:
        """Stored trajectories."""
        return self.index.count

    def accuracy(self, questions: IntArray) -> FloatArray:
        """Of each, NaN where never observed."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.successes[questions] / self.scorable[questions])

    def buckets(self, questions: IntArray) -> IntArray:
        """Of each replayable question the bucket that it is in."""
        return np.asarray(self._questions["pool"][questions] % (self.resolution + 1))

    # What is stored ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.index.size

    @property
    def next_serial(self) -> int:
        return self.index.next_serial

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

    def get_many(self, slots: Sequence[int]) -> list[Trajectory]:
        return self.store.get_many(self.column("serial")[np.asarray(slots, np.int64)].tolist())

    def bucket_sizes(self, kind: int | None = None) -> NDArray[np.int64]:
        """Replayable questions in each bucket, shape (R+1,), of all problem types or of one."""
        sizes = np.array([len(pool) for pool in self._pools], np.int64).reshape(self.num_types, -1)
        return np.asarray(sizes.sum(0) if kind is None else sizes[kind])

    def questions_in(self, bucket: int, places: IntArray | None = None, kind: int = 0) -> NDArray[np.int32]:
        """Questions of a problem type at the given places of a bucket, or all of them, in no meaningful but a reproducible
        order."""
        members = self._pools[kind * (self.resolution + 1) + bucket].members
        return members if places is None else members[places]

    def replayable(self, kind: int | None = None) -> NDArray[np.int32]:
        """All questions that can be replayed, of all problem types or of one, bucket after bucket."""
        width = self.resolution + 1
        pools = self._pools if kind is None else self._pools[kind * width : (kind + 1) * width]
        return np.concatenate([pool.members for pool in pools])

    @property
    def num_resting(self) -> int:
        """Questions that could be replayed but for their cooldown."""
        return sum(self._target(question, False) != NONE for question in set(self._resting))

    @property
    def num_replayable(self) -> int:
        return sum(len(pool) for pool in self._pools)

    # What happens -----------------------------------------------------------------------------------------------

    def advance(self, step: int) -> None:
        """Time passes: questions whose cooldown is over can be replayed again."""
        self.now = step
        while self._resting and not self.rests(self._resting[0]):
            self._settle(self._resting.popleft())

    def observe(self, question: int, successes: int, scorable: int, spread: float = np.nan) -> None:
        """Set a question's accuracy from its latest fresh group; a group without a scorable completion says nothing."""
        if scorable:
            if self._windows is not None:
                successes, scorable = self._windows.add(question, successes, scorable)
            self.successes[question], self.scorable[question] = successes, scorable
            self.spread[question] = spread
            self._settle(question)

    def replayed(self, question: int, step: int) -> None:
        """A question was replayed: it rests, if there is a cooldown."""
        self._questions["replayed_at"][question] = step
        self._questions["replays"][question] += 1
        if self.config.cooldown:
            self._resting.append(question)
        self._settle(question)

    def retire(self, question: int) -> None:
        """Take a question out of replay; its trajectories leave."""
        self._mark_retired(question, True)
        for slot in self.slots_of(question):
            self._remove(slot, "retired")
        self._settle(question)

    def bring_back(self, question: int) -> None:
        """A retired question is one like any other again."""
        self._mark_retired(question, False)
        self._settle(question)

    def admit(self, trajectory: Trajectory) -> int | None:
        """Store a trajectory; return its serial, or None where it was not stored: its question already holds these
        token ids, its question is retired, or the capacity is 0."""
        question, config = trajectory.question, self.config
        slots = self.index.slots_of(question)
        known = (self.column("digest")[slots] == np.uint64(trajectory.digest)).any()
        if config.capacity == 0 or self.retired[question] or known:
            return None
        if len(slots) >= config.capacity_per_question:
            self._remove(self._leaver(slots), "capacity_per_question")
        while self.index.size >= config.capacity:
            self._remove(self._leaver(None), "capacity")
        serial = self.next_serial
        self.index.insert(Stored.of(serial, trajectory))
        self.store.put(serial, trajectory)
        self._settle(question)
        self.listener(Admitted(serial, trajectory))
        return serial

    def measured(self, slots: Sequence[int], scores: "Sequence[Scores] | FloatArray", step: int) -> None:
        """Write down what was measured under the policy of `step`: `Scores`, or entropies alone (nats)."""
        for slot, given in zip(slots, scores, strict=True):
            s = given if isinstance(given, Scores) else Scores(float(given))
            serial, question = int(self.column("serial")[slot]), int(self.column("question")[slot])
            event = Measured(
                serial, question, step, s.entropy, s.nll, s.confidence, s.confidence_variance, s.drift
            )  # fmt: skip
            self.index.measure(slot, event)
            self.listener(event)

    def used(self, slot: int) -> None:
        """A trajectory was replayed."""
        self.index.records["uses"][slot] += 1

    def expire(self, step: int) -> int:
        """Trajectories from before a step leave; returns how many."""
        slots = self.index.older_than(step)
        for slot in slots:
            self._remove(slot, "age")
        return len(slots)

    def wear_out(self, slot: int) -> None:
        """A trajectory leaves because it was used as often as is allowed."""
        self._remove(slot, "uses")

    def shrink(self) -> None:
        """Let trajectories leave that are too many for the capacities: those of a restored buffer may have been larger."""
        for question in np.flatnonzero(self.count > self.config.capacity_per_question).tolist():
            while int(self.count[question]) > self.config.capacity_per_question:
                self._remove(self._leaver(self.index.slots_of(question)), "capacity_per_question")
        while self.index.size > self.config.capacity:
            self._remove(self._leaver(None), "capacity")

    # What it was ------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Let happen again what happened once; tells no one, and leaves the store alone.

        Raises:
            ValueError: it cannot have happened to this buffer.
        """
        if isinstance(event, Planned):
            self.advance(event.step)
        elif isinstance(event, Observed):
            self.observe(event.question, event.successes, event.scorable, event.spread)
            if event.replayed and not self._needs_trajectory:
                self.replayed(event.question, event.step)
        elif isinstance(event, Admitted):
            self.apply(Stored.of(event.serial, event.trajectory))
        elif isinstance(event, Stored):
            self.index.insert(event)
            self._settle(event.question)
        elif isinstance(event, Evicted):
            self.index.remove(self._slot_of(event.question, event.serial))
            self._settle(event.question)
        elif isinstance(event, (Retired, Returned)):
            self._mark_retired(event.question, isinstance(event, Retired))
            self._settle(event.question)
        elif isinstance(event, Measured):
            self.index.measure(self._slot_of(event.question, event.serial), event)
        elif isinstance(event, Replayed):
            self.used(self._slot_of(event.question, event.serial))
            self.replayed(event.question, event.step)

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Everything but the token arrays, as arrays of their own.

        Returns:
            Of the trajectories `serial`, `digest`, `question`, `step`, `entropy` and so on: (N,), oldest first; of the
            questions `accuracy`: (Q, 2), successes and scorable, `retired`, `replayed_at`, `replays`, `spread`: (Q,);
            `pools`: replayable questions bucket after bucket, each in the order from which places are drawn; `resting`:
            questions that wait for the end of their cooldown, in its order; `window_question`, `window_groups` (n, 2):
            groups of the windows; `next_serial`, `now`: ().
        """
        rows = self._windows.rows() if self._windows is not None else []
        windows = np.array(rows, np.int32).reshape(-1, 3)
        return self.index.snapshot() | {
            "accuracy": np.stack([self.successes, self.scorable], 1),
            **{name: self._questions[name].copy() for name in SNAPSHOT_BY_QUESTION[1:]},
            "pools": self.replayable(),
            "resting": np.array(self._resting, np.int32),
            "window_question": windows[:, 0],
            "window_groups": windows[:, 1:],
            "now": np.array(self.now, np.int64),
        }

    def restore(self, snapshot: Mapping[str, NDArray[Any]]) -> None:
        """Become what another buffer was, into a buffer that holds nothing yet."""
        if self.index.size or self.next_serial:
            raise ValueError("restore: the buffer must be empty")
        self._questions["successes"], self._questions["scorable"] = snapshot["accuracy"].T
        for name in SNAPSHOT_BY_QUESTION[1:]:
            self._questions[name] = snapshot[name]
        self.num_retired = int(snapshot["retired"].sum())
        self.now = int(snapshot["now"])
        self.index.restore(snapshot)
        if self.config.cooldown:
            resting = snapshot["resting"].tolist()
            others = np.flatnonzero(self._questions["replayed_at"] >= self.now - self.config.cooldown)
            self._resting = deque(
                [*resting, *sorted(set(others.tolist()) - set(resting))]
            )  # others: it was longer since
        if self._windows is not None:
            groups = zip(snapshot["window_question"].tolist(), snapshot["window_groups"].tolist(), strict=True)
            self._windows.restore((question, *group) for question, group in groups)
        for question in snapshot["pools"].tolist():
            self._settle(question)
        for question in np.flatnonzero((self._questions["pool"] == NONE) & (self.scorable > 0)).tolist():
            self._settle(question)  # under other options more may be replayable than were

    def reorder(self) -> None:
        """Put the members of each bucket in the order of their numbers: where buckets changed, their history says nothing."""
        members = np.sort(self.replayable())
        self._pools = self._no_pools()
        self._questions["pool"] = self._questions["place"] = NONE
        for question in members.tolist():
            self._settle(question)

    def fingerprint(self) -> str:
        """A hash of everything that later choices depend on: equal on two processes if and only if they agree."""
        digest = hashlib.blake2b(digest_size=16)
        for name, array in sorted(self.snapshot().items()):
            digest.update(name.encode() + array.tobytes())
        for pool in self._pools:
            digest.update(len(pool).to_bytes(4, "little"))
        slots = self.live_slots()
        slots = slots[np.argsort(self.column("serial")[slots])]
        for trajectory in self.get_many(slots.tolist()):
            digest.update(trajectory.behaviour_logps.tobytes() + trajectory.rewards.tobytes())
        return digest.hexdigest()

    # Inside -----------------------------------------------------------------------------------------------------

    def _mark_retired(self, question: int, retired: bool) -> None:
        self.num_retired += int(retired) - int(self.retired[question])
        self.retired[question] = retired

    def _slot_of(self, question: int, serial: int) -> int:
        slot = self.find(question, serial)
        if slot is None:
            raise ValueError(f"no trajectory {serial} of question {question} is stored")
        return slot

    def _leaver(self, slots: IntArray | None) -> int:
        """Which slot makes room, among those of a question (oldest first) or among all."""
        if self._eviction.rule is oldest:  # asked at every admission of a full buffer
            return self.index.first if slots is None else int(slots[0])
        if slots is None and self._eviction.of_oldest_question:
            slots = self.index.slots_of(int(self.column("question")[self.index.first]))
        if slots is None:
            live = self.live_slots()
            slots = live[np.argsort(self.column("serial")[live])]
        row = slots[None]
        rng = np.random.default_rng(0)  # a rule that draws draws the same everywhere
        candidates = Candidates(self, row, np.ones(row.shape, bool), self.now, self.config, rng)
        return int(slots[self._eviction.place(candidates)])

    def _remove(self, slot: int, reason: str) -> None:
        question, serial = int(self.column("question")[slot]), int(self.column("serial")[slot])
        self.index.remove(slot)
        self.store.drop(serial)
        self._settle(question)
        self.listener(Evicted(serial, question, reason))

    def rests(self, question: int) -> bool:
        """Whether a question is within its cooldown."""
        since = self.now - int(self._questions["replayed_at"][question])
        return bool(self.config.cooldown) and since <= self.config.cooldown

    def _settle(self, question: int) -> None:
        """Put a question where it belongs: into the bucket of its accuracy while it is replayable, else nowhere."""
        target = self._target(question, True)
        current, place = int(self._questions["pool"][question]), int(self._questions["place"][question])
        if current == target:
            return
        if current != NONE:
            moved = self._pools[current].remove(place)
            if moved is not None:
                self._questions["place"][moved] = place
        self._questions["pool"][question] = target
        self._questions["place"][question] = NONE if target == NONE else self._pools[target].add(question)

    def _target(self, question: int, resting_counts: bool) -> int:
        """The pool of a question that can be replayed, else NONE."""
        successes, scorable, _, _, _, replays, _, retired = self._questions[question].item()
        if not scorable or retired or (resting_counts and self.rests(question)):
            return NONE
        limit = self.config.max_uses
        if not (self.count[question] if self._needs_trajectory else not limit or replays < limit):
            return NONE
        bucket = bucket_of(successes, scorable, self.resolution)
        return int(self.types[question]) * (self.resolution + 1) + bucket
