"""Replay: what is replayed, and when."""

from .counts import BY_THE_COIN, expected_count, replay_count
from .plan import Prefix, ReplayedTrajectory, Rescue, StepPlan
from .planner import ReplayPlanner
from .stream import FreshStream

__all__ = [
    "BY_THE_COIN", "FreshStream", "Prefix", "ReplayPlanner", "ReplayedTrajectory", "Rescue", "StepPlan", "expected_count",
    "replay_count",
]  # fmt: skip
