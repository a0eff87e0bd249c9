"""Importance corrections of replayed tokens. Everything is computed from log-ratios: no exponential can overflow.

w_t = pi_theta(o_t) / pi_behaviour(o_t). A *correction* is one function: of a token's `Terms` it makes what is maximised.
One's own is added by `register_correction`, or named by a dotted path.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor

from ..config import CORRECTIONS, ObjectiveConfig
from ..errors import ConfigurationError

MAX_LOG_RATIO = 20.0
"""PPO's term is unbounded where A < 0, and for either sign without a clip; there log w counts as at most this
(w = 4.9e8). Nowhere else is it bounded."""


@dataclass(frozen=True)
class Terms:
    """What a correction sees of the replayed tokens.

    log_w: log(pi_theta / pi_behaviour), (B, T), with gradient; 0 outside the replayed tokens.
    logps: log pi_theta, (B, T), with gradient; 0 there too. Float32 at least, like all three.
    advantages: (B, 1), or any shape that broadcasts to (B, T).
    config: the constants of the corrections.
    epsilon: of PPO's clip.
    vocabulary: size V of the model's vocabulary, 0 if it is not known.
    """

    log_w: Tensor
    logps: Tensor
    advantages: Tensor
    config: ObjectiveConfig
    epsilon: float = 0.2
    vocabulary: int = 0


Rule = Callable[[Terms], Tensor]


@dataclass(frozen=True)
class Correction:
    """function: what is maximised, (B, T). clamped: True on tokens whose ratio the correction cuts, (B, T), if it cuts."""

    function: Rule
    clamped: Rule | None = None


@overload
def register_correction(name: str, function: None = None, *, clamped: Rule | None = None) -> Callable[[Rule], Rule]: ...
@overload
def register_correction(name: str, function: Rule, *, clamped: Rule | None = None) -> Rule: ...
def register_correction(name: str, function: Rule | None = None, *, clamped: Rule | None = None) -> Any:
    """Make a function a value of the option `correction`; called plainly, or as a decorator.

    Args:
        name: letters, digits and underscores.
        function: from `Terms` to what is maximised per token, (B, T).
        clamped: from `Terms` to the tokens whose ratio is cut, (B, T) bool, for `replay/clamped`.

    Returns:
        The function, or a decorator that registers one.

    Raises:
        ConfigurationError: the name is taken.
    """
    CORRECTIONS.check(name, function)

    def register(function: Rule) -> Rule:
        CORRECTIONS.register(name, Correction(function, clamped))
        return function

    return register if function is None else register(function)


def correction_named(name: str) -> Correction:
    """The correction of that name, or the function at that dotted path."""
    found = CORRECTIONS[name]
    return found if isinstance(found, Correction) else Correction(found)


def log_ratio(logps: Tensor, behaviour_logps: Tensor, mask: Tensor) -> Tensor:
    """log w, exactly 0 outside the mask, whatever stands there; float32 at least. All (B, T)."""
    dtype = torch.promote_types(logps.dtype, torch.float32)
    return torch.where(mask.bool(), logps.to(dtype) - behaviour_logps.to(dtype), 0.0)


def shaped(terms: Terms) -> Tensor:
    """f(w) A with f(w) = w / (w + beta), as sigmoid(log w - log beta). Its gradient is beta w / (w + beta)^2 A
    [ExGRPO, Eq. 4 and sec. 3.3]."""
    return torch.sigmoid(terms.log_w - math.log(terms.config.shaping_beta)) * terms.advantages


def clip(terms: Terms) -> Tensor:
    """min(w A, clip(w, 1-eps, 1+eps) A), PPO's."""
    return clipped(terms.log_w, terms.advantages, terms.epsilon)


def clipped(log_w: Tensor, advantages: Tensor, epsilon: float) -> Tensor:
    """PPO's term, written by the sign of A, each branch bounded where the minimum is; an infinite epsilon leaves w A."""
    high, low = _clip_bounds(epsilon)
    above = torch.exp(log_w.clamp(max=high))
    below = torch.exp(log_w.clamp(min=low, max=MAX_LOG_RATIO))
    return torch.where(advantages >= 0, above, below) * advantages


def clip_is_active(terms: Terms) -> Tensor:
    """Where PPO's term is flat: w above 1+eps with A > 0, or below 1-eps with A < 0."""
    high, low = _clip_bounds(terms.epsilon)
    falling = (terms.log_w < low) | (terms.log_w > MAX_LOG_RATIO)
    return ((terms.advantages > 0) & (terms.log_w > high)) | ((terms.advantages < 0) & falling)


def _clip_bounds(epsilon: float) -> tuple[float, float]:
    """Of log w: the highest where A > 0, the lowest where A < 0."""
    return min(math.log1p(epsilon), MAX_LOG_RATIO), math.log1p(-epsilon) if epsilon < 1 else -math.inf


def truncated(terms: Terms) -> Tensor:
    """sg(min(w, c)) A log pi: a policy gradient weighted by the truncated ratio, which has no gradient itself."""
    return torch.exp(terms.log_w.detach().clamp(max=math.log(terms.config.truncation))) * terms.advantages * terms.logps


def above_truncation(terms: Terms) -> Tensor:
    """w > c."""
    return terms.log_w > math.log(terms.config.truncation)


def uncorrected(terms: Terms) -> Tensor:
    """A log pi: replayed tokens learned from as if they were fresh."""
    return terms.advantages * terms.logps


def likelihood(terms: Terms) -> Tensor:
    """sg(min(V pi, clamp)) A log pi: a policy gradient weighted by the token's likelihood over that of a uniform policy
    over the vocabulary, 1/V. What the behaviour policy gave the token plays no part.

    Below the clamp the gradient is that of V pi A. The weight itself has none: with one, a token above the clamp would
    teach nothing, and a policy that is at all sure has V pi > 5 nearly everywhere.
    """
    bound = math.log(terms.config.likelihood_clamp)
    weight = torch.exp(_log_over_uniform(terms).detach().clamp(max=bound))
    return weight * terms.advantages * terms.logps


def above_likelihood_clamp(terms: Terms) -> Tensor:
    """V pi > clamp."""
    return _log_over_uniform(terms) > math.log(terms.config.likelihood_clamp)


def _log_over_uniform(terms: Terms) -> Tensor:
    """log(V pi)."""
    if terms.vocabulary < 1:
        raise ConfigurationError(
            "correction='likelihood' compares a token with a uniform policy over the model's vocabulary and needs its size, "
            f"but vocabulary={terms.vocabulary!r} came. Pass vocabulary=model.config.vocab_size."
        )
    return terms.logps + math.log(terms.vocabulary)


register_correction("shaped", shaped)
register_correction("clip", clip, clamped=clip_is_active)
register_correction("truncated", truncated, clamped=above_truncation)
register_correction("none", uncorrected)
register_correction("likelihood", likelihood, clamped=above_likelihood_clamp)
