"""Let the other processes follow what the main one did with completions: by events, which hold no tokens."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields

import numpy as np

from ..experience.events import Admitted, Event, Stored
from ..experience.replayed import apply
from ..experience.table import RECORD, half
from ..replay import ReplayPlanner

KEPT_AS = {"measured_at": "entropy_step"}
"""Fields of `Stored` under another name in a table of trajectories."""


@contextmanager
def told(planner: ReplayPlanner) -> Iterator[list[Event]]:
    """Collect a planner's events inside this context, in a form that is small to send."""
    events, listener = list[Event](), planner.listener

    def hear(event: Event) -> None:
        events.append(stored(event) if isinstance(event, Admitted) else event)
        listener(event)

    planner.listener = hear
    try:
        yield events
    finally:
        planner.listener = listener


def stored(event: Admitted) -> Stored:
    """Return what a table keeps of stored trajectories, in the numbers that it keeps (43 bytes a row)."""
    whole = Stored.of(np.asarray(event.serial), event.trajectory)
    columns = {}
    for field in fields(Stored):
        dtype = RECORD[KEPT_AS.get(field.name, field.name)]
        values = getattr(whole, field.name)
        columns[field.name] = (half(values) if dtype.itemsize == 2 else values).astype(dtype)
    return Stored(**columns)


def follow(planner: ReplayPlanner, events: Sequence[Event]) -> None:
    """Apply the main process's events to another process's planner."""
    for event in events:
        apply(planner.buffer, event)
        planner.listener(event)
