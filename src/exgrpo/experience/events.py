"""Events: everything that changes a buffer, one value per kind and step.

A buffer is the result of its events, in order.

A listener sees them as they happen: tests do, and so does a log that outlives the process. The fields of an event that
happened to many hold arrays or sequences of one length; `each` gives an event for each of them, with plain values. Both
forms are events.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .columns import DERIVED, STORED
from .policy_stats import stats_of_each
from .trajectory import Group, IntArray, Trajectory

Ints: TypeAlias = Any
"""An integer, or integers (n,)."""
Floats: TypeAlias = Any
"""A number, or numbers (n,)."""
Bools: TypeAlias = Any
"""A truth value, or truth values (n,)."""
_OF_TOKENS = tuple(column.name for column in STORED if column.source == DERIVED and column.nullable)
_GIVEN = tuple(column for column in STORED if column.name not in _OF_TOKENS)
_ATTRIBUTES_OF = attrgetter(*(column.attribute for column in _GIVEN))


@dataclass(frozen=True)
class Event:
    """Something that happened, once or to many."""

    def each(self) -> Iterator[Self]:
        """Yield one event for each item, or this one."""
        many = {name: value for name, value in vars(self).items() if isinstance(value, (np.ndarray, tuple))}
        if not many:
            yield self
            return
        same = {name: value for name, value in vars(self).items() if name not in many}
        columns = [value.tolist() if isinstance(value, np.ndarray) else value for value in many.values()]
        for values in zip(*columns, strict=True):
            yield type(self)(**same, **dict(zip(many, values, strict=True)))


@dataclass(frozen=True)
class Began(Event):
    """The iteration that later events belong to, until the next `Began`; a log stores it inside other events."""

    generation: int
    step: int


@dataclass(frozen=True)
class Planned(Event):
    """The plan of an iteration: `questions` groups, `replayed` of them with a stored trajectory; `idle`: why none."""

    generation: int
    step: int
    questions: int
    replayed: int
    refilled: int
    idle: str | None


@dataclass(frozen=True)
class Observed(Event):
    """Outcomes of fresh completions; `replayed`: replay had chosen the question; `reward_std`: of their rewards."""

    generation: int
    step: int
    question: Ints
    successes: Ints
    scorable: Ints
    unscorable: Ints
    replayed: Bools
    reward_std: Floats = float("nan")

    @classmethod
    def of(cls, generation: int, step: int, groups: Sequence[Group]) -> "Observed":
        """Describe n groups."""
        rows = [(g.question, g.successes, g.scorable, g.unscorable, g.replayed) for g in groups]
        question, successes, scorable, unscorable, replayed = np.array(rows, np.int64).T
        reward_std = np.array([g.reward_std for g in groups])
        return cls(generation, step, question, successes, scorable, unscorable, replayed.astype(bool), reward_std)


@dataclass(frozen=True)
class Admitted(Event):
    """Trajectories that were stored, under serial numbers that are never used again."""

    serial: Ints
    trajectory: Any  # one, or a tuple


@dataclass(frozen=True)
class Stored(Event):
    """`Admitted` trajectories as a log reports them: table columns only, without reading tokens."""

    serial: Ints
    digest: Ints
    question: Ints
    step: Ints
    entropy: Floats
    entropy_step: Ints
    nll: Floats = float("nan")
    confidence: Floats = float("nan")
    confidence_variance: Floats = float("nan")
    correct: Bools = True
    advantage: Floats = float("nan")
    quality: Floats = float("nan")

    @classmethod
    def of(cls, serial: IntArray, trajectories: Sequence[Trajectory]) -> "Stored":
        """Describe n trajectories under n serials."""
        stats = dict(zip(_OF_TOKENS, stats_of_each([t.behaviour_logps for t in trajectories]), strict=True))
        rows = zip(*map(_ATTRIBUTES_OF, trajectories), strict=True) if trajectories else repeat(())
        given = zip(_GIVEN, rows, strict=False)
        return cls(serial, **{column.name: column.array(values) for column, values in given}, **stats)

    def some(self, which: NDArray[Any]) -> "Stored":
        """Select some of many, by a mask or by their places."""
        return Stored(**{name: values[which] for name, values in vars(self).items()})


@dataclass(frozen=True)
class Evicted(Event):
    """Trajectories that left: to make room, because their question retired, or by age or uses."""

    serial: Ints
    question: Ints
    reason: Any  # one for all, or a tuple


@dataclass(frozen=True)
class Retired(Event):
    """Questions that left replay and the fresh stream."""

    generation: int
    step: int
    question: Ints


@dataclass(frozen=True)
class Returned(Event):
    """Retired questions that came back into the fresh stream."""

    generation: int
    step: int
    question: Ints


@dataclass(frozen=True)
class Measured(Event):
    """`PolicyStats` of trajectories under the policy of `step`; NaN where not measured."""

    serial: Ints
    question: Ints
    step: int
    entropy: Floats
    nll: Floats = float("nan")
    confidence: Floats = float("nan")
    confidence_variance: Floats = float("nan")
    drift: Floats = float("nan")


@dataclass(frozen=True)
class Replayed(Event):
    """Stored trajectories that entered a batch.

    `stage`: in a group before generation (`plan`) or after scoring (`rescue`), beside the groups (`added`), or as the
    beginning of a group's completions (`prefix`).

    `age` in optimizer steps, `entropy` as it was known when it was chosen (NaN: never measured).
    """

    generation: int
    step: int
    question: Ints
    serial: Ints
    stage: str
    age: Ints = 0
    entropy: Floats = float("nan")


@dataclass(frozen=True)
class Continued(Event):
    """Outcomes of groups that continued the first `length` tokens of a stored success.

    `fraction`: the prefix length that the next iteration aims at, NaN where lengths are not controlled.
    """

    generation: int
    step: int
    question: Ints
    serial: Ints
    length: Ints
    successes: Ints
    scorable: Ints
    unscorable: Ints
    fraction: float = float("nan")


@dataclass(frozen=True)
class Skipped(Event):
    """Questions that were left out of the fresh stream, since their latest groups had no variance."""

    generation: int
    step: int
    question: Ints


@dataclass(frozen=True)
class Trained(Event):
    """Ratio statistics of replayed trajectories: token mean of log w, and effective sample size.

    The effective sample size is (sum w)^2 / (n sum w^2) over a trajectory's tokens, in (0, 1].
    """

    generation: int
    step: int
    question: Ints
    serial: Ints
    log_ratio: Floats
    ess: Floats


Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Ignore an event: the listener of a run without a log."""


def one_by_one(listener: Listener) -> Listener:
    """Adapt a listener of single events to those of many."""

    def hear(event: Event) -> None:
        for one in event.each():
            listener(one)

    return hear


@dataclass(frozen=True)
class PlannerState:
    """The part of a planner's state that does not follow from the buffer.

    Args:
        generation: counter of the next generation.
        step: optimizer steps done.
        gate_open: whether replay has begun.
        pass_at_1: that the gate was judged by.
        pass_number, cursor, deferred: of the fresh stream; deferred are questions.
        generated_tokens: completion tokens so far.
        reviewed: optimizer step of the latest review of retired questions.
        prefix_fraction: what `controlled` prefixes aim at; None: where they begin. In a log it is that of the latest
            `Continued`.
        recent: right and scorable fresh completions of the latest generations that the gate is judged by, the oldest
            first. In a log they are those of its observations.
    """

    generation: int = 0
    step: int = 0
    gate_open: bool = False
    pass_at_1: float | None = None
    pass_number: int = 0
    cursor: int = 0
    deferred: tuple[int, ...] = ()
    generated_tokens: int = 0
    reviewed: int = 0
    recent: tuple[tuple[float, int], ...] = ()
    prefix_fraction: float | None = None
