"""The two values that flow between the rooms: `Trajectory` and `Group`.

A trajectory is a completion worth keeping; a group, the outcomes of a question's fresh completions. Both are checked at
construction, so that later code need not check again.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isinf, isnan
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import TrajectoryError

IntArray = NDArray[np.integer[Any]]
FloatArray = NDArray[np.floating[Any]]

FINISH_REASONS = ("stop", "length")
RIGHT, WRONG, UNSCORABLE = 1, 0, -1
MAX_STEPS = 1 << 30
ARRAYS: dict[str, Any] = {"completion_ids": np.int32, "behaviour_logps": np.float32, "rewards": np.float32}


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A completion with the log-probs of the policy that produced it (the behaviour policy).

    Args:
        question: index of the question in the buffer, 0 or more.
        completion_ids: token ids as emitted, shape (T,), T >= 1; the end token is last if and only if it was emitted.
        behaviour_logps: log-prob of each of these tokens under the behaviour policy, in nats, shape (T,), finite.
        rewards: one value per reward function, shape (F,), finite; NaN where a function gave none.
        step: optimizer step of the behaviour policy; negative: that many steps before this run began (an inherited one).
        finish_reason: `stop` if the policy ended it, `length` if it was cut.
        entropy: mean token entropy in nats over the completion's own tokens, NaN if not measured.
        entropy_step: optimizer step of the policy under which it was measured; None: that of the behaviour policy.
        correct: whether the reward function that decides called it right.
        advantage: reward minus the mean of the group it came from, before any weight; NaN if not known.
        quality: of success and diversity, in [0, 1]; NaN if not scored.
        embedding: of its text, shape (D,), kept in float16; None if not embedded.

    Raises:
        TrajectoryError: when a length, a range or a number is not as above; it names the question and both lengths.
    """

    question: int
    completion_ids: IntArray
    behaviour_logps: FloatArray
    rewards: FloatArray
    step: int
    finish_reason: str = "stop"
    entropy: float = float("nan")
    entropy_step: int | None = None
    correct: bool = True
    advantage: float = float("nan")
    quality: float = float("nan")
    embedding: FloatArray | None = None

    def __post_init__(self) -> None:
        who = f"trajectory of question {self.question}"
        for name, dtype in ARRAYS.items():
            object.__setattr__(self, name, _frozen(getattr(self, name), dtype, f"{who}: {name}"))
        if self.embedding is not None:
            object.__setattr__(self, "embedding", _frozen(self.embedding, np.float16, f"{who}: embedding"))
        for problem in self._problems():
            raise TrajectoryError(f"{who}: {problem}")

    def _problems(self) -> Iterator[str]:
        """Yield a message for each violated constraint."""
        ids, logps, rewards, embedding = self.completion_ids, self.behaviour_logps, self.rewards, self.embedding
        if self.question < 0:
            yield "the index of a question must be 0 or more"
        if ids.ndim != 1 or ids.size == 0 or ids.shape != logps.shape:
            shapes = f"{ids.shape} and {logps.shape}"
            yield f"completion_ids and behaviour_logps must be non-empty and of equal length, but have shapes {shapes}"
        if ids.min() < 0:
            yield f"completion_ids must be 0 or more, but hold {ids.min()}"
        low, high = logps.min(), logps.max()  # NaN if any value is NaN
        if not (low > -np.inf and high <= 1e-3):
            yield f"behaviour_logps must be finite and at most 0, but range over [{low}, {high}]"
        if rewards.ndim != 1 or rewards.size == 0 or np.isinf(rewards).any():
            yield f"rewards must have shape (F,), F >= 1, and be finite or NaN, but have shape {rewards.shape}: {rewards}"
        if not (isnan(self.entropy) or 0 <= self.entropy < np.inf):
            yield f"entropy must be finite and at least 0, or NaN, but is {self.entropy}"
        if isinf(self.advantage):
            yield f"advantage must be finite, or NaN, but is {self.advantage}"
        if not (isnan(self.quality) or 0 <= self.quality <= 1):
            yield f"quality must lie in [0, 1], or be NaN, but is {self.quality}"
        if embedding is not None and (embedding.ndim != 1 or not embedding.size or not np.isfinite(embedding).all()):
            yield f"embedding must have shape (D,) and be finite, but has {embedding.shape}"
        if not all(-MAX_STEPS <= step <= MAX_STEPS for step in (self.step, self.measured_at)):
            yield f"steps must lie within {MAX_STEPS:,} of 0, but are {self.step} and {self.measured_at}"
        if self.finish_reason not in FINISH_REASONS:
            yield f"finish_reason must be one of {FINISH_REASONS}, but is {self.finish_reason!r}"

    def __len__(self) -> int:
        return int(self.completion_ids.size)

    @property
    def digest(self) -> int:
        """64-bit hash of the token ids: trajectories of a question with equal digests are duplicates."""
        return int.from_bytes(hashlib.blake2b(self.completion_ids.data, digest_size=8).digest(), "little")

    @property
    def measured_at(self) -> int:
        """Optimizer step of the policy under which the entropy was measured."""
        return self.step if self.entropy_step is None else self.entropy_step


@dataclass(frozen=True, eq=False)
class Group:
    """Outcomes of the FRESH completions of one question: `RIGHT`, `WRONG` or `UNSCORABLE` each.

    Args:
        question: index of the question.
        outcomes: shape (m,); m is K, or K-1 when one member of the group was a stored trajectory.
        replayed: whether replay chose the question, with a stored trajectory as a member of its group or without one.
        reward_std: population standard deviation of the rewards of the scorable ones; NaN if not known.
        prefix: tokens of a stored success that all of them began with: then they say nothing of the bare question.

    Attributes:
        successes: how many are right.
        scorable: how many are right or wrong.
    """

    question: int
    outcomes: IntArray
    replayed: bool = False
    reward_std: float = float("nan")
    prefix: int = 0
    successes: int = field(init=False)
    scorable: int = field(init=False)

    def __post_init__(self) -> None:
        outcomes = _frozen(self.outcomes, np.int8, f"group of question {self.question}: outcomes")
        counts = [outcomes.ravel().tolist().count(outcome) for outcome in (RIGHT, WRONG, UNSCORABLE)]
        if outcomes.ndim != 1 or outcomes.size == 0 or sum(counts) != outcomes.size:
            raise TrajectoryError(
                f"group of question {self.question}: outcomes must have shape (m,), m >= 1, and hold "
                f"{RIGHT} (right), {WRONG} (wrong) or {UNSCORABLE} (unscorable), but are {outcomes!r}"
            )
        object.__setattr__(self, "outcomes", outcomes)
        object.__setattr__(self, "successes", counts[0])
        object.__setattr__(self, "scorable", counts[0] + counts[1])

    @property
    def unscorable(self) -> int:
        return int(self.outcomes.size) - self.scorable

    @property
    def solved(self) -> bool:
        """True if every fresh completion is right; an unscorable one prevents it."""
        return self.successes == self.outcomes.size


def _frozen(values: ArrayLike, dtype: type[np.generic], who: str) -> NDArray[Any]:
    given = np.asarray(values)
    must_fit = issubclass(dtype, np.integer) and given.dtype != dtype and given.size > 0
    if must_fit and (given.dtype.kind not in "iub" or (given.astype(dtype) != given).any()):
        raise TrajectoryError(f"{who} must hold integers that fit into {np.dtype(dtype)}, but are {given!r}")
    array = np.array(given, dtype=dtype)
    array.setflags(write=False)
    return array
