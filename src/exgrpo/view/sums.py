"""Sums over all events of a step, kept as they come: what curves are drawn from, whatever the number of events."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ROOM = 256


class StepSums:
    """Named sums by step.

    Attributes:
        first: the first step that there is room for.
    """

    def __init__(self) -> None:
        self.first = 0
        self._size = 0
        self._sums: dict[str, Array] = {}

    def add(self, name: str, steps: Array, values: Array | None = None) -> None:
        """Add values to the sums of their steps, or 1 each; NaN adds nothing."""
        if not len(steps):
            return
        if values is not None and values.dtype.kind == "f":
            known = ~np.isnan(values)
            steps, values = steps[known], values[known]
            if not len(steps):
                return
        self._grow(int(steps.min()), int(steps.max()))
        low = int(steps.min())
        found = np.bincount(steps - low, None if values is None else values.astype("f8"))
        self._of(name)[low - self.first : low - self.first + len(found)] += found

    def set(self, name: str, steps: Array, values: Array) -> None:
        """Set the values of steps."""
        if len(steps):
            self._grow(int(steps.min()), int(steps.max()))
            self._of(name)[steps - self.first] = values

    def __getitem__(self, name: str) -> Array:
        return self._of(name)

    @property
    def steps(self) -> Array:
        return np.arange(self.first, self.first + self._size)

    def _of(self, name: str) -> Array:
        if name not in self._sums:
            self._sums[name] = np.zeros(self._size)
        return self._sums[name]

    def _grow(self, low: int, high: int) -> None:
        """Make room for steps from low to high."""
        if not self._size:
            self.first = low
        before, after = max(0, self.first - low), max(0, high + 1 - self.first - self._size)
        if not before and not after:
            return
        after = after and max(after, ROOM, self._size // 8)
        self._sums = {name: np.pad(values, (before, after)) for name, values in self._sums.items()}
        self.first, self._size = self.first - before, self._size + before + after
