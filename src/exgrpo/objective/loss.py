"""The mixed objective [ExGRPO, Eq. 4]: fresh tokens by PPO's clip, replayed tokens by a corrected ratio.

The shares (1-rho) and rho of Eq. 4 arise from the batch's composition. Sums over tokens are divided by one number that
the caller gives (Dr. GRPO: completions times the maximal completion length), so that the loss does not depend on how a
batch is cut into micro-batches or ranks.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import ObjectiveConfig
from ..errors import ConfigurationError
from .ratio import Terms, clipped, correction_named, log_ratio


@dataclass(frozen=True)
class RatioStats:
    """Of each row, over its own tokens; all (B,), no gradient.

    log_ratio: mean log w, NaN where a row has no token. log_sum: log of sum w, and log_sum_squares: log of sum w^2, -inf
    there. tokens: how many. clamped: how many of them the correction cut.
    """

    log_ratio: Tensor
    log_sum: Tensor
    log_sum_squares: Tensor
    tokens: Tensor
    clamped: Tensor


@dataclass(frozen=True)
class LossOutput:
    """loss: scalar with gradient, to be minimised. per_token: (B, T), 0 where not replayed. stats: of log-ratios."""

    loss: Tensor
    per_token: Tensor
    stats: RatioStats


def replay_loss(
    logps: Tensor,
    behaviour_logps: Tensor,
    advantages: Tensor,
    mask: Tensor,
    replay_mask: Tensor,
    config: ObjectiveConfig,
    weights: Tensor | float,
    epsilon: float = 0.2,
    *,
    vocabulary: int = 0,
) -> LossOutput:
    """The replayed part of the objective.

    Args:
        logps: log-probs of the tokens under the policy that is learned, with gradient, (B, T).
        behaviour_logps: those under the policy that produced the trajectory, (B, T); read on replayed rows only.
        advantages: (B,).
        mask: 1 on the completion's own tokens, (B, T).
        replay_mask: True on replayed rows, (B,).
        config: which correction, and its constants.
        weights: what each token's term is multiplied with, a number or (B, 1): the inverse of the normaliser.
        epsilon: of PPO's clip, for `correction="clip"`.
        vocabulary: size of the model's vocabulary, for `correction="likelihood"`.

    Raises:
        ConfigurationError: the correction needs the vocabulary and it is 0, or one of one's own gave something else than
            one value per token.
    """
    tokens = mask.bool() & replay_mask[:, None]
    log_w = log_ratio(logps, behaviour_logps, tokens)
    own_logps = torch.where(tokens, logps, 0.0).to(log_w.dtype)
    terms = Terms(log_w, own_logps, advantages[:, None].to(log_w.dtype), config, epsilon, vocabulary)
    correction = correction_named(config.correction)
    per_token = torch.where(tokens, -_one_each(correction.function(terms), tokens, config), 0.0)
    with torch.no_grad():
        cut = None if correction.clamped is None else _one_each(correction.clamped(terms), tokens, config)
    return LossOutput((per_token * weights).sum(), per_token.detach(), ratio_stats(log_w.detach(), tokens, cut))


def _one_each(values: Tensor, tokens: Tensor, config: ObjectiveConfig) -> Tensor:
    """The values, if they are one per token: another shape could be spread over the batch unseen."""
    if values.shape != tokens.shape:
        raise ConfigurationError(
            f"correction={config.correction!r} must give one value per token, {tuple(tokens.shape)}, but gave "
            f"{tuple(values.shape)}. Return a tensor shaped like terms.log_w; expand what is the same for a whole row."
        )
    return values


def fresh_loss(
    logps: Tensor,
    old_logps: Tensor,
    advantages: Tensor,
    mask: Tensor,
    weights: Tensor | float,
    epsilon: float | None = 0.2,
) -> Tensor:
    """PPO's clipped term over fresh tokens [ExGRPO, Eq. 1]; `epsilon` None leaves the ratio unclipped. Shapes as for
    `replay_loss`; scalar, to be minimised."""
    log_w = log_ratio(logps, old_logps, mask)
    gain = clipped(log_w, advantages[:, None].to(log_w.dtype), math.inf if epsilon is None else epsilon)
    return -(torch.where(mask.bool(), gain, 0.0) * weights).sum()


def mixed_loss(
    logps: Tensor,
    old_logps: Tensor,
    behaviour_logps: Tensor,
    advantages: Tensor,
    mask: Tensor,
    replay_mask: Tensor,
    config: ObjectiveConfig,
    max_completion_length: int,
    epsilon: float = 0.2,
    *,
    vocabulary: int = 0,
) -> Tensor:
    """Both parts, with Dr. GRPO's normaliser: the whole objective for a loop of one's own. Shapes as for `replay_loss`;
    scalar, to be minimised. Under micro-batches multiply by micro-batch size over batch size."""
    weight = 1.0 / (logps.shape[0] * max_completion_length)
    fresh = torch.where(replay_mask[:, None], 0, mask)
    replayed = replay_loss(
        logps, behaviour_logps, advantages, mask, replay_mask, config, weight, epsilon, vocabulary=vocabulary
    )
    return (
        fresh_loss(logps, old_logps, advantages, fresh, weight, epsilon if config.clip_fresh else None) + replayed.loss
    )


def ratio_stats(log_w: Tensor, tokens: Tensor, clamped: Tensor | None = None) -> RatioStats:
    """Per row; all (B, T). clamped: where the correction cut, nowhere if it is not given."""
    count = tokens.sum(1)
    inside = torch.where(tokens, log_w, -math.inf)
    return RatioStats(
        torch.where(tokens, log_w, 0.0).sum(1) / count,
        inside.logsumexp(1),
        (2 * inside).logsumexp(1),
        count,
        torch.zeros_like(count) if clamped is None else (clamped.bool() & tokens).sum(1),
    )


def effective_sample_size(log_sum: Tensor, log_sum_squares: Tensor, tokens: Tensor) -> float:
    """(sum w)^2 / (n sum w^2) over the tokens of all given rows, in (0, 1]; NaN where there are none."""
    n = tokens.sum()
    if not n:
        return math.nan
    return float(torch.exp(2 * log_sum.logsumexp(0) - log_sum_squares.logsumexp(0)) / n)
