"""Questions that go from place to place: buckets of accuracy, and retired; how many are in each, over steps."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..experience.difficulty import buckets_of
from .columns import Columns
from .sequences import last_of_each, previous_of_each

Array = NDArray[Any]
NOWHERE, BACK = -1, -2
AT_ONCE = 100_000
"""Events that are followed at once; more would take memory without being faster."""


class Places:
    """The place of every question, and its changes with every step.

    Args:
        k: completions of a group; the buckets are 0..K, and K + 1 is that of retired questions.
    """

    def __init__(self, k: int):
        self.k = k
        self._bucket = np.empty(0, "i2")
        self._place = np.empty(0, "i2")
        self._steps = np.empty(0, "i8")
        self._changes = np.empty((0, k + 2), "i4")

    def follow(self, observed: Columns, new: slice, retired: Columns, left: slice, questions: int) -> None:
        """Process further observations and retirements, in order.

        Args:
            observed, retired: columns with `seq`, `step` and `question`.
            new, left: which of their rows.
            questions: Q.
        """
        self._grow(questions)
        begin, after = new.start, left.start
        while begin < new.stop or after < left.stop:
            end = min(begin + AT_ONCE, new.stop)
            last = observed["seq"][end - 1] if end < new.stop else np.iinfo(np.uint32).max
            until = after + int(np.searchsorted(retired["seq"][after : left.stop], last, side="right"))
            self._some(observed, slice(begin, end), retired, slice(after, until))
            begin, after = end, until

    def _grow(self, questions: int) -> None:
        more = np.full(max(0, questions - len(self._place)), NOWHERE, "i2")
        self._bucket, self._place = np.concatenate([self._bucket, more]), np.concatenate([self._place, more])

    def _some(self, observed: Columns, new: slice, retired: Columns, left: slice) -> None:
        scorable = observed["scorable"][new]
        known = np.flatnonzero(scorable > 0)
        bucket = (
            buckets_of(observed["successes"][new][known], scorable[known], self.k) if len(known) else np.empty(0, "i8")
        )
        away = np.where(retired["back"][left], BACK, self.k + 1)
        both = [np.concatenate([observed[n][new][known], retired[n][left]]) for n in ("seq", "question", "step")]
        order = np.argsort(both[0], kind="stable")
        (question, step), goes = (values[order] for values in both[1:]), np.concatenate([bucket, away])[order]
        if not len(question):
            return
        # its latest bucket and whether it is away, after each event
        is_bucket = goes >= 0
        is_bucket &= goes <= self.k
        buckets = _carried(question, goes, is_bucket, self._bucket)
        gone = _carried(
            question, (goes == self.k + 1).astype("i2"), ~is_bucket, (self._place == self.k + 1).astype("i2")
        )
        place = np.where(gone == 1, self.k + 1, buckets).astype("i2")
        before = previous_of_each(question, place, self._place)
        self._count(step, place, before)
        latest, at = last_of_each(question)
        self._place[latest], self._bucket[latest] = place[at], buckets[at]

    def _count(self, step: Array, place: Array, before: Array) -> None:
        steps, row = np.unique(step, return_inverse=True)
        change = np.zeros((len(steps), self.k + 2), "i4")
        np.add.at(change, (row[place >= 0], place[place >= 0]), 1)
        np.subtract.at(change, (row[before >= 0], before[before >= 0]), 1)
        self._steps, self._changes = np.concatenate([self._steps, steps]), np.concatenate([self._changes, change])

    def counts(self, steps: Array) -> Array:
        """Count the questions in each place after each of some ascending steps, (n, K + 2)."""
        found = np.zeros((len(steps), self.k + 2), "i8")
        row = np.searchsorted(steps, self._steps)
        inside = row < len(steps)
        np.add.at(found, row[inside], self._changes[inside])
        return np.asarray(np.cumsum(found, 0))


def _carried(group: Array, values: Array, which: Array, before: Array) -> Array:
    """Carry each group's latest value forward to every event; `before[group]` where none came."""
    order = np.argsort(group, kind="stable")
    sorted_group, index = group[order], np.arange(len(group))
    first = np.r_[True, sorted_group[1:] != sorted_group[:-1]]
    start = np.maximum.accumulate(np.where(first, index, 0))
    place = np.maximum.accumulate(np.where(which[order], index, -1))
    found = np.empty(len(group), "i8")
    found[order] = np.where(place >= start, values[order][np.maximum(place, 0)], before[sorted_group])
    return found
