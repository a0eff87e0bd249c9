"""Uncertainty of a policy about what it generated: the entropies of recipe A."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import ConfigurationError
from .entropy_guided import check
from .rollouts import Rollouts, completion_logits
from .stored import SampledRollouts, StoredIds, StoredText

ENTROPY_KINDS = ("token_entropy", "confidence_variance")
ELEMENTS_AT_ONCE = 1 << 24
"""Logits that are worked on at a time: 64 MiB in float32."""
TO_ADD = (
    "Pass the logits, as generate(..., return_dict_in_generate=True, output_logits=True) answers with them; or token ids and "
    "the policy: compute_entropy(Rollouts.collate(prompts, completions), policy=policy)"
)


@torch.no_grad()
def compute_entropy(
    logits: Any,
    mask: Tensor | None = None,
    kind: str = "token_entropy",
    *,
    token_ids: Tensor | None = None,
    policy: nn.Module | None = None,
    temperature: float = 1.0,
) -> Tensor:
    """Return a policy's uncertainty about each completion: a mean, or a variance, over its tokens, without gradient.

    The logits are worked on a piece at a time, so that a large vocabulary takes some 200 MiB beside the logits themselves.

    Args:
        logits: that each token was sampled from, (B, T, V), or (T, V) of one completion; -inf where a token was impossible.
            Or T tensors (B, V), as `generate(output_logits=True)` gives them. Or anything that has `logits`. Or `Rollouts`, or
            those of a sample, with a `policy`. Or what a `TrajectoryBuffer` gave out, one rollout or a sample's: the entropies
            then are those that were stored with them.
        mask: 1 on the completion's own tokens, (B, T) or (T,); all by default.
        kind: `token_entropy`: the mean of the tokens' entropies over the whole vocabulary, in nats.
            `confidence_variance`: the population variance of the tokens' probabilities.
        token_ids: the tokens, (B, T) or (T,), for `confidence_variance`; by default the likeliest ones.
        policy: a causal language model, for `Rollouts`: the entropies are those under it.
        temperature: that completions are sampled at, where a policy is given.

    Returns:
        (B,), or () for one completion, float32 at least; NaN where a completion has no token, or none was stored.

    Raises:
        ConfigurationError: a kind that there is not, a shape that does not fit, or something that has no logits.
    """
    check(kind in ENTROPY_KINDS, f"compute_entropy needs a kind of {', '.join(ENTROPY_KINDS)}, not {kind!r}")
    if policy is not None:
        check(
            isinstance(policy, nn.Module),
            "compute_entropy needs a policy that gives logits, a torch.nn.Module, not a function",
        )
        check(mask is None, "compute_entropy needs no mask beside a policy: rollouts have their own")
        rollouts = Rollouts.of(logits, next((p.device for p in policy.parameters()), None))
        logits, mask = completion_logits(policy, rollouts, temperature), rollouts.mask
    elif (stored := _stored(logits)) is not None:
        check(
            kind == "token_entropy", f"compute_entropy knows of a stored rollout its entropy, not its {kind}. {TO_ADD}"
        )
        return stored
    logits = _logits(logits)
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


def _stored(given: Any) -> Tensor | None:
    """Return the value stored with a buffer's output, () or (B,); None of anything else."""
    rollouts = given if isinstance(given, (list, tuple)) else [given]
    stored = [
        rollout for rollout in rollouts if isinstance(rollout, (StoredText, StoredIds)) and hasattr(rollout, "entropy")
    ]
    if len(stored) < len(rollouts) or not (stored or isinstance(given, SampledRollouts)):
        return None
    entropies = torch.tensor([rollout.entropy for rollout in stored], dtype=torch.float32)
    return entropies if rollouts is given else entropies[0]


def _logits(given: Any) -> Tensor:
    """Return the logits that an object has, (B, T, V) or (T, V); refuse one that has none."""
    found = given["logits"] if isinstance(given, Mapping) and "logits" in given else getattr(given, "logits", given)
    parts = tuple(found) if isinstance(found, (list, tuple)) else (found,)
    parts = tuple(torch.from_numpy(part) if isinstance(part, np.ndarray) else part for part in parts)
    wrong = [part for part in parts if not (isinstance(part, Tensor) and part.is_floating_point())]
    if wrong or not parts:
        what = (
            "token ids"
            if wrong and isinstance(wrong[0], (int, Tensor))
            else f"{type(wrong[0] if wrong else found).__name__}"
        )
        raise ConfigurationError(
            f"compute_entropy needs the logits that each token was sampled from, not {what}. {TO_ADD}."
        )
    return parts[0] if isinstance(found, (Tensor, np.ndarray)) else torch.stack(parts, 1)


def _by_token(logits: Tensor, kind: str, token_ids: Tensor | None) -> Tensor:
    """Return the entropy or probability of each token, (..., T), computed piece by piece."""
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
