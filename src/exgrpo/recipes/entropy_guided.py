"""Recipe A, "entropy guided": how hard a question is (`DifficultyBucketer`). Which updates replay is in `selective_replay.py`.

The buffer of the recipe is in `trajectory_buffer.py`, its entropies in `entropy.py`, its importance weights and loss in
`rollouts.py`; all names are in `exgrpo.recipes`. The same recipe under the trainer is the preset `entropy-guided`.
"""

import copy
import json
import math
from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigurationError
from ..experience.difficulty import Windows
from ..experience.trajectory import FloatArray
from ..replay.options.samplers import quantile

TOO_HARD, HARD, MEDIUM, EASY, TOO_EASY, UNKNOWN = "too_hard", "hard", "medium", "easy", "too_easy", "unknown"
TOO_HARD_BELOW, TOO_EASY_ABOVE = 0.1, 0.9
METRICS = ("correctness_rate",)

Range = tuple[float, float]

STRATEGIES: dict[str, tuple[str, bool, str]] = {
    "medium_difficulty_low_entropy": ("uniform", True, "entropy_percentile"),
    "medium_difficulty": ("uniform", True, "random"),
    "low_entropy": ("uniform", False, "entropy_percentile"),
    "uniform_difficulty": ("tiers", False, "random"),
    "random": ("uniform", False, "random"),
}
"""Of each strategy: the core's `question_choice`, whether only questions of medium difficulty count, and the core's
`trajectory_choice`."""
STRATEGIES["entropy_guided"] = STRATEGIES["medium_difficulty_low_entropy"]


class DifficultyBucketer:
    """The correctness rate of each question over its most recent trajectories, and what that makes it.

    A question is `too_hard` below a rate of 0.1 and `too_easy` above 0.9; in between `medium` inside a range, else `hard` or
    `easy`; `unknown` before its first trajectory.

    Args:
        metric: what difficulty is measured by; `correctness_rate` is the only one.
        window_size: how many of the latest trajectories of a question, or of a problem type, a rate is over.
        adaptive: whether the bounds of `medium` are quantiles of the rates that are known (both inclusive), instead of rates
            (both exclusive). What is too hard or too easy is never medium.
        by_problem_type: whether bounds that adapt do so for each problem type apart.

    Raises:
        ConfigurationError: a metric that there is not, or a window without room for one trajectory.
    """

    def __init__(
        self,
        metric: str = "correctness_rate",
        window_size: int = 100,
        *,
        adaptive: bool = False,
        by_problem_type: bool = False,
    ):
        check(metric in METRICS, f"DifficultyBucketer needs a metric of {', '.join(METRICS)}, not {metric!r}")
        check_count("DifficultyBucketer", "window_size", window_size, 1)
        self.metric = metric
        self.window_size = window_size
        self.adaptive = adaptive
        self.by_problem_type = by_problem_type
        self.clear()

    def clear(self) -> None:
        """Forget all rates."""
        self.prompts: list[Any] = []
        self._numbers: dict[Hashable, int] = {}
        self._windows = Windows(self.window_size)
        self._counts: list[tuple[int, int]] = []
        self._kinds: list[int] = []
        self._kind_numbers: dict[Hashable, int] = {}
        self._kind_windows = Windows(self.window_size)
        self._kind_counts: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        """Return the number of known questions."""
        return len(self.prompts)

    # Telling ----------------------------------------------------------------------------------------------------

    def number(self, prompt: Any) -> int | None:
        """Return the number of a question, in order of arrival; None where it is unknown."""
        return self._numbers.get(key_of(prompt))

    def update(self, prompt: Any, is_correct: bool, problem_type: Hashable = None) -> int:
        """Count one more trajectory of a question; return the question's number.

        The latest given problem type counts.
        """
        question = self._numbers.setdefault(key_of(prompt), len(self.prompts))
        if question == len(self.prompts):
            self.prompts.append(_own(prompt))
            self._counts.append((0, 0))
            self._kinds.append(0)
        kind = self._kind_numbers.setdefault(problem_type, len(self._kind_numbers))
        self._counts[question] = self._windows.add(question, int(is_correct), 1)
        if problem_type is not None:
            self._kind_counts[kind] = self._kind_windows.add(kind, int(is_correct), 1)
        self._kinds[question] = kind
        return question

    # Asking -----------------------------------------------------------------------------------------------------

    def counts(self, question: int) -> tuple[int, int]:
        """Return right ones and all, in the window of the question with this number."""
        return self._counts[question]

    def rate(self, prompt: Any) -> float:
        """Return the correctness rate of a question, NaN where it is unknown."""
        question = self.number(prompt)
        return math.nan if question is None else _share(self._counts[question])

    def rate_of_type(self, problem_type: Hashable) -> float:
        """Return the correctness rate over the latest trajectories of a problem type, NaN where it is unknown."""
        return _share(self._kind_counts.get(self._kind_numbers.get(problem_type, -1), (0, 0)))

    def bucket(self, prompt: Any, difficulty_range: Range = (0.3, 0.7)) -> str:
        """Return `too_hard`, `hard`, `medium`, `easy`, `too_easy` or `unknown`."""
        question = self.number(prompt)
        if question is None:
            return UNKNOWN
        rates, kinds = np.array([_share(counts) for counts in self._counts]), self.kinds()
        rate = float(rates[question])
        if rate < TOO_HARD_BELOW:
            return TOO_HARD
        if rate > TOO_EASY_ABOVE:
            return TOO_EASY
        if self.inside(rates, difficulty_range, kinds)[question]:
            return MEDIUM
        return HARD if rate <= self.bounds(rates[kinds == kinds[question]], difficulty_range)[0] else EASY

    def kinds(self) -> NDArray[np.int64]:
        """Return a number for the problem type of each question, (Q,); all 0 unless bounds adapt to each type apart."""
        apart = self.adaptive and self.by_problem_type
        return np.array(self._kinds, np.int64) if apart else np.zeros(len(self._kinds), np.int64)

    def bounds(self, rates: FloatArray, difficulty_range: Range = (0.3, 0.7)) -> Range:
        """Return the bounds of `medium`: the range itself, or its quantiles of the rates, (n,).

        NaN where there are none.
        """
        low, high = check_range("DifficultyBucketer", difficulty_range)
        if not self.adaptive:
            return low, high
        ones = np.ones(len(rates), np.int64)
        return quantile(rates, ones, low), quantile(rates, ones, high)

    def inside(
        self, rates: FloatArray, difficulty_range: Range = (0.3, 0.7), kinds: NDArray[np.int64] | None = None
    ) -> NDArray[np.bool_]:
        """Return which of the questions with these rates, (n,), and type numbers, (n,), are medium."""
        medium = np.zeros(len(rates), bool)
        if not self.adaptive:
            low, high = self.bounds(rates, difficulty_range)
            return np.asarray((rates > low) & (rates < high))
        kinds = np.zeros(len(rates), np.int64) if kinds is None else kinds
        for kind in np.unique(kinds):
            low, high = self.bounds(rates[kinds == kind], difficulty_range)
            medium |= (kinds == kind) & (rates >= low) & (rates <= high)
        return np.asarray(medium & (rates >= TOO_HARD_BELOW) & (rates <= TOO_EASY_ABOVE))


