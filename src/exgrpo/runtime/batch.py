"""Hold what one iteration of a host learns from: its rows before they are scored, and after.

Global rows are numbered over all processes; a row's group is row // K, its member row % K.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..experience.trajectory import FINISH_REASONS, RIGHT, FloatArray, Group, IntArray, Trajectory
from ..objective import without_noise
from ..replay import Prefix, ReplayedTrajectory, Rescue, StepPlan
from .row_stats import RowStats

NO_LOGP = float("nan")
"""The sampling log-prob of a token that was not sampled now; hosts leave such out of their statistics and ratios."""


@dataclass(frozen=True, eq=False)
class ReplayBatch:
    """The rows of an iteration.

    Args:
        plan: of this iteration.
        num_generations: K.
        offset: global row of the first row of this process.
        size: how many rows this process holds.
        stored: global rows that hold a stored trajectory, and by what stage (`replay` or `rescue`) it came there.
        added: stored trajectories beside the groups, under rows of their own behind all others.
    """

    plan: StepPlan
    num_generations: int
    offset: int
    size: int
    stored: Mapping[int, tuple[ReplayedTrajectory, str]]
    added: Mapping[int, ReplayedTrajectory]

    @classmethod
    def of_plan(cls, plan: StepPlan, num_generations: int, offset: int, size: int) -> "ReplayBatch":
        """Lay out a plan: a group's stored members are its last ones."""
        stored = {
            group * num_generations + num_generations - 1 - place: (choice, "replay")
            for group, choices in enumerate(plan.replays)
            for place, choice in enumerate(choices)
        }
        rows = len(plan.questions) * num_generations
        return cls(plan, num_generations, offset, size, stored, dict(enumerate(plan.added, rows)))

    def with_rescues(self, rescues: Iterable[Rescue]) -> "ReplayBatch":
        """Return a copy with rescuing trajectories in their rows."""
        k = self.num_generations
        rescued = {rescue.group * k + rescue.member: (rescue.choice, "rescue") for rescue in rescues}
        return replace(self, stored={**self.stored, **rescued}) if rescued else self

    @property
    def rows(self) -> range:
        """Global rows of this process."""
        return range(self.offset, self.offset + self.size)

    def holders(self, rows: Sequence[int], world_size: int) -> list[list[int]]:
        """Return for each process the places of the given rows whose stored trajectories it computes.

        Added ones are dealt in turn; the first of them fills up everywhere.
        """
        wanted: list[list[int]] = [[] for _ in range(world_size)]
        first = min(self.added, default=0)
        for place, row in enumerate(rows):
            for rank in range(world_size):
                dealt = row == first or (row - first) % world_size == rank
                if dealt if row in self.added else row // self.size == rank:
                    wanted[rank].append(place)
        return wanted

    def local(self) -> dict[int, ReplayedTrajectory]:
        """Return the stored trajectories among the rows of this process, by local row."""
        return {row - self.offset: choice for row, (choice, _) in self.stored.items() if row in self.rows}

    def prefix_of(self, row: int) -> Prefix | None:
        """Return what the completion in a global row begins with."""
        return self.plan.prefixes.get(row // self.num_generations)

    def local_prefixes(self) -> dict[int, list[int]]:
        """Return the prefixes of this process's completions by local row; rows without one are absent."""
        found = {row - self.offset: self.prefix_of(row) for row in self.rows}
        return {row: prefix.ids for row, prefix in found.items() if prefix is not None}

    def own_tokens(self, lengths: Sequence[int]) -> list[list[int]]:
        """Return 1 for each token that the policy wrote now, 0 for those before it; lengths: of completions, (b,)."""
        begun = {row: len(ids) for row, ids in self.local_prefixes().items()}
        return [[0] * begun.get(row, 0) + [1] * (n - begun.get(row, 0)) for row, n in enumerate(lengths)]

    def labels(self) -> list[str]:
        """Return `replay`, `rescue`, `prefix` or nothing for each row of this process."""
        return [
            self.stored[row][1] if row in self.stored else "prefix" if self.prefix_of(row) is not None else ""
            for row in self.rows
        ]

    def stored_at(self, row: int) -> ReplayedTrajectory | None:
        """Return the stored trajectory in a row, in a group or beside the groups."""
        return self.stored[row][0] if row in self.stored else self.added.get(row)

    def known_at(self, row: int) -> ReplayedTrajectory | None:
        """Return the stored trajectory that a row holds, or begins inside."""
        prefix = self.prefix_of(row) if row not in self.added else None
        return self.stored_at(row) or (prefix.choice if prefix is not None else None)

    @property
    def rows_to_hold(self) -> set[int]:
        """Return a row for each stored trajectory whose tokens its process needs.

        Of a group that begins inside one, the first.
        """
        k = self.num_generations
        return self.replayed_rows | {max(row - row % k, row - row % self.size) for row in self.prefixed_rows}

    @property
    def replayed_rows(self) -> set[int]:
        """Rows that hold a stored trajectory, of all processes."""
        return {*self.stored, *self.added}

    @property
    def prefixed_rows(self) -> set[int]:
        """Rows that continue a stored success, of all processes."""
        k = self.num_generations
        return {row for group in self.plan.prefixes for row in range(group * k, group * k + k)}

    @property
    def other_rows(self) -> set[int]:
        """Rows of the groups that are no fresh completions of a bare question, of all processes."""
        return {*self.stored, *self.prefixed_rows}

    def replayed_members(self) -> Tensor:
        """Return which members of the groups are stored ones, (B, K) of bool."""
        mask = torch.zeros(len(self.plan.questions) * self.num_generations, dtype=torch.bool)
        mask[list(self.stored)] = True
        return mask.view(-1, self.num_generations)

    def question_of(self, row: int) -> int:
        """Return the question of a global row."""
        if row in self.added:
            return self.added[row].trajectory.question
        return int(self.plan.questions[row // self.num_generations])

    def questions(self) -> list[int]:
        """Return the question of each row of this process."""
        return [self.question_of(row) for row in self.rows]

    def groups(self, outcomes: IntArray, rewards: FloatArray | None = None) -> list[Group | None]:
        """Return the fresh outcomes of each group, those a rescue replaced among them; None without any.

        Args:
            outcomes: (B, K), before any rescue.
            rewards: weighted, before any rescue, (B*K,), NaN where unscorable; None: not known.
        """
        plan, k = self.plan, self.num_generations
        fresh = [k - len(choices) for choices in plan.replays]
        reward_stds = (
            [math.nan] * len(fresh) if rewards is None else _deviations(rewards.reshape(-1, k), np.array(fresh))
        )
        rows = zip(plan.questions.tolist(), outcomes, fresh, plan.replayed.tolist(), reward_stds, strict=True)
        begun = [plan.prefixes[g].length if g in plan.prefixes else 0 for g in range(len(fresh))]
        return [
            Group(question, found[:m], replayed, reward_std, prefix) if m else None
            for (question, found, m, replayed, reward_std), prefix in zip(rows, begun, strict=True)
        ]

    def columns(self, lengths: Sequence[int], width: int, device: torch.device | str = "cpu") -> dict[str, Tensor]:
        """Return the columns that the loss reads beside the host's.

        Args:
            lengths: of the completion in each row of this process, (b,).
            width: T, to which completions are padded on the right.
            device: of all but the numbers of the rows.

        Returns:
            `replay_mask` (b,); `behaviour_logps` (b, T); `policy_mask` (b, T), the tokens that a policy wrote itself, not
            what a completion begins with; `generation_row` (b,), the global row.
        """
        mask = torch.zeros(self.size, dtype=torch.bool)
        logps = torch.zeros(self.size, width, dtype=torch.float32)
        for row, choice in self.local().items():
            mask[row] = True
            logps[row, : len(choice.trajectory)] = torch.as_tensor(choice.trajectory.behaviour_logps.copy())
        own = torch.arange(width)[None] < torch.tensor(list(lengths))[:, None]
        for row, ids in self.local_prefixes().items():
            own[row, : len(ids)] = False
        return {
            "replay_mask": mask.to(device),
            "behaviour_logps": logps.to(device),
            "policy_mask": own.to(device),
            "generation_row": torch.arange(self.offset, self.offset + self.size),
        }


@dataclass(frozen=True, eq=False)
class ScoredBatch:
    """The rows of an iteration, and what they were worth.

    Args:
        batch: with the rows that a rescue replaced.
        rewards: one value per reward function, (N*K, F), recorded ones for stored rows.
        outcomes: (B, K), before any rescue.
        advantages: of all rows before any weight, (N*K,).
        completion_ids: of the rows of this process, stored ones in theirs.
        to_admit: global rows of this process whose completions will be stored, and why each ended.
        groups: of fresh completions; None where there are none.
        uniform: groups whose members have the same reward, (B,).
    """

    batch: ReplayBatch
    rewards: Tensor
    outcomes: IntArray
    advantages: Tensor
    completion_ids: Sequence[Sequence[int]]
    to_admit: Mapping[int, str]
    groups: Sequence[Group | None] = ()
    uniform: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))

    def ids_of(self, rows: Iterable[int]) -> list[Sequence[int]]:
        """Return the token ids of global rows of this process."""
        return [self.completion_ids[row - self.batch.offset] for row in rows]


@dataclass(frozen=True, eq=False)
class NewRows:
    """Completions of one process that will be stored, or of all.

    Args:
        finish: why each ended, by global row.
        ids: its token ids.
        embeddings: of its text, where quality is used.
    """

    finish: Mapping[int, str] = field(default_factory=dict)
    ids: Mapping[int, IntArray] = field(default_factory=dict)
    embeddings: Mapping[int, FloatArray] = field(default_factory=dict)

    @classmethod
    def of(cls, scored: ScoredBatch, embeddings: Mapping[int, FloatArray] | None = None) -> "NewRows":
        """Extract this process's rows from its batch."""
        ids = zip(scored.to_admit, scored.ids_of(scored.to_admit), strict=True)
        return cls(scored.to_admit, {row: np.array(one, np.int32) for row, one in ids}, embeddings or {})

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything as plain arrays by name; token ids one row after the other."""
        rows = sorted(self.ids)
        values = [self.ids[row] for row in rows]
        vectors = {"embeddings": np.stack([self.embeddings[row] for row in rows])} if self.embeddings else {}
        return vectors | {
            "rows": np.array(rows, np.int64),
            "finish": np.array([FINISH_REASONS.index(self.finish[row]) for row in rows], np.uint8),
            "lengths": np.array([len(value) for value in values], np.int64),
            "ids": np.concatenate(values) if values else np.zeros(0, np.int32),
        }

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "NewRows":
        """Make one from `arrays`."""
        rows = arrays["rows"].tolist()
        ids = np.split(arrays["ids"], np.cumsum(arrays["lengths"])[:-1])
        finish = [FINISH_REASONS[code] for code in arrays["finish"].tolist()]
        vectors = dict(zip(rows, arrays["embeddings"], strict=True)) if "embeddings" in arrays else {}
        return cls(dict(zip(rows, finish, strict=True)), dict(zip(rows, ids, strict=False)), vectors)

    @classmethod
    def merge(cls, parts: Sequence["NewRows"]) -> "NewRows":
        """Merge those of all processes; their rows are disjoint."""
        return cls(
            {row: value for part in parts for row, value in part.finish.items()},
            {row: value for part in parts for row, value in part.ids.items()},
            {row: value for part in parts for row, value in part.embeddings.items()},
        )

    def trajectories(self, scored: ScoredBatch, stats: RowStats) -> list[Trajectory]:
        """Make them trajectories, in the order of global rows. stats: of all processes."""
        rewards, advantages = (tensor.float().cpu().numpy() for tensor in (scored.rewards, scored.advantages))
        right, step = scored.outcomes.ravel() == RIGHT, scored.batch.plan.step
        records = {int(record["row"]): record for record in stats.table if record["entropy_step"] >= 0}
        return [
            Trajectory(
                question=scored.batch.question_of(row),
                completion_ids=self.ids[row],
                behaviour_logps=_behaviour(scored.batch, row, stats),
                rewards=rewards[row],
                step=step,
                finish_reason=self.finish[row],
                entropy=float(records[row]["entropy"]) if row in records else float("nan"),
                entropy_step=int(records[row]["entropy_step"]) if row in records else step,
                correct=bool(right[row]),
                advantage=float(advantages[row]),
                embedding=self.embeddings.get(row),
            )
            for row in sorted(self.ids)
        ]


def _behaviour(batch: ReplayBatch, row: int, stats: RowStats) -> FloatArray:
    """Return the log-probs of the policies that wrote a completion: the stored ones of what it begins with."""
    logps = stats.logps[row]
    if (prefix := batch.prefix_of(row)) is None:
        return logps
    before = prefix.choice.trajectory.behaviour_logps[: prefix.length]
    return np.concatenate([before, logps[prefix.length :]])


def weighted(rewards_per_func: Tensor, weights: Tensor, num_generations: int) -> Tensor:
    """Return one reward per completion, NaN where no function gave any; (N*K, F) -> (N*K,).

    Rewards of a group that differ by no more than rounding become equal.
    """
    terms = rewards_per_func * weights.to(rewards_per_func.device)
    rewards = terms.nansum(dim=1).masked_fill(terms.isnan().all(dim=1), torch.nan)
    sizes = terms.abs().nan_to_num(posinf=0.0).sum(1).view(-1, num_generations)
    tolerance = (terms.size(1) + 1) * torch.finfo(terms.dtype).eps * sizes.amax(1, keepdim=True)
    return without_noise(rewards.view_as(sizes), tolerance).view(-1)


def _deviations(rewards: FloatArray, fresh: IntArray) -> list[float]:
    """Return the standard deviation of each group's fresh rewards, (B, K); NaN where none is known."""
    values = rewards.astype(np.float64)
    known = ~np.isnan(values) & (np.arange(values.shape[1]) < fresh[:, None])
    count = known.sum(1)
    with np.errstate(invalid="ignore"):
        mean = np.where(known, values, 0.0).sum(1) / count
        variance = np.where(known, values - mean[:, None], 0.0) ** 2
        deviations = np.sqrt(variance.sum(1) / count)
    equal = np.where(known, values, -np.inf).max(1) == np.where(known, values, np.inf).min(1)
    found: list[float] = (
        np.where(equal, 0.0, deviations).astype(np.float32).tolist()
    )  # exactly 0, without rounding noise
    return found
