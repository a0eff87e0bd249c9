"""The fresh stream, one question after the other."""

from collections.abc import Callable, Collection


class PlainStream:
    """All passes as one endless sequence, and a list of those that wait.

    Every question met in the sequence is either taken, or skipped because it is retired, or owed: it waits and comes
    next. So nothing is ever lost.
    """

    def __init__(self, permutation: Callable[[int], list[int]], num_questions: int):
        self.permutation = permutation
        self.num_questions = num_questions
        self.position = 0  # in the endless sequence
        self.deferred: list[int] = []

    def _next(self) -> int:
        number, place = divmod(self.position, self.num_questions)
        self.position += 1
        return self.permutation(number)[place]

    def take(self, n: int, replayed: Collection[int], retired: Collection[int]) -> tuple[list[int], int]:
        batch: list[int] = []
        everything = set(range(self.num_questions))
        # those that wait come first
        waiting = []
        for question in self.deferred:
            if question in retired:
                continue
            if len(batch) < n and question not in replayed and question not in batch:
                batch.append(question)
            else:
                waiting.append(question)
        self.deferred = waiting
        # then the sequence, without retired ones
        while len(batch) < n and everything - set(retired) - set(replayed) - set(batch):
            self._meet(batch, set(batch) | set(replayed), retired, skip_retired=True)
        proper = len(batch)
        # then retired ones, in the order of the sequence
        while len(batch) < n and everything - set(replayed) - set(batch):
            self._meet(batch, set(batch) | set(replayed), retired, skip_retired=False)
        # and only where there are fewer distinct questions than places, a question again
        barred = set(replayed)
        while len(batch) < n:
            if not everything - barred:
                barred = set()
            this_round: list[int] = []
            while len(batch) + len(this_round) < n and everything - barred - set(this_round):
                self._meet(this_round, barred | set(this_round), retired, skip_retired=False)
            batch += this_round
        return batch, sum(question in retired for question in batch[proper:])

    def _meet(self, batch: list[int], busy: set[int], retired: Collection[int], skip_retired: bool) -> None:
        question = self._next()
        if question in retired and skip_retired:
            return
        if question not in busy:
            batch.append(question)
        elif question not in retired:
            self.deferred.append(question)
