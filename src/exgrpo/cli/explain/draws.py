"""Replays of one step: weights from the question sampler, and many rehearsals of the planner's own plans."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...config import MIXINGS, SCHEDULES
from ...experience.difficulty import tier_of
from ...experience.policy_stats import PolicyStats
from ...experience.trajectory import RIGHT, WRONG, FloatArray, IntArray, Trajectory
from ...replay import ReplayedTrajectory, StepPlan, replay_count
from ...replay.choice import Scorer, eligible_questions
from ...replay.sampling import Eligible, bucket_probabilities, pools_of
from ...replay.sampling import Pool as DrawnFrom
from .pool import MADE_UP, Pool

MAX_ROWS = 17
DRAWS, DRAWS_WHERE_EXACT = 4000, 400
QUESTIONS_LOOKED_AT = 400_000
"""Bound on draws times questions where each draw looks at every question."""


class Table:
    """Questions that can be replayed, in rows by accuracy.

    A row for each bucket, for each tier of the option `tiers`, or for each tenth where there are too many buckets.

    Args:
        pool: after what a plan does before it draws.

    Attributes:
        labels: of the rows, (n,).
        row_of_question: (Q,), -1 where it cannot be replayed.
        looks_at_each: whether a draw takes time that grows with the pool.
    """

    def __init__(self, pool: Pool):
        self.pool, self.buffer, self.config = pool, pool.buffer, pool.planner.config
        self.labels = self._labels()
        rule = self._rule()
        self._pools = pools_of(self.buffer, self.config, pool.step, rule)
        singly = any(found.of_buckets is None for found in self._pools)
        self.looks_at_each = (
            singly or rule is not None or self.config.difficulty == "spread" or self.config.mixing == "rescue"
        )
        self._chances = [self._chances_of(found) for found in self._pools]
        self._rows = [self.row_of(found.candidates.accuracy) for found in self._pools]
        self.row_of_question = np.full(self.buffer.num_questions, -1)
        for found, rows in zip(self._pools, self._rows, strict=True):
            if (questions := found.candidates.questions) is not None:
                self.row_of_question[questions] = rows
            else:
                known = np.flatnonzero(found.ready >= 0)
                self.row_of_question[known] = rows[found.ready[known]]

    def _rule(self) -> Eligible | None:
        """Return the eligibility rule; None where all that can be replayed may be drawn."""
        config = self.config
        stage = MIXINGS[config.mixing].traits["stage"]
        if config.mixing in ("prompt", "rescue"):
            return None
        return eligible_questions(self.buffer, config, self.pool.step, stage)

    def _chances_of(self, pool: DrawnFrom) -> FloatArray | None:
        """Return each bucket's probability in a draw; None where questions are drawn one by one."""
        if pool.of_buckets is None:
            return None
        return bucket_probabilities(pool.of_buckets, pool.room) if pool.room.sum() else np.zeros(len(pool.room))

    def _labels(self) -> list[str]:
        config, r = self.config, self.buffer.resolution
        if config.question_choice == "tiers":
            n = len(config.tier_shares)
            return [f"{i / n:.0%} to {(i + 1) / n:.0%}" for i in range(n)]
        if r < MAX_ROWS:
            return [f"{b}/{r}" + ("" if config.difficulty == "spread" else f" {tier_of(b, r)}") for b in range(r + 1)]
        return ["0%", *(f"{i * 10}% to {i * 10 + 10}%" for i in range(10)), "100%"]

    def row_of(self, accuracy: FloatArray) -> IntArray:
        """Return the row of each accuracy."""
        r = self.buffer.resolution
        if self.config.question_choice == "tiers":
            n = len(self.config.tier_shares)
            return np.minimum((accuracy * n).astype(int), n - 1)
        if r < MAX_ROWS:
            return np.floor(accuracy * r + 0.5).astype(int)
        inside = 1 + np.minimum((accuracy * 10).astype(int), 9)
        return np.where(accuracy <= 0, 0, np.where(accuracy >= 1, 11, inside))

    @property
    def available(self) -> IntArray:
        """Questions that may be drawn, of each problem type."""
        return np.array([pool.room.sum() for pool in self._pools], np.int64)

    def weights(self) -> FloatArray | None:
        """Return each row's probability in a draw, (n,); None where the sampler looks at each question."""
        total = max(1, int(self.available.sum()))
        found = np.zeros(len(self.labels))
        for chances, rows, size in zip(self._chances, self._rows, self.available, strict=True):
            if chances is None:
                return None
            found += np.bincount(rows, chances * size / total, len(found))
        return found

    def exact(self, n: int) -> FloatArray | None:
        """Return the expected questions of each row in a draw of n, or None where there is no formula.

        There is one if all are drawn uniformly, or if no stratum can be drawn more often than it has questions.
        """
        weights = self.weights()
        if weights is None or self.config.max_drift:
            return None
        narrow = [
            not pool.uniform and (pool.room[chances > 0] < n).any()
            for chances, pool in zip(self._chances, self._pools, strict=True)
            if chances is not None
        ]
        if any(narrow):
            return None
        return np.asarray(min(n, int(self.available.sum())) * weights)

    def by_row(self, questions: IntArray) -> IntArray:
        """Count questions in each row, (n,)."""
        rows = self.row_of_question[questions]
        return np.bincount(rows[rows >= 0], minlength=len(self.labels))

    def seen(self) -> IntArray | None:
        """Count all questions by accuracy, (n,), unreplayable ones too; None where rows are not of accuracies."""
        if self.config.difficulty == "spread":
            return None
        buffer, r = self.buffer, self.buffer.resolution
        known = np.flatnonzero(buffer.questions.scorable > 0)
        return np.bincount(
            self.row_of(np.asarray(buffer.questions.bucket[known], float) / r), minlength=len(self.labels)
        )


