"""Small operations on events of many questions in order."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def last_of_each(group: Array) -> tuple[Array, Array]:
    """Return the groups that occur, (m,), and the place of the last occurrence of each, (m,)."""
    groups, from_end = np.unique(group[::-1], return_index=True)
    return groups, len(group) - 1 - from_end


def previous_of_each(group: Array, values: Array, before: Array) -> Array:
    """Return for each event the previous value in its group, (n,); `before[group]` for the first."""
    order = np.argsort(group, kind="stable")
    sorted_group, sorted_values = group[order], values[order]
    found = np.empty(len(group), np.result_type(values, before))
    if not len(group):
        return found
    first = np.r_[True, sorted_group[1:] != sorted_group[:-1]]
    earlier = np.where(first, before[sorted_group], np.r_[sorted_values[:1], sorted_values[:-1]])
    found[order] = earlier
    return found


def quantile_of_each(group: Array, values: Array, q: float) -> tuple[Array, Array]:
    """Return the groups that occur, (m,), and a quantile of the values of each, the lower of two, (m,)."""
    order = np.lexsort((values, group))
    groups, begin, count = np.unique(group[order], return_index=True, return_counts=True)
    return groups, values[order][begin + np.floor(q * (count - 1)).astype(int)] if len(groups) else values[:0]
