"""Stored trajectories beside an intact fresh batch: a forward and a loss term of their own.

The batch that the host learns from is untouched, its metrics and its normaliser with it. What is added is dealt to the
processes and to the micro-batches of a generation, each with as many rows as the others: rows that repeat the first with
weight 0 fill up, so that every process runs the same forwards.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..experience.trajectory import Trajectory
from ..objective import LossOutput, replay_loss, weight_positive
from .generation import Generation
from .scoring import padded


@dataclass(frozen=True)
class Share:
    """What of the added trajectories one micro-batch of one process learns from.

    Args:
        rows: their global rows.
        trajectories: theirs, and repetitions of the first to fill up.
        real: how many of the trajectories count.
    """

    rows: list[int]
    trajectories: list[Trajectory]
    real: int


def share_of(generation: Generation, part: int, parts: int) -> Share | None:
    """The part of one micro-batch out of all of a generation, over all processes; None where nothing was added."""
    rows = sorted(generation.added)
    if not rows:
        return None
    mine = rows[part::parts]
    size = -(-len(rows) // parts)
    chosen = [*mine, *[rows[0]] * (size - len(mine))]
    return Share(mine, [generation.added[row].trajectory for row in chosen], len(mine))


def added_loss(
    trainer: Any, model: Any, generation: Generation, inputs: dict[str, Tensor], vocabulary: int
) -> Tensor | None:
    """The term of this micro-batch's added trajectories, with the weight that a fresh token has; None where none was added.

    Their advantages are those of the groups they came from.
    """
    accelerator, steps = trainer.accelerator, trainer.args.steps_per_generation
    part = trainer._step % steps * accelerator.num_processes + accelerator.process_index
    share = share_of(generation, part, steps * accelerator.num_processes)
    if share is None:
        return None
    items = [(trainer.questions.prompt_ids(t.question), t) for t in share.trajectories]
    batch = padded(trainer, items)
    logps, entropies, *_ = trainer._get_per_token_logps_and_entropies(
        model, batch.ids, batch.mask, batch.keep, compute_entropy=True
    )
    logps, entropies, own = _left(logps, batch.own), _left(entropies, batch.own), _left(batch.own, batch.own).bool()
    behaviour = torch.zeros(logps.shape, dtype=torch.float32, device=logps.device)
    for row, trajectory in enumerate(share.trajectories):
        behaviour[row, : len(trajectory)] = torch.as_tensor(trajectory.behaviour_logps.copy())
    advantages = torch.tensor([t.advantage for t in share.trajectories], dtype=torch.float32, device=logps.device)
    advantages = weight_positive(advantages, trainer.args.objective.positive_weight)
    counts = torch.arange(len(advantages), device=logps.device) < share.real
    output: LossOutput = replay_loss(
        logps, behaviour, advantages, own, counts, trainer.args.objective,
        trainer.token_weights(inputs, own), trainer.args.epsilon, vocabulary=vocabulary,
    )  # fmt: skip
    rows = share.rows
    generation.keep_ratios(rows, output.stats)
    generation.keep_entropies(rows, entropies[: share.real], own[: share.real], trainer._optimizer_step)
    generation.keep_scores(rows, logps)
    return output.loss + 0.0 * logps.sum()  # so that every process has a gradient, also one whose rows all fill up


def _left(values: Tensor, own: Tensor) -> Tensor:
    """(B, T') with each row's own places moved to its left end, 0 behind them."""
    lengths = own.sum(1)
    width = int(lengths.max())
    start = own.int().argmax(1)
    places = (start[:, None] + torch.arange(width, device=own.device)[None]).clamp(max=own.size(1) - 1)
    moved = values.gather(1, places)
    inside = torch.arange(width, device=own.device)[None] < lengths[:, None]
    return torch.where(inside, moved, torch.zeros_like(moved))
