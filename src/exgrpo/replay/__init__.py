"""What is replayed, and when."""

from .plan import BY_THE_COIN, Choice, ReplayPlanner, Rescue, StepPlan, expected_of, share_of
from .stream import FreshStream

__all__ = [
    "BY_THE_COIN", "Choice", "FreshStream", "ReplayPlanner", "Rescue", "StepPlan", "expected_of", "share_of",
]  # fmt: skip
