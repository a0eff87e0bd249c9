"""One generation of the trainer, from its plan until its successes are stored.

The trainer keeps this beside the host's batch: which local rows hold a stored trajectory, the gathered rewards, and what
the loss forwards reveal of each row (log-probs and entropies), so that no forward is needed for it.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..experience.trajectory import RIGHT, FloatArray, Group, IntArray, Scores, Trajectory
from ..objective.loss import RatioStats, effective_sample_size
from ..replay.plan import Choice, StepPlan

NO_LOGP = float("nan")
"""The sampling log-prob of a token that was not sampled now; TRL leaves such out of its vLLM statistics and ratios."""


@dataclass
class Generation:
    """Global rows are numbered over all processes; a row's group is row // K, its member row % K.

    Args:
        plan: of this generation.
        num_generations: K.
        inputs: dataset rows of this process.
        offset: global row of the first of them.
        size: how many rows this process holds.
        stored: global rows that hold a stored trajectory, and by what moment.
        added: stored trajectories beside the groups, under rows of their own behind all others.
        rewards: one value per reward function, (N*K, F), recorded ones for stored rows.
        host_metrics: the host's reward metrics, of the fresh completions only.
        values: weighted rewards before any rescue, (N*K,), NaN where unscorable.
        advantages: of all rows before any weight, (N*K,).
        outcomes: (B, K), before any rescue.
        wanted: local rows that will be stored, and why they ended.
        fillers: rows that were computed without need: what is learned of them counts only where there is nothing else.
        admitted: whether they were stored.
    """

    plan: StepPlan
    num_generations: int
    inputs: list[dict[str, Any]]
    offset: int
    size: int
    stored: dict[int, tuple[Choice, str]] = field(default_factory=dict)
    added: dict[int, Choice] = field(default_factory=dict)
    rewards: Tensor | None = None
    host_metrics: dict[str, float] = field(default_factory=dict)
    values: FloatArray | None = None
    advantages: Tensor | None = None
    outcomes: IntArray | None = None
    completion_ids: list[list[int]] = field(default_factory=list)
    wanted: dict[int, str] = field(default_factory=dict)
    logps: dict[int, np.ndarray] = field(default_factory=dict)
    entropies: dict[int, tuple[float, int, int]] = field(default_factory=dict)
    scores: dict[int, tuple[float, float, float, float]] = field(default_factory=dict)
    ratios: dict[int, tuple[float, float, float, int, int]] = field(default_factory=dict)
    embeddings: dict[int, FloatArray] = field(default_factory=dict)
    fillers: set[int] = field(default_factory=set)
    admitted: bool = False

    def __post_init__(self) -> None:
        k = self.num_generations
        for group, choices in enumerate(self.plan.replays):
            for place, choice in enumerate(choices):
                self.stored[group * k + k - 1 - place] = (choice, "replay")
        rows = len(self.plan.questions) * k
        self.added = {rows + place: choice for place, choice in enumerate(self.plan.added)}

    def local(self) -> dict[int, Choice]:
        """Stored trajectories among the rows of this process, by local row."""
        return {row - self.offset: choice for row, (choice, _) in self.stored.items() if self.holds(row)}

    def wanted_ids(self) -> list[list[int]]:
        """Token ids of the completions of this process that will be stored."""
        return [self.completion_ids[row - self.offset] for row in self.wanted]

    def holds(self, row: int) -> bool:
        return self.offset <= row < self.offset + self.size

    def labels(self) -> list[str]:
        """`replay`, `rescue` or nothing for each row of this process: the column of TRL's completions table."""
        return [
            self.stored[self.offset + row][1] if self.offset + row in self.stored else "" for row in range(self.size)
        ]

    def stored_at(self, row: int) -> Choice | None:
        """The stored trajectory in a row, in a group or beside the groups."""
        return self.stored[row][0] if row in self.stored else self.added.get(row)

    @property
    def replayed_rows(self) -> set[int]:
        """Rows that hold a stored trajectory, of all processes."""
        return {*self.stored, *self.added}

    def replayed_members(self) -> Tensor:
        """Which members of the groups are stored ones, (B, K) of bool."""
        mask = torch.zeros(len(self.plan.questions) * self.num_generations, dtype=torch.bool)
        mask[list(self.stored)] = True
        return mask.view(-1, self.num_generations)

    def question_of(self, row: int) -> int:
        if row in self.added:
            return self.added[row].trajectory.question
        return int(self.plan.questions[row // self.num_generations])

    def record_rewards(self, rewards: Tensor) -> None:
        """Put the recorded rewards of stored trajectories in place of what the reward functions said now."""
        for row, (choice, _) in self.stored.items():
            rewards[row] = torch.as_tensor(choice.trajectory.rewards.copy(), dtype=rewards.dtype)
        self.rewards = rewards

    def groups(self) -> list[Group | None]:
        """What the fresh completions of each group were worth, those a rescue replaced among them; None without any."""
        assert self.outcomes is not None
        plan, k = self.plan, self.num_generations
        fresh = [k - len(choices) for choices in plan.replays]
        rows = zip(
            plan.questions.tolist(), self.outcomes, fresh, plan.replayed.tolist(), self._spreads(fresh), strict=True
        )
        return [
            Group(question, outcomes[:m], replayed, spread) if m else None
            for question, outcomes, m, replayed, spread in rows
        ]

    def _spreads(self, fresh: list[int]) -> list[float]:
        """Standard deviation of the rewards of each group's fresh members, NaN where none is known."""
        if self.values is None:
            return [math.nan] * len(fresh)
        values = self.values.reshape(-1, self.num_generations).astype(np.float64)
        known = ~np.isnan(values) & (np.arange(self.num_generations) < np.array(fresh)[:, None])
        count = known.sum(1)
        with np.errstate(invalid="ignore"):
            mean = np.where(known, values, 0.0).sum(1) / count
            variance = np.where(known, values - mean[:, None], 0.0) ** 2
            spreads: list[float] = np.sqrt(variance.sum(1) / count).astype(np.float32).tolist()
        return spreads

    def tensors(self, width: int, device: torch.device) -> dict[str, Tensor]:
        """Batch columns: `replay_mask` (B,), `behaviour_logps` (B, T), `generation_row` (B,), the global row."""
        mask = torch.zeros(self.size, dtype=torch.bool)
        logps = torch.zeros(self.size, width, dtype=torch.float32)
        for row, choice in self.local().items():
            mask[row] = True
            logps[row, : len(choice.trajectory)] = torch.as_tensor(choice.trajectory.behaviour_logps.copy())
        rows = torch.arange(self.offset, self.offset + self.size)
        return {"replay_mask": mask.to(device), "behaviour_logps": logps.to(device), "generation_row": rows}

    def keep_logps(self, rows: list[int], logps: Tensor) -> None:
        """Log-probs of wanted rows under the policy that generated; the first values given count. logps: (b, T)."""
        for place, row in enumerate(rows):
            if row in self.wanted and row not in self.logps:
                length = len(self.completion_ids[row - self.offset])
                self.logps[row] = logps[place, :length].detach().float().cpu().numpy()

    def keep_entropies(self, rows: list[int], entropies: Tensor, mask: Tensor, step: int) -> None:
        """Mean token entropies of rows under the policy of `step`; the first given count. entropies, mask: (b, T)."""
        tokens = mask.sum(1)
        means = (torch.where(mask.bool(), entropies, 0.0).float().sum(1) / tokens).tolist()
        for row, mean, count in zip(rows, means, tokens.tolist(), strict=True):
            self.entropies.setdefault(row, (mean, int(count), step))

    def keep_scores(self, rows: list[int], logps: Tensor) -> None:
        """How stored trajectories look to the policy that is learned; the first given counts. logps: (b, T)."""
        for place, row in enumerate(rows):
            if row not in self.scores and row not in self.fillers and (choice := self.stored_at(row)) is not None:
                t = choice.trajectory
                now = logps[place, : len(t)].detach().float().cpu().numpy()
                s = Scores.of_tokens(now, t.behaviour_logps)
                self.scores[row] = (s.nll, s.confidence, s.confidence_variance, s.drift)

    def keep_ratios(self, rows: list[int], stats: RatioStats) -> None:
        for place, row in enumerate(rows):
            if row not in self.fillers and self.stored_at(row) is not None:
                self.ratios.setdefault(
                    row,
                    (
                        float(stats.log_ratio[place]), float(stats.log_sum[place]), float(stats.log_sum_squares[place]),
                        int(stats.tokens[place]), int(stats.clamped[place]),
                    ),
                )  # fmt: skip

    def harvest(self) -> dict[str, dict[int, Any]]:
        """What this process learned of its rows, to be gathered from all."""
        ids = {row: np.array(self.completion_ids[row - self.offset], np.int32) for row in self.wanted}
        return {
            "ids": ids, "finish": self.wanted, "logps": self.logps, "entropies": self.entropies, "ratios": self.ratios,
            "scores": self.scores, "embeddings": self.embeddings, "fillers": dict.fromkeys(self.fillers),
        }  # fmt: skip

    def lessons(self, harvest: dict[str, dict[int, Any]]) -> list[tuple[int, int, float, float]]:
        """Of each replayed trajectory its question and serial, mean log-ratio, and effective sample size."""
        found = []
        for row, (log_ratio, log_sum, log_squares, tokens, _) in sorted(harvest["ratios"].items()):
            choice = self.stored_at(row)
            if tokens and choice is not None:
                ess = effective_sample_size(
                    *(torch.tensor([v], dtype=torch.float64) for v in (log_sum, log_squares, tokens))
                )
                found.append((choice.trajectory.question, choice.serial, log_ratio, ess))
        return found

    def measured(self, harvest: dict[str, dict[int, Any]]) -> list[tuple[Choice, Scores, int]]:
        """Of each stored trajectory in the batch how it looked to the policy that is learned, and at which step."""
        return [
            (choice, Scores(harvest["entropies"][row][0], *harvest["scores"][row]), harvest["entropies"][row][2])
            for row in sorted(self.replayed_rows)
            if (choice := self.stored_at(row)) is not None and row in harvest["entropies"] and row in harvest["scores"]
        ]

    def trajectories(self, harvest: dict[str, dict[int, Any]]) -> list[Trajectory]:
        """What all processes want stored, in the order of global rows."""
        assert self.rewards is not None and self.outcomes is not None and self.advantages is not None
        rewards, advantages = (tensor.float().cpu().numpy() for tensor in (self.rewards, self.advantages))
        right = self.outcomes.ravel() == RIGHT
        unmeasured = (math.nan, 0, self.plan.step)
        return [
            Trajectory(
                question=self.question_of(row),
                completion_ids=harvest["ids"][row],
                behaviour_logps=harvest["logps"][row],
                rewards=rewards[row],
                step=self.plan.step,
                finish_reason=harvest["finish"][row],
                entropy=harvest["entropies"].get(row, unmeasured)[0],
                entropy_step=harvest["entropies"].get(row, unmeasured)[2],
                correct=bool(right[row]),
                advantage=float(advantages[row]),
                embedding=harvest["embeddings"].get(row),
            )
            for row in sorted(harvest["ids"])
        ]


def merge(harvests: list[dict[str, dict[int, Any]]]) -> dict[str, dict[int, Any]]:
    """One harvest out of those of all processes; their rows are disjoint."""
    return {key: {row: value for part in harvests for row, value in part[key].items()} for key in harvests[0]}
