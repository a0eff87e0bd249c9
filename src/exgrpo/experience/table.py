"""The table of stored trajectories: one record of 56 bytes each, found by question or by age.

A batch takes time in proportion to itself; only `live`, `older_than` and, once in many batches, `oldest` look at the whole
pool. Token arrays are elsewhere.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .columns import RECORD, STORED
from .events import Measured, Stored
from .policy_stats import MEASURED
from .trajectory import FloatArray, IntArray

NONE = -1
AT_ONCE = 1 << 16
HALF_MAX = float(np.finfo(np.float16).max)

KEPT = RECORD.names or ()
"""Fields of a record that a snapshot holds."""
_HALVES = [column.name for column in STORED if column.numpy == "f2"]


class TrajectoryTable:
    """Records of trajectories in slots; a slot is used again, a serial never.

    Args:
        num_questions: Q.
        capacity_per_question: how many of one question there will be at most, for the width of the table.
    """

    def __init__(self, num_questions: int, capacity_per_question: int):
        self.records = np.zeros(16, RECORD)
        self.count = np.zeros(num_questions, np.int32)
        self.next_serial = 0
        self.size = 0
        self._before: list[tuple[IntArray, NDArray[Any]]] | None = None  # values before measurements, to undo them
        self._widest = capacity_per_question
        self._table = np.full((num_questions, min(4, capacity_per_question)), NONE, np.int32)  # slots, oldest first
        self._num_slots = 0
        self._free: list[int] = []
        self._queue = np.empty((0, 2), np.int64)  # serial and slot of the oldest, in order; some have left since

    # Looking ----------------------------------------------------------------------------------------------------

    def slots_of(self, question: int) -> NDArray[np.int32]:
        """Return the slots of a question's trajectories, oldest first."""
        return self._table[question, : self.count[question]]

    def slots_of_each(self, questions: IntArray) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return the slots of several questions, oldest first, (n, W), and which places hold one."""
        rows = self._table[questions]
        return rows, rows != NONE

    def live(self) -> IntArray:
        """Return the slots in use, in ascending order; time and memory grow with the pool."""
        used = np.ones(self._num_slots, bool)
        used[self._free] = False
        return np.flatnonzero(used)

    def in_order(self) -> IntArray:
        """Return the slots in use, oldest first; time and memory grow with the pool."""
        slots = self.live()
        return np.asarray(slots[np.argsort(self.records["serial"][slots])])

    def oldest(self, n: int) -> IntArray:
        """Return the slots of the n oldest, or of all, oldest first; only a few calls scan the whole pool."""
        n = min(n, self.size)
        width = 2 * n
        while n:
            serials, slots = self._queue[:width].T
            found = np.flatnonzero(self.records["serial"][slots] == serials)
            if len(found) >= n:
                self._queue = self._queue[found[0] :]
                return np.asarray(slots[found[:n]])
            if width < len(self._queue):
                width *= 2
            else:
                self._refill(max(2 * n, self.size // 16))
        return np.empty(0, np.int64)

    def _refill(self, n: int) -> None:
        """Fill the queue with the n oldest."""
        slots = self.live()
        serials = self.records["serial"][slots]
        first = np.argpartition(serials, n)[:n] if n < len(slots) else np.arange(len(slots))
        first = first[np.argsort(serials[first])]
        self._queue = np.stack([serials[first], slots[first]], 1)

    def find(self, question: int, serial: int) -> int | None:
        """Return the slot of a trajectory, or None if it has left."""
        slots = self.slots_of(question)
        found = slots[self.records["serial"][slots] == serial]
        return int(found[0]) if found.size else None

    def find_each(self, questions: IntArray, serials: IntArray) -> IntArray:
        """Return the slots of trajectories, (n,).

        Raises:
            ValueError: one of them is not stored.
        """
        slots, valid = self.slots_of_each(questions)
        valid &= self.records["serial"][slots] == np.asarray(serials)[:, None]
        if not (here := valid.any(1)).all():
            lost = int(np.flatnonzero(~here)[0])
            raise ValueError(f"no trajectory {serials[lost]} of question {questions[lost]} is stored")
        return np.asarray(slots[np.arange(len(slots)), valid.argmax(1)])

    def older_than(self, step: int) -> IntArray:
        """Return the slots of trajectories from before a step, oldest first; time grows with the pool."""
        slots = self.live()
        slots = slots[self.records["step"][slots] < step]
        return np.asarray(slots[np.argsort(self.records["serial"][slots])])

    # Changing ---------------------------------------------------------------------------------------------------

    def insert(self, stored: Stored) -> None:
        """Append records at the end of the pool, and of their questions."""
        self.link(self.stage(stored), stored.serial)

    def stage(self, stored: Stored) -> IntArray:
        """Write n records that do not count yet; return their slots, for `link` or `release`."""
        rows = np.zeros(len(stored.question), RECORD)
        for column in STORED:
            if column.name not in _HALVES:
                values = getattr(stored, column.name)
                rows[column.name] = plain(values) if column.nullable else values
        for name, values in zip(_HALVES, half([getattr(stored, name) for name in _HALVES]), strict=True):
            rows[name] = values
        rows["serial"] = NONE
        slots = self._new_slots(len(rows))
        self.records[slots] = rows
        return slots

    def link(self, slots: IntArray, serials: IntArray) -> None:
        """Make staged records count, in this order, each as the newest of its question."""
        if not (n := len(slots)):
            return
        self.records["serial"][slots] = serials
        questions = self.records["question"][slots]
        order = np.argsort(questions, kind="stable")
        owners, numbers = questions[order], np.arange(n)
        begins = np.concatenate([[True], owners[1:] != owners[:-1]])
        places = self.count[owners] + numbers - np.maximum.accumulate(numbers * begins)
        self._widen(int(places.max()) + 1)
        self._table[owners, places] = slots[order]
        self.count[owners] = places + 1
        self.size += n
        self.next_serial = int(serials[-1]) + 1

    def release(self, slots: IntArray) -> None:
        """Free the slots of staged records that were not linked."""
        self.records["serial"][slots] = NONE
        self._free += slots.tolist()

    def remove(self, slots: IntArray) -> None:
        """Remove records."""
        if not len(slots):
            return
        self.release(slots)
        questions = np.unique(self.records["question"][slots])
        rows = self._table[questions]
        rows[self.records["serial"][rows] == NONE] = NONE
        rows = np.take_along_axis(rows, np.argsort(rows == NONE, axis=1, kind="stable"), 1)
        self._table[questions] = rows
        self.count[questions] = (rows != NONE).sum(1)
        self.size -= len(slots)

    def measure(self, slots: IntArray, event: Measured) -> None:
        """Store measured values, (n,) each; NaN keeps the previous value, except for the entropy."""
        if self._before is not None:
            self._before.append((slots, self.records[slots]))
        self.records["entropy_step"][slots] = event.step
        self.records["entropy"][slots] = plain(event.entropy)
        for name in MEASURED[1:]:
            values = np.asarray(getattr(event, name), np.float64)
            known = ~np.isnan(values)
            if known.any():
                self.records[name][slots[known]] = half(values[known])

    @contextmanager
    def unmeasured(self) -> Iterator[None]:
        """Discard all measurements made inside this context."""
        before: list[tuple[IntArray, NDArray[Any]]] = []
        self._before = before
        try:
            yield
        finally:
            self._before = None
            for slots, records in reversed(before):
                for name in ("entropy_step", *MEASURED):
                    self.records[name][slots] = records[name]

    def use(self, slots: IntArray) -> None:
        """Count a use of each."""
        np.add.at(self.records["uses"], slots, 1)

    def _new_slots(self, n: int) -> IntArray:
        reused = self._free[len(self._free) - min(n, len(self._free)) :]
        del self._free[len(self._free) - len(reused) :]
        first, self._num_slots = self._num_slots, self._num_slots + n - len(reused)
        if self._num_slots > len(self.records):
            grown = np.zeros(max(2 * len(self.records), self._num_slots), RECORD)
            grown[:first] = self.records[:first]
            self.records = grown
        return np.concatenate([np.array(reused, np.int64), np.arange(first, self._num_slots)])

    def _widen(self, width: int) -> None:
        """Make room for so many trajectories of one question."""
        if width > (before := self._table.shape[1]):
            wider = np.full((len(self.count), max(width, min(2 * before, self._widest))), NONE, np.int32)
            wider[:, :before] = self._table
            self._table = wider

    # What it was ------------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Return the records as arrays, (N,) each, oldest first, and `next_serial`, ()."""
        slots = self.in_order()
        kept: dict[str, NDArray[Any]] = {name: self.records[name][slots] for name in KEPT}
        return kept | {"next_serial": np.array(self.next_serial, np.int64)}

    def restore(self, snapshot: Mapping[str, NDArray[Any]]) -> None:
        """Restore another table's snapshot into this one, which must be empty."""
        n = self._num_slots = len(snapshot["serial"])
        self.records = np.zeros(max(16, n), RECORD)
        for name in KEPT:
            self.records[name][:n] = snapshot[name]
        for start in range(0, n, AT_ONCE):  # temporary arrays stay small
            end = min(start + AT_ONCE, n)
            self.link(np.arange(start, end), snapshot["serial"][start:end])
        self.next_serial = int(snapshot["next_serial"])


def half(values: Any) -> FloatArray:
    """Round to the nearest finite float16 value."""
    return plain(np.clip(values, -HALF_MAX, HALF_MAX))


def plain(values: Any) -> FloatArray:
    """Normalise zeros and NaNs to the forms that a log returns."""
    values = np.asarray(values, np.float64) + 0.0
    return np.where(values == values, values, np.nan)


__all__ = ["KEPT", "NONE", "RECORD", "TrajectoryTable", "half"]
