"""Leave rows without gradient out of the host's loss: where that is exact, and what it changes in the host's metrics."""

from typing import Any

import torch

from trl import GRPOTrainer

from ..errors import ConfigurationError
from ..runtime.skip_rows import KNOWN

CLIP_RATIOS = ("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "cispo_clip_ratio")

Batch = dict[str, Any]


def why_not_exact(trainer: GRPOTrainer) -> str | None:
    """Return why a row with advantage zero counts for the loss; None where nothing makes it."""
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


def skips_rows(trainer: GRPOTrainer) -> bool:
    """Return whether rows are left out: as `skip_rows` says, by default where it is exact.

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


def most_of(trainer: GRPOTrainer, count: int) -> int:
    """Return the greatest of a number over all processes."""
    accelerator = trainer.accelerator
    if accelerator.num_processes == 1:
        return count
    return int(accelerator.gather(torch.tensor([count], device=accelerator.device)).max())


def account(trainer: GRPOTrainer, inputs: Batch, computed: Batch) -> float:
    """Correct the host's clip ratios of a micro-batch for skipped rows; return their share over all processes.

    The host's ratios are over all rows; on a row without advantage nothing is clipped.
    """
    counts = [
        count
        for batch in (computed, inputs)
        for count in (
            (batch["completion_mask"] * batch.get("tool_mask", 1)).sum(),
            torch.tensor(len(batch["completion_mask"])),
        )
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
