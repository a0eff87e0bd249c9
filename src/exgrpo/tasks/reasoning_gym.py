"""Questions and scorers of reasoning-gym (optional extra `reasoning-gym`), with what is unsafe or unsound left out.

A completion is hostile input. Some of the library's scorers run it as Python code or let it ask for any amount of
memory; the data sets concerned are refused by name (`REFUSED`, from reading the scorers of 0.1.25), and an answer above
`MAX_ANSWER` characters is wrong without a look. The scorers that remain run in this process without a time limit.
Correct means a score of exactly 1; the partial scores that the library gives to wrong answers count as 0. A scorer
that raises makes the sample unscorable (None), with one warning for each kind of error.

Item i of the library is drawn from seed + i, so neighbouring seeds share questions: seeds are spread by a hash here,
and whether a question is for training or evaluation is decided by its text, as in every other family.
"""

import hashlib
import json
import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import ConfigurationError, MissingExtraError
from .base import SPLITS, RewardFunction, Task, check, completion_text, split_of

if TYPE_CHECKING:
    from datasets import Dataset

_EVALUATES = "its scorer runs the completion as Python code"
_EXPANDS = "its scorer lets a short completion ask for any amount of memory and time"
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "countdown",
            "puzzle24",
            "simple_integration",
            "intermediate_integration",
            "polynomial_multiplication",
            "binary_matrix",
            "n_queens",
            "spiral_matrix",
            "string_insertion",
        ),
        _EVALUATES,
    ),
    **dict.fromkeys(("coin_flip", "rubiks_cube", "rush_hour"), _EXPANDS),
    "game_of_life_halting": "its scorer accepts any text where the answer is False",
    "codeio": "its questions are made by running code that came with the data",
    "composite": "it hides other data sets, the refused ones among them",
}
MAX_ANSWER = 16_384  # characters
TRIES_PER_QUESTION = 64  # items looked at for each question asked for, before the family counts as exhausted


def extract_answer(text: str) -> str:
    """What stands in the last `<answer>` element of a completion, or else the whole text; stripped either way."""
    start, end = text.rfind("<answer>"), text.rfind("</answer>")
    return text[start + len("<answer>") : end].strip() if 0 <= start < end else text.strip()


def reasoning_gym_reward(
    prompts: list, completions: list, answer: list[str], source: list[str], **kwargs: object
) -> list[float | None]:
    """1 where the library's scorer gives exactly 1 to the extracted answer, None where it raises, else 0."""
    texts = [completion_text(completion) for completion in completions]
    return [_score(extract_answer(text), item) for text, item in zip(texts, source, strict=True)]


@dataclass(frozen=True)
class ReasoningGym(Task):
    """One data set of reasoning-gym by its name there, with its configuration options. There is no checker."""

    name: ClassVar[str] = "reasoning_gym"

    dataset: str = "chain_sum"
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(
            self.dataset not in REFUSED,
            f"The reasoning-gym data set {self.dataset!r} is refused: {REFUSED.get(self.dataset)}",
        )
        reserved = sorted({"seed", "size"} & set(self.config))
        check(not reserved, f"reasoning_gym: {', '.join(reserved)} cannot be in config; pass them to make()")

    @property
    def reward_function(self) -> RewardFunction:
        return reasoning_gym_reward

    def make(self, split: str, size: int, seed: int = 0) -> "Dataset":
        """See `Task.make`. Columns: `prompt`, `answer` and `source`, which says where the item comes from.

        Raises MissingExtraError where reasoning-gym is not installed, ConfigurationError where it has no such data set.
        """
        from datasets import Dataset

        check(split in SPLITS, f"{self.name}: there is no split {split!r}; splits: {', '.join(SPLITS)}")
        check(size >= 1, f"{self.name}: size must be at least 1, got {size}")
        digest = hashlib.blake2b(f"{self.dataset}/{split}/{seed}".encode(), digest_size=8).digest()
        origin = {"dataset": self.dataset, "seed": int.from_bytes(digest, "big") >> 33, "config": dict(self.config)}
        tries = size * TRIES_PER_QUESTION
        items = _open(json.dumps({**origin, "size": tries}, sort_keys=True))
        rows: dict[str, dict[str, str]] = {}
        for index in range(tries):
            entry = items[index]
            prompt = entry["question"]
            if split_of(prompt) == split and prompt not in rows:
                source = json.dumps({**origin, "size": tries, "index": index}, sort_keys=True)
                rows[prompt] = {"prompt": prompt, "answer": str(entry["answer"]), "source": source}
            if len(rows) == size:
                return Dataset.from_list(list(rows.values()))
        raise ConfigurationError(
            f"{self.name}: {size} distinct questions of split {split!r} were asked for, and {tries} items of "
            f"{self.dataset!r} have {len(rows)}. Ask for fewer, or widen its config."
        )


def _score(answer: str, source: str) -> float | None:
    if len(answer) > MAX_ANSWER:
        return 0.0
    items, entry = _entry(source)
    try:
        return float(items.score_answer(answer, deepcopy(entry)) == 1.0)
    except Exception as error:  # noqa: BLE001 - whatever a foreign scorer raises on model text
        _warn_once(f"a scorer of reasoning-gym, {type(items).__name__}, raised {type(error).__name__}: unscorable")
        return None


@lru_cache(maxsize=8)
def _open(origin: str) -> Any:
    """The library's data set with the name, seed, size and options of the JSON text."""
    try:
        import reasoning_gym
    except ImportError as error:
        raise MissingExtraError("reasoning-gym", "reasoning-gym", "The task 'reasoning_gym'") from error
    given = json.loads(origin)
    name, config = given.pop("dataset"), given.pop("config")
    check(name not in REFUSED, f"The reasoning-gym data set {name!r} is refused: {REFUSED.get(name)}")
    try:
        return reasoning_gym.create_dataset(name, **given, **config)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigurationError(f"reasoning-gym cannot make {name!r} with {config}: {error}") from error


@lru_cache(maxsize=4096)
def _entry(source: str) -> tuple[Any, Any]:
    """The library's data set and item that a `source` column stands for."""
    origin = json.loads(source)
    index = origin.pop("index")
    items = _open(json.dumps(origin, sort_keys=True))
    return items, items[index]


@lru_cache(maxsize=256)
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)
