"""Evictions for a batch of new trajectories, with the same result as admitting them one by one."""

from collections.abc import Sequence

import numpy as np

from ..config import EVICTIONS
from ..errors import ConfigurationError
from .candidates import Candidates
from .events import Stored
from .queries import BufferQueries
from .table import NONE
from .trajectory import IntArray, Trajectory


class Room:
    """The decisions for one batch: what is stored and what leaves.

    The buffer itself is not changed, except that what is stored gets its serial.

    The buffer itself is not changed, except that what is stored gets its serial.

    Args:
        buffer: its capacities and its eviction rule hold.
        expected: how many trajectories will come at most.

    Attributes:
        left: slots that leave, in order.
        reasons: why, of each.
    """

    def __init__(self, buffer: BufferQueries, expected: int = 0):
        self.left: list[int] = []
        self.reasons: list[str] = []
        self._buffer, self._table, self._config = buffer, buffer.table, buffer.config
        self._rule = EVICTIONS[buffer.config.eviction]
        self._oldest_leaves = self._rule is EVICTIONS["oldest"]
        self._size = self._table.size
        self._came: list[int] = []
        self._gone: set[int] = set()
        self._held: dict[int, dict[int, int]] = {}  # question -> digest -> slot, oldest first
        surplus = max(0, self._size + expected - self._config.capacity)
        self._queue = iter(self._table.oldest(surplus).tolist())

    def admit(self, trajectories: Sequence[Trajectory]) -> list[int]:
        """Admit trajectories in order; return the places of those that are stored, without the duplicates."""
        stored = Stored.of(np.empty(0, np.int64), trajectories)
        slots = self._table.stage(stored)
        try:
            places = self._admit(slots, stored.question, stored.digest)
        except BaseException:  # a user's rule may raise
            self._table.release(slots)
            raise
        first = self._table.next_serial
        self._table.link(slots[places], np.arange(first, first + len(places)))
        self._table.release(np.delete(slots, places))
        return places

    def _admit(self, slots: IntArray, questions: IntArray, digests: IntArray) -> list[int]:
        """Decide for staged records, (n,) each."""
        self._hold(np.unique(questions))
        stored, serial, serials = [], self._table.next_serial, self._table.records["serial"]
        arrivals = zip(slots.tolist(), questions.tolist(), digests.tolist(), strict=True)
        for place, (slot, question, digest) in enumerate(arrivals):
            held = self._held[question]
            if digest in held:
                continue
            if len(held) >= self._config.capacity_per_question:
                self._leave(self._of_question(question), "capacity_per_question")
            while self._size >= self._config.capacity:
                self._leave(self._of_all(), "capacity")
            held[digest] = slot
            stored.append(place)
            self._came.append(slot)
            self._size += 1
            serials[slot], serial = serial, serial + 1
        return stored

    def shrink(self) -> None:
        """Evict what exceeds the capacities."""
        for question in np.flatnonzero(self._table.count > self._config.capacity_per_question).tolist():
            self._hold(np.array([question]))
            while len(self._held[question]) > self._config.capacity_per_question:
                self._leave(self._of_question(question), "capacity_per_question")
        while self._size > self._config.capacity:
            self._leave(self._of_all(), "capacity")

    def _hold(self, questions: IntArray) -> None:
        rows, _ = self._table.slots_of_each(questions)
        digests, counts = self._table.records["digest"][rows], self._table.count[questions]
        found = zip(questions.tolist(), digests.tolist(), rows.tolist(), counts.tolist(), strict=True)
        self._held |= {question: dict(zip(mine[:n], row[:n], strict=True)) for question, mine, row, n in found}

    def _leave(self, slot: int, reason: str) -> None:
        self.left.append(slot)
        self.reasons.append(reason)
        self._gone.add(slot)
        self._size -= 1

    def _of_question(self, question: int) -> int:
        """Take out and return the slot that makes room within a question."""
        held = self._held[question]
        if self._oldest_leaves:
            return held.pop(next(iter(held)))
        slots = [*held.values()]
        return held.pop([*held][slots.index(self._chosen(np.array(slots)))])

    def _of_all(self) -> int:
        """Take out and return the slot, of any question, that makes room in the whole buffer."""
        if self._oldest_leaves or self._rule.traits["of_oldest_question"]:
            slot = next((slot for slot in self._queue if slot not in self._gone), NONE)
            if slot == NONE:
                slot = next(slot for slot in self._came if slot not in self._gone)
        else:
            slots = self._table.in_order()  # staged ones have no serial yet
            slots = slots[self._table.records["serial"][slots] != NONE]
            slot = self._chosen(slots[~np.isin(slots, list(self._gone))])
        question, digest = (int(self._table.records[name][slot]) for name in ("question", "digest"))
        if self._rule.traits["of_oldest_question"] and not self._oldest_leaves:
            self._queue = iter([slot, *self._queue])  # another one may leave
            self._hold_again(question)
            return self._of_question(question)
        self._held.get(question, {}).pop(digest, None)
        return slot

    def _hold_again(self, question: int) -> None:
        """Look up the trajectories of a question that got none in this batch but may have lost some."""
        if question not in self._held:
            rows, valid = self._table.slots_of_each(np.array([question]))
            kept = [slot for slot in rows[valid].tolist() if slot not in self._gone]
            self._held[question] = {int(self._table.records["digest"][slot]): slot for slot in kept}

    def _chosen(self, slots: IntArray) -> int:
        row = slots[None]
        rng = np.random.default_rng(0)  # so that a random rule draws the same everywhere
        buffer = self._buffer
        candidates = Candidates(buffer, row, np.ones(row.shape, bool), buffer.now, self._config, rng)
        place, n = self._rule(candidates), len(slots)
        if isinstance(place, bool) or not isinstance(place, (int, np.integer)) or not 0 <= place < n:
            raise ConfigurationError(
                f"eviction {self._config.eviction!r} must return a place from 0 to {n - 1}, but gave {place!r}."
            )
        return int(slots[place])
