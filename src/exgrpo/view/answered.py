"""The questions of an evaluation: what came of each, filtered, sorted, searched and cut into pages."""

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..evaluation.passk import pass_at_k
from ..evaluation.scoring import THRESHOLD
from ..evaluation.store import Answer, StoredQuestion
from .questions import LARGEST_PAGE, PAGE
from .run import NotThere, number_in
from .texts import CUT, cut, said

SEED = 0
STATES = {
    "solved": "all scorable completions are right",
    "mixed": "some completions are right",
    "unsolved": "no completion is right",
    "unscored": "no completion could be scored",
}


@dataclass(frozen=True, slots=True)
class Answered:
    """A question and a model's answers to it.

    Attributes:
        samples, scorable, right: numbers of completions.
        decides: the verifier that says which are right.
        key: the same for the same question and gold in every file.
        k, pass_k: the largest power of two at most half of the scorable completions, and Pass@k; None below four.
        disagree: completions that another verifier takes otherwise.
        distinct: different right texts.
    """

    id: int
    key: str
    benchmark: str
    number: int
    text: str
    gold: str
    decides: str
    samples: int
    scorable: int
    right: int
    k: int | None
    pass_k: float | None
    tokens: float | None
    cut: int
    disagree: int
    distinct: int

    @classmethod
    def of(cls, asked: StoredQuestion, given: Sequence[Answer], decides: str) -> "Answered":
        prompt = asked.prompt if isinstance(asked.prompt, str) else json.dumps(asked.prompt, ensure_ascii=False)
        key = hashlib.sha256(json.dumps([prompt, asked.gold]).encode()).hexdigest()[:32]
        known = [reward for one in given if (reward := one.rewards.get(decides)) is not None]
        right, lengths = sum(map(_is_right, known)), [one.tokens for one in given if one.tokens is not None]
        k = 1 << (len(known).bit_length() - 2) if len(known) >= 4 else None
        return cls(
            asked.id, key, asked.benchmark, asked.number, said(prompt), asked.gold, decides, len(given), len(known), right,
            k, None if k is None else float(pass_at_k(len(known), right, k)),
            sum(lengths) / len(lengths) if lengths else None, sum(one.finish == "length" for one in given),
            sum(len({_is_right(reward) for reward in one.rewards.values()}) > 1 for one in given),
            len({one.text for one in given if _is_right(one.rewards.get(decides))}),
        )  # fmt: skip

    @property
    def share(self) -> float | None:
        """Share of right completions among the scorable ones; None without any."""
        return self.right / self.scorable if self.scorable else None

    @property
    def state(self) -> str:
        if not self.scorable:
            return "unscored"
        return "unsolved" if not self.right else "solved" if self.right == self.scorable else "mixed"

    def verdict(self, one: Answer) -> str:
        """`right`, `wrong` or `unscorable`."""
        reward = one.rewards.get(self.decides)
        return "unscorable" if reward is None else "right" if _is_right(reward) else "wrong"


def _is_right(reward: float | None) -> bool:
    return reward is not None and reward > THRESHOLD


@dataclass(frozen=True)
class Filter:
    """A choice among questions, in words; `takes` gets the question and the shares of the other models, those that have any."""

    label: str
    meaning: str
    takes: Callable[[Answered, Sequence[float]], bool]


def filters_of(rows: Sequence[Answered]) -> dict[str, Filter]:
    """Return the filters by name; with several benchmarks, one for each of them too."""
    found = {
        "all": Filter("all", "every question that was answered", lambda q, _: True),
        "solved": Filter("solved", STATES["solved"], lambda q, _: q.state == "solved"),
        "mixed": Filter("mixed", STATES["mixed"], lambda q, _: q.state == "mixed"),
        "unsolved": Filter("unsolved", STATES["unsolved"], lambda q, _: q.state == "unsolved"),
        "differ": Filter("models differ", "another model has a different share right", lambda q, others: _differs(q, others)),
        "cut": Filter("cut", "a completion was ended at the limit of tokens", lambda q, _: q.cut > 0),
        "disagree": Filter("verifiers disagree", "a completion that two verifiers take otherwise", lambda q, _: q.disagree > 0),
        "unscored": Filter("unscorable", "a completion that could not be scored", lambda q, _: q.scorable < q.samples),
    }  # fmt: skip
    names = dict.fromkeys(row.benchmark for row in rows)
    if len(names) > 1:
        found |= {f"of {name}": Filter(name, f"questions of {name}", _of_benchmark(name)) for name in names}
    return found


def _of_benchmark(name: str) -> Callable[[Answered, Sequence[float]], bool]:
    return lambda q, _: q.benchmark == name


def _differs(q: Answered, others: Sequence[float]) -> bool:
    return q.share is not None and any(other != q.share for other in others)


