"""The fresh stream: which questions are fresh in the next batch, so that replay never drops one.

A host's sampler yields a fixed number of questions a step and is prefetched: it cannot know how many of them replay
displaces. So questions are taken from here instead, as many as are needed.
"""

import math
from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from ..experience.trajectory import IntArray

Permutation = Callable[[int], IntArray]
LeavesOut = Callable[[IntArray, int], NDArray[np.bool_]]
"""Questions (n,), number of a pass -> which of them are left out of it."""
CHUNK = 256


class FreshStream:
    """Passes over the questions, each in its own order, cut into batches of any size.

    Over one pass every question that is not retired is fresh once. One that cannot be taken now, because it is replayed
    in this very batch or is in it already (at the seam of two passes), waits in a deferred list and comes first in the
    next batch. The rest of a pass is carried into the next batch.

    Args:
        permutation: pass number -> the order of the questions in that pass, shape (Q,), every question once. Asked for
            passes 0, 1, 2, ... in this order.
        num_questions: Q.

    Attributes:
        skipped: questions that the latest `take` left out.
    """

    def __init__(self, permutation: Permutation, num_questions: int):
        self._permutation = permutation
        self.num_questions = num_questions
        self.pass_number = 0
        self.cursor = 0
        self.deferred: list[int] = []
        self.skipped: list[int] = []
        self._order: IntArray = permutation(0)

    def restore(self, pass_number: int, cursor: int, deferred: Sequence[int]) -> None:
        """Restore the position of another stream over the same questions; only from the first pass on."""
        for number in range(self.pass_number + 1, pass_number + 1):
            self._order = self._permutation(number)
        self.pass_number, self.cursor, self.deferred = pass_number, cursor, list(deferred)

    def take(
        self, n: int, replayed: Collection[int], retired: NDArray[np.bool_], num_retired: int,
        leaves_out: LeavesOut | None = None, least_recent: Callable[[NDArray[np.bool_]], IntArray] | None = None,
    ) -> tuple[list[int], int]:  # fmt: skip
        """Return the next n fresh questions, and how many of them are retired ones that fill up a batch.

        If fewer than n questions are left that are neither retired nor replayed in this batch, retired ones fill up in
        stream order; a question comes twice in a batch only where there are fewer distinct questions than n.

        Args:
            n: how many.
            replayed: questions that are replayed in this batch.
            retired: shape (Q,).
            num_retired: its sum.
            leaves_out: which questions are passed over, and owe no turn; once around at most.
            least_recent: questions (Q,) of bool -> their numbers, in the order in which they come where too few are left.
        """
        taken: list[int] = []
        self.skipped = []
        in_batch = set(replayed)
        left = self.num_questions - num_retired - sum(not retired[q] for q in in_batch)
        self._take_deferred(min(n, left), taken, in_batch, retired)
        if leaves_out is not None and least_recent is not None:
            self._scan(min(n, left), taken, in_batch, retired, False, leaves_out)
            if (short := min(n, left) - len(taken)) > 0:
                waiting = ~retired
                waiting[list(in_batch)] = False
                recalled = least_recent(waiting)[:short].tolist()
                taken += recalled
                in_batch.update(recalled)
                self.skipped = [question for question in self.skipped if question not in in_batch]
        self._scan(min(n, left), taken, in_batch, retired, fill=False)
        fresh = len(taken)
        self._scan(min(n, self.num_questions - len(set(replayed))), taken, in_batch, retired, fill=True)
        excluded = set(replayed)
        while len(taken) < n:  # fewer distinct questions than places
            if not (room := self.num_questions - len(excluded)):
                excluded, room = set(), self.num_questions
            self._scan(min(n, len(taken) + room), taken, set(excluded), retired, fill=True)
        return taken, sum(bool(retired[question]) for question in taken[fresh:])

    def _take_deferred(self, n: int, taken: list[int], in_batch: set[int], retired: NDArray[np.bool_]) -> None:
        waiting = []
        for question in self.deferred:
            if retired[question]:
                continue
            if len(taken) < n and question not in in_batch:
                taken.append(question)
                in_batch.add(question)
            else:
                waiting.append(question)
        self.deferred = waiting

    def _scan(
        self, n: int, taken: list[int], in_batch: set[int], retired: NDArray[np.bool_], fill: bool,
        leaves_out: LeavesOut | None = None,
    ) -> None:  # fmt: skip
        """Take questions from the stream until n are taken.

        Retired ones are passed over, unless `fill` is set; where some are left out, the scan goes around at most once.
        """
        looked, most = 0, math.inf if leaves_out is None else self.num_questions
        while len(taken) < n and looked < most:
            chunk = self._order[self.cursor : self.cursor + CHUNK]
            out = np.zeros(chunk.size, bool) if leaves_out is None else leaves_out(chunk, self.pass_number)
            looked += chunk.size
            for place in range(chunk.size) if fill else np.flatnonzero(~retired[chunk]):
                question = int(chunk[place])
                if out[place]:
                    self.skipped.append(question)
                elif question not in in_batch:
                    taken.append(question)
                    in_batch.add(question)
                    if len(taken) == n:
                        self.cursor += int(place) + 1
                        return
                elif not retired[question]:
                    self.deferred.append(question)
            self.cursor += chunk.size
            if self.cursor >= self.num_questions:
                self.pass_number += 1
                self.cursor = 0
                self._order = self._permutation(self.pass_number)
