"""Measure what replay costs, by phase: wall seconds on this process."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

PHASES = ("plan", "measure", "observe", "embed", "admit", "log")


class Stopwatch:
    """Seconds of each phase since they were last taken; a phase's own, without those inside it."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._inside: list[float] = []

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        self._inside.append(0.0)
        try:
            yield
        finally:
            spent = time.perf_counter() - began
            self._seconds[phase] += spent - self._inside.pop()
            if self._inside:
                self._inside[-1] += spent

    def take(self) -> dict[str, float]:
        """Return `replay/time/PHASE` in seconds, and start over."""
        taken = {f"replay/time/{phase}": self._seconds[phase] for phase in PHASES if phase in self._seconds}
        self._seconds.clear()
        return taken
