"""One iteration of replay for any host: plan, score, advantages, record, finish.

A host calls each once, in this order, on all processes at the same time; `record` any number of times, for any rows in any
order. Where it calls them is up to the host: TRL finishes after the last micro-batch, verl once it has the log-probs of all
rows.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ..experience.events import Event
from ..experience.policy_stats import PolicyStats
from ..experience.trajectory import RIGHT, UNSCORABLE, FloatArray, Group, IntArray
from ..objective import group_advantages, have_no_variance, weight_positive
from ..objective.stats import RatioStats
from ..replay import ReplayPlanner
from .batch import NewRows, ReplayBatch, ScoredBatch, weighted
from .checkpoint import SavedStep
from .comm import Arrays, Comm
from .context import RunContext
from .encoder import EmbeddingAhead
from .following import follow, told
from .metrics import batch_metrics, fresh_metrics, loss_metrics, pool_metrics, prefix_metrics, push_metrics
from .row_stats import SCORES, RowStats
from .session import ExperienceSession
from .shared_store import hold
from .timing import Stopwatch

GONE = -1
"""Stands for the slot of a trajectory that has left."""


class Stage(IntEnum):
    """The last completed stage of an iteration."""

    NEW = 0
    PLANNED = 1
    SCORED = 2
    CREDITED = 3
    FINISHED = 4
    ABANDONED = 5


class ReplayStep:
    """One iteration.

    Args:
        context: the run.
        comm: its processes.
        planner: plans its batches.
        session: writes the experience; None: memory only.
        time: stopwatch of the phases.
        embedding: embeds completions beside the forwards; None where quality is not used.

    Attributes:
        stage: the last completed stage.
        batch: set by `plan`.
        scored: set by `score`.
        stats: measurements of this process's rows by the forwards.
        metrics: of the batch, set by `score`.
    """

    batch: ReplayBatch
    scored: ScoredBatch
    stats: RowStats

    def __init__(
        self,
        context: RunContext,
        comm: Comm,
        planner: ReplayPlanner,
        session: ExperienceSession | None = None,
        time: Stopwatch | None = None,
        embedding: EmbeddingAhead | None = None,
    ):
        self._context, self._comm, self._planner, self._session = context, comm, planner, session
        self._time = time or Stopwatch()
        self._embedding = embedding
        self.stage = Stage.NEW
        self.metrics: dict[str, float] = {}

    def plan(self, batch_size: int, step: int, epoch: float = 0.0) -> ReplayBatch:
        """Plan the batch, and return the rows of this process.

        Args:
            batch_size: questions of the iteration, over all processes.
            step: optimizer steps done.
            epoch: epochs done.
        """
        self._go(Stage.NEW, Stage.PLANNED)
        k = self._context.num_generations
        size = batch_size * k // self._comm.world_size
        plan = self._planner.plan(batch_size, step, epoch, self._context.score)
        self.batch = ReplayBatch.of_plan(plan, k, self._comm.rank * size, size)
        self.stats = RowStats([*self.batch.rows, *sorted(self.batch.added)])
        self._hold(self.batch.rows_to_hold)
        return self.batch

    def _hold(self, rows: Iterable[int]) -> None:
        """Send the tokens of stored rows to the processes that compute them."""
        numbers = sorted(rows)
        stored = [choice.trajectory for row in numbers if (choice := self.batch.known_at(row)) is not None]
        hold(self._comm, stored, self.batch.holders(numbers, self._comm.world_size))

    def score(
        self, rewards: Tensor, completion_ids: Sequence[Sequence[int]], finish_reasons: Sequence[str]
    ) -> ScoredBatch:
        """Update the experience from the outcomes; put recorded rewards back in place, and rescue groups.

        Args:
            rewards: of all processes, (N*K, F), NaN where a function gave none; overwritten for stored rows.
            completion_ids: token ids of this process's rows.
            finish_reasons: `stop` or `length` for each of them.
        """
        self._go(Stage.PLANNED, Stage.SCORED)
        context, planner, batch, k = self._context, self._planner, self.batch, self._context.num_generations
        fresh = weighted(rewards, context.reward_weights, k)
        outcomes = context.correctness.outcomes(rewards, k)
        groups = batch.groups(outcomes, fresh.float().cpu().numpy())
        self.metrics = fresh_metrics(outcomes, batch.other_rows) | prefix_metrics(batch, outcomes)
        planned = set(batch.stored)
        self.batch = batch = batch.with_rescues(planner.rescue(batch.plan, outcomes, context.score))
        self._hold(batch.stored.keys() - planned)
        for row, (choice, _) in batch.stored.items():
            rewards[row] = torch.as_tensor(choice.trajectory.rewards.copy(), dtype=rewards.dtype)
        planner.observe(batch.plan, groups)
        values = weighted(rewards, context.reward_weights, k).view(-1, k)
        advantages = group_advantages(
            values, 1.0, context.scale, batch.replayed_members().to(rewards.device), context.objective.baseline
        )
        ids = list(completion_ids)
        for local, choice in batch.local().items():
            ids[local] = choice.trajectory.completion_ids.tolist()
        to_admit = self._to_admit(groups, outcomes, ids, finish_reasons)
        self.scored = ScoredBatch(
            batch, rewards, outcomes, advantages.view(-1), ids, to_admit, groups, have_no_variance(values)
        )  # fmt: skip
        self.metrics |= batch_metrics(batch)
        return self.scored

    def _to_admit(
        self,
        groups: Sequence[Group | None],
        outcomes: IntArray,
        ids: Sequence[Sequence[int]],
        finish_reasons: Sequence[str],
    ) -> dict[int, str]:
        """Return which fresh completions of this process will be stored, by global row, and why they ended."""
        batch, found = self.batch, {}
        flat = outcomes.ravel()
        for row, tokens, finish in zip(batch.rows, ids, finish_reasons, strict=True):
            group = groups[row // batch.num_generations]
            if group is None or not len(tokens) or row in batch.stored or flat[row] == UNSCORABLE:
                continue
            if self._planner.should_admit(group, bool(flat[row] == RIGHT), finish):
                found[row] = finish
        return found

    def advantages(self, scored: ScoredBatch) -> Tensor:
        """Return the weighted advantages of this process's rows, (b,), and start embedding what will be stored."""
        self._go(Stage.SCORED, Stage.CREDITED)
        batch = scored.batch
        mine = scored.advantages[batch.offset : batch.offset + batch.size]
        self._embed()
        return weight_positive(mine, self._context.objective.positive_weight)

    def _embed(self) -> None:
        """Start embedding what will be stored; again after a restart."""
        if self._embedding is not None and self.scored.to_admit and self.stage < Stage.FINISHED:
            texts = self._context.decode(self.scored.ids_of(self.scored.to_admit))
            self._embedding.submit(self.batch.plan.iteration, texts)

    def columns(self, width: int, device: torch.device | str = "cpu") -> dict[str, Tensor]:
        """Return the columns that the loss reads, as `ReplayBatch.columns` does. width: T."""
        return self.batch.columns([len(ids) for ids in self.scored.completion_ids], width, device)

    def needs(self, rows: Sequence[int]) -> NDArray[np.bool_]:
        """Return which rows need a forward whatever their advantage: those to be stored and not measured yet."""
        known = self.stats.has_entropy(rows)
        unseen = [row not in self.stats.logps or not seen for row, seen in zip(rows, known, strict=True)]
        return np.asarray(np.isin(rows, list(self.scored.to_admit)) & np.array(unseen, bool))

    def record(
        self,
        rows: Sequence[int],
        logps: ArrayLike | Tensor | None = None,
        entropies: ArrayLike | Tensor | None = None,
        mask: ArrayLike | Tensor | None = None,
        ratios: RatioStats | None = None,
        fillers: Sequence[int] = (),
    ) -> None:
        """Record the results of a forward; the first values of each row count.

        Args:
            rows: global rows of this process, in any order, (n,).
            logps: token log-probs under the current policy, (n, T), aligned to the left.
            entropies: in nats, (n, T); if given, `logps` are those of the policy that is trained.
            mask: tokens over which entropies are averaged, (n, T).
            ratios: ratio statistics of the rows, from the loss.
            fillers: rows among them that only fill up a batch.
        """
        self._check(Stage.CREDITED)
        stored = [self.batch.stored_at(row) for row in rows]
        if fillers:
            self.stats.add_fillers(fillers)
        if ratios is not None:
            self._record_ratios(rows, stored, ratios)
        values = None if logps is None else _tensor(logps).float().cpu().numpy()
        if values is not None and entropies is not None:
            seen = {
                place: PolicyStats.of_tokens(values[place, : len(one.trajectory)], one.trajectory.behaviour_logps)
                for place, one in enumerate(stored)
                if one is not None
            }
            self.stats.add_scores([rows[place] for place in seen], list(seen.values()))
        if values is not None:
            for place, row in enumerate(rows):
                if row in self.scored.to_admit and row not in self.stats.logps:
                    length = len(self.scored.completion_ids[row - self.batch.offset])
                    self.stats.add_logps(row, values[place, :length].copy())
        if entropies is not None and mask is not None:
            own = _tensor(mask)
            tokens = own.sum(1)
            means = torch.where(own.bool(), _tensor(entropies), 0.0).float().sum(1) / tokens
            step = self._context.progress().step
            self.stats.add_entropies(rows, means.cpu().double().numpy(), tokens.cpu().long().numpy(), step)

    def _record_ratios(self, rows: Sequence[int], stored: Sequence[Any], ratios: RatioStats) -> None:
        places = [place for place, choice in enumerate(stored) if choice is not None]
        columns = {
            "log_ratio": ratios.log_ratio, "log_sum": ratios.log_sum, "log_sum_squares": ratios.log_sum_squares,
            "ratio_tokens": ratios.tokens, "clamped": ratios.clamped,
        }  # fmt: skip
        values = {name: column.cpu().numpy()[places] for name, column in columns.items()}
        self.stats.add_ratios([rows[place] for place in places], values)

    def finish(self) -> dict[str, float]:
        """Admit completions and update the experience after all forwards; return metrics, the same on every process.

        Tokens go to the main process alone, which decides; the others follow.
        """
        self._go(Stage.CREDITED, Stage.FINISHED)
        with self._time("embed"):
            new = NewRows.of(self.scored, self._embeddings())
        mine = {f"stats/{name}": values for name, values in self.stats.arrays(known=True).items()}
        mine |= {f"new/{name}": values for name, values in new.arrays().items()}
        parts = self._comm.to_main(mine)
        metrics, events = self._comm.from_main(lambda: self._store(parts))
        if self._comm.rank:
            follow(self._planner, events)
        return metrics

    def _store(self, parts: Sequence[Arrays]) -> tuple[dict[str, float], list[Event]]:
        """Update the experience from all rows, on the main process; return metrics, and the events for the others."""
        planner, context, plan = self._planner, self._context, self.batch.plan
        stats = RowStats.concatenate([RowStats.of_arrays(_part(arrays, "stats/")) for arrays in parts])
        new = NewRows.merge([NewRows.of_arrays(_part(arrays, "new/")) for arrays in parts])
        with told(planner) as events:
            self._update(stats)
            planner.trained(plan, trained(self.batch, stats))
            metrics = loss_metrics(stats, self.batch.replayed_rows, self.batch.prefixed_rows)
            metrics |= push_metrics(self.scored, stats, context.objective, context.epsilon, context.vocabulary)
            groups = self.scored.groups if self._embedding is not None else ()
            metrics["replay/admitted"] = float(planner.admit(new.trajectories(self.scored, stats), groups))
        metrics |= pool_metrics(planner)
        if self._session is not None:
            with self._time("log"):
                self._session.commit(planner)
        return metrics, events if self._comm.world_size > 1 else []

    def _embeddings(self) -> dict[int, FloatArray]:
        """Wait for the embeddings of the completions to be stored, and return them by row."""
        if self._embedding is None:
            return {}
        vectors = self._embedding.result().get(self.batch.plan.iteration, ())
        return dict(zip(self.scored.to_admit, vectors, strict=True))

    def _update(self, stats: RowStats) -> None:
        """Store measurements of stored trajectories under the policy that is trained."""
        buffer, slots = self._planner.buffer, []
        records = stats.table[(stats.table["entropy_step"] >= 0) & ~np.isnan(stats.table["nll"])]
        for row in records["row"].tolist():
            choice = self.batch.stored_at(row)
            slot = None if choice is None else buffer.find(choice.trajectory.question, choice.serial)
            slots.append(GONE if slot is None else slot)
        for step in np.unique(records["entropy_step"]).tolist():
            these = np.flatnonzero((records["entropy_step"] == step) & (np.array(slots) != GONE))
            columns = zip(*(records[name][these].tolist() for name in ("entropy", *SCORES)), strict=True)
            if these.size:
                buffer.update_stats([slots[one] for one in these], [PolicyStats(*scores) for scores in columns], step)

    def abandon(self) -> None:
        """Abandon the iteration before it is trained on: its fresh questions come first in the next."""
        if self.stage in (Stage.PLANNED, Stage.SCORED):
            self.stage = Stage.ABANDONED
            self._planner.abandon(self.batch.plan)

    def saved(self) -> SavedStep:
        """Return the state that a checkpoint keeps."""
        self._check(Stage.CREDITED)
        return SavedStep(self.scored, self.stats, self.stage is Stage.FINISHED)

    def resume(self, saved: SavedStep) -> None:
        """Continue an iteration that a checkpoint holds."""
        self.batch, self.scored, self.stats = saved.scored.batch, saved.scored, saved.stats
        self.stage = Stage.FINISHED if saved.finished else Stage.CREDITED
        self._hold(self.batch.rows_to_hold)
        self._embed()

    def _check(self, stage: Stage) -> None:
        if self.stage is not stage and not (stage is Stage.CREDITED and self.stage is Stage.FINISHED):
            raise ValueError(f"this iteration is {self.stage.name.lower()}, and must be {stage.name.lower()} here")

    def _go(self, before: Stage, after: Stage) -> None:
        if self.stage is not before:
            raise ValueError(
                f"an iteration that is {self.stage.name.lower()} cannot become {after.name.lower()}: each call comes once, in "
                "the order plan, score, advantages, record, finish"
            )
        self.stage = after


def _part(arrays: Arrays, prefix: str) -> Arrays:
    return {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}


def trained(batch: ReplayBatch, stats: RowStats) -> list[tuple[int, int, float, float]]:
    """Return question, serial, mean log-ratio and effective sample size of each stored trajectory trained on."""
    found, records = [], stats.table[stats.table["ratio_tokens"] > 0]
    ess = np.exp(2 * records["log_sum"] - records["log_sum_squares"]) / records["ratio_tokens"]
    for row, log_ratio, size in zip(records["row"].tolist(), records["log_ratio"].tolist(), ess.tolist(), strict=True):
        if (choice := batch.stored_at(row)) is not None:
            found.append((choice.trajectory.question, choice.serial, log_ratio, size))
    return found


def _tensor(values: ArrayLike | Tensor) -> Tensor:
    return values.detach() if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
