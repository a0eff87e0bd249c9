"""The list of questions: filtered, sorted, searched and cut into pages, on arrays."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..experience.difficulty import tier_of
from ..log.reader import LogReader
from .history import UNSEEN, History
from .texts import CUT, columns_of, cut, gold_of, said

Array = NDArray[Any]
PAGE, LARGEST_PAGE = 50, 200
OFTEN = 5
"""Replays from which a question counts as replayed often."""
TRIED = 2
"""Fresh groups without any success from which a question counts as hopeless."""
POINTS = 48
"""Latest points of a small curve."""

FILTERS: Mapping[str, tuple[str, Callable[[Any], Array]]] = {
    "all": ("every question that was seen", lambda q: q.groups > 0),
    "solved": ("its latest scorable fresh group was all right", lambda q: (q.seen > 0) & (q.successes == q.scorable)),
    "hopeless": (
        f"no right completion in {TRIED} fresh groups or more", lambda q: (q.seen >= TRIED) & (q.solved == 0)
    ),
    "forgotten": ("solved at least once, then no success in its latest group",
                  lambda q: (q.seen > 0) & (q.solved > 0) & (q.successes == 0)),
    "relearned": ("had a success, lost it (a group without any), and has one again", lambda q: q.regained > 0),
    "retired": ("left replay and the fresh stream", lambda q: q.retired),
    "often": (f"its trajectories were replayed {OFTEN} times or more", lambda q: q.replays >= OFTEN),
    "never_stored": ("no completion of it was ever stored", lambda q: (q.groups > 0) & (q.ever == 0)),
    "stored": ("a trajectory of it is stored now", lambda q: q.stored > 0),
    "disagree": ("`exgrpo rewards audit` found its verifiers to disagree", lambda q: np.zeros(len(q.groups), bool)),
}  # fmt: skip
"""Names of filters, what each means, and which questions it takes."""

LABELS = {
    "relearned": "solved again", "often": "replayed often", "never_stored": "never stored", "disagree": "verifiers disagree",
}  # fmt: skip
"""Labels of filters whose name is not for people."""


@dataclass(frozen=True)
class Order:
    """A sort order of questions.

    Args:
        label, meaning: for people.
        key: of every question, (Q,).
    """

    label: str
    meaning: str
    key: Callable[[Any], Array]


def share(part: Array, whole: Array) -> Array:
    """Return shares, and a value above all of them where there is no whole."""
    return np.where(whole > 0, part / np.maximum(whole, 1), 2.0)


SORTS: Mapping[str, Order] = {
    "number": Order("#", "number of the question in the log", lambda q: np.arange(len(q.groups))),
    "accuracy": Order(
        "latest",
        "right of the scorable completions of its latest fresh group",
        lambda q: share(q.successes, q.scorable),
    ),
    "solved": Order(
        "ever", "share of right completions over all its fresh groups", lambda q: share(q.solved, q.completions)
    ),
    "groups": Order("groups", "fresh groups", lambda q: q.groups),
    "stored": Order("stored", "trajectories of it that are stored now", lambda q: q.stored),
    "replays": Order("replays", "times that one of its trajectories was replayed", lambda q: q.replays),
    "uses": Order("of one alone", "replays of its most replayed trajectory", lambda q: q.most_uses),
    "lost": Order("lost", "times that its success was lost", lambda q: q.lost),
    "regained": Order("again", "times that its success came back after a group without any", lambda q: q.regained),
    "observed": Order("seen at", "optimizer step of its latest fresh group", lambda q: q.observed_at),
}
"""Orders of questions; each goes up or down."""

STATES = {
    "retired": "out of replay and the fresh stream",
    "unscored": "no fresh completion of it could be scored yet",
    "forgotten": "was solved before; no success in its latest fresh group",
    "unsolved": "no success so far",
    "hard": "accuracy in (0, 25] %",
    "medium": "accuracy in (25, 75) %",
    "easy": "accuracy from 75 % on",
}


class QuestionList:
    """Pages of the questions of a history.

    Args:
        history: of the run.
        disagree: numbers of questions whose verifiers disagree; None: no audit is known.
    """

    def __init__(self, history: History, disagree: frozenset[int] | None = None):
        self._history, self._disagree = history, disagree
        self._found: dict[str, Array] = {}

    def page(
        self, reader: LogReader, search: str = "", only: str = "all", sort: str = "number", descending: bool = False,
        start: int = 0, count: int = PAGE,
    ) -> dict[str, Any]:  # fmt: skip
        """Return the rows of one page, how many there are in all, and how many each filter takes."""
        count, start = max(1, min(count, LARGEST_PAGE)), max(0, start)
        numbers = np.flatnonzero(self.mask(only))
        if search.strip():
            numbers = np.intersect1d(numbers, self._search(reader, search.strip()))
        keys = SORTS[sort].key(self._history.questions)[numbers]
        order = np.argsort(-keys if descending else keys, kind="stable")
        chosen = numbers[order][start : start + count]
        return {
            "total": len(numbers), "start": start, "rows": self.rows(reader, chosen),
            "filters": [
                {"name": n, "label": LABELS.get(n, n), "meaning": FILTERS[n][0], "count": int(self.mask(n).sum())}
                for n in FILTERS
            ],
            "sorts": sorts(), "empty": self._why_empty(only, search) if not len(chosen) else "",
        }  # fmt: skip

    def mask(self, only: str) -> Array:
        """Return which questions a filter takes, (Q,)."""
        mask: Array = FILTERS[only][1](self._history.questions)
        if only == "disagree" and self._disagree is not None:
            mask = mask.copy()
            mask[[n for n in self._disagree if n < len(mask)]] = True
        return mask

    def _why_empty(self, only: str, search: str) -> str:
        if not (self._history.questions.groups > 0).any():
            return "No question was seen yet: they appear with the first fresh group that is scored."
        if only == "disagree" and self._disagree is None:
            return "No audit lies beside the log: `exgrpo rewards audit RUN --json > RUN/audit.json`, and open this page again."
        return f"No question passes this filter{f' and holds “{search.strip()}”' if search.strip() else ''}."

    def _search(self, reader: LogReader, text: str) -> Array:
        """Find questions by their text, columns, key or number; the latest searches are cached."""
        if text not in self._found:
            if len(self._found) > 8:
                self._found.clear()
            number = text.removeprefix("q:")
            if number.isdecimal() and number.isascii() and len(number) < 10 and text.startswith("q:"):
                found = [int(number)]
            else:  # LIKE ignores case, of ASCII; what is a pattern to it is escaped
                pattern = "%" + text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
                escaped = "%" + _as_in_json(text).replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
                sql = (
                    "SELECT id FROM question WHERE prompt LIKE ? ESCAPE '\\' OR columns LIKE ? ESCAPE '\\' "
                    "OR prompt LIKE ? ESCAPE '\\' OR columns LIKE ? ESCAPE '\\' OR key LIKE ? ESCAPE '\\'"
                )
                values = (pattern, pattern, escaped, escaped, pattern[1:])
                if escaped == pattern:
                    sql = "SELECT id FROM question WHERE prompt LIKE ?1 ESCAPE '\\' OR columns LIKE ?1 ESCAPE '\\' OR key LIKE ?2 ESCAPE '\\'"  # noqa: E501
                    values = (pattern, pattern[1:])  # type: ignore[assignment]
                found = [n for (n,) in reader.rows(sql, values)]
            self._found[text] = np.array(found, "i8")
        return self._found[text]

    def rows(self, reader: LogReader, numbers: Array) -> list[dict[str, Any]]:
        """Return the list's rows of questions, in the order given."""
        per, k = self._history.questions, self._history.num_generations
        curves, buckets = self._curves(numbers), self._history.buckets()
        facts = facts_of(reader, numbers.tolist())
        rows = []
        for number in numbers.tolist():
            prompt, columns, key, problem_type = facts.get(number, (None, None, "", None))
            gold = gold_of(columns_of(columns))
            rows.append(
                {
                    "id": number, "key": key, "text": cut(said(prompt), CUT), "gold": None if gold is None else cut(gold, 60),
                    "type": problem_type, "curve": curves[number], "state": state_of(per, number, int(buckets[number]), k),
                    **{name: int(getattr(per, name)[number]) for name in (
                        "successes", "scorable", "groups", "completions", "solved", "stored", "ever", "replays", "lost",
                        "regained", "observed_at")},
                    "uses": int(per.most_uses[number]), "retired": bool(per.retired[number]),
                    "disagree": self._disagree is not None and number in self._disagree,
                }
            )  # fmt: skip
        return rows

    def _curves(self, numbers: Array) -> dict[int, list[list[float]]]:
        """Return step and accuracy of the latest fresh groups of some questions."""
        rows = self._history.observations
        wanted = np.zeros(len(self._history.questions.groups), bool)
        wanted[numbers] = True
        places = np.flatnonzero(wanted[rows["question"]])
        places = places[rows["scorable"][places] > 0]
        found: dict[int, list[list[float]]] = {number: [] for number in numbers.tolist()}
        shares = rows["successes"][places] / rows["scorable"][places]
        triples = zip(rows["question"][places].tolist(), rows["step"][places].tolist(), shares.tolist(), strict=True)
        for question, step, share in triples:
            found[question].append([step, round(share, 3)])
        return {number: points[-POINTS:] for number, points in found.items()}


def sorts() -> dict[str, dict[str, str]]:
    """Return the orders, for people."""
    return {name: {"label": order.label, "meaning": order.meaning} for name, order in SORTS.items()}


def state_of(per: Any, number: int, bucket: int, k: int) -> tuple[str, str]:
    """Return the state of a question in one word, and what it means."""
    word = _word(per, number, bucket, k)
    return word, STATES[word]


def _word(per: Any, number: int, bucket: int, k: int) -> str:
    if per.retired[number]:
        return "retired"
    if bucket == UNSEEN:
        return "unscored"
    if bucket == 0 and per.solved[number]:
        return "forgotten"
    return tier_of(bucket, k)


def facts_of(reader: LogReader, numbers: list[int]) -> dict[int, tuple[Any, ...]]:
    """Return prompt, columns, key and problem type of questions."""
    marks = ", ".join("?" * len(numbers))
    sql = f"SELECT id, prompt, columns, key, problem_type FROM question WHERE id IN ({marks})"
    return {row[0]: row[1:] for row in reader.rows(sql, numbers)}


def _as_in_json(text: str) -> str:
    """Escape a text as inside a JSON value."""
    return json.dumps(text)[1:-1]
