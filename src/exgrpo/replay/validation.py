"""What a user's function answers, checked at the door: the message names the option, not an array library."""

from typing import Any

import numpy as np

from ..config import SCHEDULES, ReplayConfig
from ..errors import ConfigurationError
from ..experience.trajectory import FloatArray


def checked(option: str, name: str, given: Any, shape: tuple[int, ...]) -> FloatArray:
    """Return an answer as float64 of the shape that was asked for.

    Raises:
        ConfigurationError: it has another shape, or holds no numbers.
    """
    try:
        values = np.asarray(given, np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{option} {name!r} must answer with numbers, but gave {given!r}.") from error
    if values.shape != shape:
        raise ConfigurationError(
            f"{option} {name!r} must answer with an array of shape {shape}, but gave one of shape {values.shape}."
        )
    return values


def share_now(config: ReplayConfig, share: float, epoch: float) -> float:
    """Return what the schedule makes of a share at this epoch."""
    name, given = config.schedule, SCHEDULES[config.schedule](share, epoch, config)
    value = checked("schedule", name, given, ())
    if not 0 <= value <= max(1.0, share):
        raise ConfigurationError(
            f"schedule {name!r} must answer with a share in [0, {max(1.0, share):g}], but gave {given!r}."
        )
    return float(value)
