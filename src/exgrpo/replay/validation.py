"""Checks of what a user's function returns: messages name the option, not an array library."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import SCHEDULES, ReplayConfig
from ..errors import ConfigurationError
from ..experience.trajectory import FloatArray
from ..registry import Rule
from .question_candidates import QuestionCandidates


def checked(option: str, name: str, given: Any, shape: tuple[int, ...]) -> FloatArray:
    """Return a rule's result as float64, checked to have the required shape.

    Raises:
        ConfigurationError: it has another shape, or holds no numbers.
    """
    try:
        values = np.asarray(given, np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{option} {name!r} must return numbers, but gave {given!r}.") from error
    if values.shape != shape:
        raise ConfigurationError(
            f"{option} {name!r} must return an array of shape {shape}, but gave one of shape {values.shape}."
        )
    return values


def weights_of(sampler: Rule, candidates: QuestionCandidates) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return a question sampler's log-weights, and which entries may be drawn at all, (n,) each.

    Raises:
        ConfigurationError: as `checked`; or a weight is NaN or infinity.
    """
    name, shape = candidates.config.question_choice, candidates.accuracy.shape
    weights, rule = checked("question_choice", name, sampler(candidates), shape), sampler.traits["eligible"]
    if np.isnan(weights).any() or np.isposinf(weights).any():
        raise ConfigurationError(
            f"question_choice {name!r} must return log-weights below infinity and without NaN, but gave {weights}. -inf: "
            "drawn only where nothing else is left. For questions that are never drawn, register it with eligible=."
        )
    if rule is None:
        return weights, np.ones(shape, bool)
    return weights, checked("eligible of the question_choice", name, rule(candidates), shape) != 0


def share_now(config: ReplayConfig, share: float, epoch: float) -> float:
    """Return the scheduled share at this epoch."""
    name, given = config.schedule, SCHEDULES[config.schedule](share, epoch, config)
    value = checked("schedule", name, given, ())
    if not 0 <= value <= max(1.0, share):
        raise ConfigurationError(
            f"schedule {name!r} must return a share in [0, {max(1.0, share):g}], but gave {given!r}."
        )
    return float(value)
