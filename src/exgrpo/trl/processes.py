"""What one process does for all: the file belongs to the main one, its answers and its errors to every one."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from ..errors import ExGRPOError
from ..experience.store import TrajectoryStore
from ..experience.trajectory import Trajectory

T = TypeVar("T")


def on_main(accelerator: Accelerator, function: Callable[[], T]) -> T:
    """Call a function on the main process; every process gets its answer, or raises its error.

    Without this, an error of one process leaves the others waiting for it.
    """
    if accelerator.num_processes == 1:
        return function()
    outcome: list[Any] = [None, None]
    if accelerator.is_main_process:
        try:
            outcome[0] = function()
        except Exception as error:  # noqa: BLE001 - raised below, on every process
            outcome[1] = _portable(error)
    broadcast_object_list(outcome)
    if outcome[1] is not None:
        raise outcome[1]
    answer: T = outcome[0]
    return answer


def _portable(error: Exception) -> Exception:
    """An error that can be sent to other processes."""
    try:
        return error if type(error)(*error.args).args == error.args else ExGRPOError(f"{type(error).__name__}: {error}")
    except Exception:  # noqa: BLE001 - one that cannot be made again from its arguments
        return ExGRPOError(f"{type(error).__name__}: {error}")


class SharedStore:
    """Token arrays that the main process holds; all processes ask for the same ones at the same time.

    Args:
        accelerator: of the trainer.
        inner: the store, on the main process.
    """

    def __init__(self, accelerator: Accelerator, inner: TrajectoryStore | None):
        self._accelerator = accelerator
        self._inner = inner

    def put_many(self, serials: Sequence[int], trajectories: Sequence[Trajectory]) -> None:
        if self._inner is not None:
            self._inner.put_many(serials, trajectories)

    def get_many(self, serials: Sequence[int]) -> list[Trajectory]:
        if not len(serials):
            return []
        return on_main(self._accelerator, lambda: self._held(serials))

    def _held(self, serials: Sequence[int]) -> list[Trajectory]:
        assert self._inner is not None
        return self._inner.get_many(serials)

    def drop_many(self, serials: Sequence[int]) -> None:
        if self._inner is not None:
            self._inner.drop_many(serials)
