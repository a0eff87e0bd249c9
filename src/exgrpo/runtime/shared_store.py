"""Stored trajectories over the processes of a run: the main one holds the tokens, others get those that they learn from.

Every process knows of each trajectory in a batch what planning needs (about 40 bytes); `hold` brings the tokens to those that
compute its row.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..experience.store import TrajectoryStore
from ..experience.trajectory import FINISH_REASONS, Trajectory
from .comm import Arrays, Comm

HEAD = np.dtype(
    [
        ("question", "i4"), ("length", "i4"), ("step", "i4"), ("entropy_step", "i4"), ("entropy", "f8"), ("advantage", "f8"),
        ("finish", "u1"), ("correct", "?"),
    ]
)  # fmt: skip


class RemoteTrajectory(Trajectory):
    """A stored trajectory whose tokens are on another process until they are sent here.

    Args:
        head: one record of `HEAD`.
        rewards: (F,).
    """

    def __init__(self, head: Any, rewards: NDArray[np.float32]):
        known = {name: head[name].item() for name in HEAD.names or ()}
        known["finish_reason"] = FINISH_REASONS[known.pop("finish")]
        for name, value in (known | {"rewards": rewards, "embedding": None}).items():
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"this process does not hold {name!r} of a stored trajectory: fetch it with `hold` first")

    def __len__(self) -> int:
        return int(self.length)

    def fill(self, ids: NDArray[np.int32], logps: NDArray[np.float32]) -> None:
        """Set the tokens that the main process sent."""
        object.__setattr__(self, "completion_ids", ids)
        object.__setattr__(self, "behaviour_logps", logps)


class SharedStore:
    """Read stored trajectories that the main process holds; all processes ask for the same ones at the same time.

    On the main process they are whole, on the others as `RemoteTrajectory`.

    Args:
        comm: the processes of the run.
        inner: the store, on the main process.
    """

    def __init__(self, comm: Comm, inner: TrajectoryStore | None):
        self._comm = comm
        self._inner = inner

    def put_many(self, serials: Sequence[int], trajectories: Sequence[Trajectory]) -> None:
        if self._inner is not None:
            self._inner.put_many(serials, trajectories)

    def get_many(self, serials: Sequence[int]) -> list[Trajectory]:
        if not len(serials):
            return []
        found: list[Trajectory] = []

        def read() -> tuple[NDArray[Any], NDArray[Any]]:
            assert self._inner is not None
            found.extend(self._inner.get_many(serials))
            return heads_of(found)

        heads = self._comm.from_main(read)
        return found or remote(*heads)

    def drop_many(self, serials: Sequence[int]) -> None:
        if self._inner is not None:
            self._inner.drop_many(serials)


def heads_of(trajectories: Sequence[Trajectory]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return what every process knows of trajectories: records of `HEAD`, (n,), and rewards, (n, F)."""
    heads = np.array(
        [
            (
                t.question, len(t), t.step, t.measured_at, t.entropy, t.advantage, FINISH_REASONS.index(t.finish_reason),
                t.correct,
            )
            for t in trajectories
        ],
        HEAD,
    )  # fmt: skip
    return heads, np.array([t.rewards for t in trajectories], np.float32)


def remote(heads: NDArray[Any], rewards: NDArray[Any]) -> list[Trajectory]:
    """Make trajectories without tokens of what `heads_of` gave."""
    return [RemoteTrajectory(head, row) for head, row in zip(heads, rewards, strict=True)]


def hold(comm: Comm, trajectories: Sequence[Trajectory], wanted: Sequence[Sequence[int]]) -> None:
    """Send the tokens of trajectories to the processes that need them; called by all processes at once.

    Args:
        comm: the processes.
        trajectories: of a `SharedStore`, the same on every process.
        wanted: of each process, by its rank, the places of those that it needs.
    """
    if comm.world_size == 1 or not any(wanted[1:]):
        return
    mine = comm.deal(lambda: [{}, *(_tokens([trajectories[place] for place in places]) for places in wanted[1:])])
    if not comm.rank or not wanted[comm.rank]:
        return
    ends = np.cumsum([len(trajectories[place]) for place in wanted[comm.rank]])
    parts = (np.split(mine[name], ends[:-1]) for name in ("ids", "logps"))
    for place, ids, logps in zip(wanted[comm.rank], *parts, strict=True):
        trajectory = trajectories[place]
        assert isinstance(trajectory, RemoteTrajectory)
        trajectory.fill(ids, logps)


def _tokens(trajectories: Sequence[Trajectory]) -> Arrays:
    if not trajectories:
        return {}
    arrays: Mapping[str, NDArray[Any]] = {
        "ids": np.concatenate([t.completion_ids for t in trajectories]),
        "logps": np.concatenate([t.behaviour_logps for t in trajectories]),
    }
    return arrays
