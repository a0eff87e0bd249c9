"""Schedules of the replay share over the course of training."""

import math

from ...config import ReplayConfig
from ...registry import register


def constant(share: float, epoch: float, config: ReplayConfig) -> float:
    """Return the configured share."""
    return share


def curriculum(share: float, epoch: float, config: ReplayConfig) -> float:
    """Explore first, then exploit: return one minus an on-policy weight that falls per epoch to a floor (recipe B).

    Rounded to 1e-9, so that 1 - (0.7 - 0.1) is 0.4.
    """
    weight = config.on_policy_start - config.on_policy_step * math.floor(epoch)
    return round(1.0 - max(config.on_policy_floor, weight), 9)


register("schedule", "constant", constant)
register("schedule", "curriculum", curriculum)
