"""Which trajectory leaves when there is no room."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..config import EVICTIONS
from ..errors import ConfigurationError
from .candidates import Candidates

Rule = Callable[[Candidates], int]


@dataclass(frozen=True)
class Eviction:
    """A rule: one row of `Candidates`, oldest first, all held -> the place of the one that leaves.

    Where a question is full, its trajectories compete; where the whole buffer is full, all (in time that grows with it), or
    with `of_oldest_question` those of the question that holds the oldest of all.
    """

    rule: Rule
    of_oldest_question: bool = False

    def place(self, candidates: Candidates) -> int:
        """The place of the one that leaves, checked."""
        place, n = self.rule(candidates), candidates.slots.shape[1]
        if isinstance(place, bool) or not isinstance(place, (int, np.integer)) or not 0 <= place < n:
            name = candidates.config.eviction
            raise ConfigurationError(
                f"eviction {name!r} must answer with a place from 0 to {n - 1}, but gave {place!r}."
            )
        return int(place)


def register_eviction(
    name: str, rule: Rule | None = None, *, of_oldest_question: bool = False, needs_quality: bool = False
) -> Rule:
    """Add a rule under a name, as a call or as a decorator. `needs_quality`: it looks at the quality."""
    EVICTIONS.check(name, rule)
    if rule is None:
        traits: Any = {"of_oldest_question": of_oldest_question, "needs_quality": needs_quality}
        return lambda function: register_eviction(name, function, **traits)  # type: ignore[return-value, arg-type]
    EVICTIONS.register(name, Eviction(rule, of_oldest_question), needs_quality)
    return rule


def eviction_named(name: str) -> Eviction:
    """The rule of that name, or of that dotted path."""
    found = EVICTIONS[name]
    return found if isinstance(found, Eviction) else Eviction(found)


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
    from .quality import eviction_place

    return eviction_place(np.nan_to_num(candidates.quality[0], nan=-1.0))


register_eviction("oldest", oldest, of_oldest_question=True)
register_eviction("highest_entropy", highest_entropy)
register_eviction("lowest_quality", lowest_quality, needs_quality=True)
register_eviction("quality_tiers", quality_tiers, of_oldest_question=True, needs_quality=True)
