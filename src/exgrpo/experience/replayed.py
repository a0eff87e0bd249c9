"""Rebuild a buffer from its history: from its events, or from a snapshot."""

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .buffer import ExperienceBuffer
from .difficulty import buckets_of
from .events import (
    Admitted,
    Event,
    Evicted,
    Measured,
    Observed,
    Planned,
    Replayed,
    Retired,
    Returned,
    Skipped,
    Stored,
)  # fmt: skip
from .questions import NEVER, QuestionStats

OF_VARIANCE = ("streak", "skips", "asked_at")
"""Arrays of `GroupVariance`; snapshots of 0.2 lack them."""
BY_QUESTION = ("accuracy", "retired", "replayed_at", "replays", "spread", *OF_VARIANCE)
"""Arrays of a snapshot with one row for each question."""
ATTRIBUTES = MappingProxyType({"spread": "reward_std"})
"""Names in `QuestionStats` of arrays that snapshots store under another name."""
OF_QUESTIONS = ("question", "window_question")
"""Arrays of a snapshot that hold question numbers."""
FILL: Mapping[str, float] = MappingProxyType({"replayed_at": NEVER, "asked_at": NEVER, "spread": float("nan")})
"""Value of an array by question where a question was never seen; 0 in all other arrays."""


def apply(buffer: ExperienceBuffer, event: Event) -> None:
    """Apply a logged event to a buffer, without notifying its listener or touching its store.

    Raises:
        ValueError: it cannot have happened to this buffer.
    """
    stats, table = buffer.questions, buffer.table
    if isinstance(event, Planned):
        buffer.advance(event.step)
    elif isinstance(event, Observed):
        questions, replayed = np.atleast_1d(event.question), np.atleast_1d(event.replayed)
        successes, scorable, reward_std = map(np.atleast_1d, (event.successes, event.scorable, event.reward_std))
        stats.variance.observe(questions, successes, scorable, reward_std, event.generation)
        stats.observe(questions, successes, scorable, reward_std)
        stats.chosen(questions[replayed], event.step)
    elif isinstance(event, Admitted):
        trajectories = event.trajectory if isinstance(event.trajectory, tuple) else (event.trajectory,)
        table.insert(Stored.of(np.atleast_1d(event.serial), trajectories))
    elif isinstance(event, Stored):
        table.insert(Stored(**{name: np.atleast_1d(value) for name, value in vars(event).items()}))
    elif isinstance(event, Skipped):
        stats.variance.skip(np.atleast_1d(event.question))
    elif isinstance(event, Retired):
        stats.retire(np.atleast_1d(event.question))
    elif isinstance(event, Returned):
        stats.bring_back(np.atleast_1d(event.question))
    elif isinstance(event, (Evicted, Measured, Replayed)):
        questions = np.atleast_1d(event.question)
        slots = table.find_each(questions, np.atleast_1d(event.serial))
        if isinstance(event, Evicted):
            table.remove(slots)
        elif isinstance(event, Measured):
            table.measure(slots, event)
        else:
            table.use(slots)
            stats.replayed(questions, event.step)


def snapshot_of(buffer: ExperienceBuffer) -> dict[str, NDArray[Any]]:
    """Return everything but the token arrays, as new arrays by name.

    Returns:
        Of the trajectories `serial`, `digest`, `question`, `step`, `entropy` and so on: (N,), oldest first; of the
        questions `accuracy`: (Q, 2), successes and scorable, `retired`, `replayed_at`, `replays`, `spread`, and what
        `GroupVariance` holds: (Q,);
        `window_question`, `window_groups` (n, 2): groups of the windows; `next_serial`, `now`: ().
    """
    stats = buffer.questions
    windows = stats.windows.snapshot() if stats.windows is not None else NO_WINDOWS
    return {
        **buffer.table.snapshot(),
        "accuracy": np.stack([stats.successes, stats.scorable], 1),
        **{name: _array(stats, name).copy() for name in BY_QUESTION[1:]},
        **windows,
        "now": np.array(buffer.now, np.int64),
    }


def _array(stats: QuestionStats, name: str) -> NDArray[Any]:
    """Return the array by question that a snapshot stores under a name, (Q,)."""
    owner = stats.variance if name in OF_VARIANCE else stats
    array: NDArray[Any] = getattr(owner, ATTRIBUTES.get(name, name))
    return array


NO_WINDOWS = MappingProxyType(
    {"window_question": np.empty(0, np.int32), "window_groups": np.empty((0, 2), np.int32)}
)  # fmt: skip


def restore(buffer: ExperienceBuffer, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Restore an empty buffer from `snapshot_of`; unknown arrays are ignored."""
    if buffer.table.size or buffer.next_serial:
        raise ValueError("restore: the buffer must be empty")
    stats = buffer.questions
    stats.successes[:], stats.scorable[:] = arrays["accuracy"].T
    for name in BY_QUESTION[1:]:
        if name in arrays or name not in OF_VARIANCE:
            _array(stats, name)[:] = arrays[name]
    seen = np.flatnonzero(stats.scorable)
    stats.bucket[seen] = buckets_of(stats.successes[seen], stats.scorable[seen], stats.resolution)
    if stats.windows is not None:
        stats.windows.restore(arrays)
    buffer.advance(int(arrays["now"]))
    buffer.table.restore(arrays)


def fingerprint_of(buffer: ExperienceBuffer) -> str:
    """Hash everything that later choices depend on: equal on two processes if and only if they agree."""
    digest = hashlib.blake2b(digest_size=16)
    for name, array in sorted(snapshot_of(buffer).items()):
        digest.update(name.encode() + array.tobytes())
    for trajectory in buffer.get_many(buffer.table.in_order()):
        digest.update(trajectory.behaviour_logps.tobytes() + trajectory.rewards.tobytes())
    return digest.hexdigest()
