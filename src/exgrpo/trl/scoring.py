"""Mean token entropies of stored trajectories under the current policy: the scorer that the core calls back."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from trl.models.utils import disable_gradient_checkpointing

from ..experience.trajectory import FloatArray


def mean_entropies(trainer: Any, items: Sequence[tuple[Sequence[int], Sequence[int]]]) -> FloatArray:
    """Entropy of each completion after its prompt, in nats, full vocabulary, mean over the completion's own tokens.

    Sequences are sorted by length, cut into chunks of the training micro-batch and dealt to the processes. Every process
    runs the same number of forwards, with a chunk of another where it has none, so that sharded models stay in step; every
    process gets the same numbers.

    Args:
        trainer: a `GRPOTrainer`.
        items: pairs of prompt ids and completion ids; the same on every process.

    Returns:
        (len(items),), float32.
    """
    order = sorted(range(len(items)), key=lambda i: len(items[i][0]) + len(items[i][1]))
    size = trainer.args.per_device_train_batch_size
    chunks = [order[start : start + size] for start in range(0, len(order), size)]
    rank, world = trainer.accelerator.process_index, trainer.accelerator.num_processes
    local = []
    with torch.no_grad(), disable_gradient_checkpointing(trainer.model, trainer.args.gradient_checkpointing_kwargs):
        for first in range(0, len(chunks), world):
            mine = first + rank
            chunk = chunks[min(mine, len(chunks) - 1)]
            entropies = _forward(trainer, [items[i] for i in chunk])
            if mine < len(chunks):
                local += list(zip(chunk, entropies.tolist(), strict=True))
    gathered = dict(gather_object(local) if world > 1 else local)
    return np.array([gathered[i] for i in range(len(items))], np.float32)


def _forward(trainer: Any, items: list[tuple[Sequence[int], Sequence[int]]]) -> torch.Tensor:
    """One micro-batch, padded on the right so that positions are those of the sequence alone."""
    device, pad = trainer.accelerator.device, trainer._tokenizer.pad_token_id
    width = max(len(prompt) + len(completion) for prompt, completion in items)
    ids = torch.full((len(items), width), pad, dtype=torch.long)
    mask = torch.zeros(len(items), width, dtype=torch.long)
    own = torch.zeros(len(items), width, dtype=torch.bool)
    for row, (prompt, completion) in enumerate(items):
        end = len(prompt) + len(completion)
        ids[row, :end] = torch.tensor([*prompt, *completion])
        mask[row, :end] = 1
        own[row, len(prompt) : end] = True
    keep = width - min(len(prompt) for prompt, _ in items)
    _, entropies, *_ = trainer._get_per_token_logps_and_entropies(
        trainer.model, ids.to(device), mask.to(device), keep, compute_entropy=True
    )
    own = own[:, -keep:].to(device)
    return (torch.where(own, entropies, 0.0).float().sum(1) / own.sum(1)).cpu()
