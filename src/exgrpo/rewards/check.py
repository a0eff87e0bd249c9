r"""Check whether a reward function can read a dataset's gold answers, and gives 1 to each as its own answer.

A gold answer that cannot be read makes its question useless, and one that is misread makes wrong answers right. Each is
asked about twice: as `\boxed{gold}`, and in a sentence, "The answer is gold."
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import DatasetError
from .completion import THINK_END, boxes, opens_thinking
from .number import parse_number

CHUNK = 512  # golds scored at once
NO_COLUMNS_OF_REWARDS = ("prompt", "completion", "completion_ids")


@dataclass(frozen=True)
class Gold:
    """A gold answer that was not read, or not as itself; the rewards of its two forms, None where unscorable."""

    row: int
    gold: str
    boxed: float | None
    sentence: float | None

    @property
    def is_unscorable(self) -> bool:
        return self.boxed is None and self.sentence is None


@dataclass(frozen=True)
class GoldReport:
    """The verdict of a reward function on the gold answers of a dataset.

    Attributes:
        reward: name of the function.
        rows: golds looked at.
        unscorable: of them, those without a reward in both forms.
        not_boxed, not_stated: scorable golds that do not get 1 as `\\boxed{gold}`, and in a sentence.
        found: all these golds, those that fail in a box first, and then in the order of their rows.
        no_numbers: row and text of the golds that are no numbers, where most of the others are; those may be no answers at all.
    """

    reward: str
    rows: int
    unscorable: int
    not_boxed: int
    not_stated: int
    found: tuple[Gold, ...] = field(repr=False)
    no_numbers: tuple[tuple[int, str], ...] = field(default=(), repr=False)

    @property
    def share_unscorable(self) -> float:
        return self.unscorable / self.rows

    @property
    def share_not_themselves(self) -> float:
        """Share of scorable golds that do not get 1 in a box."""
        return self.not_boxed / max(1, self.rows - self.unscorable)

    def examples(self, number: int = 3) -> str:
        """Quote some of the golds found, for a message."""
        shown = [f"row {gold.row}: {gold.gold[:80]!r}" for gold in self.found[:number]]
        more = len(self.found) - len(shown)
        return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")

    def __str__(self) -> str:
        return (
            f"{self.reward}: of {self.rows} gold answers {self.unscorable} cannot be read; of the others {self.not_boxed} "
            f"do not score themselves 1 in a box, {self.not_stated} in a sentence"
            + (f" ({self.examples()})" if self.found else "")
        )


def check_golds(reward: Callable[..., Any], dataset: Any, *, answer_name: str = "answer") -> GoldReport:
    """Score every gold answer of a dataset as its own answer.

    Args:
        reward: with the signature of TRL, also an async one.
        dataset: rows with `prompt`, the gold answer, and whatever else the reward function reads.
        answer_name: column of the gold answer, and the name under which the reward function gets it.

    Raises:
        DatasetError: no rows, or no such column.
    """
    rows = len(dataset)
    if not rows or answer_name not in dataset.column_names:
        raise DatasetError(
            f"Gold answers are checked in the column {answer_name!r} of a dataset with rows; this one has {rows} rows and "
            f"the columns {dataset.column_names}."
        )
    found: list[Gold] = []
    no_numbers: list[tuple[int, str]] = []
    for start in range(0, rows, CHUNK):
        columns = dataset[start : start + CHUNK]
        golds = columns[answer_name]
        finals = [final_answer(str(gold)) for gold in golds]
        no_numbers += [(start + i, text) for i, text in enumerate(finals) if parse_number(text) is None]
        boxed = _scores(reward, columns, [rf"\boxed{{{final}}}" for final in finals])
        stated = _scores(reward, columns, [f"The answer is {final}." for final in finals])
        for place, (gold, one, two) in enumerate(zip(golds, boxed, stated, strict=True)):
            if one != 1.0 or two != 1.0:
                found.append(Gold(start + place, str(gold), one, two))
    scorable = [gold for gold in found if not gold.is_unscorable]
    return GoldReport(
        reward=getattr(reward, "__name__", type(reward).__name__),
        rows=rows,
        unscorable=len(found) - len(scorable),
        not_boxed=sum(gold.boxed != 1.0 for gold in scorable),
        not_stated=sum(gold.sentence != 1.0 for gold in scorable),
        found=tuple(sorted(found, key=lambda gold: gold.boxed == 1.0)),
        no_numbers=tuple(no_numbers) if 2 * len(no_numbers) < rows else (),
    )


def final_answer(gold: str) -> str:
    """Return the final statement of a gold answer that is a whole solution: its last box, or what follows `####`."""
    if "####" in gold:
        return gold.rpartition("####")[2].strip()
    return (boxes(gold) or [gold.strip()])[-1]


def call(reward: Callable[..., Any], **arguments: Any) -> list[float | None]:
    """Return the rewards of a function, whether it is async or not."""
    result = reward(**arguments)
    return list(asyncio.run(_result(result)) if inspect.isawaitable(result) else result)


def _scores(reward: Callable[..., Any], columns: Mapping[str, list[Any]], texts: list[str]) -> list[float | None]:
    prompts = columns.get("prompt") or [""] * len(texts)
    completions = [
        (f"{THINK_END}\n{text}" if opens_thinking(prompt) else text)
        if isinstance(prompt, str)
        else [{"role": "assistant", "content": text}]
        for prompt, text in zip(prompts, texts, strict=True)
    ]
    given = {name: values for name, values in columns.items() if name not in NO_COLUMNS_OF_REWARDS}
    rewards = call(reward, prompts=prompts, completions=completions, **given)
    return [None if value is None or value != value else float(value) for value in rewards]  # NaN is unscorable


async def _result(awaitable: Any) -> Any:
    return await awaitable
