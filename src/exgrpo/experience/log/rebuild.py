"""The buffer is what follows from the log up to a position."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..buffer import ExperienceBuffer
from ..events import Event, Learned
from ..store import TrajectoryStore
from .connection import damaged
from .facts import PlannerState, Position
from .reader import LogReader
from .snapshot import NONE, config_of, regime, translated


def rebuild(
    reader: LogReader,
    buffer: ExperienceBuffer,
    position: Position | None = None,
    indices: NDArray[np.int32] | None = None,
    use_snapshot: bool = True,
) -> PlannerState:
    """Make an empty buffer what it was at a position, or, with options that its run did not have, what it would be.

    Args:
        reader: of the log.
        buffer: empty, with room for all questions; its store is left alone.
        position: where; the end of the newest branch by default.
        indices: of each question of the log its number in the buffer, NONE where it has none; by default the same.
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
    origins = {span.branch: reader.origin_of(span.branch) for span in lineage}
    alike = [span for span in lineage if regime(config_of(origins[span.branch])) == regime(buffer.config)]
    if use_snapshot and (found := reader.snapshot(alike)) is not None:
        after, arrays = found
        buffer.restore(translated(arrays, buffer.num_questions, indices))
        next_serial = buffer.next_serial
    before = None
    for span in lineage:
        k = origins[span.branch].num_generations
        if before is not None and k != before and span.first > after:
            buffer.reorder()  # as the run did that went on with another K
        before = k
        for seq, event in reader.events([span], after, next_serial):
            if isinstance(event, Learned):
                continue
            try:
                buffer.apply(event if indices is None else _with_index(event, indices))
            except (ValueError, IndexError) as error:
                raise damaged(reader.path, f"event {seq} cannot have happened ({error})") from error
    if before != buffer.num_generations:
        buffer.reorder()
    state = replace(reader.state(position), recent=reader.recent(lineage, buffer.config.start_completions))
    if indices is not None:
        state = replace(state, deferred=tuple(int(indices[number]) for number in state.deferred))
    return state


def size_of(reader: LogReader) -> int:
    """How many questions a buffer needs that numbers them as the log does."""
    return max((number for number, _ in reader.questions()), default=0) + 1


def empty_buffer(
    reader: LogReader, position: Position | None, store: TrajectoryStore | None = None
) -> ExperienceBuffer:
    """One to rebuild in: with the questions of the log, and K and options of the run at a position."""
    if position is None:
        return ExperienceBuffer(size_of(reader), 1, store=store)
    origin = reader.origin_of(position.branch)
    return ExperienceBuffer(size_of(reader), max(1, origin.num_generations), config_of(origin), store)


def _with_index(event: Any, indices: NDArray[np.int32]) -> Event:
    if not hasattr(event, "question"):
        return event  # type: ignore[no-any-return]
    index = int(indices[event.question])
    if index == NONE:
        raise ValueError(f"question {event.question} is not among the questions of this run")
    here: Event = replace(event, question=index)
    return here
