"""Communication between the processes of a run: four calls that each host implements by its own means.

Small things go to every process (`gather`, `from_main`); tokens only to the main one (`to_main`), and from it to the one that
needs them (`deal`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from numpy.typing import NDArray

from ..errors import ExGRPOError

T = TypeVar("T")
Arrays: TypeAlias = Mapping[str, NDArray[Any]]


class Comm(Protocol):
    """The processes of a run. Every process makes the same calls in the same order.

    Attributes:
        rank: number of this process, from 0; 0 is the main one.
        world_size: how many there are.
    """

    rank: int
    world_size: int

    def gather(self, value: Any) -> list[Any]:
        """Return the value of every process, in the order of ranks, on every process: for small ones."""
        ...

    def to_main(self, arrays: Arrays) -> list[Arrays]:
        """Return the arrays of every process, in the order of ranks, on the main process; nothing on the others."""
        ...

    def deal(self, function: Callable[[], Sequence[Arrays]]) -> Arrays:
        """Call a function on the main process that makes arrays for each process; return each its own, or the error."""
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

    def to_main(self, arrays: Arrays) -> list[Arrays]:
        return [arrays]

    def deal(self, function: Callable[[], Sequence[Arrays]]) -> Arrays:
        return function()[0]

    def from_main(self, function: Callable[[], T]) -> T:
        return function()


def outcome_of(function: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Call a function; return its result and its error, one of which is None, ready to be sent.

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
