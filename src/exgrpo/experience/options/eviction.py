"""Which trajectory leaves when there is no room."""

import numpy as np

from ...registry import register
from ..candidates import Candidates


def oldest(candidates: Candidates) -> int:
    """The oldest."""
    return 0


def highest_entropy(candidates: Candidates) -> int:
    """The one of the highest entropy; one that was never measured counts as highest, and of equals the oldest leaves."""
    return int(np.argmax(np.nan_to_num(candidates.entropy[0], nan=np.inf)))


def lowest_quality(candidates: Candidates) -> int:
    """The one of the lowest quality; one that was never scored counts as lowest, and of equals the oldest leaves."""
    return int(np.argmin(np.nan_to_num(candidates.quality[0], nan=-np.inf)))


def quality_tiers(candidates: Candidates) -> int:
    """The oldest of the lowest tier that holds more than 5 % of the question's trajectories (recipe B)."""
    from ..quality import eviction_place

    return eviction_place(np.nan_to_num(candidates.quality[0], nan=-1.0))


register("eviction", "oldest", oldest, of_oldest_question=True)
register("eviction", "highest_entropy", highest_entropy)
register("eviction", "lowest_quality", lowest_quality)
register("eviction", "quality_tiers", quality_tiers, of_oldest_question=True)
