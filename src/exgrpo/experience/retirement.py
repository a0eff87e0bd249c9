"""When a question has been learned, and leaves replay and the fresh stream."""

from collections.abc import Callable
from dataclasses import dataclass

from ..config import RETIREMENTS, ReplayConfig


@dataclass(frozen=True)
class Standing:
    """How a question stands after its fresh group was observed.

    Args:
        question: its number.
        successes: right ones of the latest fresh group.
        completions: all of that group, those that could not be scored among them.
        accuracy: of the question, as `difficulty` has it; NaN if never known.
        config: the options.
    """

    question: int
    successes: int
    completions: int
    accuracy: float
    config: ReplayConfig


Retirement = Callable[[Standing], bool]


def register_retirement(name: str, rule: Retirement | None = None) -> Retirement:
    """Add a rule under a name, as a call or as a decorator: `Standing` -> whether the question retires."""
    RETIREMENTS.check(name, rule)
    if rule is None:
        return lambda function: register_retirement(name, function)  # type: ignore[return-value, arg-type]
    RETIREMENTS.register(name, rule)
    return rule


def solved(standing: Standing) -> bool:
    """Every fresh completion is right; one that cannot be scored never lets a question be solved [ExGRPO, sec. 3.1]."""
    return standing.successes == standing.completions


def threshold(standing: Standing) -> bool:
    """The accuracy is at least `retirement_threshold`: over all completions of the latest group, so that unscorable ones
    count against it, or over the window where difficulty is one."""
    s, at_least = standing, standing.config.retirement_threshold
    if s.config.difficulty == "window":
        return s.accuracy >= at_least
    return s.successes / s.completions >= at_least


def never(standing: Standing) -> bool:
    """Questions stay."""
    return False


register_retirement("solved", solved)
register_retirement("threshold", threshold)
register_retirement("never", never)
