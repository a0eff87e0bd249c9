"""Experience: what is remembered."""

from .buffer import ExperienceBuffer
from .difficulty import bucket_of, tier_of
from .store import MemoryStore, TrajectoryStore
from .trajectory import RIGHT, UNSCORABLE, WRONG, Group, Trajectory

__all__ = [
    "RIGHT", "UNSCORABLE", "WRONG", "ExperienceBuffer", "Group", "MemoryStore", "Trajectory", "TrajectoryStore",
    "bucket_of", "tier_of",
]  # fmt: skip
