"""Requests to a pool, and its results."""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Scored:
    """The result of one call: `value`, or in `failure` why there is none.

    A failure is `time limit of 5 s`, `memory limit of 512 MB`, `raised ValueError: ...`, `returned ...` (no plain value)
    or `worker died (SIGSEGV)`.
    """

    value: Any = None
    failure: str | None = None


@dataclass(eq=False)
class Job:
    """Calls of one function, as JSON, that one caller waits for."""

    function: str
    calls: Sequence[str]
    time_limit: float
    future: "Future[list[Scored]]" = field(default_factory=Future)

    def __post_init__(self) -> None:
        self.results: list[Scored | None] = [None] * len(self.calls)
        self.pending = deque(range(len(self.calls)))
        self.left = len(self.calls)
