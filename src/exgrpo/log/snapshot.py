"""Snapshots of the index: their form in a log, and which runs may use another's.

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
from ..experience.replayed import OF_VARIANCE
from .records import Provenance

OPTIONS = ("mixing", "difficulty", "difficulty_window", "max_uses", "cooldown", "by_problem_type")
"""Options that decide which questions a buffer reports as replayable; all others only affect later events."""

Arrays = Mapping[str, NDArray[Any]]


def packed(arrays: Arrays) -> bytes:
    """Pack a snapshot that carries the numbers of the log."""
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def unpacked(data: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays that were packed."""
    with np.load(io.BytesIO(data)) as arrays:
        return dict(arrays)


def differences(found: Arrays, wanted: Arrays) -> list[str]:
    """Name the arrays in which a snapshot differs from the one that a buffer makes.

    Those of 0.2.0, which held `pools` too, counted replays otherwise; earlier ones held nothing of the variance of
    groups.
    """
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
    """Return the options of a run that its index depends on, for a buffer that only follows its events."""
    try:
        options = json.loads(origin.options or "{}")
        return ReplayConfig(**{name: options[name] for name in OPTIONS if name in options}, capacity=0)
    except (ConfigurationError, TypeError, ValueError):  # from another version, or not a valid origin
        return ReplayConfig(capacity=0)


def window_of(config: ReplayConfig) -> int:
    """Return the window size, which must be equal for one run to use the snapshots of another."""
    return config.difficulty_window if config.difficulty == "window" else 0
