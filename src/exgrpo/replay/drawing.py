"""Drawing: questions with trajectories that may be replayed, and members of buckets."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import MIXINGS
from ..experience.buffer import ExperienceBuffer
from .choice import Scorer, choose, eligible_questions
from .rng import QUESTIONS, TRAJECTORIES, generator_for
from .sampling import Eligible, draw_questions

ROUNDS = 4
"""How often questions are drawn again in place of those whose trajectories turned out not to be eligible."""


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
        stage: for what they are drawn, `plan` or `added`.
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


def besides(taken: set[int], rule: Eligible | None) -> Eligible | None:
    """Return which questions are eligible beside some that are not; None where all are."""
    if not taken:
        return rule
    return lambda questions: ~np.isin(questions, list(taken)) & (True if rule is None else rule(questions))
