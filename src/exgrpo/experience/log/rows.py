"""Events as rows of their tables, and back. NaN is NULL there, and a negative zero is none."""

import math
from collections.abc import Sequence
from typing import Any, Protocol

from ..events import (
    Event,
    Evicted,
    Learned,
    Measured,
    Observed,
    Planned,
    Replayed,
    Retired,
    Returned,
    Stored,
)  # fmt: skip
from . import schema

SERIAL_MASK = (1 << schema.SERIAL_BITS) - 1
DIGEST_MASK = (1 << 64) - 1


class Numbering(Protocol):
    """Numbers in the log: of a question of this run, of a trajectory by its serial."""

    def number_of(self, question: int) -> int: ...
    def id_of(self, serial: int) -> int: ...


def row_of(event: Event, log: Numbering, generation: int, step: int) -> tuple[str, tuple[Any, ...]] | None:
    """The table of an event and its values from the column after `branch` on; None for `Began`, `Admitted` and `Stored`.

    Args:
        event: what happened.
        log: gives numbers.
        generation, step: now, for events that do not say.
    """
    if isinstance(event, Planned):
        return "generation", (
            event.generation, event.step, event.questions, event.replayed, event.refilled, event.idle,
        )  # fmt: skip
    if isinstance(event, Observed):
        return "observation", (
            event.generation, event.step, log.number_of(event.question), event.successes, event.scorable, event.unscorable,
            int(event.replayed), null(event.spread),
        )  # fmt: skip
    if isinstance(event, Replayed):
        return "replay", (
            event.generation, event.step, log.number_of(event.question), log.id_of(event.serial), event.moment, event.age,
            null(event.entropy),
        )  # fmt: skip
    if isinstance(event, Learned):
        return "learning", (
            event.generation, event.step, log.number_of(event.question), log.id_of(event.serial), null(event.log_ratio),
            null(event.ess),
        )  # fmt: skip
    if isinstance(event, Measured):
        scores = (event.entropy, event.nll, event.confidence, event.confidence_variance, event.drift)
        return "measurement", (
            event.step, log.number_of(event.question), log.id_of(event.serial), *map(null, scores),
        )  # fmt: skip
    if isinstance(event, (Retired, Returned)):
        kind = "left" if isinstance(event, Retired) else "returned"
        return "retirement", (event.generation, event.step, log.number_of(event.question), kind)
    if isinstance(event, Evicted):
        return "eviction", (generation, step, log.number_of(event.question), log.id_of(event.serial), event.reason)
    return None


def scores_of(stored: Stored) -> tuple[Any, ...]:
    """Values of the columns `correct` to `confidence_variance` of a trajectory."""
    numbers = (stored.advantage, stored.quality, stored.nll, stored.confidence, stored.confidence_variance)
    return int(stored.correct), *map(null, numbers)


def event_of(table: str, values: Sequence[Any]) -> Event | None:
    """What happened, from the values of a row without `seq` and `crc`; None for the state of a planner."""
    if table == "generation":
        return Planned(*values[1:])
    if table == "observation":
        _, generation, step, question, successes, scorable, unscorable, replayed, spread = values
        return Observed(generation, step, question, successes, scorable, unscorable, bool(replayed), nan(spread))
    if table == "trajectory":
        return _stored(values)
    if table == "replay":
        _, generation, step, question, number, moment, age, entropy = values
        return Replayed(generation, step, question, number & SERIAL_MASK, moment, age, nan(entropy))
    if table == "learning":
        _, generation, step, question, number, log_ratio, ess = values
        return Learned(generation, step, question, number & SERIAL_MASK, nan(log_ratio), nan(ess))
    if table == "measurement":
        _, step, question, number, *scores = values
        return Measured(number & SERIAL_MASK, question, step, *map(nan, scores))
    if table == "retirement":
        return (Returned if values[4] == "returned" else Retired)(*values[1:4])
    if table == "eviction":
        return Evicted(values[4] & SERIAL_MASK, values[3], values[5])
    return None


def _stored(values: Sequence[Any]) -> Stored:
    (
        _, number, _, step, question, _, digest, _, entropy, measured_at, _, _, correct, advantage, quality, nll, confidence,
        variance, _,
    ) = values  # fmt: skip
    return Stored(
        number & SERIAL_MASK, digest & DIGEST_MASK, question, step, nan(entropy), measured_at, nan(nll), nan(confidence),
        nan(variance), bool(correct), nan(advantage), nan(quality),
    )  # fmt: skip


def null(value: float) -> float | None:
    value = float(value) + 0.0  # SQLite knows no negative zero
    return None if math.isnan(value) else value


def nan(value: float | None) -> float:
    return math.nan if value is None else float(value)


def signed(number: int) -> int:
    """64 bits as SQLite's integers hold them."""
    return number - (1 << 64) if number >> 63 else number
