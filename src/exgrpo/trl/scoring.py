"""How stored trajectories look to the current policy: the scorer that the core calls back."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from accelerate.utils import gather_object
from trl.models.utils import disable_gradient_checkpointing

from trl import GRPOTrainer

from ..experience.policy_stats import PolicyStats
from ..runtime.padding import Item, padded


def measure(trainer: GRPOTrainer, items: Sequence[Item]) -> list[PolicyStats]:
    """Measure how completions look to the current policy after their prompts: means over its own tokens; the entropy in
    nats over the full vocabulary.

    Sequences are sorted by length, cut into chunks of the training micro-batch and dealt to the processes. Every process
    runs the same number of forwards, with a chunk of another where it has none, so that sharded models stay in step; every
    process gets the same numbers.

    Args:
        trainer: a `GRPOTrainer`.
        items: prompt ids and the trajectory; the same on every process.
    """
    order = sorted(range(len(items)), key=lambda i: len(items[i][0]) + len(items[i][1]))
    size = trainer.args.per_device_train_batch_size
    chunks = [order[start : start + size] for start in range(0, len(order), size)]
    rank, world = trainer.accelerator.process_index, trainer.accelerator.num_processes
    local: list[tuple[int, PolicyStats]] = []
    with torch.no_grad(), disable_gradient_checkpointing(trainer.model, trainer.args.gradient_checkpointing_kwargs):
        for first in range(0, len(chunks), world):
            mine = first + rank
            chunk = chunks[min(mine, len(chunks) - 1)]
            scores = _scores(trainer, [items[i] for i in chunk])
            if mine < len(chunks):
                local += list(zip(chunk, scores, strict=True))
    gathered = dict(gather_object(local) if world > 1 else local)
    return [gathered[i] for i in range(len(items))]


def _scores(trainer: GRPOTrainer, items: Sequence[Item]) -> list[PolicyStats]:
    """Measure one micro-batch."""
    batch = padded(items, trainer._tokenizer.pad_token_id, trainer.accelerator.device)
    logps, entropies, *_ = trainer._get_per_token_logps_and_entropies(
        trainer.model, batch.ids, batch.mask, batch.keep, compute_entropy=True
    )
    means = (torch.where(batch.own, entropies, 0.0).float().sum(1) / batch.own.sum(1)).cpu().tolist()
    found = []
    for row, (_, trajectory) in enumerate(items):
        now = logps[row][batch.own[row]].float().cpu().numpy()
        found.append(replace(PolicyStats.of_tokens(now, trajectory.behaviour_logps), entropy=means[row]))
    return found
