"""Eviction rules: which trajectory leaves when there is no room."""

import numpy as np

from ...registry import register
from ..candidates import Candidates


def oldest(candidates: Candidates) -> int:
    """Evict the oldest trajectory."""
    return 0


def highest_entropy(candidates: Candidates) -> int:
    """Evict the one of highest entropy; unmeasured counts as highest, ties go to the oldest."""
    return int(np.argmax(np.nan_to_num(candidates.entropy[0], nan=np.inf)))


def lowest_quality(candidates: Candidates) -> int:
    """Evict the one of lowest quality; unscored counts as lowest, ties go to the oldest."""
    return int(np.argmin(np.nan_to_num(candidates.quality[0], nan=-np.inf)))


def quality_tiers(candidates: Candidates) -> int:
    """Evict the oldest of the lowest tier that holds more than 5 % of the question's trajectories (recipe B)."""
    from ..quality import eviction_place

    return eviction_place(np.nan_to_num(candidates.quality[0], nan=-1.0))


register("eviction", "oldest", oldest, of_oldest_question=True)
register("eviction", "highest_entropy", highest_entropy)
register("eviction", "lowest_quality", lowest_quality)
register("eviction", "quality_tiers", quality_tiers, of_oldest_question=True)
