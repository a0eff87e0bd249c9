"""Add the replayed terms to the host's loss: functions of what the host computed and of a `ReplayStep`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trl import GRPOTrainer

from ..experience.trajectory import Trajectory
from ..objective import replay_loss, weight_positive
from ..runtime.context import RunContext
from ..runtime.padding import at_left, padded
from ..runtime.step import ReplayStep


@dataclass
class Forward:
    """Results of the host's forward for a micro-batch, (b, T).

    Args:
        logps: of the tokens, with gradient.
        entropies: in nats.
    """

    logps: Tensor
    entropies: Tensor


@contextmanager
def capture_forward(trainer: GRPOTrainer, inputs: dict[str, Any]) -> Iterator[list[Forward]]:
    """Collect the forwards with gradient that the host runs inside.

    Args:
        trainer: the host.
        inputs: the micro-batch that its loss is given.
    """
    inner, seen = trainer._get_per_token_logps_and_entropies, list[Forward]()

    def forward(*args: Any, **kwargs: Any) -> Any:
        result = inner(*args, **kwargs)
        if torch.is_grad_enabled():
            seen.append(Forward(result[0], result[1]))
            leave_replayed_rows_out_of_the_kl(inputs, result[0])
        return result

    trainer._get_per_token_logps_and_entropies = forward
    try:
        yield seen
    finally:
        del trainer._get_per_token_logps_and_entropies


def leave_replayed_rows_out_of_the_kl(inputs: dict[str, Any], logps: Tensor) -> None:
    """Set the reference to the policy itself on replayed rows, so that their KL term and gradient are exactly 0.

    The host's KL is a mean over samples of the policy, which stored completions are not.

    Args:
        inputs: of the host's loss.
        logps: of the policy, (b, T).
    """
    if "ref_per_token_logps" in inputs:
        replayed = inputs["replay_mask"].unsqueeze(1)
        inputs["ref_per_token_logps"] = torch.where(replayed, logps.detach(), inputs["ref_per_token_logps"])


def token_weights(trainer: GRPOTrainer, inputs: Mapping[str, Any], mask: Tensor) -> Tensor | float:
    """Return what the host's loss multiplies each token's term with; a number or (b, 1).

    Args:
        trainer: the host.
        inputs: its micro-batch of B rows.
        mask: (b, T), of the rows that are weighted: those of the micro-batch, or others beside it.
    """
    size, accumulation = inputs["completion_mask"].size(0), trainer.current_gradient_accumulation_steps
    if trainer.loss_type == "dr_grpo":
        return float(1.0 / (size * trainer.max_completion_length * accumulation))
    if trainer.loss_type == "grpo":
        return torch.as_tensor(1.0 / (mask.sum(1, keepdim=True).clamp(min=1) * size * accumulation))
    tokens = inputs["num_items_in_batch"].clamp(min=1.0) / trainer.accelerator.num_processes  # dapo, cispo
    return torch.as_tensor(1.0 / (tokens * accumulation / trainer.args.steps_per_generation))


def replayed_term(
    step: ReplayStep, context: RunContext, inputs: Mapping[str, Any], forward: Forward, weights: Tensor | float
) -> Tensor | None:
    """Return the term of the stored trajectories in a micro-batch, None without any; record what the forward revealed.

    Args:
        step: the iteration.
        context: of the run.
        inputs: the rows that were computed, with the columns of `ReplayStep.columns`.
        forward: what the host computed of them.
        weights: as `token_weights` gives them.
    """
    rows, replayed = inputs["generation_row"].tolist(), inputs["replay_mask"]
    own = inputs["completion_mask"] * inputs["policy_mask"]
    needed = inputs["counted"].tolist() if "counted" in inputs else [True] * len(rows)
    fillers = [row for row, is_needed in zip(rows, needed, strict=True) if not is_needed]
    if not replayed.any():
        step.record(rows, forward.logps, forward.entropies, own, fillers=fillers)
        return None
    output = replay_loss(
        forward.logps, inputs["behaviour_logps"], inputs["advantages"], own, replayed, context.objective, weights,
        context.epsilon, vocabulary=context.vocabulary, level=context.importance_level,
    )  # fmt: skip
    step.record(rows, forward.logps, forward.entropies, own, output.stats, fillers)
    return output.loss


@dataclass(frozen=True)
class Share:
    """The added trajectories that one micro-batch of one process trains on.

    Args:
        rows: their global rows.
        trajectories: theirs, and repetitions of the first to fill up.
        advantages: of these.
    """

    rows: list[int]
    trajectories: list[Trajectory]
    advantages: list[float]


def share_of(step: ReplayStep, part: int, parts: int) -> Share | None:
    """Return the share of one micro-batch out of all of an iteration, over all processes; None where nothing was added.

    Each has as many rows as the others: rows that repeat the first with weight 0 fill up, so that every process runs the same
    forwards.
    """
    added = step.batch.added
    rows = sorted(added)
    if not rows:
        return None
    mine, size = rows[part::parts], -(-len(rows) // parts)
    chosen = [added[row] for row in [*mine, *[rows[0]] * (size - len(mine))]]
    return Share(mine, [one.trajectory for one in chosen], [one.advantage for one in chosen])


def added_term(
    trainer: GRPOTrainer, model: Any, step: ReplayStep, context: RunContext, inputs: Mapping[str, Tensor]
) -> Tensor | None:
    """Return the loss term of this micro-batch's added trajectories; None without any.

    Each token has the weight of a fresh one.

    The host's own batch, its metrics and its normaliser are untouched. The option `advantage` decides the advantages.
    """
    accelerator, steps = trainer.accelerator, trainer.args.steps_per_generation
    part = trainer._step % steps * accelerator.num_processes + accelerator.process_index
    if (share := share_of(step, part, steps * accelerator.num_processes)) is None:
        return None
    items = [(context.questions.prompt_ids(t.question), t) for t in share.trajectories]
    batch = padded(items, trainer._tokenizer.pad_token_id, accelerator.device)
    logps, entropies, *_ = trainer._get_per_token_logps_and_entropies(
        model, batch.ids, batch.mask, batch.keep, compute_entropy=True
    )
    logps, entropies, own = (at_left(values, batch.own) for values in (logps, entropies, batch.own))
    own = own.bool()
    behaviour = torch.zeros(logps.shape, dtype=torch.float32, device=logps.device)
    for row, trajectory in enumerate(share.trajectories):
        behaviour[row, : len(trajectory)] = torch.as_tensor(trajectory.behaviour_logps.copy())
    advantages = torch.tensor(share.advantages, dtype=torch.float32, device=logps.device)
    advantages = weight_positive(advantages, context.objective.positive_weight)
    real = len(share.rows)
    counts = torch.arange(len(advantages), device=logps.device) < real
    output = replay_loss(
        logps, behaviour, advantages, own, counts, context.objective, token_weights(trainer, inputs, own), context.epsilon,
        vocabulary=context.vocabulary, level=context.importance_level,
    )  # fmt: skip
    step.record(share.rows, logps[:real], entropies[:real], own[:real], output.stats)
    loss: Tensor = output.loss + 0.0 * logps.sum()  # every process needs a gradient, even with filler rows only
    return loss