@dataclass(frozen=True, eq=False)
class Drawn:
    """The result of one rehearsal.

    Args:
        questions: replayed ones.
        chosen: stored trajectories of each group that has some.
        measured: trajectories that were measured for it.
        refused: questions that had no eligible trajectory.
        fresh: the other questions of the batch.
    """

    questions: IntArray
    chosen: tuple[tuple[ReplayedTrajectory, ...], ...]
    measured: int
    refused: int
    fresh: IntArray


class Rehearsals:
    """Plans of the same step, from draws of their own, and what they gave on average.

    Args:
        pool: with the gate open.
        table: of its questions.
        batch: questions a step.
        epoch: epochs done.
        draws: how many plans; None: as many as are needed.

    Attributes:
        wanted: questions that a plan is to replay; 0 where only groups are mended.
        exact: whether `expected` is exact, or a mean over the plans.
        expected, error: replayed questions in each row of the table, (n,), and the standard error; 0 where it is exact.
        in_batch: of rescues, questions of a batch in each row, (n,).
        all: each `Drawn`.
    """

    def __init__(self, pool: Pool, table: Table, batch: int, epoch: float, draws: int | None = None):
        self.pool, self.table, self.batch, self.epoch = pool, table, batch, epoch
        self.rescues = pool.planner.config.mixing == "rescue"
        self.wanted = self._wanted()
        exact = None if self.rescues else table.exact(self.wanted)
        self.exact = exact is not None
        number = draws or (DRAWS_WHERE_EXACT if self.exact else DRAWS)
        if table.looks_at_each and not draws:
            number = min(number, max(50, QUESTIONS_LOOKED_AT // pool.buffer.num_questions))
        self.all = list(self._rehearse(number))
        counts = np.array([table.by_row(drawn.questions) for drawn in self.all], float)
        self.expected = counts.mean(0) if exact is None else exact
        self.error = counts.std(0) / math.sqrt(number) * (not self.exact)
        self.in_batch = np.mean([table.by_row(drawn.fresh) for drawn in self.all], axis=0)

    def _wanted(self) -> int:
        config = self.pool.planner.config
        if config.mixing == "coin":
            return self.batch
        if self.rescues:
            return 0
        return replay_count(self.batch, SCHEDULES[config.schedule](config.replay_share, self.epoch, config))

    def _rehearse(self, number: int) -> Iterator[Drawn]:
        pool, planner, asked = self.pool, self.pool.planner, [0]
        first, n = planner.iteration, pool.buffer.num_questions

        def score(trajectories: Sequence[Trajectory]) -> list[PolicyStats]:
            asked[0] += len(trajectories)
            return pool.score(trajectories)

        for generation in range(first, first + number):
            rng, asked[0] = np.random.default_rng((MADE_UP, planner.seed, generation)), 0
            with pool.preview(rng.permutation(n) if self.rescues else None):
                planner.iteration = generation
                plan = planner.plan(self.batch, pool.step, self.epoch, score)
                rescues = self._rescues(plan, rng, score)
            in_groups = tuple(group for group in plan.replays if group)
            alone = (*plan.added, *(prefix.choice for prefix in plan.prefixes.values()))
            chosen = in_groups + tuple((choice,) for choice in alone) + rescues
            of_chosen = np.array([choices[0].trajectory.question for choices in chosen], int)
            questions = plan.questions[plan.replayed] if plan.replayed.any() else of_chosen
            yield Drawn(questions, chosen, asked[0], plan.refused, plan.questions[~plan.replayed])

    def _rescues(
        self, plan: StepPlan, rng: np.random.Generator, score: Scorer
    ) -> tuple[tuple[ReplayedTrajectory, ...], ...]:
        """Rescue groups that fail by chance, each completion being right with its question's accuracy."""
        if not self.rescues:
            return ()
        accuracy = np.nan_to_num(self.pool.buffer.questions.accuracy(plan.questions))
        right = rng.random((len(accuracy), self.pool.planner.num_generations)) < accuracy[:, None]
        found = self.pool.planner.rescue(plan, np.where(right, RIGHT, WRONG), score)
        return tuple((rescue.choice,) for rescue in found)

    # Means over plans -------------------------------------------------------------------------------------------

    @property
    def replayed(self) -> float:
        """Replayed questions, or rescued groups, of a plan."""
        return float(np.mean([len(drawn.questions) for drawn in self.all]))

    @property
    def refused(self) -> float:
        return float(np.mean([drawn.refused for drawn in self.all]))

    @property
    def in_a_group(self) -> float:
        """Stored trajectories of a replayed group; NaN where there is none."""
        return _mean([len(choices) for drawn in self.all for choices in drawn.chosen])

    def measured(self) -> tuple[float, float]:
        """Return the mean number of trajectories measured for a plan, and its standard error."""
        numbers = np.array([drawn.measured for drawn in self.all], float)
        return float(numbers.mean()), float(numbers.std() / math.sqrt(len(numbers)))

    def compared(self, name: str) -> tuple[float, float]:
        """Return a column's mean over what is chosen, and over all that is stored of the same questions."""
        chosen, stored = [], []
        for drawn in self.all[:DRAWS_WHERE_EXACT]:
            candidates = self.pool.buffer.candidates(drawn.questions, self.pool.step, np.random.default_rng(0))
            serials = [choice.serial for choices in drawn.chosen for choice in choices]
            values = candidates.scores(name)[candidates.valid]
            chosen += values[np.isin(candidates.serial[candidates.valid], serials)].tolist()
            stored += values.tolist()
        return _mean(chosen), _mean(stored)


def _mean(values: Sequence[float]) -> float:
    known = np.asarray(values, float)
    known = known[~np.isnan(known)]
    return float(known.mean()) if known.size else math.nan
