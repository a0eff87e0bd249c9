"""Snapshots of the index: as bytes of a log, whose numbers of questions they carry, and as arrays of a buffer.

Where difficulty is over a window, an index depends on its size beside the events: under another one, the snapshot of a run
is not what follows from its events.
"""

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import ReplayConfig
from ..errors import ConfigurationError
from ..experience.replayed import BY_QUESTION, FILL, OF_QUESTIONS, OF_VARIANCE
from .records import Provenance

NONE = -1
OPTIONS = ("mixing", "difficulty", "difficulty_window", "max_uses", "cooldown", "by_problem_type")
"""What a buffer needs to know to say which questions can be replayed; all else only decides what happens."""

Arrays = Mapping[str, NDArray[Any]]


def packed(snapshot: Arrays, numbers: NDArray[np.int32]) -> bytes:
    """For the log.

    Args:
        snapshot: of a buffer.
        numbers: of each question of the buffer its number in the log, or NONE; of these nothing ever happened.
    """
    seen = np.flatnonzero(numbers != NONE)
    arrays = dict(snapshot) | {"seen": numbers[seen]}
    arrays |= {name: arrays[name][seen] for name in BY_QUESTION}
    arrays |= {name: numbers[arrays[name]] for name in OF_QUESTIONS}
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def unpacked(data: bytes) -> dict[str, NDArray[Any]]:
    """As it was packed."""
    with np.load(io.BytesIO(data)) as arrays:
        return dict(arrays)


def translated(arrays: Arrays, num_questions: int, indices: NDArray[np.int32] | None = None) -> dict[str, NDArray[Any]]:
    """For a buffer.

    Args:
        arrays: as unpacked.
        num_questions: of the buffer.
        indices: of each question of the log its number in the buffer; by default the same.
    """
    found = dict(arrays)
    seen = found.pop("seen")
    seen = seen if indices is None else indices[seen]
    for name in found.keys() & set(BY_QUESTION):
        rows = found[name]
        found[name] = np.full((num_questions, *rows.shape[1:]), FILL.get(name, 0), rows.dtype)
        found[name][seen] = rows
    if indices is not None:
        found |= {name: indices[found[name]] for name in OF_QUESTIONS}
    return found


def differences(found: Arrays, wanted: Arrays) -> list[str]:
    """In which arrays a snapshot differs from the one that a buffer makes. Those of 0.2.0, which held `pools` too, counted
    replays otherwise; earlier ones held nothing of the variance of groups."""
    different = []
    for name, array in wanted.items():
        other = found.get(name)
        if (name == "replays" and "pools" in found) or (name in OF_VARIANCE and name not in found):
            continue
        equal_nan = array.dtype.kind == "f"
        if other is None or other.shape != array.shape or not np.array_equal(other, array, equal_nan=equal_nan):
            different.append(name)
    return different


def config_of(origin: Provenance) -> ReplayConfig:
    """The configuration of a run as far as its index depends on it, for a buffer that only follows its events."""
    try:
        options = json.loads(origin.options or "{}")
        return ReplayConfig(**{name: options[name] for name in OPTIONS if name in options}, capacity=0)
    except (ConfigurationError, TypeError, ValueError):  # of another version, or made up
        return ReplayConfig(capacity=0)


def window_of(config: ReplayConfig) -> int:
    """What must be equal of two runs so that one can use the snapshots of the other: of a window, its size."""
    return config.difficulty_window if config.difficulty == "window" else 0


__all__ = [
    "NONE", "OPTIONS", "config_of", "differences", "packed", "translated", "unpacked", "window_of",
]  # fmt: skip
