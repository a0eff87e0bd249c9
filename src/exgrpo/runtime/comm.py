"""Let the processes of a run talk to each other, by two calls that each host makes out of its own means."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from ..errors import ExGRPOError
from ..experience.store import TrajectoryStore
from ..experience.trajectory import Trajectory

T = TypeVar("T")


class Comm(Protocol):
    """The processes of a run. Every process makes the same calls in the same order.

    Attributes:
        rank: number of this process, from 0; 0 is the main one.
        world_size: how many there are.
    """

    rank: int
    world_size: int

    def gather(self, value: Any) -> list[Any]:
        """Return the value of every process, in the order of ranks, on every process."""
        ...

    def from_main(self, function: Callable[[], T]) -> T:
        """Call a function on the main process; return its result, or raise its error, on every process."""
        ...


class SingleProcess:
    """A run of one process."""

    rank = 0
    world_size = 1

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def from_main(self, function: Callable[[], T]) -> T:
        return function()


def outcome_of(function: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Call a function; return its result and its error, one of which is None, in a form that can be sent.

    Without this, an error of one process leaves the others waiting for it.
    """
    try:
        return function(), None
    except Exception as error:  # noqa: BLE001 - raised on every process
        return None, _sendable(error)


def _sendable(error: Exception) -> Exception:
    """Return an error that can be made again from its arguments: itself, or one that quotes it."""
    try:
        if type(error)(*error.args).args == error.args:
            return error
    except Exception:  # noqa: BLE001 - a constructor that takes something else
        pass
    return ExGRPOError(f"{type(error).__name__}: {error}")


class SharedStore:
    """Read token arrays that the main process holds; all processes ask for the same ones at the same time.

    Args:
        comm: the processes of the run.
        inner: the store, on the main process.
    """

    def __init__(self, comm: Comm, inner: TrajectoryStore | None):
        self._comm = comm
        self._inner = inner

    def put_many(self, serials: Sequence[int], trajectories: Sequence[Trajectory]) -> None:
        if self._inner is not None:
            self._inner.put_many(serials, trajectories)

    def get_many(self, serials: Sequence[int]) -> list[Trajectory]:
        if not len(serials):
            return []
        return self._comm.from_main(lambda: self._read(serials))

    def _read(self, serials: Sequence[int]) -> list[Trajectory]:
        assert self._inner is not None
        return self._inner.get_many(serials)

    def drop_many(self, serials: Sequence[int]) -> None:
        if self._inner is not None:
            self._inner.drop_many(serials)
