"""The experience buffer: which trajectories are stored, under which question, in which bucket.

An index in flat arrays, one record of 48 bytes a trajectory and some fifty a question, so that a change touches few
cache lines; every change takes constant time (it grows with the trajectories of one question only), and nothing slows
down as the pool grows. Token arrays stay behind `TrajectoryStore`, so that they can live elsewhere than in memory. No
randomness: who draws passes a generator.

The same buffer follows from the events it told of (`apply`), or from what it was at some moment (`snapshot`, `restore`).
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .difficulty import bucket_of
from .events import Admitted, Event, Evicted, Listener, Measured, Observed, Replayed, Retired, Stored, ignore
from .store import MemoryStore, TrajectoryStore
from .trajectory import FloatArray, IntArray, Trajectory

NONE = -1

_QUESTION = np.dtype(
    [("successes", "i4"), ("scorable", "i4"), ("count", "i4"), ("place", "i4"), ("bucket", "i2"), ("retired", "?")]
)
_SLOT = np.dtype(
    [
        ("serial", "i8"), ("digest", "u8"), ("question", "i4"), ("step", "i4"), ("entropy", "f4"), ("entropy_step", "i4"),
        ("uses", "i4"), ("prev", "i4"), ("next", "i4"),
    ],
    align=True,
)  # fmt: skip


_KEPT = ("serial", "digest", "question", "step", "entropy", "entropy_step", "uses")


class ExperienceBuffer:
    """Trajectories by question, questions by bucket.

    A question is *replayable* while it has a stored trajectory and is not retired; only such a question is in a bucket.

    Args:
        num_questions: questions are numbered 0..num_questions-1.
        num_generations: K; buckets run over 0..K.
        capacity: trajectories in all; 0 stores nothing.
        capacity_per_question: trajectories of one question.
        eviction: what leaves when full, `oldest` or `highest_entropy` (unmeasured counts as highest; where the whole
            buffer is full this looks at all of it, in time that grows with `capacity`).
        store: where token arrays live; memory by default.
        listener: sees `Admitted`, `Evicted` and `Measured` as they happen.
    """

    def __init__(
        self,
        num_questions: int,
        num_generations: int,
        capacity: int = 100_000,
        capacity_per_question: int = 8,
        eviction: str = "oldest",
        store: TrajectoryStore | None = None,
        listener: Listener = ignore,
    ):
        self.num_questions = num_questions
        self.num_generations = num_generations
        self.capacity = capacity
        self.capacity_per_question = capacity_per_question
        self.eviction = eviction
        self.store: TrajectoryStore = store if store is not None else MemoryStore()
        self.listener = listener
        self.next_serial = 0
        self.num_retired = 0
        self._size = 0
        self._questions = np.zeros(num_questions, _QUESTION)
        self._questions["bucket"] = self._questions["place"] = NONE
        self._table = np.full((num_questions, min(4, capacity_per_question)), NONE, np.int32)  # slots, oldest first
        self._buckets = [_Pool() for _ in range(num_generations + 1)]
        self._slots = np.zeros(16, _SLOT)  # a slot is used again, a serial never
        self._num_slots = 0
        self._free: list[int] = []
        self._first = NONE  # oldest of all, then by `next`
        self._last = NONE

    # Of each question, (Q,): views ------------------------------------------------------------------------------

    @property
    def successes(self) -> NDArray[np.int32]:
        return self._questions["successes"]

    @property
    def scorable(self) -> NDArray[np.int32]:
        """Scorable completions of the latest fresh group; 0: never observed."""
        return self._questions["scorable"]

    @property
    def retired(self) -> NDArray[np.bool_]:
        return self._questions["retired"]

    @property
    def count(self) -> NDArray[np.int32]:
        """Stored trajectories."""
        return self._questions["count"]

    # What is stored ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._size

    def slots_of(self, question: int) -> list[int]:
        """Slots of a question's trajectories, newest first."""
        slots: list[int] = self._table[question, : self.count[question]][::-1].tolist()
        return slots

    def slots_of_each(self, questions: Sequence[int]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Slots of several questions, oldest first, (n, W), and which of these places hold one."""
        rows = np.asarray(questions, np.int64)
        return self._table[rows], np.arange(self._table.shape[1]) < self.count[rows][:, None]

    def column(self, name: str) -> NDArray[Any]:
        """A view of one column over all slots: `question`, `serial`, `step`, `entropy`, `entropy_step` or `uses`."""
        return self._slots[name]

    def find(self, question: int, serial: int) -> int | None:
        """The slot of a trajectory, or None if it has left."""
        return next((slot for slot in self.slots_of(question) if self._slots["serial"][slot] == serial), None)

    def live_slots(self) -> IntArray:
        """Slots in use, in ascending order; time and memory grow with the pool (for reports, not for a step)."""
        used = np.ones(self._num_slots, bool)
        used[self._free] = False
        return np.flatnonzero(used)

    def get(self, slot: int) -> Trajectory:
        return self.get_many([slot])[0]

    def get_many(self, slots: Sequence[int]) -> list[Trajectory]:
        return self.store.get_many(self._slots["serial"][np.asarray(slots, np.int64)].tolist())

    def bucket_sizes(self) -> NDArray[np.int64]:
        """Replayable questions in each bucket, shape (K+1,)."""
        return np.array([len(pool) for pool in self._buckets], np.int64)

    def questions_in(self, bucket: int, places: IntArray | None = None) -> NDArray[np.int32]:
        """Questions at the given places of a bucket, or all of them, in no meaningful but a reproducible order."""
        members = self._buckets[bucket].members
        return members if places is None else members[places]

    @property
    def num_replayable(self) -> int:
        return sum(len(pool) for pool in self._buckets)

    # What happens -----------------------------------------------------------------------------------------------

    def observe(self, question: int, successes: int, scorable: int) -> None:
        """Set a question's accuracy from its latest fresh group; a group without a scorable completion says nothing."""
        if scorable:
            self.successes[question], self.scorable[question] = successes, scorable
            self._settle(question)

    def retire(self, question: int) -> None:
        """Take a question out of replay; its trajectories leave."""
        self._mark_retired(question)
        for slot in self.slots_of(question):
            self._remove(slot, "retired")
        self._settle(question)

    def admit(self, trajectory: Trajectory) -> int | None:
        """Store a trajectory; return its serial, or None where it was not stored: its question already holds these
        token ids, its question is retired, or the capacity is 0."""
        question, digest = trajectory.question, trajectory.digest
        slots = self._table[question, : self.count[question]]
        if self.capacity == 0 or self.retired[question] or (self._slots["digest"][slots] == np.uint64(digest)).any():
            return None
        if len(slots) >= self.capacity_per_question:
            self._remove(self._leaver(slots), "capacity_per_question")
        while self._size >= self.capacity:
            self._remove(self._leaver(None), "capacity")
        serial = self.next_serial
        self._insert(Stored(serial, digest, question, trajectory.step, trajectory.entropy, trajectory.measured_at))
        self.store.put(serial, trajectory)
        self._settle(question)
        self.listener(Admitted(serial, trajectory))
        return serial

    def measured(self, slots: Sequence[int], entropies: FloatArray, step: int) -> None:
        """Write down entropies (nats) measured under the policy of `step`."""
        for slot, entropy in zip(slots, entropies, strict=True):
            self._slots["entropy"][slot] = entropy
            self._slots["entropy_step"][slot] = step
            serial, question = int(self._slots["serial"][slot]), int(self._slots["question"][slot])
            self.listener(Measured(serial, question, step, float(entropy)))

    def used(self, slot: int) -> None:
        self._slots["uses"][slot] += 1

    # What it was ------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Let happen again what happened once; tells no one, and leaves the store alone.

        A buffer of the same size to which the events of another are applied, from its first on, becomes equal to it,
        whatever the capacities of the two: what leaves is what left then.
        """
        if isinstance(event, Observed):
            if event.scorable:
                self.successes[event.question], self.scorable[event.question] = event.successes, event.scorable
            self._settle(event.question)
        elif isinstance(event, Admitted):
            t = event.trajectory
            self.apply(Stored(event.serial, t.digest, t.question, t.step, t.entropy, t.measured_at))
        elif isinstance(event, Stored):
            self._insert(event)
            self._settle(event.question)
        elif isinstance(event, Evicted):
            self._take_out(self._slot_of(event.question, event.serial))
            self._settle(event.question)
        elif isinstance(event, Retired):
            self._mark_retired(event.question)
            self._settle(event.question)
        elif isinstance(event, Measured):
            slot = self._slot_of(event.question, event.serial)
            self._slots["entropy"][slot], self._slots["entropy_step"][slot] = event.entropy, event.step
        elif isinstance(event, Replayed):
            self.used(self._slot_of(event.question, event.serial))

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Everything but the token arrays, as arrays of their own.

        Returns:
            `serial`, `digest`, `question`, `step`, `entropy`, `entropy_step`, `uses`: (N,), oldest first; `accuracy`:
            (Q, 2), successes and scorable; `retired`: (Q,); `pools`: replayable questions bucket after bucket, each in
            the order from which places are drawn; `pool_sizes`: (K+1,); `next_serial`: ().
        """
        slots = self.live_slots()
        slots = slots[np.argsort(self._slots["serial"][slots])]
        return {name: self._slots[name][slots] for name in _KEPT} | {
            "accuracy": np.stack([self.successes, self.scorable], 1),
            "retired": self.retired.copy(),
            "pools": np.concatenate([pool.members for pool in self._buckets]),
            "pool_sizes": self.bucket_sizes(),
            "next_serial": np.array(self.next_serial, np.int64),
        }

    def restore(self, snapshot: Mapping[str, NDArray[Any]]) -> None:
        """Become what another buffer was, into a buffer that holds nothing yet."""
        if self._size or self.next_serial:
            raise ValueError("restore: the buffer must be empty")
        self._questions["successes"], self._questions["scorable"] = snapshot["accuracy"].T
        self._questions["retired"] = snapshot["retired"]
        self.num_retired = int(snapshot["retired"].sum())
        self.next_serial = int(snapshot["next_serial"])
        n, owners = len(snapshot["serial"]), snapshot["question"]
        self._size = self._num_slots = n
        self._slots = np.zeros(max(16, n), _SLOT)
        for name in _KEPT:
            self._slots[name][:n] = snapshot[name]
        self._slots["prev"][:n], self._slots["next"][:n] = np.arange(n) - 1, np.arange(n) + 1
        if n:
            self._first, self._last = 0, n - 1
            self._slots["next"][n - 1] = NONE
            counts = np.bincount(owners, minlength=self.num_questions)
            self._questions["count"] = counts
            self._table = np.full((self.num_questions, max(self._table.shape[1], counts.max())), NONE, np.int32)
            order = np.argsort(owners, kind="stable")  # by question, oldest first
            starts = np.cumsum(counts) - counts
            self._table[owners[order], np.arange(n) - starts[owners[order]]] = order
        for question in snapshot["pools"].tolist():
            self._settle(question)

    def reorder(self) -> None:
        """Put the members of each bucket in the order of their numbers: where K changed, their history says nothing."""
        members = np.sort(np.concatenate([pool.members for pool in self._buckets]))
        self._buckets = [_Pool() for _ in range(self.num_generations + 1)]
        self._questions["bucket"] = self._questions["place"] = NONE
        for question in members.tolist():
            self._settle(question)

    def shrink(self) -> None:
        """Let trajectories leave that are too many for the capacities: those of a restored buffer may have been larger."""
        for question in np.flatnonzero(self.count > self.capacity_per_question).tolist():
            while (count := int(self.count[question])) > self.capacity_per_question:
                self._remove(self._leaver(self._table[question, :count]), "capacity_per_question")
        while self._size > self.capacity:
            self._remove(self._leaver(None), "capacity")

    def fingerprint(self) -> str:
        """A hash of everything that later choices depend on: equal on two processes if and only if they agree."""
        digest = hashlib.blake2b(digest_size=16)
        slots = self.live_slots()
        slots = slots[np.argsort(self._slots["serial"][slots])]
        for name in ("successes", "scorable", "retired", "count", "bucket"):
            digest.update(self._questions[name].tobytes())
        for pool in self._buckets:
            digest.update(pool.members.tobytes())
        for name in _KEPT:
            digest.update(self._slots[name][slots].tobytes())
        for trajectory in self.get_many(slots.tolist()):
            digest.update(trajectory.behaviour_logps.tobytes() + trajectory.rewards.tobytes())
        digest.update(str(self.next_serial).encode())
        return digest.hexdigest()

    # Inside -----------------------------------------------------------------------------------------------------

    def _mark_retired(self, question: int) -> None:
        if not self.retired[question]:
            self.retired[question] = True
            self.num_retired += 1

    def _slot_of(self, question: int, serial: int) -> int:
        slot = self.find(question, serial)
        if slot is None:
            raise ValueError(f"no trajectory {serial} of question {question} is stored")
        return slot

    def _insert(self, stored: Stored) -> None:
        """A record at the end of the list of all, and of its question's."""
        slot, question = self._new_slot(), stored.question
        self._slots[slot] = (
            stored.serial, stored.digest, question, stored.step, stored.entropy, stored.measured_at, 0, self._last, NONE,
        )  # fmt: skip
        if self._last == NONE:
            self._first = slot
        else:
            self._slots["next"][self._last] = slot
        self._last = slot
        self._add_to_table(question, slot)
        self._size += 1
        self.next_serial = stored.serial + 1

    def _new_slot(self) -> int:
        if self._free:
            return self._free.pop()
        if self._num_slots == len(self._slots):
            self._slots = np.concatenate([self._slots, np.zeros_like(self._slots)])
        self._num_slots += 1
        return self._num_slots - 1

    def _add_to_table(self, question: int, slot: int) -> None:
        count, width = int(self.count[question]), self._table.shape[1]
        if count == width:
            wider = np.full(
                (self.num_questions, max(width + 1, min(2 * width, self.capacity_per_question))), NONE, np.int32
            )
            wider[:, :width] = self._table
            self._table = wider
        self._table[question, count] = slot
        self.count[question] = count + 1

    def _leaver(self, slots: NDArray[np.int32] | None) -> int:
        """Which slot makes room, among those of a question (oldest first) or among all."""
        if self.eviction == "oldest":
            return self._first if slots is None else int(slots[0])
        candidates = self.live_slots() if slots is None else slots
        entropies = self._slots["entropy"][candidates]
        entropies = np.where(np.isnan(entropies), np.inf, entropies)
        highest = candidates[entropies == entropies.max()]
        return int(highest[np.argmin(self._slots["serial"][highest])])  # of equals the oldest, whatever slot it has

    def _remove(self, slot: int, reason: str) -> None:
        question, serial = int(self._slots["question"][slot]), int(self._slots["serial"][slot])
        self._take_out(slot)
        self.store.drop(serial)
        self._settle(question)
        self.listener(Evicted(serial, question, reason))

    def _take_out(self, slot: int) -> None:
        """Remove a record from the list of all, and from its question's."""
        record = self._slots[slot]
        question, prev, following = (int(record[name]) for name in ("question", "prev", "next"))
        row, count = self._table[question], int(self.count[question])
        place = int(np.flatnonzero(row[:count] == slot)[0])
        row[place : count - 1] = row[place + 1 : count]
        row[count - 1] = NONE
        self.count[question] = count - 1
        if prev == NONE:
            self._first = following
        else:
            self._slots["next"][prev] = following
        if following == NONE:
            self._last = prev
        else:
            self._slots["prev"][following] = prev
        self._free.append(slot)
        self._size -= 1

    def _settle(self, question: int) -> None:
        """Put a question where it belongs: into the bucket of its accuracy while it is replayable, else nowhere."""
        successes, scorable, count, place, current, retired = self._questions[question].item()
        replayable = count and scorable and not retired
        target = bucket_of(successes, scorable, self.num_generations) if replayable else NONE
        if current == target:
            return
        if current != NONE:
            moved = self._buckets[current].remove(place)
            if moved is not None:
                self._questions["place"][moved] = place
        self._questions["bucket"][question] = target
        self._questions["place"][question] = NONE if target == NONE else self._buckets[target].add(question)


class _Pool:
    """A set of question ids in a flat array: constant-time add and remove (the last one fills the gap)."""

    def __init__(self) -> None:
        self._items = np.empty(16, np.int32)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def members(self) -> NDArray[np.int32]:
        return self._items[: self._size]

    def add(self, item: int) -> int:
        if self._size == self._items.size:
            self._items = np.resize(self._items, 2 * self._size)
        self._items[self._size] = item
        self._size += 1
        return self._size - 1

    def remove(self, place: int) -> int | None:
        """Remove what stands at `place`; return the item that now stands there, if any."""
        self._size -= 1
        if place == self._size:
            return None
        self._items[place] = self._items[self._size]
        return int(self._items[place])
