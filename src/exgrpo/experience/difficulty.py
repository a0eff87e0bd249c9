"""How hard a question is now: its accuracy over fresh completions, as a bucket.

With `latest` difficulty there are K + 1 buckets, k of K right. A window of completions is finer, and has a bucket for each of
its own accuracies.
"""

from collections import deque
from collections.abc import Iterable

from ..config import ReplayConfig

EASY, MEDIUM, HARD, UNSOLVED = "easy", "medium", "hard", "unsolved"


def bucket_of(successes: int, scorable: int, resolution: int) -> int:
    """The bucket of an accuracy: round(accuracy * R), half up, in 0..R [ExGRPO, sec. 3.1].

    Accuracies over K and over K-1 completions fall into one scale. Exact in integers: 2 of 7 at R=8 is bucket 2.

    Args:
        successes: right ones among the scorable fresh completions.
        scorable: how many of them could be scored, at least 1.
        resolution: R; K where difficulty is that of the latest group.
    """
    if not 0 <= successes <= scorable or scorable < 1:
        raise ValueError(f"an accuracy needs 0 <= successes <= scorable and scorable >= 1, not {successes}/{scorable}")
    return (2 * successes * resolution + scorable) // (2 * scorable)


def tier_of(bucket: int, resolution: int) -> str:
    """The label for people: Easy [75, 100) %, Medium (25, 75) %, Hard (0, 25] % [ExGRPO, sec. 3.1]; 0 is unsolved."""
    if bucket == 0:
        return UNSOLVED
    if 4 * bucket <= resolution:
        return HARD
    return MEDIUM if 4 * bucket < 3 * resolution else EASY


def resolution_of(config: ReplayConfig, num_generations: int) -> int:
    """R: how finely accuracies are told apart."""
    return max(num_generations, config.difficulty_window) if config.difficulty == "window" else num_generations


class Windows:
    """Of each question its latest fresh groups, as many as hold at most `size` scorable completions together, and at least
    the latest."""

    def __init__(self, size: int):
        self.size = size
        self._groups: dict[int, deque[tuple[int, int]]] = {}
        self._sums: dict[int, tuple[int, int]] = {}

    def add(self, question: int, successes: int, scorable: int) -> tuple[int, int]:
        """A group more; returns successes and scorable completions in the window."""
        groups = self._groups.setdefault(question, deque())
        groups.append((successes, scorable))
        right, total = self._sums.get(question, (0, 0))
        right, total = right + successes, total + scorable
        while total > self.size and len(groups) > 1:
            left = groups.popleft()
            right, total = right - left[0], total - left[1]
        self._sums[question] = right, total
        return right, total

    def rows(self) -> list[tuple[int, int, int]]:
        """Question, successes, scorable of every group, oldest first for each question."""
        return [(question, *group) for question, groups in self._groups.items() for group in groups]

    def restore(self, rows: Iterable[tuple[int, int, int]]) -> None:
        """Groups as `rows` gives them."""
        for question, successes, scorable in rows:
            self._groups.setdefault(question, deque()).append((successes, scorable))
            right, total = self._sums.get(question, (0, 0))
            self._sums[question] = right + successes, total + scorable
