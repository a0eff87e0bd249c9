"""What is replayed, and when."""

from .plan import Choice, ReplayPlanner, Rescue, StepPlan, share_of
from .stream import FreshStream

__all__ = ["Choice", "FreshStream", "ReplayPlanner", "Rescue", "StepPlan", "share_of"]
