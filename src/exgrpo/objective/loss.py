"""The mixed objective [ExGRPO, Eq. 4]: fresh tokens by PPO's clip, replayed tokens by a corrected ratio.

    w_t = pi_theta(o_t) / pi_behaviour(o_t)
    fresh:     min(w A, clip(w, 1 - eps, 1 + eps) A)
    replayed:  f(w) A,  f(w) = w / (w + beta)

Everything is computed from log w, so that no exponential can overflow. The caller passes the one number that sums over
tokens are divided by (Dr. GRPO: completions times the maximal completion length), so that the loss does not depend on how a
batch is split into micro-batches or ranks. The shares (1 - rho) and rho of Eq. 4 follow from the batch's composition.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import CORRECTIONS, ObjectiveConfig
from ..errors import ConfigurationError
from ..registry import register
from .stats import RatioStats, at_level, ratio_stats

MAX_LOG_RATIO = 20.0
"""Upper bound of log w (w = 4.9e8) where PPO's term has none: where A < 0, and for either sign without a clip."""


@dataclass(frozen=True)
class Terms:
    """The replayed tokens as a correction sees them.

    log_w: log(pi_theta / pi_behaviour), (B, T), with gradient; 0 outside the replayed tokens. With sequence-level
        importance, the mean over a row's tokens on each of them.
    logps: log pi_theta, (B, T), with gradient; 0 outside too. At least float32, like log_w and advantages.
    advantages: (B, 1), or any shape that broadcasts to (B, T).
    config: the constants of the corrections.
    epsilon: of PPO's clip.
    vocabulary: size V of the model's vocabulary, 0 if it is not known.
    tokens: True on the replayed tokens, (B, T); None: all are.
    """

    log_w: Tensor
    logps: Tensor
    advantages: Tensor
    config: ObjectiveConfig
    epsilon: float = 0.2
    vocabulary: int = 0
    tokens: Tensor | None = None


@dataclass(frozen=True)
class LossOutput:
    """Result of `replay_loss`.

    loss: scalar with gradient, to be minimised.
    per_token: (B, T), 0 where not replayed.
    stats: of the ratios.
    """

    loss: Tensor
    per_token: Tensor
    stats: RatioStats


def shaped(terms: Terms) -> Tensor:
    """Return f(w) A as sigmoid(log w - log beta) A, (B, T) [ExGRPO, Eq. 4 and sec. 3.3].

    Its gradient with respect to log pi is beta w / (w + beta)^2 A.
    """
    return torch.sigmoid(terms.log_w - math.log(terms.config.shaping_beta)) * terms.advantages


register("correction", "shaped", shaped)


def clipped(log_w: Tensor, advantages: Tensor, epsilon: float) -> Tensor:
    """Return PPO's term, bounded on the side that the sign of A decides; an infinite epsilon leaves w A."""
    high, low = clip_bounds(epsilon)
    above = torch.exp(log_w.clamp(max=high))
    below = torch.exp(log_w.clamp(min=low, max=MAX_LOG_RATIO))
    return torch.where(advantages >= 0, above, below) * advantages


def clip_bounds(epsilon: float) -> tuple[float, float]:
    """Return the highest log w where A > 0 and the lowest where A < 0."""
    return min(math.log1p(epsilon), MAX_LOG_RATIO), math.log1p(-epsilon) if epsilon < 1 else -math.inf


def log_ratio(logps: Tensor, behaviour_logps: Tensor, mask: Tensor) -> Tensor:
    """Return log w in float32 at least, exactly 0 outside the mask. All (B, T)."""
    dtype = torch.promote_types(logps.dtype, torch.float32)
    return torch.where(mask.bool(), logps.to(dtype) - behaviour_logps.to(dtype), 0.0)


