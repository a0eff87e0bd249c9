"""What happened, one value per fact. The buffer is what follows from these, in order.

A listener sees them as they happen: tests do, and so does a log that outlives the process.
"""

from collections.abc import Callable
from dataclasses import dataclass

from .trajectory import Trajectory


@dataclass(frozen=True)
class Observed:
    """The fresh completions of a question were scored."""

    generation: int
    step: int
    question: int
    successes: int
    scorable: int
    unscorable: int
    replayed: bool


@dataclass(frozen=True)
class Admitted:
    """A trajectory was stored under a serial number that is never used again."""

    serial: int
    trajectory: Trajectory


@dataclass(frozen=True)
class Evicted:
    """A trajectory left to make room, or because its question retired."""

    serial: int
    question: int
    reason: str


@dataclass(frozen=True)
class Retired:
    """A question left replay and the fresh stream."""

    generation: int
    step: int
    question: int


@dataclass(frozen=True)
class Measured:
    """A trajectory's mean token entropy (nats) was measured under the policy of `step`."""

    serial: int
    step: int
    entropy: float


@dataclass(frozen=True)
class Replayed:
    """A stored trajectory was a member of a group: before generation (`plan`) or after scoring (`rescue`)."""

    generation: int
    step: int
    question: int
    serial: int
    moment: str


Event = Observed | Admitted | Evicted | Retired | Measured | Replayed
Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The listener of a run that keeps nothing."""
