"""How stored trajectories look to the current policy: the scorer that the core calls back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from trl.models.utils import disable_gradient_checkpointing

from ..experience.policy_stats import PolicyStats as Scores
from ..experience.trajectory import Trajectory

POSITIONS = ("wpe", "embed_positions", "position_embeddings", "position_embedding", "pos_embed", "positions_embed")
"""Modules of absolute positions, where a model cannot be asked."""
SPARE = 8
"""Entries of a table of positions, at most, that are for no token."""
PROBED = 16
"""Tokens of the prompt, and of the padding before it, by which a model is asked."""
ROUNDING = 0.02
"""Share of an embedding that rounding may change, in any precision."""
TOLERANCE, HALF_TOLERANCE = 0.003, 0.25
"""Mean difference of log-probs that rounding may make, in single precision and below."""

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


def has_absolute_positions(trainer: Any, prompt_ids: Sequence[int]) -> bool:
    """Whether padding before a prompt shifts the positions of a model: found by a forward without such padding and one with.
    By the names of its embeddings where its parameters are not here, because they are sharded.

    Args:
        trainer: a `GRPOTrainer` whose model is not prepared yet.
        prompt_ids: a prompt.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    if any(parameter.is_meta or not parameter.numel() for parameter in model.parameters()):
        names = {name.rsplit(".", 1)[-1] for name, _ in model.named_modules()}
        return bool(names & set(POSITIONS))
    ids = list(prompt_ids)[:PROBED]
    lead = max(1, min(PROBED, (positions_of(model) or 2 * PROBED) - len(ids)))
    pad = trainer._tokenizer.pad_token_id
    device, was_training = model.get_input_embeddings().weight.device, model.training
    model.eval()
    try:
        with torch.no_grad():
            alone, shifted = (
                model(
                    input_ids=torch.tensor([[pad] * before + ids], device=device),
                    attention_mask=torch.tensor([[0] * before + [1] * len(ids)], device=device),
                    output_hidden_states=True,
                )
                for before in (0, lead)
            )
    finally:
        model.train(was_training)
    if alone.get("hidden_states"):  # what enters the first layer: relative positions come later
        first, moved = (output.hidden_states[0].float() for output in (alone, shifted))
        if (moved[:, lead:] - first).norm() > ROUNDING * first.norm():
            return True
    logps, moved = (output.logits.float().log_softmax(-1) for output in (alone, shifted))
    is_exact = all(p.dtype in (torch.float32, torch.float64) for p in model.parameters())
    return bool((moved[:, lead:] - logps).abs().mean() > (TOLERANCE if is_exact else HALF_TOLERANCE))


def has_table_of_positions(model: nn.Module, positions: int | None) -> bool:
    """Whether a model looks its positions up in an embedding, which has none beyond its last."""
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    tokens = model.get_input_embeddings()  # type: ignore[operator]
    return positions is not None and any(
        table is not tokens and positions <= table.num_embeddings <= positions + SPARE for table in tables
    )


def positions_of(model: Any) -> int | None:
    """How many tokens a model has positions for, as its configuration says; None where it does not say."""
    config = model.config.get_text_config()
    most = getattr(config, "max_position_embeddings", None)
    if not isinstance(most, int) or most <= 0:
        return None
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    for rules in (rope, *(part for part in rope.values() if isinstance(part, dict))):
        if rules.get("factor"):
            most = max(most, int((rules.get("original_max_position_embeddings") or most) * rules["factor"]))
    return most


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
