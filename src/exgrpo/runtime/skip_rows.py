"""Leave rows without gradient out of the forwards.

A completion whose advantage is exactly zero (its group had no variance) adds nothing to the loss where that is a sum over rows
that are otherwise independent. Such rows are left out of forward and backward, and the loss of the rest is scaled by what the
host's mean over rows would have been; the gradient is the same. Every process still runs one forward and one backward for each
micro-batch, all with the same number of rows (the host gathers values by row), which is one at least.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

MEAN_OVER_ROWS = ("dr_grpo", "grpo", "sapo", "luspo")
SUM_OVER_TOKENS = ("dapo", "cispo")
"""Their normaliser is that of the whole batch, which the host knows before."""

IMAGES = ("pixel_values", "num_images")
KNOWN = (*MEAN_OVER_ROWS, *SUM_OVER_TOKENS)

Batch = dict[str, Any]


def counted(inputs: Batch, needed: Tensor | None = None) -> Tensor:
    """Return which rows of a micro-batch have a gradient, or are needed for measurements, (B,).

    Measuring the others would depend on how the batch is cut.
    """
    advantages = inputs["advantages"]
    count: Tensor = advantages.ne(0) if advantages.dim() == 1 else advantages.ne(0).any(1)
    return count if needed is None else count | needed.to(count.device)


def rows_to_compute(inputs: Batch, count: Tensor, most: Callable[[int], int] = int) -> Tensor | None:
    """Return which rows of a micro-batch are computed, ascending; None: all.

    Args:
        inputs: the micro-batch.
        count: (B,), rows that must be.
        most: the number of rows of this process -> the greatest of all processes; the shortest others fill up.
    """
    if any(name in inputs for name in IMAGES):
        return None
    n = most(max(1, int(count.sum())))
    if n == len(count):
        return None
    lengths = inputs["completion_mask"].sum(1)
    order = torch.where(count, -1, lengths).argsort(stable=True)
    return order[:n].sort().values


def only(inputs: Batch, rows: Tensor) -> Batch:
    """Keep these rows of a micro-batch, and the columns up to the longest of their completions."""
    size, full = inputs["completion_mask"].shape
    width = max(1, int(inputs["completion_mask"][rows].sum(1).max()))
    kept = {}
    for name, value in inputs.items():
        if isinstance(value, Tensor) and value.dim() and value.size(0) == size:
            value = value[rows.to(value.device)]
            if not name.startswith("prompt") and value.dim() == 2 and value.size(1) == full:
                value = value[:, :width]
        kept[name] = value
    return kept


def scale_of(loss_type: str, kept: int, size: int) -> float:
    """Return what the loss of `kept` rows out of `size` is multiplied with to be that of all."""
    return kept / size if loss_type in MEAN_OVER_ROWS else 1.0
