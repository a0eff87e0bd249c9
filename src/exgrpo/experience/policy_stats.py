"""Statistics of trajectories under a policy: what a choice ranks by, measured now or when they were generated."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .trajectory import FloatArray


@dataclass(frozen=True)
class PolicyStats:
    """Statistics of a trajectory under a policy; NaN where not measured.

    Args:
        entropy: mean token entropy, full vocabulary, nats.
        nll: mean of -log pi over its tokens, nats.
        confidence: mean of pi over its tokens.
        confidence_variance: variance of pi over its tokens.
        drift: mean of (log pi - log pi_behaviour)^2 over its tokens.
    """

    entropy: float = float("nan")
    nll: float = float("nan")
    confidence: float = float("nan")
    confidence_variance: float = float("nan")
    drift: float = float("nan")

    @classmethod
    def of_tokens(cls, logps: FloatArray, behaviour_logps: FloatArray | None = None) -> "PolicyStats":
        """Compute all but the entropy.

        Args:
            logps: of its tokens under the policy in question, (T,).
            behaviour_logps: under the policy that produced it, (T,); None: that is the policy in question.
        """
        nll, confidence, variance = (float(values[0]) for values in stats_of_each([logps]))
        apart = None if behaviour_logps is None else logps.astype(np.float64) - behaviour_logps
        drift = 0.0 if apart is None else float(apart.dot(apart)) / len(logps)
        return cls(nll=nll, confidence=confidence, confidence_variance=variance, drift=drift)


MEASURED = tuple(PolicyStats.__dataclass_fields__)
"""Names of the measured values, the entropy first."""


def stats_of_each(logps: Sequence[FloatArray]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Compute the mean of -log pi, and mean and variance of pi, over the tokens of each of n trajectories, (n,).

    Args:
        logps: of the tokens of each, (T_i,).
    """
    if not logps:
        return np.zeros(0), np.zeros(0), np.zeros(0)
    lengths = np.array([len(one) for one in logps])
    starts = np.cumsum(lengths) - lengths
    now = np.concatenate(logps).astype(np.float64)
    nll = 0.0 - np.add.reduceat(now, starts) / lengths  # never -0.0, which SQLite does not store
    np.exp(now, out=now)
    confidence = np.add.reduceat(now, starts) / lengths
    now -= np.repeat(confidence, lengths)
    return nll, confidence, np.add.reduceat(now * now, starts) / lengths


def columns_of(stats: Sequence[PolicyStats] | FloatArray) -> FloatArray:
    """Arrange `PolicyStats` of n trajectories, or their entropies alone, as (5, n), in the order of its fields."""
    given = [s if isinstance(s, PolicyStats) else PolicyStats(float(s)) for s in stats]
    rows = [(s.entropy, s.nll, s.confidence, s.confidence_variance, s.drift) for s in given]
    return np.array(rows, float).reshape(-1, 5).T
