"""Retired questions that return, a share of them every so many steps."""

import numpy as np

from ..experience.buffer import ExperienceBuffer
from ..experience.trajectory import IntArray
from .counts import replay_count
from .rng import REVIEW, generator_for


def returning(buffer: ExperienceBuffer, seed: int, iteration: int) -> IntArray:
    """Draw the retired questions that return at a review, in ascending order; at least one where there is any."""
    retired = np.flatnonzero(buffer.retired)
    if not retired.size:
        return retired
    n = max(1, replay_count(retired.size, buffer.config.review_share))
    return np.sort(generator_for(seed, iteration, REVIEW).choice(retired, n, replace=False))