def key_of(prompt: Any) -> Hashable:
    """Return the key of a question: the content of its prompt.

    A prompt is text, token ids (list, tuple, array or tensor), a list of messages, or anything hashable.

    Raises:
        ConfigurationError: it is none of these.
    """
    if isinstance(prompt, str):
        return prompt
    given = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    if isinstance(given, list) and given and all(isinstance(part, dict) for part in given):
        return "messages", json.dumps(given, sort_keys=True, ensure_ascii=False)
    key = tuple(given) if isinstance(given, list) else given
    try:
        hash(key)
    except TypeError:
        raise ConfigurationError(
            f"a prompt must be text, token ids, a list of messages or something hashable, but is {prompt!r}."
        ) from None
    return key


def check(condition: bool, message: str) -> None:
    """Raise `ConfigurationError(message)` unless the condition holds."""
    if not condition:
        raise ConfigurationError(f"{message}.")


def check_count(who: str, name: str, value: object, low: int) -> None:
    """Check for a whole number of at least `low`."""
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= low
    check(whole, f"{who} needs a whole number of at least {low} for {name}, not {value!r}")


def check_range(who: str, difficulty_range: Range) -> Range:
    """Check for two ascending numbers in [0, 1], and return them."""
    low, high = difficulty_range
    check(0 <= low < high <= 1, f"{who} needs a difficulty range with 0 <= low < high <= 1, not {difficulty_range!r}")
    return low, high


def check_percentile(who: str, percentile: float) -> float:
    """Check for a number in (0, 100], and return it."""
    check(
        0 < percentile <= 100, f"{who} needs an entropy_percentile in (0, 100], not {percentile!r}; the recipe has 25"
    )
    return float(percentile)


def check_strategy(who: str, strategy: str) -> tuple[str, bool, str]:
    """Look up a strategy by name."""
    check(strategy in STRATEGIES, f"{who} needs a strategy of {', '.join(STRATEGIES)}, not {strategy!r}")
    return STRATEGIES[strategy]


def _own(prompt: Any) -> Any:
    """Copy a prompt, so that it shares no memory with the caller's batch."""
    if hasattr(prompt, "detach"):
        return prompt.detach().cpu().clone()
    return copy.deepcopy(prompt) if isinstance(prompt, (list, np.ndarray)) else prompt


def _share(counts: tuple[int, int]) -> float:
    right, total = counts
    return right / total if total else math.nan
