"""The only coordinator: what the next batch is made of, and what is learned from what came of it.

One generation of a host runs through four calls, in this order::

    plan(...)     before generation: which questions are fresh, which replayed, with which trajectories
    rescue(...)   after scoring: which groups without a success get a stored one
    observe(...)  after scoring: accuracies, retirement, the gate
    admit(...)    once the log-probs of what is to be stored are known: it becomes trajectories

Everything here is the same on every rank: it depends on the seed, the generation counter, and what was observed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import ADMISSIONS, RETIREMENTS, SCHEDULES, ReplayConfig
from ..errors import ConfigurationError
from ..experience.buffer import ExperienceBuffer
from ..experience.contexts import Completion, Standing
from ..experience.events import (
    Admitted,
    Began,
    Event,
    Learned,
    Listener,
    Observed,
    Planned,
    PlannerState,
    Replayed,
    Retired,
    Returned,
    ignore,
)  # fmt: skip
from ..experience.quality import Diversity, quality_of
from ..experience.questions import UNKNOWN
from ..experience.store import TrajectoryStore
from ..experience.trajectory import RIGHT, WRONG, Group, IntArray, Trajectory
from .answers import share as share_now
from .gate import Gate
from .questions import draw_questions
from .rng import COIN, QUESTIONS, RESCUE, REVIEW, SHARE, TRAJECTORIES, generator_for
from .stream import FreshStream
from .trajectories import Scorer, choose, eligible_questions

BY_THE_COIN = "on-policy by the coin"
"""How a plan's `idle` begins where a coin decided that nothing is replayed this time."""
ROUNDS = 4
"""How often questions are drawn again in place of those whose trajectories turned out not to be eligible."""


@dataclass(frozen=True, eq=False)
class Choice:
    """A stored trajectory in a batch: under which serial it is stored, and what it is; how often it had been used."""

    serial: int
    trajectory: Trajectory
    uses: int = 0


@dataclass(frozen=True, eq=False)
class StepPlan:
    """What one generation is made of.

    Args:
        generation: counter of generations; the key of all random draws.
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
    """

    generation: int
    step: int
    questions: IntArray
    replays: tuple[tuple[Choice, ...], ...]
    replayed: NDArray[np.bool_]
    added: tuple[Choice, ...] = ()
    refilled: int = 0
    idle: str | None = None
    refused: int = 0
    expired: int = 0
    returned: int = 0

    @property
    def num_replayed(self) -> int:
        """Replayed questions; with `added` mixing, trajectories."""
        return int(self.replayed.sum()) + len(self.added)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """All stored trajectories of the batch."""
        return tuple(choice for group in self.replays for choice in group) + self.added


@dataclass(frozen=True, eq=False)
class Rescue:
    """A failed completion to be replaced: `member` of `group` by a stored trajectory."""

    group: int
    member: int
    choice: Choice


