"""The loss that verl's workers call: the host's own on fresh rows, the replayed term of the objective on stored ones.

verl hands a policy loss no column of ours. Which rows are stored is told by the sign of `rollout_is_weights`, whose size stays
a weight; `old_log_probs` of stored rows are those of the policy that produced them.
"""

import functools
import json
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import agg_loss, compute_policy_loss_vanilla, register_policy_loss
from verl.workers.config.actor import PolicyLossConfig

from ..config import ObjectiveConfig
from ..objective import replay_loss
from ..objective.loss import clipped, log_ratio
from .checks import LOSS_MODE


@dataclass
class PolicyLoss(PolicyLossConfig):  # type: ignore[misc]  # a class of the host
    """verl's options of a policy loss, and those of this one.

    Args:
        objective: an `ObjectiveConfig` as JSON.
        vocabulary: size of the model's.
    """

    objective: str = "{}"
    vocabulary: int = 0


@functools.cache
def objective_of(text: str) -> ObjectiveConfig:
    """Read the objective from `PolicyLoss.objective`."""
    return ObjectiveConfig(**json.loads(text))


def marked(weights: Tensor, stored: Tensor) -> Tensor:
    """Return weights that say by their sign which rows are stored.

    Args:
        weights: (b, T), at least 0 on fresh rows, above 0 on stored ones.
        stored: (b,).
    """
    return torch.where(stored[:, None], -weights, weights)


def unmarked(weights: Tensor | None, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights, (b, T), and which rows are stored, (b,)."""
    if weights is None:
        return torch.ones_like(like), torch.zeros(len(like), dtype=torch.bool, device=like.device)
    return weights.abs(), (weights < 0).any(1)


@register_policy_loss(LOSS_MODE)
def mixed_policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """Compute the mixed objective [ExGRPO, Eq. 4] of a micro-batch; all (b, T).

    Args:
        old_log_prob: of fresh rows under the policy before the update, of stored ones under the policy that produced them.
        log_prob: under the policy that is trained, with gradient.
        advantages: the same on all tokens of a row.
        response_mask: the tokens that count.
        loss_agg_mode: of verl.
        config: of the actor.
        rollout_is_weights: as `marked` gives them.

    Returns:
        The loss, and the host's metrics of it; replayed tokens are neither clipped nor apart from themselves in them.
    """
    objective = objective_of(config.policy_loss.objective)
    weights, stored = unmarked(rollout_is_weights, log_prob)
    rows = stored[:, None]
    fresh_old = torch.where(rows, log_prob.detach(), old_log_prob)
    loss, metrics = compute_policy_loss_vanilla(
        fresh_old, log_prob, advantages.masked_fill(rows, 0.0), response_mask, loss_agg_mode, config, weights
    )
    aggregated = functools.partial(
        agg_loss, loss_mask=response_mask, loss_agg_mode=loss_agg_mode, **config.global_batch_info
    )
    if not objective.clip_fresh:
        fresh = response_mask.bool() & ~rows
        gain = clipped(log_ratio(log_prob, old_log_prob, fresh), advantages, math.inf)
        loss = aggregated(-torch.where(fresh, gain, 0.0) * weights)
    if stored.any():
        factors = _gradient(aggregated, log_prob) * weights
        output = replay_loss(
            log_prob, old_log_prob, _of_rows(advantages, response_mask), response_mask, stored, objective, factors,
            config.clip_ratio_low, vocabulary=config.policy_loss.vocabulary,
        )  # fmt: skip
        loss = loss + output.loss
    return loss, metrics


def _gradient(aggregated: Any, like: Tensor) -> Tensor:
    """Return what an aggregation, which is linear, multiplies each token's term with; (b, T)."""
    terms = torch.zeros_like(like, dtype=torch.float32).requires_grad_()
    with torch.enable_grad():
        (found,) = torch.autograd.grad(aggregated(terms), terms)
    return found


def _of_rows(advantages: Tensor, mask: Tensor) -> Tensor:
    """Return the advantage of each row, which all its tokens have, (b,)."""
    first = mask.int().argmax(1, keepdim=True)
    return advantages.gather(1, first)[:, 0]
