"""Pad prompts and completions into batches, and move padding about."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..experience.trajectory import Trajectory

Item = tuple[Sequence[int], Trajectory]
"""Prompt ids, and the trajectory behind them."""


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


def padded(items: Sequence[Item], pad: int, device: torch.device | str = "cpu") -> Padded:
    """Pad prompts and completions into one batch with the token `pad`."""
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


def without_left_padding(
    forward: Callable[..., Any],
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    logits_to_keep: int,
    *args: Any,
    **kwargs: Any,
) -> tuple[Any, ...]:
    """Call the host's forward with left padding moved to the right, and undo that in the results.

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


def at_left(values: Tensor, own: Tensor) -> Tensor:
    """Move each row's own places to its left end, followed by 0; (B, T')."""
    lengths = own.sum(1)
    width = int(lengths.max())
    start = own.int().argmax(1)
    places = (start[:, None] + torch.arange(width, device=own.device)[None]).clamp(max=own.size(1) - 1)
    moved = values.gather(1, places)
    inside = torch.arange(width, device=own.device)[None] < lengths[:, None]
    return torch.where(inside, moved, torch.zeros_like(moved))
