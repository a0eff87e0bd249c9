"""Mixings without replayed questions: a stored success in place of a failure, and no replay at all."""

from typing import TYPE_CHECKING

import numpy as np

from ...config import MIXINGS, ReplayConfig
from ...experience.trajectory import RIGHT, WRONG, IntArray
from ..choice import Scorer, choose
from ..drawing import take
from ..plan import Rescue, StepPlan
from ..rng import RESCUE, generator_for

if TYPE_CHECKING:
    from ..planner import ReplayPlanner


def no_question(config: ReplayConfig, batch_size: int, epoch: float, seed: int, iteration: int) -> tuple[int, None]:
    """Replay no question."""
    return 0, None


def rescue(planner: "ReplayPlanner", plan: StepPlan, outcomes: IntArray, score: Scorer) -> list[Rescue]:
    """Replace the last failure of each group without a success by a stored success, after scoring.

    Only a scored failure is replaced, and only of a question whose stored success is not resting.
    """
    buffer = planner.buffer
    in_need = (outcomes == WRONG).any(axis=1) & ~(outcomes == RIGHT).any(axis=1)
    stored = (buffer.count[plan.questions] > 0) & ~buffer.retired[plan.questions]
    groups = np.flatnonzero(in_need & stored & ~buffer.rests(plan.questions))
    groups = groups[np.sort(np.unique(plan.questions[groups], return_index=True)[1])]  # each question once
    rng = generator_for(planner.seed, plan.iteration, RESCUE)
    slots = choose(buffer, plan.questions[groups].tolist(), plan.step, planner.config, rng, score, "rescue")
    found = [(group, some) for group, some in zip(groups.tolist(), slots, strict=True) if some]
    taken = take(planner, [some for _, some in found], plan.iteration, plan.step, "rescue")
    last = {group: int(np.flatnonzero(outcomes[group] == WRONG)[-1]) for group, _ in found}
    return [Rescue(group, last[group], one) for (group, _), (one,) in zip(found, taken, strict=True)]


MIXINGS.register("rescue", no_question, rescue=rescue)
MIXINGS.register("none", no_question, trajectories=False)
