"""Drawing: questions with trajectories that may be replayed, and members of buckets."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..config import MIXINGS
from ..experience.buffer import ExperienceBuffer
from ..experience.events import Listener, Replayed, Skipped
from ..experience.trajectory import IntArray, Trajectory
from .choice import Scorer, choose, eligible_questions
from .plan import ReplayedTrajectory
from .rng import QUESTIONS, TRAJECTORIES, generator_for
from .sampling import Eligible, draw_questions

ROUNDS = 4
"""Rounds of drawing questions again in place of those whose trajectories turned out not to be eligible."""


@dataclass
class Drawn:
    """Questions to replay, the slots of the trajectories of each, and questions that had to be refused."""

    questions: list[int] = field(default_factory=list)
    slots: list[list[int]] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)


def draw(
    buffer: ExperienceBuffer, n: int, seed: int, iteration: int, score: Scorer, stage: str, count: int,
    ready: NDArray[Any],
) -> Drawn:  # fmt: skip
    """Draw n questions and choose their trajectories; draw again in place of those that have to be refused.

    Args:
        buffer: its config, and `now`, count.
        n: how many.
        seed, iteration: of every draw.
        score: as for `ReplayPlanner.plan`.
        stage: for what they are drawn, `plan`, `added` or `prefix`.
        count: trajectories of a question, at most.
        ready: what `buffer.ready` answers now.
    """
    config, step, drawn = buffer.config, buffer.now, Drawn()
    rng, rng_of_choice = (generator_for(seed, iteration, purpose) for purpose in (QUESTIONS, TRAJECTORIES))
    if not MIXINGS[config.mixing].traits["trajectories"]:
        questions = draw_questions(buffer, n, config, rng, step, None, ready)
        return Drawn(questions, [[] for _ in questions])
    rule = eligible_questions(buffer, config, step, stage)
    for _ in range(ROUNDS):
        eligible = besides(drawn.refused | set(drawn.questions), rule)
        questions = draw_questions(buffer, n - len(drawn.questions), config, rng, step, eligible, ready)
        slots = choose(buffer, questions, step, config, rng_of_choice, score, stage, count)
        for question, found in zip(questions, slots, strict=True):
            if found:
                drawn.questions.append(question)
                drawn.slots.append(found)
            else:
                drawn.refused.add(question)
        if len(drawn.questions) == n or not questions or not drawn.refused:
            break
    return drawn


def all_but_the_last(trajectories: Sequence[Trajectory]) -> list[int]:
    """Check that a prefix leaves the end of its trajectory out."""
    return [len(trajectory) - 1 for trajectory in trajectories]


class Marks(Protocol):
    """A sink that records uses: a planner, unless its plans are only previewed."""

    buffer: ExperienceBuffer
    listener: Listener
    marks: bool


def take(
    planner: Marks, slots: Sequence[Sequence[int]], iteration: int, step: int, stage: str
) -> list[list[ReplayedTrajectory]]:
    """Read the trajectories of slots, all at once, and mark them as used, in the given groups."""
    buffer, chosen = planner.buffer, np.array([slot for group in slots for slot in group], np.int64)
    if not len(chosen):
        return [[] for _ in slots]
    trajectories, records = buffer.get_many(chosen), buffer.table.records[chosen]
    mark(planner, chosen, iteration, step, stage)
    found = map(ReplayedTrajectory, records["serial"].tolist(), trajectories, records["uses"].tolist())
    return [[next(found) for _ in group] for group in slots]


def with_advantage(buffer: ExperienceBuffer, one: ReplayedTrajectory) -> ReplayedTrajectory:
    """Add the advantage with which a trajectory is added: of its own group, or by its question's accuracy now."""
    t, advantage = one.trajectory, one.trajectory.advantage
    if buffer.config.advantage == "current":
        advantage = float(t.correct) - float(buffer.questions.accuracy(np.array([t.question]))[0])
    return replace(one, advantage=advantage)


def mark(planner: Marks, slots: IntArray, iteration: int, step: int, stage: str) -> None:
    """Count the use of trajectories; let those leave that were used as often as is allowed."""
    if not planner.marks:
        return
    buffer = planner.buffer
    records = buffer.table.records[slots]
    questions, serials, entropy = records["question"], records["serial"], records["entropy"].astype(np.float64)
    buffer.count_uses(slots)
    buffer.questions.replayed(questions, step)
    planner.listener(Replayed(iteration, step, questions, serials, stage, step - records["step"], entropy))
    if most := buffer.config.max_uses:
        buffer.wear_out(slots[records["uses"] + 1 >= most])


def left_out(planner: Marks, skipped: Sequence[int], iteration: int, step: int) -> int:
    """Count that the fresh stream left questions out; return how many."""
    if len(skipped):
        questions = np.array(skipped, np.int64)
        if planner.marks:
            planner.buffer.questions.variance.skip(questions)
        planner.listener(Skipped(iteration, step, questions))
    return len(skipped)


def besides(taken: set[int], rule: Eligible | None) -> Eligible | None:
    """Return which questions are eligible beside some that are not; None where all are."""
    if not taken:
        return rule
    return lambda questions: ~np.isin(questions, list(taken)) & (True if rule is None else rule(questions))
