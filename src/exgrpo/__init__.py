"""Experience replay for reinforcement learning of reasoning models.

`exgrpo.trl` holds the trainer; `exgrpo.experience`, `exgrpo.replay` and `exgrpo.objective` hold the method,
`exgrpo.recipes` two published recipes by their own names.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from .config import ObjectiveConfig, ReplayConfig
from .errors import ExGRPOError
from .presets import PRESETS, resolve

try:
    __version__ = version("exgrpo")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

_LATER = {
    "register_question_sampler": "registry",
    "register_trajectory_choice": "registry",
    "register_schedule": "registry",
    "register_admission": "registry",
    "register_retirement": "registry",
    "register_eviction": "registry",
    "register_correction": "registry",
    "register_baseline": "registry",
    "open_experience": "archive.opened",
    "TrajectoryBuffer": "recipes",
    "DifficultyBucketer": "recipes",
    "SelectiveReplay": "recipes",
    "compute_entropy": "recipes",
    "compute_importance_weights": "recipes",
    "compute_grpo_loss": "recipes",
    "ExperienceScorer": "recipes",
}
"""Names that are imported when they are asked for, since what they need is slow to import."""

__all__ = ["PRESETS", "ExGRPOError", "ObjectiveConfig", "ReplayConfig", "__version__", "resolve", *_LATER]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f".{_LATER[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
