"""The scorer that the core calls back: stored trajectories under the current policy."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from trl.models.utils import disable_gradient_checkpointing

from trl import GRPOTrainer

from ..experience.policy_stats import PolicyStats, columns_of
from ..experience.trajectory import FloatArray
from ..runtime.comm import Comm
from ..runtime.padding import Item, Padded, padded
from ..runtime.shared_store import hold


def measure(trainer: GRPOTrainer, items: Sequence[Item], comm: Comm) -> list[PolicyStats]:
    """Measure completions under the current policy, after their prompts.

    Means over each completion's own tokens; the entropy in nats over the full vocabulary.

    Sequences are sorted by length, cut into chunks of the training micro-batch and dealt to the processes, each of which gets
    the tokens of its own. Every process runs the same number of forwards, repeating another's chunk where it has none, so that
    sharded models stay in step; every process gets the same results.

    Args:
        trainer: a `GRPOTrainer`.
        items: prompt ids and trajectory of each; the same on every process.
        comm: the processes.
    """
    order = sorted(range(len(items)), key=lambda i: len(items[i][0]) + len(items[i][1]))
    size = trainer.args.per_device_train_batch_size
    chunks = [order[start : start + size] for start in range(0, len(order), size)]
    rounds = range(0, len(chunks), comm.world_size)
    dealt = [[min(first + rank, len(chunks) - 1) for first in rounds] for rank in range(comm.world_size)]
    wanted = [sorted({i for chunk in mine for i in chunks[chunk]}) for mine in dealt]
    hold(comm, [trajectory for _, trajectory in items], wanted)
    places: list[int] = []
    found: list[PolicyStats] = []
    with torch.no_grad(), disable_gradient_checkpointing(trainer.model, trainer.args.gradient_checkpointing_kwargs):
        for first, mine in zip(rounds, dealt[comm.rank], strict=True):
            scores = _scores(trainer, [items[i] for i in chunks[mine]])
            if mine == first + comm.rank:
                places, found = places + chunks[mine], found + scores
    gathered = comm.gather((np.array(places, np.int32), columns_of(found)))
    numbers = np.concatenate([of_rank for _, of_rank in gathered], 1)
    back = np.argsort(np.concatenate([of_rank for of_rank, _ in gathered]))
    return [PolicyStats(*column) for column in numbers[:, back].T.tolist()]


def _scores(trainer: GRPOTrainer, items: Sequence[Item]) -> list[PolicyStats]:
    """Measure one micro-batch."""
    batch, logps, entropies = _forward(trainer, items, entropy=True)
    assert entropies is not None
    means = (torch.where(batch.own, entropies, 0.0).float().sum(1) / batch.own.sum(1)).cpu().tolist()
    found = []
    for row, (_, trajectory) in enumerate(items):
        now = logps[row][batch.own[row]].float().cpu().numpy()
        found.append(replace(PolicyStats.of_tokens(now, trajectory.behaviour_logps), entropy=means[row]))
    return found


def logps_of(trainer: GRPOTrainer, items: Sequence[Item], size: int) -> Iterator[tuple[int, FloatArray]]:
    """Yield the place and the token log-probs, (T,), of each item under the policy, short ones first, on one process.

    Args:
        trainer: a `GRPOTrainer`.
        items: prompt ids and the trajectory.
        size: how many in one forward.
    """
    order = sorted(range(len(items)), key=lambda i: len(items[i][0]) + len(items[i][1]))
    with torch.no_grad(), disable_gradient_checkpointing(trainer.model, trainer.args.gradient_checkpointing_kwargs):
        for start in range(0, len(order), size):
            places = order[start : start + size]
            batch, logps, _ = _forward(trainer, [items[i] for i in places], entropy=False)
            for row, place in enumerate(places):
                yield place, logps[row][batch.own[row]].float().cpu().numpy()


def _forward(trainer: GRPOTrainer, items: Sequence[Item], entropy: bool) -> tuple[Padded, Tensor, Tensor | None]:
    """Run the policy over one micro-batch; its rows, and log-probs and entropies as the host computes them, (b, T)."""
    batch = padded(items, trainer._tokenizer.pad_token_id, trainer.accelerator.device)
    logps, entropies, *_ = trainer._get_per_token_logps_and_entropies(
        trainer.model, batch.ids, batch.mask, batch.keep, compute_entropy=entropy
    )
    return batch, logps, entropies
