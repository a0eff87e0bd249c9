"""Rows without gradient are not computed.

A completion whose advantage is exactly zero (its group had no variance) adds nothing to the loss where that is a sum over rows
that are otherwise independent. Such rows are left out of forward and backward, and the loss of the rest is scaled by what the
host's mean over rows would have been; the gradient is the same. Every process still runs one forward and one backward for each
micro-batch, all with the same number of rows (the host gathers values by row), which is one at least.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigurationError

MEAN_OVER_ROWS = ("dr_grpo", "grpo", "sapo", "luspo")
SUM_OVER_TOKENS = ("dapo", "cispo")
"""Their normaliser is that of the whole batch, which the host knows before."""

CLIP_RATIOS = ("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "cispo_clip_ratio")
IMAGES = ("pixel_values", "num_images")
KNOWN = (*MEAN_OVER_ROWS, *SUM_OVER_TOKENS)

Batch = dict[str, Any]


def why_not_exact(trainer: Any) -> str | None:
    """What makes a row with advantage zero count for the loss, or None."""
    args = trainer.args
    for holds, why in (
        (args.loss_type == "bnpo", "loss_type='bnpo' is normalised by the tokens of a micro-batch"),
        (args.loss_type not in KNOWN, f"loss_type={args.loss_type!r} logs a mean over rows that would be another"),
        (args.beta != 0, f"beta={args.beta:g}: the KL term has a gradient on every row"),
        (trainer._entropy_bonus_enabled, "the entropy bonus has a gradient on every row"),
        (trainer.aux_loss_enabled, "the router's auxiliary loss has a gradient on every row"),
        (args.top_entropy_quantile < 1.0, "top_entropy_quantile below 1 compares the tokens of all rows"),
        (has_dropout(trainer.model), "with dropout, other rows would change what is dropped"),
    ):  # fmt: skip
        if holds:
            return why
    return None


def has_dropout(model: torch.nn.Module) -> bool:
    return any(isinstance(module, torch.nn.Dropout) and module.p > 0 for module in model.modules())


def skips_rows(trainer: Any) -> bool:
    """Whether rows are left out: as `skip_rows` says; by default where it is exact.

    Raises:
        ConfigurationError: it is asked for, and is not exact.
    """
    asked: bool | None = trainer.args.skip_rows
    if asked is False:
        return False
    why = why_not_exact(trainer)
    if asked and why is not None:
        raise ConfigurationError(
            f"skip_rows=True leaves completions with advantage 0 out of the loss, but {why}. Leave skip_rows unset (they are "
            "left out where that changes nothing), or set it to False."
        )
    return why is None


def counted(inputs: Batch, needed: Tensor | None = None) -> Tensor:
    """(B,), which rows of a micro-batch have a gradient, or are needed for what they reveal. What is known of others would
    depend on how the batch is cut."""
    advantages = inputs["advantages"]
    count: Tensor = advantages.ne(0) if advantages.dim() == 1 else advantages.ne(0).any(1)
    return count if needed is None else count | needed.to(count.device)


def rows_to_compute(inputs: Batch, count: Tensor, most: Callable[[int], int] = int) -> Tensor | None:
    """Which rows of a micro-batch are computed, ascending; None: all.

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
    """These rows of a micro-batch, without the columns behind the longest of their completions."""
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


def scale_of(trainer: Any, kept: int, size: int) -> float:
    """What the loss of `kept` rows out of `size` is multiplied with to be that of all."""
    return kept / size if trainer.loss_type in MEAN_OVER_ROWS else 1.0


def most_of(trainer: Any, count: int) -> int:
    """The greatest of a number over all processes."""
    accelerator = trainer.accelerator
    if accelerator.num_processes == 1:
        return count
    return int(accelerator.gather(torch.tensor([count], device=accelerator.device)).max())


def account(trainer: Any, inputs: Batch, computed: Batch) -> float:
    """Put the host's clip ratios of a micro-batch right, which are over all rows: on a row without advantage nothing is
    clipped. Returns the share of rows, over all processes, that were left out."""
    counts = [
        count
        for batch in (computed, inputs)
        for count in (batch["completion_mask"].sum(), torch.tensor(len(batch["completion_mask"])))
    ]
    device = inputs["completion_mask"].device
    sums = trainer.accelerator.reduce(torch.stack([c.to(device).float() for c in counts]), reduction="sum")
    tokens, rows, all_tokens, all_rows = sums.tolist()
    metrics = trainer._metrics["train"]
    if rows < all_rows:
        by_row = trainer.importance_sampling_level == "sequence"  # the host then averages over rows
        share = rows / all_rows if by_row else tokens / max(all_tokens, 1.0)
        for name in CLIP_RATIOS:
            if metrics.get(name):
                metrics[name][-1] *= share
        if metrics.get("clip_ratio/low_min"):
            metrics["clip_ratio/low_min"][-1] = min(metrics["clip_ratio/low_min"][-1], 0.0)
    return float(1 - rows / all_rows)
