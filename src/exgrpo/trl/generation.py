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

from ..experience.trajectory import RIGHT, UNSCORABLE, WRONG, Group, IntArray, Trajectory
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
        admitted: whether its successes were stored.
    """

    plan: StepPlan
    num_generations: int
    inputs: list[dict[str, Any]]
    offset: int
    size: int
    stored: dict[int, tuple[Choice, str]] = field(default_factory=dict)
    rewards: Tensor | None = None
    outcomes: IntArray | None = None
    completion_ids: list[list[int]] = field(default_factory=list)
    wanted: dict[int, str] = field(default_factory=dict)
    logps: dict[int, np.ndarray] = field(default_factory=dict)
    entropies: dict[int, tuple[float, int, int]] = field(default_factory=dict)
    ratios: dict[int, tuple[float, float, float, int]] = field(default_factory=dict)
    admitted: bool = False

    def __post_init__(self) -> None:
        k = self.num_generations
        for group, choice in enumerate(self.plan.replays):
            if choice is not None:
                self.stored[group * k + k - 1] = (choice, "replay")

    def local(self) -> dict[int, Choice]:
        """Stored trajectories among the rows of this process, by local row."""
        return {row - self.offset: choice for row, (choice, _) in self.stored.items() if self.holds(row)}

    def holds(self, row: int) -> bool:
        return self.offset <= row < self.offset + self.size

    def labels(self) -> list[str]:
        """`replay`, `rescue` or nothing for each row of this process: the column of TRL's completions table."""
        return [
            self.stored[self.offset + row][1] if self.offset + row in self.stored else "" for row in range(self.size)
        ]

    def question_of(self, row: int) -> int:
        return int(self.plan.questions[row // self.num_generations])

    def record_rewards(self, rewards: Tensor) -> None:
        """Put the recorded rewards of stored trajectories in place of what the reward functions said now."""
        for row, (choice, _) in self.stored.items():
            rewards[row] = torch.as_tensor(choice.trajectory.rewards.copy(), dtype=rewards.dtype)
        self.rewards = rewards

    def groups(self) -> list[Group]:
        """What the fresh completions of each group were worth; those a rescue replaced are among them."""
        assert self.outcomes is not None
        k = self.num_generations
        return [
            Group(int(question), outcomes[: k - 1] if choice else outcomes, choice is not None)
            for question, outcomes, choice in zip(self.plan.questions, self.outcomes, self.plan.replays, strict=True)
        ]

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

    def keep_ratios(self, rows: list[int], stats: RatioStats) -> None:
        for place, row in enumerate(rows):
            if row in self.stored:
                self.ratios.setdefault(
                    row,
                    (
                        float(stats.log_ratio[place]), float(stats.log_sum[place]), float(stats.log_sum_squares[place]),
                        int(stats.tokens[place]),
                    ),
                )  # fmt: skip

    def harvest(self) -> dict[str, dict[int, Any]]:
        """What this process learned of its rows, to be gathered from all."""
        ids = {row: np.array(self.completion_ids[row - self.offset], np.int32) for row in self.wanted}
        return {
            "ids": ids, "finish": self.wanted, "logps": self.logps, "entropies": self.entropies, "ratios": self.ratios,
        }  # fmt: skip

    def lessons(self, harvest: dict[str, dict[int, Any]]) -> list[tuple[int, int, float, float]]:
        """Of each replayed trajectory its question and serial, mean log-ratio, and effective sample size."""
        found = []
        for row, (log_ratio, log_sum, log_squares, tokens) in sorted(harvest["ratios"].items()):
            if tokens:
                ess = effective_sample_size(
                    *(torch.tensor([v], dtype=torch.float64) for v in (log_sum, log_squares, tokens))
                )
                found.append((self.question_of(row), self.stored[row][0].serial, log_ratio, ess))
        return found

    def trajectories(self, harvest: dict[str, dict[int, Any]]) -> list[Trajectory]:
        """The successes of all processes, in the order of their global rows."""
        assert self.rewards is not None
        rewards = self.rewards.float().cpu().numpy()
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
            )
            for row in sorted(harvest["ids"])
        ]


def outcomes_of(rewards: Tensor, function: int, threshold: float, num_generations: int) -> IntArray:
    """Right, wrong or unscorable, by one reward function's value against a threshold. rewards: (N*K, F); answer (N, K)."""
    values = rewards[:, function].float().cpu().numpy()
    outcomes = np.where(np.isnan(values), UNSCORABLE, np.where(values > threshold, RIGHT, WRONG))
    return outcomes.astype(np.int8).reshape(-1, num_generations)


def merge(harvests: list[dict[str, dict[int, Any]]]) -> dict[str, dict[int, Any]]:
    """One harvest out of those of all processes; their rows are disjoint."""
    return {key: {row: value for part in harvests for row, value in part[key].items()} for key in harvests[0]}
