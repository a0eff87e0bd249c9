"""The buffer is what follows from the log up to a position."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..buffer import ExperienceBuffer
from ..events import Event, Learned, Planned
from .connection import damaged
from .facts import PlannerState, Position
from .reader import LogReader

NONE = -1


def rebuild(
    reader: LogReader,
    buffer: ExperienceBuffer,
    position: Position | None = None,
    indices: NDArray[np.int32] | None = None,
    use_snapshot: bool = True,
) -> PlannerState:
    """Make an empty buffer what it was at a position.

    Args:
        reader: of the log.
        buffer: empty, with room for all questions; its store is left alone.
        position: where; the end of the newest branch by default.
        indices: of each question of the log its number in the buffer, NONE where it has none; by default the same.
        use_snapshot: whether to begin with the newest snapshot instead of the first event.

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
    if use_snapshot and (found := reader.snapshot(lineage)) is not None:
        after, arrays = found
        buffer.restore(_translated(arrays, buffer.num_questions, indices))
        next_serial = buffer.next_serial
    before = None
    for span in lineage:
        k = reader.origin_of(span.branch).num_generations
        if before is not None and k != before and span.first > after:
            buffer.reorder()  # as the run did that went on with another K
        before = k
        for seq, event in reader.events([span], after, next_serial):
            if isinstance(event, (Planned, Learned)):
                continue
            try:
                buffer.apply(event if indices is None else _with_index(event, indices))
            except (ValueError, IndexError) as error:
                raise damaged(reader.path, f"event {seq} cannot have happened ({error})") from error
    if before != buffer.num_generations:
        buffer.reorder()
    state = reader.state(position)
    if indices is not None:
        state = replace(state, deferred=tuple(int(indices[number]) for number in state.deferred))
    return state


def size_of(reader: LogReader) -> int:
    """How many questions a buffer needs that numbers them as the log does."""
    return max((number for number, _ in reader.questions()), default=0) + 1


def _with_index(event: Any, indices: NDArray[np.int32]) -> Event:
    index = int(indices[event.question])
    if index == NONE:
        raise ValueError(f"question {event.question} is not among the questions of this run")
    translated: Event = replace(event, question=index)
    return translated


def _translated(
    arrays: dict[str, NDArray[Any]], num_questions: int, indices: NDArray[np.int32] | None
) -> dict[str, NDArray[Any]]:
    """A snapshot with questions numbered as in the buffer."""
    seen = arrays["seen"] if indices is None else indices[arrays["seen"]]
    accuracy, retired = np.zeros((num_questions, 2), np.int32), np.zeros(num_questions, bool)
    accuracy[seen], retired[seen] = arrays["accuracy"], arrays["retired"]
    translated = arrays | {"accuracy": accuracy, "retired": retired}
    if indices is not None:
        translated |= {name: indices[arrays[name]] for name in ("question", "pools")}
    return translated
