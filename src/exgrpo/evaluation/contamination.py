"""Contamination: evaluation questions that share n-grams with training texts, or that a model completes by heart."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

N = 8  # words of an n-gram
MUCH = 0.5  # a question with this share of its n-grams in the training texts counts as seen
SHOWN = 0.6  # of a question's words, when the rest is asked for (arXiv 2507.10532)

_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Overlap:
    """The part of a question that occurs in the training texts.

    Attributes:
        share: of its n-grams of words; of a shorter question 1 where it stands there as a whole.
        exact: whether all its words stand in one text in this order and beside each other.
    """

    share: float
    exact: bool

    @property
    def is_much(self) -> bool:
        return self.share >= MUCH


def overlaps(questions: Sequence[str], texts: Iterable[str], n: int = N) -> list[Overlap]:
    """Return the overlap of each question with the texts, which are read once, ignoring punctuation and case."""
    asked = [words(question) for question in questions]
    grams = [set(ngrams(one, n)) for one in asked]
    wanted = set().union(*grams) if grams else set()
    wholes = {tuple(one) for one in asked if one}
    lengths = {len(one) for one in wholes}
    seen: set[tuple[str, ...]] = set()
    whole: set[tuple[str, ...]] = set()
    for text in texts:
        there = words(text)
        found = wanted.intersection(ngrams(there, n)) if len(there) >= n else set()
        seen |= found
        if found or len(there) < n or min(lengths, default=n) < n:
            whole |= _wholes(there, wholes, lengths)
    return [
        Overlap(
            len(own & seen) / len(own) if own else float(tuple(one) in whole),
            bool(one) and tuple(one) in whole,
        )
        for one, own in zip(asked, grams, strict=True)
    ]


def _wholes(there: Sequence[str], wholes: set[tuple[str, ...]], lengths: set[int]) -> set[tuple[str, ...]]:
    return wholes.intersection(
        tuple(there[i : i + length]) for length in lengths for i in range(len(there) - length + 1)
    )


def words(text: str) -> list[str]:
    """List the words and numbers of a text in lower case."""
    return _WORD.findall(text.lower())


def ngrams(text: Sequence[str], n: int) -> list[tuple[str, ...]]:
    """Return all runs of `n` words."""
    return [tuple(text[i : i + n]) for i in range(len(text) - n + 1)]


def split(question: str, shown: float = SHOWN) -> tuple[str, str]:
    """Split a question into its first part, and the rest that a model which knows it by heart would write."""
    ends = [match.end() for match in re.finditer(r"\S+", question)]
    if len(ends) < 2:
        return question, ""
    end = ends[max(1, min(len(ends) - 1, round(len(ends) * shown))) - 1]
    return question[:end], question[end:]


def recalled(rest: str, completion: str) -> float:
    """Return ROUGE-L recall: the share of the rest's words that the completion, cut to its length, has in order."""
    wanted = words(rest)
    given = words(completion)[: len(wanted)]
    if not wanted:
        return 0.0
    row = [0] * (len(given) + 1)
    for word in wanted:
        before = 0
        for i, other in enumerate(given, 1):
            before, row[i] = row[i], before + 1 if word == other else max(row[i], row[i - 1])
    return row[-1] / len(wanted)
