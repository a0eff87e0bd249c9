"""The index of stored trajectories: one record of 64 bytes each, by question and in the order in which they came.

Every change takes constant time (it grows with the trajectories of one question only). Token arrays are elsewhere.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .events import Measured, Stored
from .trajectory import IntArray

NONE = -1
HALF_MAX = float(np.finfo(np.float16).max)

RECORD = np.dtype(
    [
        ("serial", "i8"), ("digest", "u8"), ("question", "i4"), ("step", "i4"), ("entropy", "f4"), ("entropy_step", "i4"),
        ("uses", "i4"), ("prev", "i4"), ("next", "i4"), ("nll", "f2"), ("confidence", "f2"), ("confidence_variance", "f2"),
        ("drift", "f2"), ("quality", "f2"), ("advantage", "f2"), ("correct", "?"),
    ],
    align=True,
)  # fmt: skip
KEPT = tuple(name for name in RECORD.names or () if name not in ("prev", "next"))
"""What a snapshot holds of each record."""


class TrajectoryIndex:
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
        self.first = NONE  # oldest of all, then by `next`
        self.in_order = True  # whether steps never fall from the oldest to the newest
        self._widest = capacity_per_question
        self._table = np.full((num_questions, min(4, capacity_per_question)), NONE, np.int32)  # slots, oldest first
        self._num_slots = 0
        self._free: list[int] = []
        self._last = NONE

    # Looking ----------------------------------------------------------------------------------------------------

    def slots_of(self, question: int) -> NDArray[np.int32]:
        """Slots of a question's trajectories, oldest first."""
        return self._table[question, : self.count[question]]

    def slots_of_each(self, questions: IntArray) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Slots of several questions, oldest first, (n, W), and which of these places hold one."""
        return self._table[questions], np.arange(self._table.shape[1]) < self.count[questions][:, None]

    def live(self) -> IntArray:
        """Slots in use, in ascending order; time and memory grow with the pool."""
        used = np.ones(self._num_slots, bool)
        used[self._free] = False
        return np.flatnonzero(used)

    def find(self, question: int, serial: int) -> int | None:
        """The slot of a trajectory, or None if it has left."""
        slots = self.slots_of(question)
        found = slots[self.records["serial"][slots] == serial]
        return int(found[0]) if found.size else None

    def older_than(self, step: int) -> list[int]:
        """Slots of trajectories from before a step, oldest first."""
        if not self.in_order:
            slots = self.live()
            slots = slots[self.records["step"][slots] < step]
            found: list[int] = slots[np.argsort(self.records["serial"][slots])].tolist()
            return found
        found, slot = [], self.first
        while slot != NONE and self.records["step"][slot] < step:
            found.append(slot)
            slot = int(self.records["next"][slot])
        return found

    # Changing ---------------------------------------------------------------------------------------------------

    def insert(self, stored: Stored) -> int:
        """A record at the end of all, and of its question's; returns its slot."""
        slot, s = self._new_slot(), stored
        self.records[slot] = (
            s.serial, s.digest, s.question, s.step, plain(s.entropy), s.measured_at, 0, self._last, NONE, half(s.nll),
            half(s.confidence), half(s.confidence_variance), 0.0, half(s.quality), half(s.advantage), s.correct,
        )  # fmt: skip
        if self._last == NONE:
            self.first = slot
        else:
            self.in_order &= bool(s.step >= self.records["step"][self._last])
            self.records["next"][self._last] = slot
        self._last = slot
        self._add_to_table(s.question, slot)
        self.size += 1
        self.next_serial = s.serial + 1
        return slot

    def measure(self, slot: int, event: Measured) -> None:
        """Write down what was measured; NaN leaves what was known."""
        record = self.records[slot]
        record["entropy_step"] = event.step
        record["entropy"] = plain(event.entropy)
        for name in ("nll", "confidence", "confidence_variance", "drift"):
            if (value := getattr(event, name)) == value:
                record[name] = half(value)

    def remove(self, slot: int) -> None:
        """A record out of the order of all, and of its question's."""
        record = self.records[slot]
        question, prev, following = (int(record[name]) for name in ("question", "prev", "next"))
        row, count = self._table[question], int(self.count[question])
        place = int(np.flatnonzero(row[:count] == slot)[0])
        row[place : count - 1] = row[place + 1 : count]
        row[count - 1] = NONE
        self.count[question] = count - 1
        if prev == NONE:
            self.first = following
        else:
            self.records["next"][prev] = following
        if following == NONE:
            self._last = prev
        else:
            self.records["prev"][following] = prev
        self._free.append(slot)
        self.size -= 1
        self.in_order |= self.size == 0

    def _new_slot(self) -> int:
        if self._free:
            return self._free.pop()
        if self._num_slots == len(self.records):
            self.records = np.concatenate([self.records, np.zeros_like(self.records)])
        self._num_slots += 1
        return self._num_slots - 1

    def _add_to_table(self, question: int, slot: int) -> None:
        count, width = int(self.count[question]), self._table.shape[1]
        if count == width:
            wider = np.full((len(self.count), max(width + 1, min(2 * width, self._widest))), NONE, np.int32)
            wider[:, :width] = self._table
            self._table = wider
        self._table[question, count] = slot
        self.count[question] = count + 1

    # What it was ------------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """The records as arrays, (N,) each, oldest first, and `next_serial`, ()."""
        slots = self.live()
        slots = slots[np.argsort(self.records["serial"][slots])]
        kept: dict[str, NDArray[Any]] = {name: self.records[name][slots] for name in KEPT}
        return kept | {"next_serial": np.array(self.next_serial, np.int64)}

    def restore(self, snapshot: Mapping[str, NDArray[Any]]) -> None:
        """Become what another index was; this one must be empty."""
        self.next_serial = int(snapshot["next_serial"])
        n, owners = len(snapshot["serial"]), snapshot["question"]
        self.size = self._num_slots = n
        self.records = np.zeros(max(16, n), RECORD)
        for name in KEPT:
            self.records[name][:n] = snapshot[name]
        self.records["prev"][:n], self.records["next"][:n] = np.arange(n) - 1, np.arange(n) + 1
        if n:
            self.first, self._last = 0, n - 1
            self.in_order = bool((np.diff(snapshot["step"]) >= 0).all())
            self.records["next"][n - 1] = NONE
            counts = np.bincount(owners, minlength=len(self.count)).astype(np.int32)
            self.count[:] = counts
            self._table = np.full((len(counts), max(self._table.shape[1], counts.max())), NONE, np.int32)
            order = np.argsort(owners, kind="stable")  # by question, oldest first
            starts = np.cumsum(counts) - counts
            self._table[owners[order], np.arange(n) - starts[owners[order]]] = order


def half(value: float) -> float:
    """A number that float16 can hold: the nearest of them, and never infinite."""
    return plain(max(-HALF_MAX, min(HALF_MAX, value)) if value == value else value)


def plain(value: float) -> float:
    """One zero and one NaN, as a log gives them back."""
    return value + 0.0 if value == value else float("nan")


__all__ = ["KEPT", "NONE", "RECORD", "TrajectoryIndex", "half"]