def fresh_loss(
    logps: Tensor, old_logps: Tensor, advantages: Tensor, mask: Tensor, weights: Tensor | float,
    epsilon: float | None = 0.2,
) -> Tensor:  # fmt: skip
    """Compute PPO's clipped term over fresh tokens [ExGRPO, Eq. 1]; scalar, to be minimised.

    Shapes as for `replay_loss`; `epsilon=None` leaves the ratio unclipped.
    """
    log_w = log_ratio(logps, old_logps, mask)
    gain = clipped(log_w, advantages[:, None].to(log_w.dtype), math.inf if epsilon is None else epsilon)
    return -(torch.where(mask.bool(), gain, 0.0) * weights).sum()


def replay_loss(
    logps: Tensor, behaviour_logps: Tensor, advantages: Tensor, mask: Tensor, replay_mask: Tensor, config: ObjectiveConfig,
    weights: Tensor | float, epsilon: float = 0.2, *, vocabulary: int = 0, level: str = "token",
) -> LossOutput:  # fmt: skip
    """Compute the replayed term of the objective [ExGRPO, Eq. 4].

    Args:
        logps: log-probs of the tokens under the policy that is trained, with gradient, (B, T).
        behaviour_logps: log-probs under the policy that produced the trajectory, (B, T); read on replayed rows only.
        advantages: (B,).
        mask: 1 on the tokens that the policy wrote, (B, T).
        replay_mask: True on replayed rows, (B,).
        config: which correction, and its constants.
        weights: factor of each token's term, a number or (B, 1): the inverse of the normaliser.
        epsilon: of PPO's clip, for `correction="clip"`.
        vocabulary: size of the model's vocabulary, for `correction="likelihood"`.
        level: `token`, or `sequence`: every token of a completion has its geometric mean ratio [GSPO, Eq. 7].

    Raises:
        ConfigurationError: the correction needs the vocabulary and it is 0, or a user's correction did not return one value
            per token.
    """
    tokens = mask.bool() & replay_mask[:, None]
    log_w = log_ratio(logps, behaviour_logps, tokens)
    own_logps = torch.where(tokens, logps, 0.0).to(log_w.dtype)
    leveled = at_level(log_w, tokens, level)
    terms = Terms(leveled, own_logps, advantages[:, None].to(log_w.dtype), config, epsilon, vocabulary, tokens)
    correction = CORRECTIONS[config.correction]
    per_token = torch.where(tokens, -_per_token(correction, terms, tokens), 0.0)
    with torch.no_grad():
        cut = correction.traits["clamped"]
        clamped = None if cut is None else _per_token(cut, terms, tokens)
    stats = ratio_stats(log_w.detach(), tokens, clamped)
    return LossOutput((per_token * weights).sum(), per_token.detach(), stats)


def _per_token(rule: Callable[[Terms], Tensor], terms: Terms, tokens: Tensor) -> Tensor:
    """Call a rule and check that it returns one value per token: another shape could broadcast unnoticed."""
    values = rule(terms)
    if values.shape != tokens.shape:
        raise ConfigurationError(
            f"correction={terms.config.correction!r} must give one value per token, {tuple(tokens.shape)}, but gave "
            f"{tuple(values.shape)}. Return a tensor shaped like terms.log_w; expand what is the same for a whole row."
        )
    return values


def mixed_loss(
    logps: Tensor, old_logps: Tensor, behaviour_logps: Tensor, advantages: Tensor, mask: Tensor, replay_mask: Tensor,
    config: ObjectiveConfig, max_completion_length: int, epsilon: float = 0.2, *, vocabulary: int = 0,
) -> Tensor:  # fmt: skip
    """Compute the whole objective with Dr. GRPO's normaliser, for a loop of one's own; scalar, to be minimised.

    Shapes as for `replay_loss`. Under micro-batches multiply by micro-batch size over batch size.
    """
    weight = 1.0 / (logps.shape[0] * max_completion_length)
    fresh = torch.where(replay_mask[:, None], 0, mask)
    clip = epsilon if config.clip_fresh else None
    replayed = replay_loss(
        logps, behaviour_logps, advantages, mask, replay_mask, config, weight, epsilon, vocabulary=vocabulary
    )
    return fresh_loss(logps, old_logps, advantages, fresh, weight, clip) + replayed.loss
