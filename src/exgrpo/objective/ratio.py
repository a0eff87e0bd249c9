"""Importance corrections of replayed tokens. Everything is computed from log-ratios: no exponential can overflow.

w_t = pi_theta(o_t) / pi_behaviour(o_t). A *correction* maps log w, log pi and A, each (B, T), to what is maximised.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..config import ObjectiveConfig

Correction = Callable[[Tensor, Tensor, Tensor, ObjectiveConfig, float], Tensor]

MAX_LOG_RATIO = 20.0
"""PPO's term is unbounded where A < 0, and for either sign without a clip; there log w counts as at most this
(w = 4.9e8). Nowhere else is it bounded."""


def log_ratio(logps: Tensor, behaviour_logps: Tensor, mask: Tensor) -> Tensor:
    """log w, exactly 0 outside the mask, whatever stands there; float32 at least. All (B, T)."""
    dtype = torch.promote_types(logps.dtype, torch.float32)
    return torch.where(mask.bool(), logps.to(dtype) - behaviour_logps.to(dtype), 0.0)


def shaped(log_w: Tensor, logps: Tensor, advantages: Tensor, config: ObjectiveConfig, epsilon: float) -> Tensor:
    """f(w) A with f(w) = w / (w + beta), as sigmoid(log w - log beta). Its gradient is beta w / (w + beta)^2 A
    [ExGRPO, Eq. 4 and sec. 3.3]."""
    return torch.sigmoid(log_w - math.log(config.shaping_beta)) * advantages


def clip(log_w: Tensor, logps: Tensor, advantages: Tensor, config: ObjectiveConfig, epsilon: float) -> Tensor:
    """min(w A, clip(w, 1-eps, 1+eps) A), PPO's."""
    return clipped(log_w, advantages, epsilon)


def clipped(log_w: Tensor, advantages: Tensor, epsilon: float) -> Tensor:
    """PPO's term, written by the sign of A, each branch bounded where the minimum is; an infinite epsilon leaves w A."""
    above = torch.exp(log_w.clamp(max=min(math.log1p(epsilon), MAX_LOG_RATIO)))
    low = math.log1p(-epsilon) if epsilon < 1 else -math.inf
    below = torch.exp(log_w.clamp(min=low, max=MAX_LOG_RATIO))
    return torch.where(advantages >= 0, above, below) * advantages


def truncated(log_w: Tensor, logps: Tensor, advantages: Tensor, config: ObjectiveConfig, epsilon: float) -> Tensor:
    """sg(min(w, c)) A log pi: a policy gradient weighted by the truncated ratio, which has no gradient itself."""
    return torch.exp(log_w.detach().clamp(max=math.log(config.truncation))) * advantages * logps


def uncorrected(log_w: Tensor, logps: Tensor, advantages: Tensor, config: ObjectiveConfig, epsilon: float) -> Tensor:
    """A log pi: replayed tokens learned from as if they were fresh."""
    return advantages * logps


CORRECTIONS: dict[str, Correction] = {"shaped": shaped, "clip": clip, "truncated": truncated, "none": uncorrected}
