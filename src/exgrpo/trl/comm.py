"""Let processes talk by accelerate, and by torch's collectives where not all get the same."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from safetensors.numpy import load, save
from torch import Tensor

from ..runtime.comm import Arrays, outcome_of

T = TypeVar("T")

AT_ONCE = 1 << 26
"""Bytes that the main process sends or gets in one collective, over all processes."""


class AccelerateComm:
    """The processes of an accelerator, as a `Comm`.

    Args:
        accelerator: of the trainer.
        at_once: bytes of one collective of arrays on the main process.
    """

    def __init__(self, accelerator: Accelerator, at_once: int = AT_ONCE):
        self.rank = int(accelerator.process_index)
        self.world_size = int(accelerator.num_processes)
        self._device = accelerator.device
        self._piece = max(1 << 12, at_once // self.world_size)

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

    def to_main(self, arrays: Arrays) -> list[Arrays]:
        """Gather arrays on the main process, in pieces of equal size."""
        if self.world_size == 1:
            return [arrays]
        mine = _bytes_of(arrays)
        sizes = self._sizes(len(mine))
        whole = [torch.empty(size if not self.rank else 0, dtype=torch.uint8) for size in sizes]
        for start, width in self._pieces(max(sizes)):
            piece = self._padded(mine[start : start + width], width)
            parts = [torch.empty_like(piece) for _ in sizes] if not self.rank else None
            dist.gather(piece, parts, dst=0)
            for into, size, part in zip(whole, sizes, parts or (), strict=False):
                into[start : start + width] = part[: max(0, min(width, size - start))].cpu()
        return [_arrays_in(one) for one in whole] if not self.rank else []

    def deal(self, function: Callable[[], Sequence[Arrays]]) -> Arrays:
        """Send each process its arrays, in pieces of equal size: the reverse of `to_main`."""
        if self.world_size == 1:
            return function()[0]
        whole: list[Tensor] = []

        def sizes_of_all() -> list[int]:
            whole.extend(_bytes_of(arrays) for arrays in function())
            return [len(one) for one in whole]

        sizes = self.from_main(sizes_of_all)
        mine = torch.empty(sizes[self.rank], dtype=torch.uint8)
        for start, width in self._pieces(max(sizes[1:])):
            piece = torch.empty(width, dtype=torch.uint8, device=self._device)
            parts = [self._padded(one[start : start + width], width) for one in whole] or None
            dist.scatter(piece, parts, src=0)
            mine[start : start + width] = piece[: max(0, min(width, len(mine) - start))].cpu()
        return _arrays_in(mine if self.rank else whole[0])

    def _sizes(self, mine: int) -> list[int]:
        sizes = torch.zeros(self.world_size, dtype=torch.int64, device=self._device)
        sizes[self.rank] = mine
        dist.all_reduce(sizes)
        return [int(size) for size in sizes.tolist()]

    def _pieces(self, most: int) -> list[tuple[int, int]]:
        """Return where each piece begins, and its width."""
        return [(start, min(self._piece, most - start)) for start in range(0, most, self._piece)]

    def _padded(self, data: Tensor, width: int) -> Tensor:
        piece = torch.zeros(width, dtype=torch.uint8, device=self._device)
        piece[: len(data)] = data.to(self._device)
        return piece


def _bytes_of(arrays: Arrays) -> Tensor:
    """Pack arrays by name; nothing where there are none."""
    if not arrays:
        return torch.zeros(0, dtype=torch.uint8)
    packed = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    return torch.frombuffer(bytearray(packed), dtype=torch.uint8)


def _arrays_in(data: Tensor) -> Arrays:
    return dict(load(data.numpy().tobytes())) if len(data) else {}
