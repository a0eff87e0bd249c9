"""When a question has been learned, and leaves replay and the fresh stream."""

from ...registry import register
from ..contexts import RetirementContext


def solved(standing: RetirementContext) -> bool:
    """Every fresh completion is right; one that cannot be scored never lets a question be solved [ExGRPO, sec. 3.1]."""
    return standing.successes == standing.completions


def threshold(standing: RetirementContext) -> bool:
    """The accuracy is at least `retirement_threshold`: over all completions of the latest group, so that unscorable ones
    count against it, or over the window where difficulty is one."""
    s, at_least = standing, standing.config.retirement_threshold
    if s.config.difficulty == "window":
        return s.accuracy >= at_least
    return s.successes / s.completions >= at_least


def never(standing: RetirementContext) -> bool:
    """Questions stay."""
    return False


register("retirement", "solved", solved)
register("retirement", "threshold", threshold)
register("retirement", "never", never)
