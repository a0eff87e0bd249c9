"""Signs that a policy degenerates, in what a run stored: shares over optimizer steps, so that a rise is seen."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

STEPS_SHOWN = 10
WORDS = 8
"""Number of words in an opening; a completion with fewer has none."""
JUMP = 2.0
"""Times the median length of all earlier steps, or the inverse: a length that jumped."""
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Completion:
    """One that was stored.

    Args:
        step: of the policy that generated it.
        question: its number.
        length: in tokens.
        text: without special tokens.
    """

    step: int
    question: int
    length: int
    text: str


@dataclass(frozen=True)
class Signs:
    """Shares of the completions of some steps.

    Args:
        first, last: optimizer steps.
        stored: how many.
        code: with a code block.
        template: whose first words, numbers apart, begin a completion of another question of these steps too.
        jumped: at least twice, or at most half, as long as the median of all earlier steps; None: none came before.
    """

    first: int
    last: int
    stored: int
    code: float
    template: float
    jumped: float | None


def signs(completions: Sequence[Completion], rows: int = STEPS_SHOWN) -> list[Signs]:
    """Return the signs of consecutive steps, in so many rows at most, each of about as many steps."""
    by_step: dict[int, list[Completion]] = defaultdict(list)
    for one in completions:
        by_step[one.step].append(one)
    steps, found, earlier = sorted(by_step), list[Signs](), list[int]()
    size = -(-len(steps) // rows) if steps else 1
    for start in range(0, len(steps), size):
        here = steps[start : start + size]
        ones = [one for step in here for one in by_step[step]]
        usual = median(earlier) if earlier else None
        found.append(_signs(here[0], here[-1], ones, usual))
        earlier += [one.length for one in ones]
    return found


def _signs(first: int, last: int, ones: Sequence[Completion], usual: float | None) -> Signs:
    openings = {(opening(one.text), one.question) for one in ones} - {("", one.question) for one in ones}
    questions = Counter(text for text, _ in openings)
    code = sum("```" in one.text for one in ones)
    template = sum(questions[opening(one.text)] > 1 for one in ones)
    jumped = None if usual is None else sum(not usual / JUMP < one.length < usual * JUMP for one in ones) / len(ones)
    return Signs(first, last, len(ones), code / len(ones), template / len(ones), jumped)


def opening(text: str) -> str:
    """Return the first words of a completion with its numbers taken out; nothing where there are too few to tell."""
    words = _NUMBER.sub("#", text).split()
    return " ".join(words[:WORDS]).casefold() if len(words) >= WORDS else ""


def as_rows(found: Sequence[Signs]) -> list[dict[str, Any]]:
    """Return a table row for each."""
    return [
        {
            "steps": f"{s.first} to {s.last}" if s.last > s.first else str(s.first), "stored": f"{s.stored:,}",
            "in code blocks": f"{s.code:.0%}", "same opening": f"{s.template:.0%}",
            "length jumped": "–" if s.jumped is None else f"{s.jumped:.0%}",
        }
        for s in found
    ]  # fmt: skip
