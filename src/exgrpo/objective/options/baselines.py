"""Baselines beside the mean of the group.

A *baseline* is one function of rewards, (G, K), NaN where unscorable, and of a mask of replayed members, (G, K). It
returns what is subtracted, (G, K) or (G, 1).
"""

import torch
from torch import Tensor

from ...registry import register
from ..advantage import of_group
from ..group_stats import mean_of


def of_fresh(rewards: Tensor, replayed: Tensor) -> Tensor:
    """Return the mean of the fresh members, for replayed ones too; of all where no fresh member is scorable."""
    fresh = mean_of(rewards, ~replayed)
    return torch.where(fresh.isnan(), of_group(rewards, replayed), fresh)


def of_own_part(rewards: Tensor, replayed: Tensor) -> Tensor:
    """Return the mean of the fresh for fresh members, and that of the replayed for replayed ones.

    The only replayed member of a group is compared with itself and teaches nothing, so this is for `replays_per_group`
    above 1.
    """
    return torch.where(replayed, mean_of(rewards, replayed), mean_of(rewards, ~replayed))


register("baseline", "fresh", of_fresh)
register("baseline", "split", of_own_part, apart=True)
