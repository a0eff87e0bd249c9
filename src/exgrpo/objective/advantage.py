"""Credit inside a group. The value that a reward is compared with is a *baseline*, one function of a group's rewards."""

import torch
from torch import Tensor

from ..config import BASELINES
from ..registry import register
from .group_stats import check_baseline, deviation, mean_of


def group_advantages(
    rewards: Tensor, positive_weight: float = 1.0, scale: str = "none", replayed: Tensor | None = None,
    baseline: str = "group",
) -> Tensor:  # fmt: skip
    """Compute A_i = r_i - mean(r) over the group, replayed member included [ExGRPO, sec. 3.2; Dr. GRPO].

    There is no division by the standard deviation; another `baseline` subtracts something else.

    Where all compared rewards are equal, a member with that reward has an advantage of exactly 0, which r - mean does not
    give in floating point. An unscorable member (NaN) counts in no mean and has advantage 0.

    Args:
        rewards: (G, K), NaN where unscorable.
        positive_weight: factor on positive advantages.
        scale: `none`, or `group` to divide by the group's standard deviation + 1e-4 (GRPO).
        replayed: True on replayed members, (G, K); None if there are none.
        baseline: `group`, `fresh`, `split`, or a rule of one's own.

    Returns:
        (G, K), finite where the rewards are.

    Raises:
        ConfigurationError: a user's baseline has no value for a scorable member, or the wrong shape.
    """
    replayed = torch.zeros_like(rewards, dtype=torch.bool) if replayed is None else replayed.bool()
    rule = BASELINES[baseline]
    compared = rule(rewards, replayed)
    scorable = ~rewards.isnan()
    check_baseline(compared, rewards, scorable, baseline)
    advantages = rewards - compared
    if scale == "group":
        advantages = advantages / (deviation(rewards, replayed, rule.traits["apart"]) + 1e-4)
    advantages = torch.where(scorable, advantages, 0.0)
    return weight_positive(advantages, positive_weight)


def weight_positive(advantages: Tensor, positive_weight: float) -> Tensor:
    """Multiply positive advantages by `positive_weight`; any shape."""
    return torch.where(advantages > 0, advantages * positive_weight, advantages)


def of_group(rewards: Tensor, replayed: Tensor) -> Tensor:
    """Return the mean of all members."""
    return mean_of(rewards, torch.ones_like(replayed))


register("baseline", "group", of_group)
