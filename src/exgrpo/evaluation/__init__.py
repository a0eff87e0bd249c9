"""Measuring a policy, and whether one is better than another."""

from .paired import PairedDifference, paired_difference
from .passk import pass_at_k
from .policy import EvaluationResult, evaluate_policy

__all__ = ["EvaluationResult", "PairedDifference", "evaluate_policy", "paired_difference", "pass_at_k"]
