"""Skip rules: questions left out of the fresh stream because their latest groups had no variance.

GRESO, arXiv 2506.02177.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...config import SKIPS, ReplayConfig
from ...experience.trajectory import FloatArray, IntArray
from ...experience.variance import GroupVariance
from ..rng import SKIP, generator_for
from ..stream import LeavesOut


def never(history: GroupVariance, config: ReplayConfig, seed: int) -> None:
    """Exclude no question."""


def zero_variance(history: GroupVariance, config: ReplayConfig, seed: int) -> LeavesOut:
    """Exclude questions whose last z groups in a row had no variance, with probability 1 - max(floor, explore^z).

    Never in more than `retest_passes` passes in a row. The decision for a question and a pass is made once and does not
    depend on the order of calls.

    Never in more than `retest_passes` passes in a row. The decision for a question and a pass is made once and does not
    depend on the order of calls.
    """

    def leaves_out(questions: IntArray, pass_number: int) -> NDArray[np.bool_]:
        streak = history.streak[questions]
        floor = np.where(streak > 0, config.skip_floor_solved, config.skip_floor_hopeless)
        asked = np.where(streak == 0, 1.0, np.maximum(floor, config.skip_explore ** np.abs(streak)))
        draws = _draws(seed, pass_number, len(history.streak))[questions]
        return np.asarray((draws >= asked) & (history.skips[questions] < config.retest_passes))

    return leaves_out


@lru_cache(maxsize=2)
def _draws(seed: int, pass_number: int, num_questions: int) -> FloatArray:
    """Draw a number in [0, 1) for each question of a pass."""
    return generator_for(seed, pass_number, SKIP).random(num_questions)


SKIPS.register("none", never)
SKIPS.register("zero_variance", zero_variance)
