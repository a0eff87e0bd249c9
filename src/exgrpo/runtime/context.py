"""The context of a run: its options, its questions, and the callbacks into its host."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..archive.transfer import Bounds
from ..config import ObjectiveConfig, ReplayConfig
from ..experience.quality import Embedder
from ..experience.trajectory import RIGHT, UNSCORABLE, WRONG, FloatArray, IntArray, Trajectory
from ..log import Provenance
from ..replay.choice import Scorer
from .questions import QuestionTable

Rescorer = Callable[[Sequence[Trajectory]], list[FloatArray | None]]
"""Trajectories -> rewards of each under the reward functions of this run; None where it is no longer right."""

Decoder = Callable[[Sequence[Sequence[int]]], list[str]]
"""Token ids of completions -> their texts, without special tokens."""


@dataclass(frozen=True)
class Correctness:
    """The rule of what is right: one reward function above a threshold.

    Args:
        function: index of the reward function.
        threshold: values above it are right.
    """

    function: int = 0
    threshold: float = 0.5

    def outcomes(self, rewards: Tensor, num_generations: int) -> IntArray:
        """Return `RIGHT`, `WRONG` or `UNSCORABLE` of every completion, (N, K).

        Args:
            rewards: (N*K, F), NaN where a function gave none.
            num_generations: K.
        """
        values = rewards[:, self.function].float().cpu().numpy()
        outcomes = np.where(np.isnan(values), UNSCORABLE, np.where(values > self.threshold, RIGHT, WRONG))
        return outcomes.astype(np.int8).reshape(-1, num_generations)


@dataclass(frozen=True)
class Progress:
    """Progress of a run.

    Args:
        step: optimizer steps done.
        generated_tokens: completion tokens generated.
    """

    step: int = 0
    generated_tokens: int = 0


@dataclass(frozen=True)
class RunContext:
    """One run, filled once by its host.

    Args:
        config: options of the experience and of replay.
        objective: options of the objective.
        seed: of every draw.
        shuffle: whether the order of questions is random.
        num_generations: K.
        questions: the training set, by content.
        types: problem type of each question, (Q,); None where they are not drawn by type.
        correctness: rule of what is right.
        reward_weights: one for each reward function, (F,).
        scale: `none`, or `group` where advantages are divided by the group's standard deviation.
        epsilon: of PPO's clip.
        vocabulary: size of the model's vocabulary.
        log_path: the experience log; None: memory only.
        experience_from: path of other experience to start from.
        keep_retired: whether questions that had retired there stay retired.
        embedder: texts -> vectors; None where quality is not used.
        device: where the host's tensors are.
        progress: returns the current progress.
        provenance: returns the provenance of trajectories generated now.
        tokenizer: returns the tokenizer as JSON, for the log; None: not known.
        score: trajectories -> their `PolicyStats` under the current policy.
        rescore: trajectories -> their rewards under this run's reward functions.
        decode: token ids -> texts.
        bounds: returns the bounds of token ids and rewards.
        columns_read: returns the data columns that the run depends on; None where unknown.
        longest_prefix: trajectories -> how many of their first tokens a group may begin with.
        importance_level: `token`, or `sequence` for one ratio per completion.
    """

    config: ReplayConfig
    objective: ObjectiveConfig
    seed: int
    shuffle: bool
    num_generations: int
    questions: QuestionTable
    types: IntArray | None
    correctness: Correctness
    reward_weights: Tensor
    scale: str
    epsilon: float
    vocabulary: int
    log_path: Path | None
    experience_from: str | None
    keep_retired: bool
    embedder: Embedder | None
    device: torch.device
    progress: Callable[[], Progress]
    provenance: Callable[[], Provenance]
    tokenizer: Callable[[], str | None]
    score: Scorer
    rescore: Rescorer
    decode: Decoder
    bounds: Callable[[], Bounds]
    columns_read: Callable[[], frozenset[str] | None]
    longest_prefix: Callable[[Sequence[Trajectory]], Sequence[int]]
    importance_level: str = "token"
