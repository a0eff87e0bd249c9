"""The experience buffer as a dictionary of lists."""

import math
from dataclasses import dataclass

from .sampler import bucket


@dataclass
class Stored:
    serial: int
    question: int
    ids: tuple[int, ...]
    step: int
    entropy: float
    entropy_step: int
    uses: int = 0
    quality: float = math.nan


class PlainBuffer:
    """Trajectories by question, newest first; accuracies; retired questions."""

    def __init__(self, k: int, capacity: int, capacity_per_question: int, eviction: str):
        self.k = k
        self.capacity = capacity
        self.capacity_per_question = capacity_per_question
        self.eviction = eviction
        self.lists: dict[int, list[Stored]] = {}
        self.accuracy: dict[int, tuple[int, int]] = {}
        self.retired: set[int] = set()
        self.next_serial = 0

    def everything(self) -> list[Stored]:
        """Oldest first."""
        return sorted((one for stored in self.lists.values() for one in stored), key=lambda one: one.serial)

    def of(self, question: int) -> list[Stored]:
        return self.lists.get(question, [])

    def observe(self, question: int, successes: int, scorable: int) -> None:
        if scorable > 0:
            self.accuracy[question] = (successes, scorable)

    def retire(self, question: int) -> None:
        self.retired.add(question)
        self.lists.pop(question, None)

    def admit(
        self, question: int, ids: tuple[int, ...], step: int, entropy: float, quality: float = math.nan
    ) -> int | None:
        if self.capacity == 0 or question in self.retired or any(one.ids == ids for one in self.of(question)):
            return None
        if len(self.of(question)) == self.capacity_per_question:
            self._evict(sorted(self.of(question), key=lambda one: one.serial))
        if len(self.everything()) == self.capacity:
            self._evict(self.everything())
        made = Stored(self.next_serial, question, ids, step, entropy, step, 0, quality)
        self.lists.setdefault(question, []).insert(0, made)
        self.next_serial += 1
        return self.next_serial - 1

    def _evict(self, oldest_first: list[Stored]) -> None:
        victim = oldest_first[0]
        if self.eviction == "highest_entropy":
            victim = max(oldest_first, key=_height)
        elif self.eviction == "lowest_quality":
            victim = min(oldest_first, key=_quality)
        elif self.eviction == "quality_tiers":
            victim = _of_lowest_tier([one for one in oldest_first if one.question == victim.question])
        self.lists[victim.question].remove(victim)

    def bucket_members(self) -> list[set[int]]:
        """Replayable questions by bucket: those with a trajectory and an accuracy, and not retired."""
        members: list[set[int]] = [set() for _ in range(self.k + 1)]
        for question, stored in self.lists.items():
            if stored and question not in self.retired and question in self.accuracy:
                members[bucket(*self.accuracy[question], self.k)].add(question)
        return members


def _height(one: Stored) -> float:
    return math.inf if math.isnan(one.entropy) else one.entropy


def _quality(one: Stored) -> float:
    return -1.0 if math.isnan(one.quality) else one.quality


def _of_lowest_tier(oldest_first: list[Stored]) -> Stored:
    """The oldest of the lowest quarter that holds more than 5 % of them, rounded up; of the lowest at all where none does."""
    n = len(oldest_first)
    best_first = sorted(oldest_first, key=_quality, reverse=True)  # stable: of equals the older is better
    tiers = [[one for rank, one in enumerate(best_first) if 4 * rank // n == tier] for tier in range(4)]
    can_spare = [tier for tier in tiers if len(tier) > math.ceil(0.05 * n)] or [tier for tier in tiers if tier]
    return min(can_spare[-1], key=lambda one: one.serial)


def lowest_entropy(stored: list[Stored], step: int, mode: str, best: int, max_age: int, measure) -> int:
    """The serial of the trajectory that is chosen, measuring what must be measured.

    `exact`: all are measured. `lazy`: the `best` by cached entropy compete, a never measured one first; of these the
    ones older than `max_age` are measured. A single candidate is never measured. Ties go to the older.
    """
    if len(stored) == 1:
        return stored[0].serial
    ranked = sorted(stored, key=lambda one: (-math.inf if math.isnan(one.entropy) else one.entropy, one.serial))
    competing = ranked if mode == "exact" else ranked[:best]
    for one in competing:
        if mode == "exact" or math.isnan(one.entropy) or step - one.entropy_step > max_age:
            one.entropy, one.entropy_step = measure(one), step
    return min(competing, key=lambda one: (one.entropy, one.serial)).serial
