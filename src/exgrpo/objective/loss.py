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
from .ratio import CORRECTIONS, clipped, log_ratio


@dataclass(frozen=True)
class RatioStats:
    """Of each row, over its own tokens; all (B,), no gradient.

    log_ratio: mean log w, NaN where a row has no token. log_sum: log of sum w, and log_sum_squares: log of sum w^2, -inf
    there. tokens: how many.
    """

    log_ratio: Tensor
    log_sum: Tensor
    log_sum_squares: Tensor
    tokens: Tensor


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
    """
    tokens = mask.bool() & replay_mask[:, None]
    log_w = log_ratio(logps, behaviour_logps, tokens)
    gain = CORRECTIONS[config.correction](
        log_w, torch.where(tokens, logps, 0.0).to(log_w.dtype), advantages[:, None].to(log_w.dtype), config, epsilon
    )
    per_token = torch.where(tokens, -gain, 0.0)
    return LossOutput((per_token * weights).sum(), per_token.detach(), ratio_stats(log_w.detach(), tokens))


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
) -> Tensor:
    """Both parts, with Dr. GRPO's normaliser: the whole objective for a loop of one's own. Shapes as for `replay_loss`;
    scalar, to be minimised. Under micro-batches multiply by micro-batch size over batch size."""
    weight = 1.0 / (logps.shape[0] * max_completion_length)
    fresh = torch.where(replay_mask[:, None], 0, mask)
    return (
        fresh_loss(logps, old_logps, advantages, fresh, weight, epsilon if config.clip_fresh else None)
        + replay_loss(logps, behaviour_logps, advantages, mask, replay_mask, config, weight, epsilon).loss
    )


def ratio_stats(log_w: Tensor, tokens: Tensor) -> RatioStats:
    """Per row; log_w and tokens are (B, T)."""
    count = tokens.sum(1)
    inside = torch.where(tokens, log_w, -math.inf)
    return RatioStats(
        torch.where(tokens, log_w, 0.0).sum(1) / count,
        inside.logsumexp(1),
        (2 * inside).logsumexp(1),
        count,
    )


def effective_sample_size(log_sum: Tensor, log_sum_squares: Tensor, tokens: Tensor) -> float:
    """(sum w)^2 / (n sum w^2) over the tokens of all given rows, in (0, 1]; NaN where there are none."""
    n = tokens.sum()
    if not n:
        return math.nan
    return float(torch.exp(2 * log_sum.logsumexp(0) - log_sum_squares.logsumexp(0)) / n)
