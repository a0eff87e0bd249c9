"""Token arrays of a lineage, read from the log when they are asked for, and kept at hand for a while."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence

from ..experience.trajectory import Trajectory
from . import schema
from .reader import LogReader
from .records import Span

CACHED_TOKENS = 4_000_000


class StoredTrajectories:
    """A store that only reads.

    Args:
        reader: of the log.
        lineage: whose trajectories.
        question_of: from a question's number in the log to its number in the buffer.
    """

    def __init__(self, reader: LogReader, lineage: Sequence[Span], question_of: Callable[[int], int] = int):
        self._reader = reader
        self._lineage = lineage
        self._first_serials = [span.first_serial for span in lineage]
        self._question_of = question_of
        self._cache: OrderedDict[int, Trajectory] = OrderedDict()
        self._cached_tokens = 0

    def id_of(self, serial: int) -> int:
        """Return the id of a trajectory: the branch that stored it, and its serial."""
        span = self._lineage[bisect_right(self._first_serials, serial) - 1]
        return span.branch << schema.SERIAL_BITS | serial

    def put_many(self, serials: Sequence[int], trajectories: Sequence[Trajectory]) -> None:
        raise TypeError("this store only reads")

    def get_many(self, serials: Sequence[int]) -> list[Trajectory]:
        return [self.get(serial) for serial in serials]

    def get(self, serial: int) -> Trajectory:
        if (trajectory := self._cache.get(serial)) is not None:
            self._cache.move_to_end(serial)
            return trajectory
        trajectory = self._reader.trajectory(self.id_of(serial), self._question_of)
        self.remember(serial, trajectory)
        return trajectory

    def remember(self, serial: int, trajectory: Trajectory) -> None:
        self._cache[serial] = trajectory
        self._cached_tokens += len(trajectory)
        while self._cached_tokens > CACHED_TOKENS and len(self._cache) > 1:
            _, forgotten = self._cache.popitem(last=False)
            self._cached_tokens -= len(forgotten)

    def drop_many(self, serials: Sequence[int]) -> None:
        for serial in serials:
            if (trajectory := self._cache.pop(serial, None)) is not None:
                self._cached_tokens -= len(trajectory)
