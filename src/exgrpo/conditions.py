"""Conditions under which an option matters, declared beside each field as `used_if`. Standard library only."""

from collections.abc import Callable
from typing import Any

from .registry import OPTIONS

Condition = Callable[[Any, Any], bool]
"""`ReplayConfig` and `ObjectiveConfig` -> whether it holds."""


def one_of(option: str, *values: Any) -> Condition:
    """Make a condition that an option has one of some values, or names a user's rule, which may read any option."""

    def holds(replay: Any, objective: Any) -> bool:
        value = getattr(replay if hasattr(replay, option) else objective, option)
        return value in values or (option in OPTIONS and value not in OPTIONS[option].builtin)

    return holds


def unless(option: str, *values: Any) -> Condition:
    """Make a condition that an option has none of some values."""
    return lambda replay, objective: getattr(replay if hasattr(replay, option) else objective, option) not in values


def every(*conditions: Condition) -> Condition:
    """Make a condition that all of some conditions hold."""
    return lambda replay, objective: all(condition(replay, objective) for condition in conditions)


def either(*conditions: Condition) -> Condition:
    """Make a condition that one of some conditions holds."""
    return lambda replay, objective: any(condition(replay, objective) for condition in conditions)


def always(replay: Any, objective: Any) -> bool:
    """Hold."""
    return True


REPLAYING = unless("mixing", "none")
STORING = unless("mixing", "none", "prompt")
LEARNING = unless("mixing", "none", "prompt", "prefix")
PREFIXING = one_of("mixing", "prefix")
SKIPPING = unless("skip", "none")
DRAWING = unless("mixing", "none", "rescue")
MEASURED = ("lowest_entropy", "lowest_nll", "lowest_confidence_variance", "highest_entropy", "headroom")
MEASURING = every(STORING, either(one_of("trajectory_choice", *MEASURED), unless("max_drift", 0)))
LAZY = every(MEASURING, one_of("entropy_refresh", "lazy"))
RETIRING = every(REPLAYING, unless("retirement", "never"))
BY_ACCURACY = every(
    REPLAYING,
    either(every(DRAWING, unless("question_choice", "uniform", "headroom")), unless("retirement", "solved", "never")),
)
