"""One iteration as data: the plan, the stored trajectories in it, and rescues."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..experience.trajectory import IntArray, Trajectory


@dataclass(frozen=True, eq=False)
class ReplayedTrajectory:
    """A stored trajectory in a batch: its serial, content, earlier uses, and its advantage beside the groups."""

    serial: int
    trajectory: Trajectory
    uses: int = 0
    advantage: float = float("nan")


@dataclass(frozen=True, eq=False)
class Prefix:
    """The common beginning of a group: the first `length` tokens of a stored success, at least 1 and never all."""

    choice: ReplayedTrajectory
    length: int

    @property
    def ids(self) -> list[int]:
        """Token ids of the prefix."""
        ids: list[int] = self.choice.trajectory.completion_ids[: self.length].tolist()
        return ids


@dataclass(frozen=True, eq=False)
class StepPlan:
    """The composition of one iteration.

    Args:
        iteration: its number, the key of all random draws.
        step: optimizer steps done.
        questions: shape (B,), one question per group, in the order of the batch.
        replays: for each group its stored members, which are its last ones; none where it is fresh, and with `prompt` mixing.
        replayed: shape (B,), whether replay chose the question.
        added: stored trajectories beside the groups.
        refilled: how many fresh questions are retired ones that fill up the batch.
        idle: why nothing is replayed, or None.
        refused: questions that were drawn and not replayed, since none of their trajectories was eligible.
        expired: trajectories that left because of their age.
        returned: retired questions that came back.
        skipped: questions that the fresh stream left out.
        prefixes: by group, what its members begin with; only with `prefix` mixing.
    """

    iteration: int
    step: int
    questions: IntArray
    replays: tuple[tuple[ReplayedTrajectory, ...], ...]
    replayed: NDArray[np.bool_]
    added: tuple[ReplayedTrajectory, ...] = ()
    refilled: int = 0
    idle: str | None = None
    refused: int = 0
    expired: int = 0
    returned: int = 0
    skipped: int = 0
    prefixes: Mapping[int, Prefix] = field(default_factory=dict)

    @property
    def num_replayed(self) -> int:
        """Number of replayed questions; with `added` mixing, of trajectories."""
        return int(self.replayed.sum()) + len(self.added)

    @property
    def choices(self) -> tuple[ReplayedTrajectory, ...]:
        """Stored trajectories of the batch."""
        return tuple(one for group in self.replays for one in group) + self.added


@dataclass(frozen=True, eq=False)
class Rescue:
    """A failed completion to be replaced: `member` of `group` by a stored trajectory."""

    group: int
    member: int
    choice: ReplayedTrajectory


def arranged(
    in_groups: Sequence[int], fresh: Sequence[int], taken: Sequence[Sequence[ReplayedTrajectory]]
) -> tuple[IntArray, tuple[tuple[ReplayedTrajectory, ...], ...], NDArray[np.bool_]]:
    """Spread replayed questions evenly over a batch, between the fresh ones.

    Args:
        in_groups: questions to replay.
        fresh: the others.
        taken: the trajectories of each question to replay; none for all where they have none.

    Returns:
        `questions`, `replays` and `replayed` of a `StepPlan`.
    """
    n = len(in_groups) + len(fresh)
    questions, replayed, places = np.empty(n, np.int64), np.zeros(n, bool), spaced(len(in_groups), n)
    replayed[places] = True
    questions[replayed], questions[~replayed] = in_groups, fresh
    group_at = dict(zip(places.tolist(), map(tuple, taken), strict=False))
    return questions, tuple(group_at.get(place, ()) for place in range(n)), replayed


def by_group(prefixes: Sequence[Prefix | None], replayed: NDArray[np.bool_]) -> dict[int, Prefix]:
    """Return what groups begin with, by their places in the batch; `prefixes` are of the replayed ones, in their order."""
    places = np.flatnonzero(replayed).tolist()
    return {place: prefix for place, prefix in zip(places, prefixes, strict=False) if prefix is not None}


def spaced(n: int, batch_size: int) -> NDArray[np.int64]:
    """Return n places of a batch, evenly spaced, so that every rank has about as many replayed groups as the others."""
    return (np.arange(n) * batch_size + batch_size // 2) // max(n, 1)
