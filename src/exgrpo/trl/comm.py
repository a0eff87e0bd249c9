"""Let processes talk by accelerate."""

from collections.abc import Callable
from typing import Any, TypeVar

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object

from ..runtime.comm import outcome_of

T = TypeVar("T")


class AccelerateComm:
    """The processes of an accelerator, as a `Comm`.

    Args:
        accelerator: of the trainer.
    """

    def __init__(self, accelerator: Accelerator):
        self.rank = int(accelerator.process_index)
        self.world_size = int(accelerator.num_processes)

    def gather(self, value: Any) -> list[Any]:
        return list(gather_object([value])) if self.world_size > 1 else [value]

    def from_main(self, function: Callable[[], T]) -> T:
        if self.world_size == 1:
            return function()
        outcome: list[Any] = [None, None]
        if not self.rank:
            outcome[:] = outcome_of(function)
        broadcast_object_list(outcome)
        if outcome[1] is not None:
            raise outcome[1]
        result: T = outcome[0]
        return result
