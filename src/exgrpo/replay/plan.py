"""The only coordinator: what the next batch is made of, and what is learned from what came of it.

One generation of a host runs through four calls, in this order::

    plan(...)     before generation: which questions are fresh, which replayed, with which trajectory
    rescue(...)   after scoring: which groups without a success get a stored one
    observe(...)  after scoring: accuracies, retirement, the gate
    admit(...)    once the log-probs of the successes are known: they become trajectories

Everything here is the same on every rank: it depends on the seed, the generation counter, and what was observed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from ..config import ReplayConfig
from ..errors import ConfigurationError
from ..experience.buffer import ExperienceBuffer
from ..experience.events import Learned, Listener, Observed, Planned, Replayed, Retired, ignore
from ..experience.log.facts import PlannerState
from ..experience.store import TrajectoryStore
from ..experience.trajectory import RIGHT, WRONG, Group, IntArray, Trajectory
from .gate import Gate
from .questions import draw_questions
from .rng import QUESTIONS, RESCUE, TRAJECTORIES, generator_for
from .stream import FreshStream
from .trajectories import EntropyScorer, choose


@dataclass(frozen=True, eq=False)
class Choice:
    """A stored trajectory in a group: under which serial it is stored, and what it is."""

    serial: int
    trajectory: Trajectory


@dataclass(frozen=True, eq=False)
class StepPlan:
    """What one generation is made of.

    Args:
        generation: counter of generations; the key of all random draws.
        step: optimizer steps done.
        questions: shape (B,), one question per group, in the order of the batch.
        replays: for each group the stored trajectory that is its last member, or None.
        refilled: how many fresh questions are retired ones that fill up the batch.
        idle: why nothing is replayed, or None.
    """

    generation: int
    step: int
    questions: IntArray
    replays: tuple[Choice | None, ...]
    refilled: int = 0
    idle: str | None = None

    @property
    def num_replayed(self) -> int:
        return sum(choice is not None for choice in self.replays)


@dataclass(frozen=True, eq=False)
class Rescue:
    """A failed completion to be replaced: `member` of `group` by a stored trajectory."""

    group: int
    member: int
    choice: Choice


class ReplayPlanner:
    """Plans batches and keeps the experience.

    Args:
        config: what is remembered and replayed.
        stream: where fresh questions come from; its numbering is the buffer's.
        num_generations: K.
        seed: of every draw.
        store: where token arrays live.
        listener: sees every event as it happens.
    """

    def __init__(
        self,
        config: ReplayConfig,
        stream: FreshStream,
        num_generations: int,
        seed: int,
        store: TrajectoryStore | None = None,
        listener: Listener = ignore,
    ):
        self.config = config
        self.stream = stream
        self.num_generations = num_generations
        self.seed = seed
        self.listener = listener
        self.gate = Gate(config.start_pass_at_1, config.start_step, config.start_epoch)
        self.buffer = ExperienceBuffer(
            stream.num_questions,
            num_generations,
            config.capacity,
            config.capacity_per_question,
            config.eviction,
            store,
            listener,
        )
        self.generation = 0
        self.pass_at_1: float | None = None

    # Before generation ------------------------------------------------------------------------------------------

    def plan(self, batch_size: int, step: int, epoch: float, score: EntropyScorer) -> StepPlan:
        """What the next batch of `batch_size` questions is made of [ExGRPO, Alg. 1].

        Args:
            batch_size: B, questions a generation.
            step: optimizer steps done.
            epoch: epochs done, for the gate.
            score: mean token entropies of trajectories under the current policy.
        """
        generation, self.generation = self.generation, self.generation + 1
        idle = self.gate.check(self.pass_at_1, step, epoch)
        wanted = share_of(batch_size, self.config.replay_share) if self.config.mixing == "share" else 0
        n = 0 if idle else min(wanted, self.buffer.num_replayable)
        if idle is None and not self.buffer.num_replayable:
            idle = "no replayable question stored"
        elif idle is None and self.config.mixing == "share" and not wanted:
            idle = f"replay_share {self.config.replay_share:g} of {batch_size} questions is less than one"
        replayed = self._draw(n, generation)
        slots = choose(
            self.buffer, replayed, step, self.config, generator_for(self.seed, generation, TRAJECTORIES), score
        )
        fresh, refilled = self.stream.take(batch_size - n, replayed, self.buffer.retired, self.buffer.num_retired)
        self.listener(Planned(generation, step, batch_size, n, refilled, idle))
        choices = self._take(slots, generation, step, "plan")
        questions = np.empty(batch_size, np.int64)
        replays: list[Choice | None] = [None] * batch_size
        places = spread(n, batch_size)
        questions[places] = replayed
        questions[np.setdiff1d(np.arange(batch_size), places)] = fresh
        for place, choice in zip(places, choices, strict=True):
            replays[place] = choice
        return StepPlan(generation, step, questions, tuple(replays), refilled, idle)

    def abandon(self, plan: StepPlan) -> None:
        """A generation that was planned will not be learned from: its fresh questions come first in the next."""
        fresh = [int(q) for q, choice in zip(plan.questions, plan.replays, strict=True) if choice is None]
        self.stream.deferred = fresh + self.stream.deferred

    # After scoring ----------------------------------------------------------------------------------------------

    def rescue(self, plan: StepPlan, outcomes: IntArray, score: EntropyScorer) -> list[Rescue]:
        """Which groups get a stored success in place of a failure: those without any success, with a failure that was
        scored, whose question has a stored one. The last such failure is replaced.

        Args:
            plan: of this generation.
            outcomes: shape (B, K), `RIGHT`, `WRONG` or `UNSCORABLE`.
            score: as for `plan`.
        """
        if self.config.mixing != "rescue" or not self.gate.open:
            return []
        in_need = (outcomes == WRONG).any(axis=1) & ~(outcomes == RIGHT).any(axis=1)
        stored = (self.buffer.count[plan.questions] > 0) & ~self.buffer.retired[plan.questions]
        groups = np.flatnonzero(in_need & stored)
        rng = generator_for(self.seed, plan.generation, RESCUE)
        slots = choose(self.buffer, plan.questions[groups].tolist(), plan.step, self.config, rng, score)
        members = [int(np.flatnonzero(outcomes[group] == WRONG)[-1]) for group in groups]
        choices = self._take(slots, plan.generation, plan.step, "rescue")
        return [Rescue(*rescue) for rescue in zip(groups.tolist(), members, choices, strict=True)]

    def observe(self, plan: StepPlan, groups: Sequence[Group]) -> None:
        """Learn from the fresh completions of a generation: accuracies, retirement, Pass@1 for the gate.

        Args:
            plan: of this generation.
            groups: one per group of the plan, in its order; fresh completions only.
        """
        for group, question in zip(groups, plan.questions, strict=True):
            if group.question != question:
                raise ValueError(f"observe: group of question {group.question} where the plan has {question}")
            self.listener(
                Observed(
                    plan.generation, plan.step, group.question, group.successes, group.scorable, group.unscorable,
                    group.replayed,
                )
            )  # fmt: skip
            self.buffer.observe(group.question, group.successes, group.scorable)
            if group.solved and self.config.retirement == "solved" and not self.buffer.retired[question]:
                self.buffer.retire(group.question)
                self.listener(Retired(plan.generation, plan.step, group.question))
        if scorable := sum(group.scorable for group in groups):
            self.pass_at_1 = sum(group.successes for group in groups) / scorable

    def learned(self, plan: StepPlan, lessons: Sequence[tuple[int, int, float, float]]) -> None:
        """What the loss said of the replayed trajectories of a generation: question, serial, mean log-ratio, ESS."""
        for question, serial, log_ratio, ess in lessons:
            self.listener(Learned(plan.generation, plan.step, question, serial, log_ratio, ess))

    def wants(self, question: int, finish_reason: str) -> bool:
        """Whether a right completion of a question would be stored (but for duplicates)."""
        cut = finish_reason == "length" and not self.config.store_truncated
        return self.config.capacity > 0 and not cut and not self.buffer.retired[question]

    def admit(self, trajectories: Sequence[Trajectory]) -> int:
        """Store successes, in the given order; returns how many were new."""
        if self.config.logp_dtype != "float32":  # rounded at birth, so that what is read back later is the same
            dtype = self.config.logp_dtype
            trajectories = [replace(t, behaviour_logps=t.behaviour_logps.astype(dtype)) for t in trajectories]
        return sum(self.buffer.admit(trajectory) is not None for trajectory in trajectories)

    # What it was ------------------------------------------------------------------------------------------------

    def state(self, step: int, generated_tokens: int = 0) -> PlannerState:
        """What does not follow from the buffer; with the buffer it decides everything that is planned from here on."""
        stream = self.stream
        return PlannerState(
            self.generation, step, self.gate.open, self.pass_at_1, stream.pass_number, stream.cursor,
            tuple(stream.deferred), generated_tokens,
        )  # fmt: skip

    def restore(self, state: PlannerState) -> None:
        """Go on where another planner with the same questions stood; its buffer is restored apart."""
        self.generation, self.pass_at_1, self.gate.open = state.generation, state.pass_at_1, state.gate_open
        self.stream.restore(state.pass_number, state.cursor, state.deferred)

    # Inside -----------------------------------------------------------------------------------------------------

    def _draw(self, n: int, generation: int) -> list[int]:
        return draw_questions(self.buffer, n, self.config, generator_for(self.seed, generation, QUESTIONS)) if n else []

    def _take(self, slots: Sequence[int], generation: int, step: int, moment: str) -> list[Choice]:
        choices = []
        for slot, trajectory in zip(slots, self.buffer.get_many(slots), strict=True):
            self.buffer.used(slot)
            serial, entropy = (self.buffer.column(name)[slot].item() for name in ("serial", "entropy"))
            age = step - trajectory.step
            self.listener(Replayed(generation, step, trajectory.question, serial, moment, age, entropy))
            choices.append(Choice(serial, trajectory))
        return choices


def share_of(batch_size: int, replay_share: float) -> int:
    """floor(rho * B), in exact decimal arithmetic: 0.29 of 100 is 29, not 28."""
    if not 0 <= replay_share <= 1:
        raise ConfigurationError(f"replay_share must be in [0, 1], but is {replay_share}")
    return int(Decimal(str(replay_share)) * batch_size)


def spread(n: int, batch_size: int) -> NDArray[np.int64]:
    """n places of a batch, evenly spaced, so that every rank has about as many replayed groups as the others."""
    return (np.arange(n) * batch_size + batch_size // 2) // max(n, 1)
