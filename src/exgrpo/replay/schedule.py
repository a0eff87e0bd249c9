"""How the share of replay changes while training goes on."""

import math
from collections.abc import Callable

from ..config import SCHEDULES, ReplayConfig

Schedule = Callable[[float, float, ReplayConfig], float]


def register_schedule(name: str, schedule: Schedule | None = None) -> Schedule:
    """Add a schedule under a name, as a call or as a decorator: (share, epochs done, options) -> share now, in [0, 1]."""
    SCHEDULES.check(name, schedule)
    if schedule is None:
        return lambda function: register_schedule(name, function)  # type: ignore[return-value, arg-type, misc]
    SCHEDULES.register(name, schedule)
    return schedule


def constant(share: float, epoch: float, config: ReplayConfig) -> float:
    """The share as it was set."""
    return share


def curriculum(share: float, epoch: float, config: ReplayConfig) -> float:
    """Explore first, then exploit: one minus the on-policy weight, which falls by a step after each whole epoch to a floor
    (recipe B). Rounded to 1e-9, so that 1 - (0.7 - 0.1) is 0.4."""
    weight = config.on_policy_start - config.on_policy_step * math.floor(epoch)
    return round(1.0 - max(config.on_policy_floor, weight), 9)


register_schedule("constant", constant)
register_schedule("curriculum", curriculum)
