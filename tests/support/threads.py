"""Processes as threads: a `Comm` whose ranks meet in memory, and which counts how often they do."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from exgrpo.runtime.comm import outcome_of

PATIENCE = 20


class ThreadComm:
    """One rank of several.

    Attributes:
        calls: names of the collectives so far, in their order.
    """

    def __init__(self, rank, world_size, barrier, slots):
        self.rank, self.world_size = rank, world_size
        self._barrier, self._slots = barrier, slots
        self.calls = []

    def gather(self, value):
        self.calls.append("gather")
        return self._exchange(value)

    def from_main(self, function):
        self.calls.append("from_main")
        result, error = self._exchange(None if self.rank else outcome_of(function))[0]
        if error is not None:
            raise error
        return result

    def to_main(self, arrays):
        self.calls.append("to_main")
        everything = self._exchange(arrays)
        return everything if self.rank == 0 else []

    def deal(self, function):
        self.calls.append("deal")
        result, error = self._exchange(None if self.rank else outcome_of(function))[0]
        if error is not None:
            raise error
        return result[self.rank]

    def _exchange(self, value):
        self._slots[self.rank] = value
        self._barrier.wait(PATIENCE)
        everything = list(self._slots)
        self._barrier.wait(PATIENCE)
        return everything


def on_ranks(world_size, work):
    """Call `work(comm)` on so many ranks at once; what each answers, in the order of ranks."""
    barrier, slots = threading.Barrier(world_size), [None] * world_size
    comms = [ThreadComm(rank, world_size, barrier, slots) for rank in range(world_size)]

    def guarded(comm):
        try:
            return work(comm)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(guarded, comms))


class WholeStore:
    """In place of a run's store: every process gets all tokens of what it asks for, so that it can be looked at."""

    def __init__(self, comm, store):
        self.comm, self.inner = comm, store

    def get_many(self, serials):
        return self.comm.from_main(lambda: self.inner._inner.get_many(serials)) if len(serials) else []


@contextmanager
def tokens_everywhere(buffer, comm):
    """Let every process see the tokens of a buffer, on all at once."""
    store = buffer.store
    if comm.world_size > 1:
        buffer.store = WholeStore(comm, store)
    try:
        yield
    finally:
        buffer.store = store
