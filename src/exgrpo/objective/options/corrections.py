"""Corrections of replayed tokens beside `shaped`.

A *correction* is one function: from the `Terms` of tokens it computes what is maximised.
"""

import math

import torch
from torch import Tensor

from ...errors import ConfigurationError
from ...registry import register
from ..loss import MAX_LOG_RATIO, Terms, clip_bounds, clipped


def clip(terms: Terms) -> Tensor:
    """Return PPO's min(w A, clip(w, 1-eps, 1+eps) A)."""
    return clipped(terms.log_w, terms.advantages, terms.epsilon)


def clip_is_active(terms: Terms) -> Tensor:
    """Return where PPO's term is flat: w above 1+eps with A > 0, or below 1-eps with A < 0."""
    high, low = clip_bounds(terms.epsilon)
    falling = (terms.log_w < low) | (terms.log_w > MAX_LOG_RATIO)
    return ((terms.advantages > 0) & (terms.log_w > high)) | ((terms.advantages < 0) & falling)


def truncated(terms: Terms) -> Tensor:
    """Return sg(min(w, c)) A log pi: a policy gradient weighted by the truncated ratio; the weight has no gradient."""
    return torch.exp(terms.log_w.detach().clamp(max=math.log(terms.config.truncation))) * terms.advantages * terms.logps


def above_truncation(terms: Terms) -> Tensor:
    """Return where w > c."""
    return terms.log_w > math.log(terms.config.truncation)


def uncorrected(terms: Terms) -> Tensor:
    """Return A log pi: train on replayed tokens as if they were fresh."""
    return terms.advantages * terms.logps


def likelihood(terms: Terms) -> Tensor:
    """Return sg(min(V pi, clamp)) A log pi: a policy gradient weighted by V pi.

    V pi is the token's likelihood over that of a uniform policy over the vocabulary, 1/V. The behaviour policy's
    probability plays no part.

    Below the clamp the gradient is that of V pi A. The weight itself has none: with one, a token above the clamp would
    teach nothing, and a policy that is at all sure has V pi > 5 nearly everywhere.
    """
    bound = math.log(terms.config.likelihood_clamp)
    weight = torch.exp(_log_over_uniform(terms).detach().clamp(max=bound))
    return weight * terms.advantages * terms.logps


def above_likelihood_clamp(terms: Terms) -> Tensor:
    """Return where V pi > clamp."""
    return _log_over_uniform(terms) > math.log(terms.config.likelihood_clamp)


def _log_over_uniform(terms: Terms) -> Tensor:
    """Return log(V pi)."""
    if terms.vocabulary < 1:
        raise ConfigurationError(
            "correction='likelihood' compares a token with a uniform policy over the model's vocabulary and needs its size, "
            f"but vocabulary={terms.vocabulary!r} came. Pass vocabulary=model.config.vocab_size."
        )
    return terms.logps + math.log(terms.vocabulary)


register("correction", "clip", clip, clamped=clip_is_active)
register("correction", "truncated", truncated, clamped=above_truncation)
register("correction", "none", uncorrected)
register("correction", "likelihood", likelihood, clamped=above_likelihood_clamp)
