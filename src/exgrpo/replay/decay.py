"""Priorities that fade with age."""

import numpy as np

from ..experience.candidates import Candidates
from ..experience.trajectory import FloatArray

MOST = 500.0
"""Ages beyond so many times tau are treated as equal, so that numbers stay finite."""


def decayed(keys: FloatArray, candidates: Candidates) -> FloatArray:
    """Multiply priorities by exp(-age/tau), tau being `age_decay` (FreshPER, arXiv 2604.16918).

    Of keys the lowest wins: a negative one is minus a priority, a positive one the inverse of a priority, so that either
    comes closer to what never wins.

    Args:
        keys: (n, W), NaN where not known.
        candidates: theirs.
    """
    if not (tau := candidates.config.age_decay):
        return keys
    fading = np.clip(np.where(candidates.valid, candidates.age, 0) / tau, 0.0, MOST)
    return np.asarray(keys * np.exp(np.where(keys < 0, -fading, fading)))
