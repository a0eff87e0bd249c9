"""Delayed start: replay begins once the policy is good enough [ExGRPO, sec. 3.3]."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..config import ReplayConfig

Counts = tuple[float, int]
"""Right and scorable fresh completions of an iteration."""


@dataclass
class Gate:
    """A gate that opens when all given conditions hold at once, and stays open.

    Args:
        start_pass_at_1: the mean correctness of the latest fresh completions must exceed this; 0: no such condition.
        start_step: least number of optimizer steps done; 0: no such condition.
        start_epoch: least number of epochs done; 0: no such condition.
        start_size: more trajectories than this must be stored; 0: no such condition.
        start_completions: least number of scorable completions that the mean is over; until there are as many, the gate is
            closed: a small batch is often right by luck.

    Attributes:
        recent: counts of the latest iterations that together have as many completions, the oldest first.
    """

    start_pass_at_1: float
    start_step: int = 0
    start_epoch: float = 0.0
    start_size: int = 0
    start_completions: int = 1
    open: bool = field(default=False, init=False)
    recent: deque[Counts] = field(default_factory=deque, init=False)

    @classmethod
    def of(cls, config: ReplayConfig) -> "Gate":
        """Make the gate that a configuration asks for."""
        return cls(
            config.start_pass_at_1, config.start_step, config.start_epoch, config.start_size, config.start_completions
        )

    def restore(self, generations: Iterable[Counts]) -> None:
        """Replace the counts by those of earlier iterations, the oldest first."""
        self.recent.clear()
        for right, scorable in generations:
            self.observe(right, scorable)

    def observe(self, right: float, scorable: int) -> None:
        """Add the outcomes of the fresh completions of an iteration."""
        if not scorable:
            return
        self.recent.append((right, scorable))
        completions = self.completions
        while completions - self.recent[0][1] >= self.start_completions:
            completions -= self.recent.popleft()[1]

    @property
    def completions(self) -> int:
        """Number of scorable completions in the latest iterations."""
        return sum(scorable for _, scorable in self.recent)

    @property
    def pass_at_1(self) -> float | None:
        """Pass@1 of the latest iterations; None where nothing was scorable."""
        return sum(right for right, _ in self.recent) / self.completions if self.recent else None

    def check(self, step: int, epoch: float, size: int = 0) -> str | None:
        """Open if the conditions hold; return None when open, else why not. size: stored trajectories."""
        if self.open:
            return None
        closed = []
        if self.start_pass_at_1 > 0 and (waits := self._waits_for_pass_at_1()):
            closed.append(waits)
        if step < self.start_step:
            closed.append(f"step {step} < {self.start_step}")
        if epoch < self.start_epoch:
            closed.append(f"epoch {epoch:.2f} < {self.start_epoch:g}")
        if self.start_size > 0 and size <= self.start_size:
            closed.append(f"{size} trajectories stored, must be more than {self.start_size}")
        self.open = not closed
        return None if self.open else "gate closed: " + "; ".join(closed)

    def _waits_for_pass_at_1(self) -> str | None:
        seen, needed, mean = self.completions, self.start_completions, self.pass_at_1
        if mean is None or seen < needed:
            so_far = "none" if mean is None else f"{mean:.2f} over {seen}"
            return f"Pass@1 must exceed {self.start_pass_at_1:g} over {needed} completions, so far {so_far}"
        if mean > self.start_pass_at_1:
            return None
        return f"Pass@1 {mean:.2f} over {seen} completions, must exceed {self.start_pass_at_1:g}"
