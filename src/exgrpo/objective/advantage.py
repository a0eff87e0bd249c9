"""Credit inside a group."""

import torch
from torch import Tensor


def group_advantages(rewards: Tensor, positive_weight: float = 1.0, scale: str = "none") -> Tensor:
    """A_i = r_i - mean(r) over the group, the replayed member included; no division by the standard deviation
    [ExGRPO, sec. 3.2; Dr. GRPO].

    A group without variance (max == min) has advantages of exactly 0, which r - mean does not give in floating point.
    An unscorable member (NaN) counts in no mean and has advantage 0.

    Args:
        rewards: (G, K), NaN where unscorable.
        positive_weight: factor on positive advantages.
        scale: `none`, or `group` to divide by the group's standard deviation + 1e-4 (GRPO).

    Returns:
        (G, K), finite where the rewards are.
    """
    scorable = ~rewards.isnan()
    advantages = rewards - rewards.nanmean(dim=1, keepdim=True)
    if scale == "group":
        deviation = torch.where(scorable, advantages, 0.0)
        variance = deviation.square().sum(1, keepdim=True) / (scorable.sum(1, keepdim=True) - 1).clamp(min=1)
        advantages = advantages / (variance.sqrt() + 1e-4)
    flat = torch.where(scorable, rewards, -torch.inf).amax(1) == torch.where(scorable, rewards, torch.inf).amin(1)
    advantages = torch.where(scorable & ~flat[:, None], advantages, 0.0)
    return weight_positive(advantages, positive_weight)


def weight_positive(advantages: Tensor, positive_weight: float) -> Tensor:
    """Positive advantages times `positive_weight`; any shape."""
    return torch.where(advantages > 0, advantages * positive_weight, advantages)
