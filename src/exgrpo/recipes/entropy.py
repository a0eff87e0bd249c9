"""How unsure a policy was of what it generated: the entropies of recipe A."""

from typing import Any

import torch
from torch import Tensor

from .entropy_guided import check

ENTROPY_KINDS = ("token_entropy", "confidence_variance")
ELEMENTS_AT_ONCE = 1 << 24
"""Logits that are worked on at a time: 64 MiB in float32."""


@torch.no_grad()
def compute_entropy(
    logits: Any, mask: Tensor | None = None, kind: str = "token_entropy", *, token_ids: Tensor | None = None
) -> Tensor:
    """How unsure a policy was of each completion: a mean, or a variance, over its tokens. No gradient.

    The logits are worked on a piece at a time, so that a large vocabulary takes some 200 MiB beside the logits themselves.

    Args:
        logits: that each token was sampled from, (B, T, V), or (T, V) of one completion; -inf where a token was impossible.
            Or T tensors (B, V), as `generate(output_logits=True)` gives them. Or anything that has `logits`.
        mask: 1 on the completion's own tokens, (B, T) or (T,); all by default.
        kind: `token_entropy`: the mean of the tokens' entropies over the whole vocabulary, in nats.
            `confidence_variance`: the population variance of the tokens' probabilities.
        token_ids: the tokens, (B, T) or (T,), for `confidence_variance`; by default the likeliest ones.

    Returns:
        (B,), or () for one completion, float32 at least; NaN where a completion has no token.

    Raises:
        ConfigurationError: a kind that there is not, or a shape that does not fit.
    """
    check(kind in ENTROPY_KINDS, f"compute_entropy needs a kind of {', '.join(ENTROPY_KINDS)}, not {kind!r}")
    logits = getattr(logits, "logits", logits)
    logits = logits if isinstance(logits, Tensor) else torch.stack(tuple(logits), 1)
    check(logits.dim() in (2, 3), f"compute_entropy needs logits (B, T, V) or (T, V), not {tuple(logits.shape)}")
    shape = logits.shape[:-1]
    mask = torch.ones(shape, device=logits.device) if mask is None else mask
    for name, given in (("mask", mask), ("token_ids", token_ids)):
        if given is not None:
            fits = given.shape == shape
            check(fits, f"compute_entropy needs {name} of shape {tuple(shape)}, not {tuple(given.shape)}")
    values = _by_token(logits, kind, token_ids)
    own = mask.bool()
    mean = torch.where(own, values, 0.0).sum(-1) / own.sum(-1)
    if kind == "token_entropy":
        return mean
    return torch.where(own, (values - mean[..., None]).square(), 0.0).sum(-1) / own.sum(-1)


def _by_token(logits: Tensor, kind: str, token_ids: Tensor | None) -> Tensor:
    """Entropy or probability of each token, (..., T), a piece at a time."""
    if logits.dim() == 3 and not logits.is_contiguous():  # flattened, it would be copied whole
        ids = [None] * len(logits) if token_ids is None else list(token_ids)
        return torch.stack([_by_token(row, kind, own) for row, own in zip(logits, ids, strict=True)])
    flat = logits.reshape(-1, logits.shape[-1])
    dtype = torch.promote_types(logits.dtype, torch.float32)
    values = torch.empty(len(flat), dtype=dtype, device=logits.device)
    step = max(1, ELEMENTS_AT_ONCE // logits.shape[-1])
    for start in range(0, len(flat), step):
        piece = slice(start, start + step)
        probabilities = flat[piece].to(dtype).softmax(-1)
        if kind == "token_entropy":
            values[piece] = torch.special.entr(probabilities).sum(-1)
        elif token_ids is None:
            values[piece] = probabilities.amax(-1)
        else:
            values[piece] = probabilities.gather(1, token_ids.reshape(-1, 1)[piece])[:, 0]
    return values.reshape(logits.shape[:-1])
