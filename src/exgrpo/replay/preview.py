"""Plans that are only looked at."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..experience.events import ignore
from .planner import ReplayPlanner
from .stream import FreshStream


@contextmanager
def preview(planner: ReplayPlanner, stream: FreshStream) -> Iterator[None]:
    """Let plans and rescues inside be tried: they mark nothing as used, keep no measurement, tell nobody, and take fresh
    questions from another stream; the number of the next iteration is the same afterwards.

    Time passes all the same: what is too old at the step of a plan leaves, and the gate opens.

    Args:
        planner: that plans.
        stream: where fresh questions come from meanwhile.
    """
    own = planner.stream, planner.listener, planner.iteration
    planner.stream, planner.listener, planner.marks = stream, ignore, False
    try:
        with planner.buffer.table.unmeasured():
            yield
    finally:
        planner.stream, planner.listener, planner.iteration = own
        planner.marks = True
