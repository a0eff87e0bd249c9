"""Retirement rules: when a question leaves replay and the fresh stream."""

from ...registry import register
from ..contexts import RetirementContext


def solved(standing: RetirementContext) -> bool:
    """Retire when every fresh completion is right; an unscorable one prevents it [ExGRPO, sec. 3.1]."""
    return standing.successes == standing.completions


def threshold(standing: RetirementContext) -> bool:
    """Retire when the accuracy is at least `retirement_threshold`.

    The accuracy is over all completions of the latest group, so that unscorable ones count against it, or over the
    window where difficulty is measured over one.
    """
    s, at_least = standing, standing.config.retirement_threshold
    if s.config.difficulty == "window":
        return s.accuracy >= at_least
    return s.successes / s.completions >= at_least


def never(standing: RetirementContext) -> bool:
    """Retire no question."""
    return False


register("retirement", "solved", solved)
register("retirement", "threshold", threshold)
register("retirement", "never", never)
