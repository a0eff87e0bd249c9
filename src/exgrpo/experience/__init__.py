"""What is remembered."""

from .buffer import ExperienceBuffer, MemoryStore, TrajectoryStore
from .difficulty import bucket_of, tier_of
from .trajectory import RIGHT, UNSCORABLE, WRONG, Group, Trajectory

__all__ = [
    "RIGHT", "UNSCORABLE", "WRONG", "ExperienceBuffer", "Group", "MemoryStore", "Trajectory", "TrajectoryStore",
    "bucket_of", "tier_of",
]  # fmt: skip
