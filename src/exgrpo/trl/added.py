"""Stored trajectories beside an intact fresh batch: a forward and a loss term of their own.

The batch that the host learns from is untouched, its metrics and its normaliser with it. What is added is dealt to the
processes and to the micro-batches of a generation, each with as many rows as the others: rows that repeat the first with
weight 0 fill up, so that every process runs the same forwards.
"""

from dataclasses import dataclass

from ..experience.trajectory import Trajectory
from ..runtime.batch import Generation


@dataclass(frozen=True)
class Share:
    """What of the added trajectories one micro-batch of one process learns from.

    Args:
        rows: their global rows.
        trajectories: theirs, and repetitions of the first to fill up.
        real: how many of the trajectories count.
    """

    rows: list[int]
    trajectories: list[Trajectory]
    real: int


def share_of(generation: Generation, part: int, parts: int) -> Share | None:
    """The part of one micro-batch out of all of a generation, over all processes; None where nothing was added."""
    rows = sorted(generation.added)
    if not rows:
        return None
    mine = rows[part::parts]
    size = -(-len(rows) // parts)
    chosen = [*mine, *[rows[0]] * (size - len(mine))]
    return Share(mine, [generation.added[row].trajectory for row in chosen], len(mine))
