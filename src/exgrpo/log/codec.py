"""Events as rows of their tables, and back. NaN is NULL there, and a negative zero is none."""

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from ..experience.columns import STORED, Column
from ..experience.events import (
    Continued,
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
    Trained,
)  # fmt: skip
from ..experience.policy_stats import MEASURED
from . import schema

SERIAL_MASK = (1 << schema.SERIAL_BITS) - 1
DIGEST_MASK = (1 << 64) - 1


class Numbering(Protocol):
    """Numbers in the log: of a question of this run, of a trajectory by its serial."""

    def number_of(self, question: int) -> int: ...
    def id_of(self, serial: int) -> int: ...


_TABLES: Mapping[type[Event], tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        Planned: ("generation", ("generation", "step", "questions", "replayed", "refilled", "idle")),
        Observed: (
            "observation",
            ("generation", "step", "question", "successes", "scorable", "unscorable", "replayed", "reward_std"),
        ),
        Replayed: ("replay", ("generation", "step", "question", "serial", "stage", "age", "entropy")),
        Continued: (
            "continuation",
            (
                "generation",
                "step",
                "question",
                "serial",
                "length",
                "successes",
                "scorable",
                "unscorable",
                "fraction",
            ),
        ),
        Skipped: ("skip", ("generation", "step", "question")),
        Trained: ("learning", ("generation", "step", "question", "serial", "log_ratio", "ess")),
        Measured: ("measurement", ("step", "question", "serial", *MEASURED)),
        Retired: ("retirement", ("generation", "step", "question", "kind")),
        Returned: ("retirement", ("generation", "step", "question", "kind")),
        Evicted: ("eviction", ("generation", "step", "question", "serial", "reason")),
    }
)
"""The table of each kind of event, and the attributes in its columns after `branch`; `Admitted` has none."""
_NUMBERS = {"fraction", "reward_std", "log_ratio", "ess", *MEASURED}


def rows_of(event: Event, log: Numbering, generation: int, step: int) -> tuple[str, Iterator[tuple[Any, ...]]]:
    """Return the table of an event, and the values of its rows from the column after `branch` on.

    Args:
        event: what happened, once or to many; not `Admitted` or `Stored`.
        log: gives numbers.
        generation, step: now, for events that do not say.
    """
    table, names = _TABLES[type(event)]
    kind = "returned" if isinstance(event, Returned) else "left"
    given: dict[str, Any] = {"generation": generation, "step": step, "kind": kind} | vars(event)
    n = np.size(given.get("question", 0))
    return table, zip(*(_values(name, given[name], n, log) for name in names), strict=True)


def _values(name: str, given: Any, n: int, log: Numbering) -> Sequence[Any]:
    """Return a column of n values as a log stores them."""
    many = given.tolist() if isinstance(given, np.ndarray) else given if isinstance(given, tuple) else [given] * n
    if name == "question":
        return [log.number_of(question) for question in many]
    if name == "serial":
        return [log.id_of(serial) for serial in many]
    if name in _NUMBERS:
        return [null(value) for value in many]
    return [int(value) for value in many] if name == "replayed" else many


def to_sql(column: Column, values: Sequence[Any]) -> list[Any]:
    """Convert a column of trajectories to the log's values."""
    if column.nullable:
        return [null(value) for value in values]
    if column.numpy == "?":
        return [int(value) for value in values]
    return [signed(value) for value in values] if column.numpy == "u8" else list(values)


def from_sql(column: Column, value: Any) -> Any:
    """Convert a log's value back, the inverse of `to_sql`."""
    if column.nullable:
        return nan(value)
    if column.numpy == "?":
        return bool(value)
    return value & DIGEST_MASK if column.numpy == "u8" else value


def event_of(table: str, values: Sequence[Any]) -> Event | None:
    """Return the event of a row without `seq` and `crc`; None for the state of a planner."""
    if table == "generation":
        return Planned(*values[1:])
    if table == "observation":
        _, generation, step, question, successes, scorable, unscorable, replayed, reward_std = values
        return Observed(generation, step, question, successes, scorable, unscorable, bool(replayed), nan(reward_std))
    if table == "trajectory":
        return _stored(values)
    if table == "replay":
        _, generation, step, question, number, stage, age, entropy = values
        return Replayed(generation, step, question, number & SERIAL_MASK, stage, age, nan(entropy))
    if table == "continuation":
        _, generation, step, question, number, length, successes, scorable, unscorable, fraction = values
        counts = (length, successes, scorable, unscorable)
        return Continued(generation, step, question, number & SERIAL_MASK, *counts, nan(fraction))
    if table == "skip":
        return Skipped(*values[1:])
    if table == "learning":
        _, generation, step, question, number, log_ratio, ess = values
        return Trained(generation, step, question, number & SERIAL_MASK, nan(log_ratio), nan(ess))
    if table == "measurement":
        _, step, question, number, *scores = values
        return Measured(number & SERIAL_MASK, question, step, *map(nan, scores))
    if table == "retirement":
        return (Returned if values[4] == "returned" else Retired)(*values[1:4])
    if table == "eviction":
        return Evicted(values[4] & SERIAL_MASK, values[3], values[5])
    return None


def _stored(values: Sequence[Any]) -> Stored:
    told = {column.name: from_sql(column, values[place]) for column, place in _PLACES}
    return Stored(values[_ID] & SERIAL_MASK, **told)


_OF_TRAJECTORY = schema.EVENTS["trajectory"]
_ID, _PLACES = _OF_TRAJECTORY.index("id"), [(column, _OF_TRAJECTORY.index(column.name)) for column in STORED]


def null(value: float) -> float | None:
    value = float(value) + 0.0  # SQLite has no negative zero
    return None if math.isnan(value) else value


def nan(value: float | None) -> float:
    return math.nan if value is None else float(value)


def signed(number: int) -> int:
    """Return 64 bits as an SQLite integer."""
    return number - (1 << 64) if number >> 63 else number
