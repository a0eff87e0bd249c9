"""How the share of replay changes while training goes on."""

import math

from ...config import ReplayConfig
from ...registry import register


def constant(share: float, epoch: float, config: ReplayConfig) -> float:
    """The share as it was set."""
    return share


def curriculum(share: float, epoch: float, config: ReplayConfig) -> float:
    """Explore first, then exploit: one minus the on-policy weight, which falls by a step after each whole epoch to a floor
    (recipe B). Rounded to 1e-9, so that 1 - (0.7 - 0.1) is 0.4."""
    weight = config.on_policy_start - config.on_policy_step * math.floor(epoch)
    return round(1.0 - max(config.on_policy_floor, weight), 9)


register("schedule", "constant", constant)
register("schedule", "curriculum", curriculum)