SORTS: Mapping[str, tuple[str, str, Callable[[dict[str, Any]], float]]] = {
    "number": ("#", "number of the question in the file", lambda row: row["id"]),
    "accuracy": ("right", "right of the scorable completions", lambda row: _or(row["share"], 2.0)),
    "pass_k": ("Pass@k", "chance that one of k completions is right, unbiased, for k of about half of the completions",
               lambda row: _or(row["pass_k"], -1.0)),
    "difference": ("difference", "share right minus that of the first other model", lambda row: _or(row["difference"], -2.0)),
    "tokens": ("tokens", "mean length of the completions", lambda row: _or(row["tokens"], -1.0)),
    "cut": ("cut", "completions that were ended at the limit of tokens", lambda row: row["cut"]),
    "disagree": ("disagree", "completions that two verifiers take otherwise", lambda row: row["disagree"]),
    "distinct": ("different", "different right texts", lambda row: row["distinct"]),
}  # fmt: skip
"""Label, meaning and key of each order."""


def sorts_of() -> dict[str, dict[str, str]]:
    """Return label and meaning of every order."""
    return {name: {"label": label, "meaning": meaning} for name, (label, meaning, _) in SORTS.items()}


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


class AnsweredList:
    """Pages of questions.

    Args:
        rows: of the model that is looked at.
        others: names of the other models, and their questions by key.
    """

    def __init__(self, rows: Sequence[Answered], others: Sequence[tuple[str, Mapping[str, Answered]]] = ()):
        self.rows, self._others = rows, others

    def page(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Rows of one page, how many there are in all, and how many each filter takes.

        Raises:
            NotThere: an unknown filter or order.
        """
        only, sort, search = (
            query.get("only", "all"),
            query.get("sort", "number"),
            query.get("search", "").strip()[:500],
        )
        filters = self._filters
        if only not in filters or sort not in SORTS:
            raise NotThere(f"there is no filter {only!r}, or no order {sort!r}")
        start, count = number_in(query.get("start", "0")), min(number_in(query.get("count", str(PAGE))), LARGEST_PAGE)
        rows = [self._shown[row.id] for row in self._taken[only] if _holds(row, search)]
        rows.sort(key=SORTS[sort][2], reverse=query.get("down") == "1")
        return {
            "total": len(rows), "start": start, "rows": rows[start : start + max(1, count)], "sorts": sorts_of(),
            "filters": [
                {"name": name, "label": f.label, "meaning": f.meaning, "count": len(self._taken[name])}
                for name, f in filters.items()
            ],
            "empty": "" if rows else "No question passes this filter." if self.rows else "Nothing is answered yet.",
        }  # fmt: skip

    @cached_property
    def _filters(self) -> dict[str, Filter]:
        return filters_of(self.rows)

    @cached_property
    def _taken(self) -> dict[str, list[Answered]]:
        return {
            name: [row for row in self.rows if f.takes(row, self._shares(row))] for name, f in self._filters.items()
        }

    @cached_property
    def _shown(self) -> dict[int, dict[str, Any]]:
        return {row.id: self.row(row) for row in self.rows}

    def _shares(self, row: Answered) -> list[float]:
        found = [theirs[row.key].share for _, theirs in self._others if row.key in theirs]
        return [share for share in found if share is not None]

    def filters_that_take(self, row: Answered) -> list[str]:
        """Names of the filters that let a question through."""
        return [name for name, f in self._filters.items() if f.takes(row, self._shares(row))]

    def row(self, row: Answered) -> dict[str, Any]:
        """Return what the list shows of a question."""
        others = [(name, theirs[row.key]) for name, theirs in self._others if row.key in theirs]
        first = others[0][1].share if others else None
        return {
            "id": row.id, "key": row.key, "text": cut(row.text, CUT), "gold": cut(row.gold, 60), "type": row.benchmark,
            "successes": row.right, "scorable": row.scorable, "samples": row.samples, "share": row.share, "k": row.k,
            "pass_k": row.pass_k, "tokens": row.tokens, "cut": row.cut, "disagree": row.disagree, "distinct": row.distinct,
            "difference": None if first is None or row.share is None else row.share - first,
            "others": [[name, one.right, one.scorable] for name, one in others], "state": [row.state, STATES[row.state]],
        }  # fmt: skip


def _holds(row: Answered, search: str) -> bool:
    words = search.lower()
    return not words or words == f"q:{row.id}" or any(words in text.lower() for text in (row.text, row.gold, row.key))


def chosen_of(models: Sequence[Mapping[str, Answered]], count: int) -> list[str]:
    """Keys of some questions: in turns one that models differ on, that verifiers disagree about, that none solved, and any."""
    rows: dict[str, list[Answered]] = {}
    for model in models:
        for key, row in model.items():
            rows.setdefault(key, []).append(row)
    shuffled = sorted(rows)
    random.Random(SEED).shuffle(shuffled)
    queues: list[Iterable[str]] = [
        (key for key in shuffled if len({row.share for row in rows[key]}) > 1),
        (key for key in shuffled if any(row.disagree for row in rows[key])),
        (key for key in shuffled if not any(row.right for row in rows[key])),
        iter(shuffled),
    ]
    found: dict[str, None] = {}
    while queues and len(found) < min(count, len(rows)):
        for queue in list(queues):
            new = next((key for key in queue if key not in found), None)
            if new is None:
                queues.remove(queue)
            elif len(found) < count:
                found[new] = None
    return list(found)
