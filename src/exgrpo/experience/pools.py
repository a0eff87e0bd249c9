"""Sets of questions from which places are drawn."""

import numpy as np
from numpy.typing import NDArray


class Pool:
    """A set of question numbers in a flat array: constant-time add and remove (the last one fills the gap)."""

    def __init__(self) -> None:
        self._items = np.empty(16, np.int32)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def members(self) -> NDArray[np.int32]:
        return self._items[: self._size]

    def add(self, item: int) -> int:
        if self._size == self._items.size:
            self._items = np.resize(self._items, 2 * self._size)
        self._items[self._size] = item
        self._size += 1
        return self._size - 1

    def remove(self, place: int) -> int | None:
        """Remove what stands at `place`; return the item that now stands there, if any."""
        self._size -= 1
        if place == self._size:
            return None
        self._items[place] = self._items[self._size]
        return int(self._items[place])
