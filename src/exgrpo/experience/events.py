"""What happened, one value per fact. The buffer is what follows from these, in order.

A listener sees them as they happen: tests do, and so does a log that outlives the process.
"""

from collections.abc import Callable
from dataclasses import dataclass

from .trajectory import Trajectory


@dataclass(frozen=True)
class Began:
    """What follows belongs to this generation, until another begins; a log keeps it as part of other events."""

    generation: int
    step: int


@dataclass(frozen=True)
class Planned:
    """A generation begins: `questions` groups, of which `replayed` hold a stored trajectory; `idle`: why none does."""

    generation: int
    step: int
    questions: int
    replayed: int
    refilled: int
    idle: str | None


@dataclass(frozen=True)
class Observed:
    """The fresh completions of a question were scored; `replayed`: replay had chosen it; `spread` of their rewards."""

    generation: int
    step: int
    question: int
    successes: int
    scorable: int
    unscorable: int
    replayed: bool
    spread: float = float("nan")


@dataclass(frozen=True)
class Admitted:
    """A trajectory was stored under a serial number that is never used again."""

    serial: int
    trajectory: Trajectory


@dataclass(frozen=True)
class Stored:
    """What an index keeps of an `Admitted` trajectory: how a log tells of it, without reading its tokens."""

    serial: int
    digest: int
    question: int
    step: int
    entropy: float
    measured_at: int
    nll: float = float("nan")
    confidence: float = float("nan")
    confidence_variance: float = float("nan")
    correct: bool = True
    advantage: float = float("nan")
    quality: float = float("nan")

    @classmethod
    def of(cls, serial: int, trajectory: Trajectory) -> "Stored":
        t, scores = trajectory, trajectory.scores
        return cls(
            serial, t.digest, t.question, t.step, t.entropy, t.measured_at, scores.nll, scores.confidence,
            scores.confidence_variance, t.correct, t.advantage, t.quality,
        )  # fmt: skip


@dataclass(frozen=True)
class Evicted:
    """A trajectory left: to make room, because its question retired, or because it was too old or used too often."""

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
class Returned:
    """A retired question came back into the fresh stream."""

    generation: int
    step: int
    question: int


@dataclass(frozen=True)
class Measured:
    """How a trajectory looked to the policy of `step`: `Scores`, each NaN where it was not measured."""

    serial: int
    question: int
    step: int
    entropy: float
    nll: float = float("nan")
    confidence: float = float("nan")
    confidence_variance: float = float("nan")
    drift: float = float("nan")


@dataclass(frozen=True)
class Replayed:
    """A stored trajectory entered a batch: in a group before generation (`plan`) or after scoring (`rescue`), or beside
    the groups (`added`).

    `age` in optimizer steps, `entropy` as it was known when it was chosen (NaN: never measured).
    """

    generation: int
    step: int
    question: int
    serial: int
    moment: str
    age: int = 0
    entropy: float = float("nan")


@dataclass(frozen=True)
class Learned:
    """What the loss said of a replayed trajectory: the token mean of log w, and the effective sample size
    (sum w)^2 / (n sum w^2) of its tokens, in (0, 1]."""

    generation: int
    step: int
    question: int
    serial: int
    log_ratio: float
    ess: float


Event = Began | Planned | Observed | Admitted | Stored | Evicted | Retired | Returned | Measured | Replayed | Learned
Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The listener of a run that keeps nothing."""
