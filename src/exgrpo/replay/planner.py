"""The only coordinator: what the next batch is made of, and what is learned from what came of it.

One iteration of a host runs through four calls, in this order::

    plan(...)     before generation: which questions are fresh, which replayed, with which trajectories
    rescue(...)   after scoring: which groups without a success get a stored one
    observe(...)  after scoring: accuracies, retirement, the gate
    admit(...)    once the log-probs of what is to be stored are known: it becomes trajectories

Everything here is the same on every rank: it depends on the seed, the number of the iteration, and what was observed.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import ADMISSIONS, MIXINGS, RETIREMENTS, ReplayConfig
from ..errors import ConfigurationError
from ..experience import events
from ..experience.buffer import ExperienceBuffer
from ..experience.contexts import AdmissionCandidate, RetirementContext
from ..experience.difficulty import UNKNOWN
from ..experience.quality import Diversity, admit_graded
from ..experience.store import TrajectoryStore
from ..experience.trajectory import Group, IntArray, Trajectory
from .choice import Scorer
from .counts import one_by_coin, replay_count
from .drawing import Drawn, draw
from .gate import Gate
from .idleness import why_empty
from .plan import ReplayedTrajectory, Rescue, StepPlan, arranged
from .review import review
from .stream import FreshStream
from .validation import share_now


def by_share(config: ReplayConfig, batch_size: int, epoch: float, seed: int, iteration: int) -> tuple[int, str | None]:
    """Replay floor(rho * B) questions [ExGRPO, Alg. 1]; where that is none, one with probability rho * B."""
    share = share_now(config, config.replay_share, epoch)
    wanted = replay_count(batch_size, share)
    return (wanted, None) if wanted else one_by_coin(batch_size, share, seed, iteration)


MIXINGS.register("share", by_share)


class ReplayPlanner:
    """Plans batches and keeps the experience.

    Args:
        config: what is remembered and replayed.
        stream: where fresh questions come from; its numbering is the buffer's.
        num_generations: K.
        seed: of every draw.
        store: where token arrays live.
        listener: sees every event as it happens.
        types: problem type of each question, (Q,), 0 and up; needed with `by_problem_type`.

    Attributes:
        diversity: what was stored of each question, as embeddings; None where quality is not used.
        generation: number of the next iteration.
        marks: whether what is planned counts as used.
    """

    def __init__(
        self, config: ReplayConfig, stream: FreshStream, num_generations: int, seed: int,
        store: TrajectoryStore | None = None, listener: events.Listener = events.ignore, types: IntArray | None = None,
    ):  # fmt: skip
        if config.by_problem_type and config.replays_questions and types is None:
            raise ConfigurationError("by_problem_type=True needs the problem type of each question (types, (Q,)).")
        types = types if config.by_problem_type else None
        self.config, self.stream, self.num_generations, self.seed = config, stream, num_generations, seed
        self.listener, self.gate = listener, Gate.of(config)
        self.buffer = ExperienceBuffer(stream.num_questions, num_generations, config, store, self._tell, types)
        self.diversity = Diversity() if config.uses_quality else None
        self.generation = self.reviewed = 0
        self.marks = True
        self._mixing, self._admits, self._retires = (
            MIXINGS[config.mixing], ADMISSIONS[config.admission], RETIREMENTS[config.retirement],
        )  # fmt: skip

    # Before generation ------------------------------------------------------------------------------------------

    def plan(self, batch_size: int, step: int, epoch: float, score: Scorer) -> StepPlan:
        """Plan the next batch of `batch_size` questions [ExGRPO, Alg. 1].

        Args:
            batch_size: B, questions an iteration.
            step: optimizer steps done.
            epoch: epochs done, for gate and schedule.
            score: `PolicyStats` of trajectories under the current policy, or their entropies.
        """
        iteration, self.generation = self.generation, self.generation + 1
        self.listener(events.Began(iteration, step))
        expired = self.buffer.expire(step - self.config.max_age) if self.config.max_age else 0
        returned = review(self.buffer, self.listener, self.seed, iteration, step, self.reviewed)
        self.reviewed = self.reviewed if returned is None else step
        self.buffer.advance(step)
        beside = self._mixing.traits["beside"]
        stage = "added" if beside else "plan"
        wanted, ready, idle = 0, self.buffer.ready(), self.gate.check(step, epoch, len(self.buffer))
        if idle is None and not (ready != UNKNOWN).any():
            idle = why_empty(self.buffer, expired)
        if idle is None:
            wanted, idle = self._mixing(self.config, batch_size, epoch, self.seed, iteration)
        count = 1 if beside else min(self.config.replays_per_group, self.num_generations)
        drawn = draw(self.buffer, wanted, self.seed, iteration, score, stage, count, ready) if wanted else Drawn()
        if wanted and not drawn.questions:
            idle = "none of the stored trajectories or their questions is eligible now"
        n, in_groups = len(drawn.questions), [] if beside else drawn.questions
        retired = np.zeros_like(self.buffer.retired) if self.config.retired_in_stream else self.buffer.retired
        left = self.stream.num_questions - int(np.count_nonzero(retired))
        apart = [] if beside and left - n < batch_size else drawn.questions  # an intact fresh batch comes first
        fresh, refilled = self.stream.take(
            batch_size - len(in_groups), apart, retired, self.stream.num_questions - left
        )
        self.listener(events.Planned(iteration, step, batch_size, n, refilled, idle))
        taken = self.take(drawn.slots, iteration, step, stage)
        batch = arranged(in_groups, fresh, [] if beside else taken)
        added = tuple(one for group in taken for one in group) if beside else ()
        return StepPlan(iteration, step, *batch, added, refilled, idle, len(drawn.refused), expired, returned or 0)

    def abandon(self, plan: StepPlan) -> None:
        """Give a plan up that will not be trained on: its fresh questions come first in the next."""
        self.stream.deferred = plan.questions[~plan.replayed].tolist() + self.stream.deferred

    # After scoring ----------------------------------------------------------------------------------------------

    def rescue(self, plan: StepPlan, outcomes: IntArray, score: Scorer) -> list[Rescue]:
        """Choose stored successes for groups that failed, with `rescue` mixing.

        Args:
            plan: of this iteration.
            outcomes: shape (B, K), `RIGHT`, `WRONG` or `UNSCORABLE`.
            score: as for `plan`.
        """
        rule = self._mixing.traits["rescue"]
        return rule(self, plan, outcomes, score) if rule is not None and self.gate.open else []

    def observe(self, plan: StepPlan, groups: Sequence[Group | None]) -> None:
        """Learn from the fresh completions of an iteration: accuracies, retirement, Pass@1 for the gate.

        Args:
            plan: of this iteration.
            groups: one per group of the plan, in its order; fresh completions only, None where there were none.
        """
        seen = [group for group in groups if group is not None]
        for group, question in zip(groups, plan.questions.tolist(), strict=True):
            if group is not None and group.question != question:
                raise ValueError(f"observe: group of question {group.question} where the plan has {question}")
        self.gate.saw(sum(group.successes for group in seen), sum(group.scorable for group in seen))
        if not seen:
            return
        stats, event = self.buffer.questions, events.Observed.of(plan.generation, plan.step, seen)
        self.listener(event)
        stats.observe(event.question, event.successes, event.scorable, event.spread)
        stats.chosen(event.question[event.replayed], plan.step)
        rows = zip(seen, stats.accuracy(event.question).tolist(), strict=True)
        contexts = (RetirementContext(g.question, g.successes, g.outcomes.size, a, self.config) for g, a in rows)
        learned = np.array([bool(self._retires(context)) for context in contexts])
        if (leaving := np.unique(event.question[learned & ~self.buffer.retired[event.question]])).size:
            self.buffer.retire(leaving)
            self.listener(events.Retired(plan.generation, plan.step, leaving))

    def learned(self, plan: StepPlan, stats: Sequence[tuple[int, int, float, float]]) -> None:
        """Tell what the loss said of replayed trajectories: question, serial, mean log-ratio, ESS."""
        if stats:
            self.listener(events.Learned(plan.generation, plan.step, *map(np.array, zip(*stats, strict=True))))

    def wants(self, group: Group, correct: bool, finish_reason: str) -> bool:
        """Return whether a completion that could be scored would be stored (but for duplicates, and for its quality)."""
        config, truncated = self.config, finish_reason == "length"
        if config.capacity == 0 or not self._mixing.traits["trajectories"] or self.buffer.retired[group.question]:
            return False
        counts = group.successes, group.scorable
        candidate = AdmissionCandidate(group.question, correct, *counts, finish_reason, np.nan, config)
        return (config.store_truncated or not truncated) and bool(self._admits(candidate))

    def admit(self, trajectories: Sequence[Trajectory], groups: Sequence[Group | None] = ()) -> int:
        """Store completions, in the given order; return how many were new.

        Args:
            trajectories: those that were wanted; with an embedding where quality is used.
            groups: of this iteration, for an admission rule that looks at them again with the quality.
        """
        if (dtype := self.config.logp_dtype) != "float32":  # rounded at birth, so that what is read back is the same
            trajectories = [replace(t, behaviour_logps=t.behaviour_logps.astype(dtype)) for t in trajectories]
        if self.diversity is not None:
            return admit_graded(self.buffer, self.diversity, self._admits, trajectories, groups)
        return len(trajectories) - self.buffer.admit(trajectories).count(None)

    # What it was ------------------------------------------------------------------------------------------------

    def state(self, step: int, generated_tokens: int = 0) -> events.PlannerState:
        """Return what does not follow from the buffer; with the buffer it decides all that is planned from here on."""
        stream, gate = self.stream, self.gate
        return events.PlannerState(
            self.generation, step, gate.open, gate.pass_at_1, stream.pass_number, stream.cursor, tuple(stream.deferred),
            generated_tokens, self.reviewed, tuple(gate.recent),
        )  # fmt: skip

    def restore(self, state: events.PlannerState) -> None:
        """Go on where another planner with the same questions stood; its buffer is restored apart."""
        self.generation, self.gate.open, self.reviewed = state.generation, state.gate_open, state.reviewed
        self.gate.look_back_on(state.recent)
        self.stream.restore(state.pass_number, state.cursor, state.deferred)

    # Inside -----------------------------------------------------------------------------------------------------

    def _tell(self, event: events.Event) -> None:
        if self.diversity is not None:
            self.diversity.hear(event)
        self.listener(event)

    def take(
        self, slots: Sequence[Sequence[int]], iteration: int, step: int, stage: str
    ) -> list[list[ReplayedTrajectory]]:
        """Read the trajectories of slots, all at once, and mark them as used; each group of slots by itself."""
        chosen = np.array([slot for group in slots for slot in group], np.int64)
        if not len(chosen):
            return [[] for _ in slots]
        trajectories, records = self.buffer.get_many(chosen), self.buffer.table.records[chosen]
        if self.marks:
            self._mark(chosen, records, iteration, step, stage)
        found = map(ReplayedTrajectory, records["serial"].tolist(), trajectories, records["uses"].tolist())
        return [[next(found) for _ in group] for group in slots]

    def _mark(self, slots: IntArray, records: NDArray[Any], iteration: int, step: int, stage: str) -> None:
        """Count the use of trajectories; let those leave that were used as often as is allowed."""
        questions, serials, entropy = records["question"], records["serial"], records["entropy"].astype(np.float64)
        self.buffer.used(slots)
        self.buffer.questions.replayed(questions, step)
        self.listener(events.Replayed(iteration, step, questions, serials, stage, step - records["step"], entropy))
        if self.config.max_uses:
            self.buffer.wear_out(slots[records["uses"] + 1 >= self.config.max_uses])
