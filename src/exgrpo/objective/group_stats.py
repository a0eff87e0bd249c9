"""Statistics of groups of rewards, and checks of a baseline's result."""

from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigurationError


def mean_of(rewards: Tensor, members: Tensor) -> Tensor:
    """Return the mean of each group's scorable rewards among `members`, (G, 1); NaN where there is none.

    `members`: (G, K) bool.

    Where all rewards are equal it is exactly that reward; their sum divided by their number need not be.
    """
    counted = members & ~rewards.isnan()
    high = torch.where(counted, rewards, -torch.inf).amax(1, keepdim=True)
    low = torch.where(counted, rewards, torch.inf).amin(1, keepdim=True)
    return torch.where(high == low, high, torch.where(members, rewards, torch.nan).nanmean(1, keepdim=True))


def without_noise(rewards: Tensor, tolerance: Tensor) -> Tensor:
    """Replace rewards of a group that differ by no more than rounding by the lowest of them; keep the others.

    Args:
        rewards: (G, K), NaN where unscorable.
        tolerance: by how much rounding may part equal ones, (G, 1).
    """
    ordered, order = rewards.sort(1)  # sorted last: NaN
    begins = torch.ones_like(ordered, dtype=torch.bool)
    begins[:, 1:] = ~(ordered.diff(dim=1) <= tolerance)
    places = torch.arange(rewards.size(1), device=rewards.device).expand_as(order)
    lowest = torch.where(begins, places, 0).cummax(1).values
    return torch.empty_like(rewards).scatter(1, order, ordered.gather(1, lowest))


def have_no_variance(rewards: Tensor) -> Tensor:
    """Return whether each group has several scorable members whose rewards are all equal; (G, K) -> (G,)."""
    scorable = ~rewards.isnan()
    high = torch.where(scorable, rewards, -torch.inf).amax(1)
    low = torch.where(scorable, rewards, torch.inf).amin(1)
    return (high == low) & (scorable.sum(1) > 1)


def deviation(rewards: Tensor, replayed: Tensor, apart: bool) -> Tensor:
    """Return the standard deviation of each group, or of each member's own part of it; (G, 1) or (G, K)."""
    if not apart:
        return _deviation(rewards, torch.ones_like(replayed))
    return torch.where(replayed, _deviation(rewards, replayed), _deviation(rewards, ~replayed))


def _deviation(rewards: Tensor, members: Tensor) -> Tensor:
    """Return the standard deviation of scorable rewards among `members`, (G, 1); 0 for one member or none."""
    counted = members & ~rewards.isnan()
    centred = torch.where(counted, rewards - mean_of(rewards, members), 0.0)
    variance = centred.square().sum(1, keepdim=True) / (counted.sum(1, keepdim=True) - 1).clamp(min=1)
    return variance.sqrt()


def check_baseline(compared: Any, rewards: Tensor, scorable: Tensor, baseline: str) -> None:
    if not isinstance(compared, Tensor):
        raise ConfigurationError(f"baseline={baseline!r} must give a tensor, but gave {compared!r}.")
    if compared.shape not in (rewards.shape, (len(rewards), 1)):
        raise ConfigurationError(
            f"baseline={baseline!r} must give what each member is compared with, {tuple(rewards.shape)} or "
            f"{(len(rewards), 1)}, but gave {tuple(compared.shape)}."
        )
    if (compared.isinf() & scorable).any():
        raise ConfigurationError(f"baseline={baseline!r} must give finite numbers, but gave {compared}.")
    if (compared.isnan() & scorable).any():
        raise ConfigurationError(
            f"baseline={baseline!r} must give a number for every member with a reward, but gave NaN. Unscorable members "
            "have the reward NaN: leave them out, as exgrpo.objective.group_stats.mean_of does."
        )
