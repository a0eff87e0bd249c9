"""Reward for questions of reasoning-gym (optional extra `reasoning-gym`): its own scorers, kept from doing harm.

A completion is hostile input. Some of the library's scorers run it as Python code or let it ask for any amount of
memory; the data sets concerned are refused by name (`REFUSED`, from reading the scorers of 0.1.25). The scorers that
remain run in the pool of `exgrpo.rewards.pool`, under its limits, and an answer above `MAX_ANSWER` characters is wrong
without a look. Correct means a score of exactly 1; the partial scores that the library gives to wrong answers count as 0.

Where a scorer raises, or takes too much time or memory, the answer is wrong if the same scorer gives 1 to the library's
own answer, for then it was the completion that made it fail. Otherwise the sample is unscorable (None).
"""

import json
import re
from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from ..errors import ConfigurationError, MissingExtraError
from .completion import answer_texts, looks_for, versioned
from .marks import elements
from .pool import Scored, score, score_async

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
_NOT_FINITE = re.compile(r"(?<![A-Za-z])(?:nan|inf(?:inity)?)[ij]?(?![A-Za-z])", re.IGNORECASE)


@looks_for(
    "after the thinking: in <answer>...</answer>, or the text as a whole", lambda text: bool(extract_answer(text))
)
@versioned
def reasoning_gym_reward(
    prompts: Any, completions: list[Any], answer: list[Any], source: list[str], **kwargs: Any
) -> list[float | None]:
    """Give 1.0 where the library's scorer gives exactly 1 to the final answer, else 0.0; None where it cannot judge.

    Args:
        prompts: Only whether they begin a thought matters.
        completions: N strings, or N lists of messages.
        answer: ignored: the item itself is made again from its source.
        source: N texts that say where the items come from, as the task `reasoning_gym` makes them.

    Raises:
        ConfigurationError: for a data set that is refused. MissingExtraError: if reasoning-gym is not installed.
    """
    asked = _asked(prompts, completions, source)
    scores = score(is_right, [*asked.values()])
    failed = _failed(asked, scores)
    return _rewards(source, asked, scores, failed, score(is_right, failed))


async def async_reasoning_gym_reward(
    prompts: Any, completions: list[Any], answer: list[Any], source: list[str], **kwargs: Any
) -> list[float | None]:
    """Score as `reasoning_gym_reward`, without blocking the event loop."""
    asked = _asked(prompts, completions, source)
    scores = await score_async(is_right, [*asked.values()])
    failed = _failed(asked, scores)
    return _rewards(source, asked, scores, failed, await score_async(is_right, failed))


Call = tuple[str | None, str]


def _asked(prompts: Any, completions: list[Any], source: list[str]) -> dict[int, Call]:
    """Return the calls to the library, by row; rows without one are wrong."""
    for origin in {*source}:
        check_name(_name_in(origin))
    check_installed()
    answers = [extract_answer(text) for text in answer_texts(prompts, completions)]
    return {
        row: (text, origin)
        for row, (text, origin) in enumerate(zip(answers, source, strict=True))
        if text is not None and len(text) <= MAX_ANSWER
    }


def _failed(asked: Mapping[int, Call], scores: list[Scored]) -> list[Call]:
    """Return calls that test the scorers that failed: whether they give 1 to the library's own answer."""
    return [(None, of) for of in sorted({of for (_, of), s in zip(asked.values(), scores, strict=True) if s.failure})]


def _rewards(
    source: list[str], asked: Mapping[int, Call], scores: list[Scored], failed: list[Call], again: list[Scored]
) -> list[float | None]:
    blameless = {of for (_, of), scored in zip(failed, again, strict=True) if scored.value}
    rewards: list[float | None] = [0.0] * len(source)
    for row, scored in zip(asked, scores, strict=True):
        judged = scored.failure is None or source[row] in blameless
        rewards[row] = float(bool(scored.value)) if judged else None
    return rewards


def extract_answer(text: str) -> str | None:
    """Return the stripped content of the last `<answer>` element, or else the whole text.

    None where elements differ, which is several answers, where one is left open, which was cut, and where all are empty.
    """
    found = elements(text)
    if found is None or len(found) > 1:
        return None
    return found[0] if found else text.strip()


def check_name(name: str) -> None:
    if name in REFUSED:
        raise ConfigurationError(f"The reasoning-gym data set {name!r} is refused: {REFUSED[name]}")


def _name_in(source: str) -> str:
    try:
        return str(json.loads(source)["dataset"])
    except (ValueError, TypeError, LookupError) as error:
        raise ConfigurationError(
            f"reasoning_gym_reward reads a column `source` as the task 'reasoning_gym' makes it, got {str(source)[:80]!r}."
        ) from error


def check_installed() -> None:
    try:
        found = find_spec("reasoning_gym") is not None
    except ValueError:  # somebody put None in its place
        found = False
    if not found:
        raise MissingExtraError("reasoning-gym", "reasoning-gym", "The task 'reasoning_gym'")


# In a worker process ----------------------------------------------------------------------------------------------------


def is_right(answer: str | None, source: str) -> bool:
    """Return whether the library's scorer gives exactly 1 to an answer; None stands for the library's own one."""
    items, entry = _entry(source)
    if answer is not None and _NOT_FINITE.search(answer) and not _NOT_FINITE.search(str(entry["answer"])):
        return False  # compared with a number, NaN is neither more nor less, which some scorers take for near
    return bool(items.score_answer(str(entry["answer"]) if answer is None else answer, deepcopy(entry)) == 1.0)


def _import() -> None:
    import reasoning_gym  # noqa: F401


is_right.warm_up = _import  # type: ignore[attr-defined]


@lru_cache(maxsize=8)
def open_dataset(origin: str) -> Any:
    """Return the library's data set with the name, seed, size and options of the JSON text."""
    given = json.loads(origin)
    name, config = given.pop("dataset"), given.pop("config")
    check_name(name)
    check_installed()
    import reasoning_gym

    try:
        return reasoning_gym.create_dataset(name, **given, **config)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigurationError(f"reasoning-gym cannot make {name!r} with {config}: {error}") from error


@lru_cache(maxsize=4096)
def _entry(source: str) -> tuple[Any, Any]:
    """Return the library's data set and item that a `source` column stands for."""
    origin = json.loads(source)
    index = origin.pop("index")
    items = open_dataset(json.dumps(origin, sort_keys=True))
    return items, items[index]
