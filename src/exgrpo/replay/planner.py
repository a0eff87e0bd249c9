"""The planner, the only coordinator: plans the next batch, and updates the experience with its outcomes.

One iteration of a host runs through four calls, in this order::

    plan(...)     before generation: which questions are fresh, which replayed, with which trajectories
    rescue(...)   after scoring: which groups without a success get a stored one
    observe(...)  after scoring: accuracies, retirement, the gate
    admit(...)    once the log-probs of completions to store are known: they become trajectories

Every rank gets the same results: they depend on the seed, the number of the iteration, and the observations.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ..config import ADMISSIONS, MIXINGS, RETIREMENTS, SKIPS, ReplayConfig
from ..errors import ConfigurationError
from ..experience import events
from ..experience.buffer import ExperienceBuffer
from ..experience.contexts import AdmissionCandidate, RetirementContext
from ..experience.difficulty import UNKNOWN
from ..experience.quality import Diversity, admit_graded
from ..experience.store import TrajectoryStore
from ..experience.trajectory import Group, IntArray, Trajectory
from .choice import Scorer
from .drawing import Drawn, all_but_the_last, draw, left_out, take, with_advantage
from .gate import Gate
from .idleness import why_empty
from .plan import Rescue, StepPlan, arranged, by_group
from .review import review
from .stream import FreshStream


class ReplayPlanner:
    """Plan batches and keep the experience.

    Args:
        config: options of the experience and of replay.
        stream: source of fresh questions; it numbers questions as the buffer does.
        num_generations: K.
        seed: of every draw.
        store: where token arrays live.
        listener: sees every event as it happens.
        types: problem type of each question, (Q,), 0 and up; needed with `by_problem_type`.
        longest_prefix: trajectories -> how many of their first tokens a group may begin with, with `prefix` mixing; by
            default all but the last.

    Attributes:
        diversity: embeddings of what was stored for each question; None where quality is not used.
        iteration: number of the next iteration.
        prefix_fraction: fraction of a trajectory that `controlled` prefixes aim at; None until it first moved.
        marks: whether planned trajectories count as used.
    """

    def __init__(
        self, config: ReplayConfig, stream: FreshStream, num_generations: int, seed: int,
        store: TrajectoryStore | None = None, listener: events.Listener = events.ignore, types: IntArray | None = None,
        longest_prefix: Callable[[Sequence[Trajectory]], Sequence[int]] = all_but_the_last,
    ):  # fmt: skip
        if config.by_problem_type and config.replays_questions and types is None:
            raise ConfigurationError("by_problem_type=True needs the problem type of each question (types, (Q,)).")
        types = types if config.by_problem_type else None
        self.config, self.stream, self.num_generations, self.seed = config, stream, num_generations, seed
        self.listener, self.gate = listener, Gate.of(config)
        self.buffer = ExperienceBuffer(stream.num_questions, num_generations, config, store, self._tell, types)
        self.diversity = Diversity() if config.uses_quality else None
        self.iteration = self.reviewed = 0
        self.longest_prefix = longest_prefix
        self.prefix_fraction: float | None = None
        self.marks = True
        self._mixing, self._admits = MIXINGS[config.mixing], ADMISSIONS[config.admission]
        self._retires = RETIREMENTS[config.retirement if config.replays else "never"]
        self._leaves_out = SKIPS[config.skip](self.buffer.questions.variance, config, seed)

    # Before generation ------------------------------------------------------------------------------------------

    def plan(self, batch_size: int, step: int, epoch: float, score: Scorer) -> StepPlan:
        """Plan the next batch of `batch_size` questions [ExGRPO, Alg. 1].

        Args:
            batch_size: B, questions an iteration.
            step: optimizer steps done.
            epoch: epochs done, for gate and schedule.
            score: `PolicyStats` of trajectories under the current policy, or their entropies.
        """
        iteration, self.iteration = self.iteration, self.iteration + 1
        self.listener(events.Began(iteration, step))
        expired = self.buffer.expire(step - self.config.max_age) if self.config.max_age else 0
        returned = review(self.buffer, self.listener, self.seed, iteration, step, self.reviewed)
        self.reviewed = self.reviewed if returned is None else step
        self.buffer.advance(step)
        stage, begin = self._mixing.traits["stage"], self._mixing.traits["begin"]
        beside, replays = stage == "added", self.config.replays
        wanted, ready = 0, self.buffer.ready()
        idle = self.gate.check(step, epoch, len(self.buffer)) if replays else None
        if idle is None and replays and not (ready != UNKNOWN).any():
            idle = why_empty(self.buffer, expired)
        if idle is None:
            wanted, idle = self._mixing(self.config, batch_size, epoch, self.seed, iteration)
        count = min(self.config.replays_per_group, self.num_generations) if stage == "plan" else 1
        drawn = draw(self.buffer, wanted, self.seed, iteration, score, stage, count, ready) if wanted else Drawn()
        if wanted and not drawn.questions:
            idle = "none of the stored trajectories or their questions is eligible now"
        n, in_groups = len(drawn.questions), [] if beside else drawn.questions
        retired = np.zeros_like(self.buffer.retired) if self.config.retired_in_stream else self.buffer.retired
        left = self.stream.num_questions - int(np.count_nonzero(retired))
        apart = [] if beside and left - n < batch_size else drawn.questions  # an intact fresh batch comes first
        fresh, refilled = self.stream.take(
            batch_size - len(in_groups), apart, retired, self.stream.num_questions - left, self._leaves_out,
            self.buffer.questions.variance.least_recent,
        )  # fmt: skip
        self.listener(events.Planned(iteration, step, batch_size, n, refilled, idle))
        skipped = left_out(self, self.stream.skipped, iteration, step)
        prefixes = begin(self, drawn.slots, iteration, step) if begin else ()
        taken = [] if begin else take(self, drawn.slots, iteration, step, stage)
        batch = arranged(in_groups, fresh, [] if beside else taken)
        added = tuple(with_advantage(self.buffer, one) for group in taken for one in group) if beside else ()
        return StepPlan(
            iteration, step, *batch, added, refilled, idle, len(drawn.refused), expired, returned or 0, skipped,
            by_group(prefixes, batch[2]),
        )  # fmt: skip

    def abandon(self, plan: StepPlan) -> None:
        """Abandon a plan that will not be trained on: its fresh questions come first in the next."""
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
        """Update accuracies, retirement and the gate's Pass@1 from the fresh completions of an iteration.

        Args:
            plan: of this iteration.
            groups: one per group of the plan, in its order; fresh completions only, None where there were none. Groups
                with a prefix do not count for their question.
        """
        if plan.prefixes:
            self._mixing.traits["continued"](self, plan, groups)
        seen = [group for group in groups if group is not None and not group.prefix]
        for group, question in zip(groups, plan.questions.tolist(), strict=True):
            if group is not None and group.question != question:
                raise ValueError(f"observe: group of question {group.question} where the plan has {question}")
        self.gate.observe(sum(group.successes for group in seen), sum(group.scorable for group in seen))
        if not seen:
            return
        stats, event = self.buffer.questions, events.Observed.of(plan.iteration, plan.step, seen)
        self.listener(event)
        counts = event.question, event.successes, event.scorable, event.reward_std
        stats.variance.observe(*counts, plan.iteration)
        stats.observe(*counts)
        stats.chosen(event.question[event.replayed], plan.step)
        rows = zip(seen, stats.accuracy(event.question).tolist(), strict=True)
        contexts = (RetirementContext(g.question, g.successes, g.outcomes.size, a, self.config) for g, a in rows)
        retires = np.array([bool(self._retires(context)) for context in contexts])
        if (leaving := np.unique(event.question[retires & ~self.buffer.retired[event.question]])).size:
            self.buffer.retire(leaving)
            self.listener(events.Retired(plan.iteration, plan.step, leaving))

    def trained(self, plan: StepPlan, stats: Sequence[tuple[int, int, float, float]]) -> None:
        """Report the loss's statistics of replayed trajectories: question, serial, mean log-ratio, ESS."""
        if stats:
            self.listener(events.Trained(plan.iteration, plan.step, *map(np.array, zip(*stats, strict=True))))

    def should_admit(self, group: Group, correct: bool, finish_reason: str) -> bool:
        """Return whether a scored completion would be stored, before the checks for duplicates and quality."""
        config, truncated = self.config, finish_reason == "length"
        if config.capacity == 0 or not self._mixing.traits["trajectories"] or self.buffer.retired[group.question]:
            return False
        if self._admits.traits["frozen"] or (group.prefix and not config.admit_prefixed):
            return False
        counts = group.successes, group.scorable
        candidate = AdmissionCandidate(group.question, correct, *counts, finish_reason, np.nan, config)
        return (config.store_truncated or not truncated) and bool(self._admits(candidate))

    def admit(self, trajectories: Sequence[Trajectory], groups: Sequence[Group | None] = ()) -> int:
        """Store completions, in the given order; return how many were new.

        Args:
            trajectories: those that `should_admit` approved; with an embedding where quality is used.
            groups: of this iteration, for an admission rule that looks at them again with the quality.
        """
        if (dtype := self.config.logp_dtype) != "float32":  # rounded now, so that a log returns the same values
            trajectories = [replace(t, behaviour_logps=t.behaviour_logps.astype(dtype)) for t in trajectories]
        if self.diversity is not None:
            return admit_graded(self.buffer, self.diversity, self._admits, trajectories, groups)
        return len(trajectories) - self.buffer.admit(trajectories).count(None)

    # What it was ------------------------------------------------------------------------------------------------

    def state(self, step: int, generated_tokens: int = 0) -> events.PlannerState:
        """Return the state that does not follow from the buffer; together they decide all later plans."""
        stream, gate = self.stream, self.gate
        return events.PlannerState(
            self.iteration, step, gate.open, gate.pass_at_1, stream.pass_number, stream.cursor, tuple(stream.deferred),
            generated_tokens, self.reviewed, tuple(gate.recent), self.prefix_fraction,
        )  # fmt: skip

    def restore(self, state: events.PlannerState) -> None:
        """Restore the state of another planner with the same questions; its buffer is restored separately."""
        self.iteration, self.gate.open, self.reviewed = state.generation, state.gate_open, state.reviewed
        self.gate.restore(state.recent)
        self.prefix_fraction = state.prefix_fraction
        self.stream.restore(state.pass_number, state.cursor, state.deferred)

    # Inside -----------------------------------------------------------------------------------------------------

    def _tell(self, event: events.Event) -> None:
        if self.diversity is not None:
            self.diversity.hear(event)
        self.listener(event)
