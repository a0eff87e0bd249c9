"""Previews: plans that leave the planner as it was."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..experience.events import ignore
from .planner import ReplayPlanner
from .stream import FreshStream


@contextmanager
def preview(planner: ReplayPlanner, stream: FreshStream) -> Iterator[None]:
    """Try plans and rescues without side effects.

    Inside, plans mark nothing as used, keep no measurement, notify nobody, and take fresh questions from another
    stream; the iteration number is restored afterwards.

    Time still passes: trajectories too old at the step of a plan leave, and the gate opens.

    Args:
        planner: makes the plans.
        stream: source of fresh questions inside.
    """
    own = planner.stream, planner.listener, planner.iteration
    planner.stream, planner.listener, planner.marks = stream, ignore, False
    try:
        with planner.buffer.table.unmeasured():
            yield
    finally:
        planner.stream, planner.listener, planner.iteration = own
        planner.marks = True