@dataclass
class _Drawn:
    """Questions to replay, the slots of each, and how many had to be refused."""

    questions: list[int]
    slots: list[list[int]]
    refused: int = 0


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
    """

    def __init__(
        self,
        config: ReplayConfig,
        stream: FreshStream,
        num_generations: int,
        seed: int,
        store: TrajectoryStore | None = None,
        listener: Listener = ignore,
        types: IntArray | None = None,
    ):
        if config.by_problem_type and config.replays_questions and types is None:
            raise ConfigurationError("by_problem_type=True needs the problem type of each question (types, (Q,)).")
        self.config = config
        self.stream = stream
        self.num_generations = num_generations
        self.seed = seed
        self.listener = listener
        self.gate = Gate(
            config.start_pass_at_1, config.start_step, config.start_epoch, config.start_size, config.start_completions
        )
        self.buffer = ExperienceBuffer(
            stream.num_questions, num_generations, config, store, self._tell, types if config.by_problem_type else None
        )
        self.diversity = Diversity() if config.uses_quality else None
        self.generation = 0
        self.reviewed = 0
        self._admits, self._retires, self._schedule = (
            ADMISSIONS[config.admission], RETIREMENTS[config.retirement], SCHEDULES[config.schedule],
        )  # fmt: skip

    @property
    def pass_at_1(self) -> float | None:
        """Mean correctness of the latest fresh completions, as the gate judges it."""
        return self.gate.pass_at_1

    # Before generation ------------------------------------------------------------------------------------------

    def plan(self, batch_size: int, step: int, epoch: float, score: Scorer) -> StepPlan:
        """What the next batch of `batch_size` questions is made of [ExGRPO, Alg. 1].

        Args:
            batch_size: B, questions a generation.
            step: optimizer steps done.
            epoch: epochs done, for gate and schedule.
            score: `Scores` of trajectories under the current policy, or their entropies.
        """
        generation, self.generation = self.generation, self.generation + 1
        self.listener(Began(generation, step))
        expired = self.buffer.expire(step - self.config.max_age) if self.config.max_age else 0
        returned = self._review(generation, step)
        self.buffer.advance(step)
        idle = self.gate.check(step, epoch, len(self.buffer))
        wanted = 0
        ready = self.buffer.ready()
        if idle is None and not (ready != UNKNOWN).any():
            idle = self._why_empty(expired)
        if idle is None:
            wanted, idle = self._wanted(batch_size, epoch, generation)
        drawn = self._draw(0 if idle else wanted, generation, step, score, ready)
        if idle is None and wanted and not drawn.questions:
            idle = "none of the stored trajectories or their questions is eligible now"
        added = self.config.mixing == "added"
        n, in_groups = len(drawn.questions), 0 if added else len(drawn.questions)
        retired, num_retired = self._left_the_stream()
        others = self.stream.num_questions - num_retired - n
        apart = [] if added and others < batch_size else drawn.questions  # an intact fresh batch comes first
        fresh, refilled = self.stream.take(batch_size - in_groups, apart, retired, num_retired)
        self.listener(Planned(generation, step, batch_size, n, refilled, idle))
        choices = self._take(drawn.slots, generation, step, "added" if added else "plan")
        questions, replayed = np.empty(batch_size, np.int64), np.zeros(batch_size, bool)
        replays: list[tuple[Choice, ...]] = [()] * batch_size
        places = spread(in_groups, batch_size)
        replayed[places] = True
        questions[replayed] = drawn.questions[:in_groups]
        questions[~replayed] = fresh
        for place, group in zip(places, choices, strict=False):
            replays[place] = tuple(group)
        beside = tuple(choice for group in choices for choice in group) if added else ()
        return StepPlan(
            generation,
            step,
            questions,
            tuple(replays),
            replayed,
            beside,
            refilled,
            idle,
            drawn.refused,
            expired,
            returned,
        )

    def abandon(self, plan: StepPlan) -> None:
        """A generation that was planned will not be learned from: its fresh questions come first in the next."""
        self.stream.deferred = plan.questions[~plan.replayed].tolist() + self.stream.deferred

    # After scoring ----------------------------------------------------------------------------------------------

    def rescue(self, plan: StepPlan, outcomes: IntArray, score: Scorer) -> list[Rescue]:
        """Which groups get a stored success in place of a failure: those without any success, with a failure that was
        scored, whose question has a stored one and does not rest. The last such failure is replaced.

        Args:
            plan: of this generation.
            outcomes: shape (B, K), `RIGHT`, `WRONG` or `UNSCORABLE`.
            score: as for `plan`.
        """
        if self.config.mixing != "rescue" or not self.gate.open:
            return []
        in_need = (outcomes == WRONG).any(axis=1) & ~(outcomes == RIGHT).any(axis=1)
        stored = (self.buffer.count[plan.questions] > 0) & ~self.buffer.retired[plan.questions]
        stored &= ~self.buffer.rests(plan.questions)
        groups = np.flatnonzero(in_need & stored)
        groups = groups[np.sort(np.unique(plan.questions[groups], return_index=True)[1])]  # each question once
        rng = generator_for(self.seed, plan.generation, RESCUE)
        questions = plan.questions[groups].tolist()
        slots = choose(self.buffer, questions, plan.step, self.config, rng, score, "rescue")
        rescues = []
        for group, found in zip(groups.tolist(), slots, strict=True):
            if found:
                member = int(np.flatnonzero(outcomes[group] == WRONG)[-1])
                rescues.append((group, member, found))
        taken = self._take([found for _, _, found in rescues], plan.generation, plan.step, "rescue")
        return [Rescue(group, member, choice) for (group, member, _), (choice,) in zip(rescues, taken, strict=True)]

    def observe(self, plan: StepPlan, groups: Sequence[Group | None]) -> None:
        """Learn from the fresh completions of a generation: accuracies, retirement, Pass@1 for the gate.

        Args:
            plan: of this generation.
            groups: one per group of the plan, in its order; fresh completions only, None where there were none.
        """
        seen = [group for group in groups if group is not None]
        for group, question in zip(groups, plan.questions.tolist(), strict=True):
            if group is not None and group.question != question:
                raise ValueError(f"observe: group of question {group.question} where the plan has {question}")
        self.gate.saw(sum(group.successes for group in seen), sum(group.scorable for group in seen))
        if not seen:
            return
        rows = [(g.question, g.successes, g.scorable, g.outcomes.size, g.replayed) for g in seen]
        questions, successes, scorable, completions, replayed = np.array(rows, np.int64).T
        spread, replayed = np.array([g.spread for g in seen]), replayed.astype(bool)
        self.listener(
            Observed(
                plan.generation, plan.step, questions, successes, scorable, completions - scorable, replayed, spread
            )
        )  # fmt: skip
        self.buffer.questions.observe(questions, successes, scorable, spread)
        self.buffer.questions.chosen(questions[replayed], plan.step)
        self._retire(plan, questions, successes, completions)

    def _retire(self, plan: StepPlan, questions: IntArray, successes: IntArray, completions: IntArray) -> None:
        """Let questions retire that the rule says have been learned."""
        accuracy = self.buffer.questions.accuracy(questions)
        rows = zip(questions.tolist(), successes.tolist(), completions.tolist(), accuracy.tolist(), strict=True)
        learned = np.array([bool(self._retires(Standing(*row, self.config))) for row in rows])
        if (leaving := np.unique(questions[learned & ~self.buffer.retired[questions]])).size:
            self.buffer.retire(leaving)
            self.listener(Retired(plan.generation, plan.step, leaving))

    def learned(self, plan: StepPlan, lessons: Sequence[tuple[int, int, float, float]]) -> None:
        """What the loss said of the replayed trajectories of a generation: question, serial, mean log-ratio, ESS."""
        if lessons:
            questions, serials, log_ratios, ess = (np.array(column) for column in zip(*lessons, strict=True))
            self.listener(Learned(plan.generation, plan.step, questions, serials, log_ratios, ess))

    def wants(self, group: Group, correct: bool, finish_reason: str) -> bool:
        """Whether a completion of a group that could be scored would be stored (but for duplicates, and for its quality)."""
        config = self.config
        if config.capacity == 0 or config.mixing == "prompt" or self.buffer.retired[group.question]:
            return False
        if finish_reason == "length" and not config.store_truncated:
            return False
        completion = Completion(
            group.question, correct, group.successes, group.scorable, finish_reason, np.nan, config
        )  # fmt: skip
        return bool(self._admits(completion))

    def admit(self, trajectories: Sequence[Trajectory], groups: Sequence[Group | None] = ()) -> int:
        """Store completions, in the given order; returns how many were new.

        Args:
            trajectories: those that were wanted; with an embedding where quality is used.
            groups: of this generation, for an admission rule that looks at them again with the quality.
        """
        if self.config.logp_dtype != "float32":  # rounded at birth, so that what is read back later is the same
            trajectories = [
                replace(t, behaviour_logps=t.behaviour_logps.astype(self.config.logp_dtype)) for t in trajectories
            ]
        if self.diversity is None:
            return len(trajectories) - self.buffer.admit(trajectories).count(None)
        by_question = {group.question: group for group in groups if group is not None}
        return sum(self._admit(trajectory, by_question.get(trajectory.question)) for trajectory in trajectories)

    def _admit(self, trajectory: Trajectory, group: Group | None) -> bool:
        """Store a completion if its quality allows it."""
        assert self.diversity is not None
        question, embedding = trajectory.question, trajectory.embedding
        if embedding is not None:
            diversity = self.diversity.of(question, embedding)
            quality = quality_of(float(trajectory.correct), diversity, self.config.success_weight)
            trajectory = replace(trajectory, quality=quality)
            if group is not None and not self._admits(
                Completion(
                    question, trajectory.correct, group.successes, group.scorable, trajectory.finish_reason, quality,
                    self.config,
                )
            ):  # fmt: skip
                return False
        return self.buffer.admit([trajectory]) != [None]

    def _tell(self, event: Event) -> None:
        """What the buffer tells; whatever is stored counts among the previous rollouts of its question."""
        if self.diversity is not None and isinstance(event, Admitted):
            for one in event.each():
                if one.trajectory.embedding is not None:
                    self.diversity.add(one.trajectory.question, one.trajectory.embedding)
        self.listener(event)

    # What it was ------------------------------------------------------------------------------------------------

    def state(self, step: int, generated_tokens: int = 0) -> PlannerState:
        """What does not follow from the buffer; with the buffer it decides everything that is planned from here on."""
        stream = self.stream
        return PlannerState(
            self.generation, step, self.gate.open, self.pass_at_1, stream.pass_number, stream.cursor,
            tuple(stream.deferred), generated_tokens, self.reviewed, tuple(self.gate.recent),
        )  # fmt: skip

    def restore(self, state: PlannerState) -> None:
        """Go on where another planner with the same questions stood; its buffer is restored apart."""
        self.generation, self.gate.open = state.generation, state.gate_open
        self.gate.look_back_on(state.recent)
        self.reviewed = state.reviewed
        self.stream.restore(state.pass_number, state.cursor, state.deferred)

    # Inside -----------------------------------------------------------------------------------------------------

    def _wanted(self, batch_size: int, epoch: float, generation: int) -> tuple[int, str | None]:
        """How many questions are to be replayed, and why none where that is for good or by the coin."""
        config = self.config
        if config.mixing == "coin":
            probability = share_now(config.schedule, self._schedule(config.replay_probability, epoch, config))
            if generator_for(self.seed, generation, COIN).random() < probability:
                return batch_size, None
            return 0, f"{BY_THE_COIN}: replay_probability is {probability:g}"
        if not config.replays_questions:
            return 0, None
        share = share_now(config.schedule, self._schedule(config.replay_share, epoch, config))
        if wanted := share_of(batch_size, share):
            return wanted, None
        if not share:
            return 0, "replay_share is 0"
        probability = expected_of(batch_size, share)
        if generator_for(self.seed, generation, SHARE).random() < probability:
            return 1, None
        return (
            0,
            f"{BY_THE_COIN}: replay_share {share:g} of {batch_size} questions is one with probability {probability:g}",
        )

    def _why_empty(self, expired: int) -> str:
        if expired and not len(self.buffer):
            return f"all over age: the last {expired} trajectories were older than max_age={self.config.max_age}"
        if resting := self.buffer.num_resting:
            return f"all replayable questions rest: {resting} within cooldown={self.config.cooldown}"
        if self.config.mixing == "prompt" and self.config.max_uses and self.buffer.questions.replays.any():
            return f"no replayable question stored: those seen were replayed max_uses={self.config.max_uses} times or retired"
        return self._why_none_stored()

    def _why_none_stored(self) -> str:
        config, buffer, retired = self.config, self.buffer, self.buffer.num_retired
        seen = buffer.questions.scorable > 0
        if not seen.any():
            return "no replayable question stored"
        if config.capacity == 0:
            return "nothing is stored: capacity=0"
        if retired and (buffer.next_serial or retired >= seen.sum()):
            return f"all retired: {retired} questions have left replay, and of the others nothing is stored"
        if buffer.next_serial:
            return "all evicted: what was stored has left (capacity, max_age, max_uses)"
        others = seen & ~buffer.retired
        if right := int((others & (buffer.questions.successes > 0)).sum()):
            if config.store_truncated:
                return f"none admitted: the rule {config.admission!r} took no completion of {right} questions with right ones"
            return f"all cut: what was right of {right} questions reached the length limit, and store_truncated=False"
        besides = f", and {retired} were solved at once" if retired else ""
        return f"nothing right yet: no completion of {int(others.sum())} questions{besides}"

    def _review(self, generation: int, step: int) -> int:
        """Let a share of the retired questions return, where it is time; returns how many."""
        config, buffer = self.config, self.buffer
        if not config.review_every or step - self.reviewed < config.review_every:
            return 0
        self.reviewed = step
        retired = np.flatnonzero(buffer.retired)
        if not retired.size:
            return 0
        n = max(1, share_of(retired.size, config.review_share))
        returned = np.sort(generator_for(self.seed, generation, REVIEW).choice(retired, n, replace=False))
        buffer.questions.bring_back(returned)
        self.listener(Returned(generation, step, returned))
        return n

    def _left_the_stream(self) -> tuple[NDArray[np.bool_], int]:
        """Which questions are fresh no more, (Q,), and how many."""
        if self.config.retired_in_stream:
            return np.zeros(self.stream.num_questions, bool), 0
        return self.buffer.retired, self.buffer.num_retired

    def _draw(self, n: int, generation: int, step: int, score: Scorer, ready: NDArray[Any]) -> _Drawn:
        """n questions and their trajectories; questions are drawn again in place of those that have to be refused."""
        config, buffer = self.config, self.buffer
        drawn, refused = _Drawn([], []), set[int]()
        if not n:
            return drawn
        rng, rng_of_choice = (generator_for(self.seed, generation, purpose) for purpose in (QUESTIONS, TRAJECTORIES))
        if config.mixing == "prompt":
            questions = draw_questions(buffer, n, config, rng, step, None, ready)
            return _Drawn(questions, [[] for _ in questions])
        moment = "added" if config.mixing == "added" else "plan"
        count = 1 if config.mixing == "added" else min(config.replays_per_group, self.num_generations)
        rule = eligible_questions(buffer, config, step, moment)
        for _ in range(ROUNDS):
            taken = refused | set(drawn.questions)

            def eligible(questions: IntArray, taken: set[int] = taken) -> NDArray[np.bool_]:
                free = ~np.isin(questions, list(taken))
                return free if rule is None else free & rule(questions)

            questions = draw_questions(
                buffer, n - len(drawn.questions), config, rng, step, eligible if taken else rule, ready
            )  # fmt: skip
            slots = choose(buffer, questions, step, config, rng_of_choice, score, moment, count)
            for question, found in zip(questions, slots, strict=True):
                if found:
                    drawn.questions.append(question)
                    drawn.slots.append(found)
                else:
                    refused.add(question)
            if len(drawn.questions) == n or not questions or not refused:
                break
        drawn.refused = len(refused)
        return drawn

    def _take(self, slots: Sequence[Sequence[int]], generation: int, step: int, moment: str) -> list[list[Choice]]:
        """The trajectories of slots, used from now on; each group of slots by itself, all read at once."""
        chosen = np.array([slot for group in slots for slot in group], np.int64)
        if not len(chosen):
            return [[] for _ in slots]
        trajectories, records = self.buffer.get_many(chosen), self.buffer.index.records[chosen]
        self._mark(chosen, records, generation, step, moment)
        choices = map(Choice, records["serial"].tolist(), trajectories, records["uses"].tolist())
        return [[next(choices) for _ in group] for group in slots]

    def _mark(self, slots: IntArray, records: NDArray[Any], generation: int, step: int, moment: str) -> None:
        """Count the use of trajectories; those leave that were used as often as is allowed."""
        questions, serials, entropy = records["question"], records["serial"], records["entropy"].astype(np.float64)
        self.buffer.used(slots)
        self.buffer.questions.replayed(questions, step)
        self.listener(Replayed(generation, step, questions, serials, moment, step - records["step"], entropy))
        if self.config.max_uses:
            self.buffer.wear_out(slots[records["uses"] + 1 >= self.config.max_uses])


def share_of(batch_size: int, replay_share: float) -> int:
    """floor(rho * B), in exact decimal arithmetic: 0.29 of 100 is 29, not 28."""
    return int(_product(batch_size, replay_share))


def expected_of(batch_size: int, replay_share: float) -> float:
    """How many questions a generation replays on average: floor(rho * B); or, where that is 0, rho * B, with which
    probability it replays one."""
    product = _product(batch_size, replay_share)
    return float(product) if product < 1 else int(product)


def _product(batch_size: int, replay_share: float) -> Decimal:
    if not 0 <= replay_share <= 1:
        raise ConfigurationError(f"replay_share must be in [0, 1], but is {replay_share}")
    return Decimal(str(replay_share)) * batch_size


def spread(n: int, batch_size: int) -> NDArray[np.int64]:
    """n places of a batch, evenly spaced, so that every rank has about as many replayed groups as the others."""
    return (np.arange(n) * batch_size + batch_size // 2) // max(n, 1)
