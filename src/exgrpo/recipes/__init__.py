"""Published recipes by their own names, thin over the core: for training loops written by hand.

Recipe A, "entropy guided" (`docs/recipe-a.md`): `TrajectoryBuffer`, `Sample`, `DifficultyBucketer`, `SelectiveReplay`; on
tensors `Rollouts`, `compute_entropy`, `compute_importance_weights`, `compute_grpo_loss`.
Recipe B, success and diversity: `ExperienceScorer`, `ExperienceScore`.

Each name is imported when it is first asked for: only those on tensors import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .entropy import compute_entropy
    from .entropy_guided import DifficultyBucketer
    from .experience_scorer import ExperienceScore, ExperienceScorer
    from .rollouts import Rollouts, compute_grpo_loss, compute_importance_weights
    from .selective_replay import SelectiveReplay
    from .trajectory_buffer import Sample, TrajectoryBuffer

__all__ = [
    "DifficultyBucketer", "ExperienceScore", "ExperienceScorer", "Rollouts", "Sample", "SelectiveReplay", "TrajectoryBuffer",
    "compute_entropy", "compute_grpo_loss", "compute_importance_weights",
]  # fmt: skip

_HOMES = {
    "DifficultyBucketer": "entropy_guided",
    "ExperienceScore": "experience_scorer",
    "ExperienceScorer": "experience_scorer",
    "Rollouts": "rollouts",
    "Sample": "trajectory_buffer",
    "SelectiveReplay": "selective_replay",
    "TrajectoryBuffer": "trajectory_buffer",
    "compute_entropy": "entropy",
    "compute_grpo_loss": "rollouts",
    "compute_importance_weights": "rollouts",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
