"""The buffer is what follows from the log up to a position."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice
from typing import Any

import numpy as np

from ..experience.buffer import ExperienceBuffer
from ..experience.events import Event, Evicted, Planned, PlannerState, Stored
from ..experience.replayed import OF_VARIANCE, apply, restore
from ..experience.store import TrajectoryStore
from .connection import damaged
from .question_map import NONE, QuestionMap, snapshot_from_log
from .reader import LogReader
from .records import Position
from .snapshot import config_of, window_of

SHARED = ("generation", "step", "stage")
"""Fields that are the same of all to whom an event happened, but for the steps of what was stored."""
LONGEST_RUN = 4096


def rebuild(
    reader: LogReader,
    buffer: ExperienceBuffer,
    position: Position | None = None,
    questions: QuestionMap | None = None,
    use_snapshot: bool = True,
) -> PlannerState:
    """Make an empty buffer what it was at a position, or, with options that its run did not have, what it would be.

    Args:
        reader: of the log.
        buffer: empty, with room for all questions; its store is left alone.
        position: where; the end of the newest branch by default.
        questions: of the buffer; None: it numbers them as the log does.
        use_snapshot: whether to begin with the newest snapshot of a run whose index had the same options, instead of the
            first event.

    Returns:
        The state of the planner there, with questions numbered as in the buffer.

    Raises:
        DamagedLogError: an event is missing, is not what was written, or contradicts those before it.
    """
    position = position or reader.position()
    if position is None or position.seq == 0:
        return PlannerState()
    lineage = reader.lineage(position)
    after = next_serial = 0
    wanted = window_of(buffer.config)
    comparable = [span for span in lineage if window_of(config_of(reader.origin_of(span.branch))) == wanted]
    found = reader.snapshot(comparable) if use_snapshot else None
    if found is not None and (buffer.config.skip == "none" or OF_VARIANCE[0] in found[1]):
        after, arrays = found
        try:
            restore(buffer, snapshot_from_log(arrays, buffer.num_questions, questions))
        except ValueError as error:
            raise damaged(reader.path, f"the snapshot at event {after} is of another run ({error})") from error
        next_serial = buffer.next_serial
    for run in _runs(reader.events(lineage, after, next_serial)):
        try:
            for event in _as_few([event for _, event in run]):
                apply(buffer, _with_index(event, questions))
        except (ValueError, IndexError) as error:
            _apply_each(reader, buffer, run, questions)  # to find which one
            raise damaged(reader.path, f"event {run[-1][0]} cannot have happened ({error})") from error
    state = replace(
        reader.state(position),
        recent=reader.recent(lineage, buffer.config.start_completions),
        prefix_fraction=reader.prefix_fraction(lineage),
    )
    if questions is not None:
        state = replace(state, deferred=tuple(map(questions.question_of, state.deferred)))
    return state


def size_of(reader: LogReader) -> int:
    """Return how many questions a buffer needs that numbers them as the log does."""
    return max((number for number, _ in reader.questions()), default=0) + 1


def empty_buffer(
    reader: LogReader, position: Position | None, store: TrajectoryStore | None = None
) -> ExperienceBuffer:
    """Return a buffer to rebuild in: with the log's questions, and K and options of the run at a position."""
    if position is None:
        return ExperienceBuffer(size_of(reader), 1, store=store)
    origin = reader.origin_of(position.branch)
    return ExperienceBuffer(size_of(reader), max(1, origin.num_generations), config_of(origin), store)


def _runs(events: Iterable[tuple[int, Event]]) -> Iterator[list[tuple[int, Event]]]:
    """Cut numbered events into runs that can be merged into one event.

    They are equal in all fields that are not per trajectory. Trajectories that came and that left are one run: all may
    come before any leaves.
    """

    def likeness(item: tuple[int, Event]) -> tuple[Any, ...]:
        event = item[1]
        if isinstance(event, (Stored, Evicted)):
            return (Stored,)
        return type(event), item[0] if isinstance(event, Planned) else 0, *(getattr(event, name, 0) for name in SHARED)

    for _, run in groupby(events, likeness):
        while chunk := list(islice(run, LONGEST_RUN)):
            yield chunk


def _as_few(events: Sequence[Event]) -> list[Event]:
    """Merge a run into one event, or two where trajectories came and left."""
    came = [event for event in events if not isinstance(event, Evicted)]
    left = [event for event in events if isinstance(event, Evicted)]
    return [_as_one(some) for some in (came, left) if some]


def _as_one(events: Sequence[Event]) -> Event:
    """Merge events of one kind into one event of many."""
    first = events[0]
    if len(events) == 1:
        return first
    fields: dict[str, Any] = dict(vars(first))
    for name in fields:
        if name not in SHARED or isinstance(first, Stored):
            values = [getattr(event, name) for event in events]
            fields[name] = tuple(values) if name == "reason" else np.array(values, "u8" if name == "digest" else None)
    return type(first)(**fields)


def _apply_each(
    reader: LogReader, buffer: ExperienceBuffer, run: Sequence[tuple[int, Event]], questions: QuestionMap | None
) -> None:
    for seq, event in run:
        try:
            apply(buffer, _with_index(event, questions))
        except (ValueError, IndexError) as error:
            raise damaged(reader.path, f"event {seq} cannot have happened ({error})") from error


def _with_index(event: Any, questions: QuestionMap | None) -> Event:
    if questions is None or not hasattr(event, "question"):
        return event  # type: ignore[no-any-return]
    numbers = np.atleast_1d(event.question)
    here = questions.questions_of(numbers)
    if (unknown := numbers[here == NONE]).size:
        raise ValueError(f"question {unknown[0]} is not among the questions of this run")
    return replace(event, question=here)  # type: ignore[no-any-return]
