"""How stored trajectories look to the current policy: the scorer that the core calls back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from trl.models.utils import disable_gradient_checkpointing

from ..experience.trajectory import Scores, Trajectory

LEARNED_POSITIONS = ("wpe", "embed_positions", "position_embeddings", "position_embedding", "pos_embed")


Item = tuple[Sequence[int], Trajectory]


def measure(trainer: Any, items: Sequence[Item]) -> list[Scores]:
    """How completions look to the current policy after their prompts: means over the completion's own tokens; the entropy in
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
    local: list[tuple[int, Scores]] = []
    with torch.no_grad(), disable_gradient_checkpointing(trainer.model, trainer.args.gradient_checkpointing_kwargs):
        for first in range(0, len(chunks), world):
            mine = first + rank
            chunk = chunks[min(mine, len(chunks) - 1)]
            scores = _scores(trainer, [items[i] for i in chunk])
            if mine < len(chunks):
                local += list(zip(chunk, scores, strict=True))
    gathered = dict(gather_object(local) if world > 1 else local)
    return [gathered[i] for i in range(len(items))]


@dataclass
class Padded:
    """Sequences side by side, padded on the right so that positions are those of each alone.

    Args:
        ids, mask: (B, P + T).
        keep: how many last places hold all completions, T'.
        own: which of these are the completion's own tokens, (B, T').
    """

    ids: Tensor
    mask: Tensor
    keep: int
    own: Tensor


def padded(trainer: Any, items: Sequence[Item]) -> Padded:
    """Prompts and completions as one batch, on the trainer's device."""
    device, pad = trainer.accelerator.device, trainer._tokenizer.pad_token_id
    width = max(len(prompt) + len(completion) for prompt, completion in items)
    ids = torch.full((len(items), width), pad, dtype=torch.long)
    mask = torch.zeros(len(items), width, dtype=torch.long)
    own = torch.zeros(len(items), width, dtype=torch.bool)
    for row, (prompt, completion) in enumerate(items):
        end = len(prompt) + len(completion)
        ids[row, :end] = torch.tensor([*prompt, *completion.completion_ids.tolist()])
        mask[row, :end] = 1
        own[row, len(prompt) : end] = True
    keep = width - min(len(prompt) for prompt, _ in items)
    return Padded(ids.to(device), mask.to(device), keep, own[:, -keep:].to(device))


def _scores(trainer: Any, items: Sequence[Item]) -> list[Scores]:
    """Of one micro-batch."""
    batch = padded(trainer, items)
    logps, entropies, *_ = trainer._get_per_token_logps_and_entropies(
        trainer.model, batch.ids, batch.mask, batch.keep, compute_entropy=True
    )
    means = (torch.where(batch.own, entropies, 0.0).float().sum(1) / batch.own.sum(1)).cpu().tolist()
    found = []
    for row, (_, trajectory) in enumerate(items):
        now = logps[row][batch.own[row]].float().cpu().numpy()
        found.append(replace(Scores.of_tokens(now, trajectory.behaviour_logps), entropy=means[row]))
    return found


def has_learned_positions(model: nn.Module) -> bool:
    """Whether a model has an embedding of absolute positions, which padding before a prompt would shift."""
    embeddings = [name for name, module in model.named_modules() if isinstance(module, nn.Embedding)]
    return any(name.rsplit(".", 1)[-1] in LEARNED_POSITIONS for name in embeddings)


def without_left_padding(
    forward: Callable[..., Any],
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    logits_to_keep: int,
    *args: Any,
    **kwargs: Any,
) -> tuple[Any, ...]:
    """The host's forward with the padding before each prompt moved behind its row, and the answers moved back.

    Args:
        forward: the host's `_get_per_token_logps_and_entropies`; takes the other arguments.
        input_ids: (B, P + T), padded on both sides.
        attention_mask: (B, P + T).
        logits_to_keep: T.
    """
    lead = attention_mask.argmax(1, keepdim=True)
    width = input_ids.size(1)
    source = (torch.arange(width, device=input_ids.device)[None] + lead) % width
    wide = logits_to_keep + int(lead.max())
    logps, entropies, *rest = forward(
        model, input_ids.gather(1, source), attention_mask.gather(1, source), wide, *args, **kwargs
    )
    back = torch.arange(logits_to_keep, device=input_ids.device)[None] + (lead.max() - lead)
    return logps.gather(1, back), None if entropies is None else entropies.gather(1, back), *rest
