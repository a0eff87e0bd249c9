"""Find out how a model numbers the positions of its tokens."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

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


def has_absolute_positions(model: Any, pad: int, prompt_ids: Sequence[int]) -> bool:
    """Return whether padding before a prompt shifts the positions of a model.

    Found by a forward without padding and one with it; by the names of the model's embeddings where its parameters are
    sharded.

    Args:
        model: not prepared for several processes yet.
        pad: token that fills up.
        prompt_ids: a prompt.
    """
    if any(parameter.is_meta or not parameter.numel() for parameter in model.parameters()):
        names = {name.rsplit(".", 1)[-1] for name, _ in model.named_modules()}
        return bool(names & set(POSITIONS))
    ids = list(prompt_ids)[:PROBED]
    lead = max(1, min(PROBED, (positions_of(model) or 2 * PROBED) - len(ids)))
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
    """Return whether a model looks its positions up in an embedding, which has an end."""
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    tokens = model.get_input_embeddings()  # type: ignore[operator]
    return positions is not None and any(
        table is not tokens and positions <= table.num_embeddings <= positions + SPARE for table in tables
    )


def positions_of(model: Any) -> int | None:
    """Return the model's number of positions from its configuration; None where it does not say."""
    config = model.config.get_text_config()
    most = getattr(config, "max_position_embeddings", None)
    if not isinstance(most, int) or most <= 0:
        return None
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    for rules in (rope, *(part for part in rope.values() if isinstance(part, dict))):
        if rules.get("factor"):
            most = max(most, int((rules.get("original_max_position_embeddings") or most) * rules["factor"]))
    return most
