"""Stores of token arrays: a protocol, and the one in memory; the experience log has another."""

from collections.abc import Sequence
from typing import Protocol

from .trajectory import Trajectory


class TrajectoryStore(Protocol):
    """Token arrays by serial. Serials are never used twice."""

    def put_many(self, serials: Sequence[int], trajectories: Sequence[Trajectory]) -> None: ...
    def get_many(self, serials: Sequence[int]) -> list[Trajectory]: ...
    def drop_many(self, serials: Sequence[int]) -> None: ...


class MemoryStore:
    """Token arrays in a dictionary: 8 bytes a token."""

    def __init__(self) -> None:
        self._trajectories: dict[int, Trajectory] = {}

    def put_many(self, serials: Sequence[int], trajectories: Sequence[Trajectory]) -> None:
        self._trajectories.update(zip(serials, trajectories, strict=True))

    def get_many(self, serials: Sequence[int]) -> list[Trajectory]:
        return [self._trajectories[serial] for serial in serials]

    def drop_many(self, serials: Sequence[int]) -> None:
        for serial in serials:
            del self._trajectories[serial]
