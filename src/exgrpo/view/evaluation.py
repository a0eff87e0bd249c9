"""One model's answers in an evaluation, from the file of `exgrpo evaluate`, as the page asks for them.

Models are shown beside each other as runs are.
"""

import hashlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError
from ..evaluation.store import Answer, Store, StoredQuestion
from ..evaluation.summary import Tally, told
from ..log.connection import log_in
from .answered import Answered, AnsweredList, chosen_of, filters_of, sorts_of
from .run import FRESH, NotThere, number_in
from .texts import LONGEST, columns_of, cut, messages_of, value_text

FILE_NAME = "evaluation.db"
WRITTEN_NOW = 120.0
"""Seconds since the file was last written within which an evaluation that lacks completions counts as growing."""


def evaluation_in(path: Path) -> Path | None:
    """Return the file of the evaluation at a path; None where there is none, or where the folder is also a run's."""
    if path.is_dir():
        return path / FILE_NAME if (path / FILE_NAME).is_file() and not log_in(path).is_file() else None
    return path if path.name.endswith(FILE_NAME) and path.is_file() else None


def open_evaluations(files: Sequence[Path]) -> list["Evaluation"]:
    """Open one evaluation for each model of each file; each knows the others.

    Raises:
        ConfigurationError: a file cannot be read, or holds no completion.
    """
    lock, found = threading.RLock(), list[Evaluation]()
    for path in files:
        store = Store(path, read_only=True)
        for number, model, settings in store.models():
            name = model if len(files) == 1 else f"{model}, {path.resolve().parent.name}"
            found.append(Evaluation(store, number, name, model, settings, lock))
    if not found:
        raise ConfigurationError(f"{files[0]} holds no model yet: look again when exgrpo evaluate has begun.")
    names = [one.name for one in found]
    for place, one in enumerate(found):
        if names.count(one.name) > 1:
            one.name = f"{one.name} ({place + 1})"
        one.peers = [other for other in found if other is not one]
    return found


class Evaluation:
    """One model's answers. Safe to use from several threads: one at a time, of all that are shown together.

    Args:
        store: the file.
        number, model, settings: of the model in it.
        name: short, to tell models apart.
        lock: of all that are shown together.

    Attributes:
        peers: the others that are shown.
        by_key: its questions, by what they ask.
    """

    kind = "evaluation"

    def __init__(
        self, store: Store, number: int, name: str, model: str, settings: Mapping[str, Any], lock: threading.RLock
    ):
        self.path, self.name, self.model, self.settings = store.path, name, model, settings
        self.peers: list[Evaluation] = []
        self._store, self._number, self._lock = store, number, lock
        self._stamp: tuple[int, int] | None = None
        self._seen = 0.0
        self._made: dict[str, Any] = {}
        self._questions: dict[int, StoredQuestion] = {}
        self._answers: dict[int, list[Answer]] = {}
        self.by_key: dict[str, Answered] = {}
        self.refresh()

    def close(self) -> None:
        """Nothing: the file is open only while it is read."""

    # Keeping up -------------------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Read what was written since, and say whether anything was; of a text only its hash is kept."""
        if self._stamp is not None and time.monotonic() - self._seen < FRESH:
            return False
        self._seen = time.monotonic()
        about = self.path.stat()
        stamp = (about.st_mtime_ns, about.st_size)
        if stamp == self._stamp:
            return False
        self._read()
        self._stamp = stamp
        return True

    def forget(self) -> None:
        """Drop what was computed from an earlier state of this model or of another that is shown."""
        self._made.clear()

    def _read(self) -> None:
        self._benchmarks = self._store.benchmarks()
        self._questions = {one.id: one for one in self._store.questions()}
        known = {answer.key for given in self._answers.values() for answer in given}
        new = {question for question, _ in self._store.done(self._number) - known}
        for question in [None] if not known else sorted(new):
            given: dict[int, list[Answer]] = {}
            for answer in self._store.each_answer(self._number, question):
                digest = hashlib.blake2b(answer.text.encode("utf-8", "replace"), digest_size=8).hexdigest()
                given.setdefault(answer.question, []).append(replace(answer, text=digest))
            self._answers |= given
        rows = [
            Answered.of(self._questions[number], given, self._decides(number))
            for number, given in sorted(self._answers.items())
        ]
        self._by_id = {row.id: row for row in rows}
        self.by_key = {row.key: row for row in rows}

    def _decides(self, question: int) -> str:
        return str(self._benchmarks[self._questions[question].benchmark]["verifiers"][0])

    @property
    def growing(self) -> bool:
        """Tell whether completions are missing and the file was written a moment ago."""
        wanted = sum(self._benchmarks[one.benchmark]["num_samples"] for one in self._questions.values())
        there = sum(map(len, self._answers.values()))
        return there < wanted and time.time() - self.path.stat().st_mtime < WRITTEN_NOW

    def _once(self, name: str, make: Any) -> Any:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    # Answers ----------------------------------------------------------------------------------------------------

    def answer(self, what: str, query: Mapping[str, str]) -> Any:
        """Answer a path of the page's interface.

        Raises:
            NotThere: there is no such thing.
        """
        kind, _, rest = what.partition("/")
        with self._lock:
            changed = [one.refresh() for one in (self, *self.peers)]
            if any(changed):
                for one in (self, *self.peers):
                    one.forget()
            if kind == "version" and not rest:
                return {"version": f"{self._stamp}", "growing": self.growing}
            if kind == "overview" and not rest:
                return self._overview()
            if kind == "questions" and not rest:
                return self._list().page(query)
            if kind == "question" and (row := self._by_id.get(number_in(rest))) is not None:
                return self._question(row)
            if kind == "same" and (row := self.by_key.get(rest)) is not None:
                return {"id": row.id}
        raise NotThere(f"there is no {kind} {rest!r} in {self.name}")

    def _list(self) -> AnsweredList:
        def make() -> AnsweredList:
            return AnsweredList(list(self._by_id.values()), [(peer.name, peer.by_key) for peer in self.peers])

        listed: AnsweredList = self._once("list", make)
        return listed

    def chosen(self, count: int) -> list[int]:
        """Choose questions, the same for all models that answered them."""
        keys = chosen_of([self.by_key, *(peer.by_key for peer in self.peers)], count)
        return [self.by_key[key].id for key in keys if key in self.by_key]

    def question_rows(self, ids: Sequence[int]) -> dict[str, Any]:
        """Rows of the list for some questions, each with the filters that take it; all filters; all orders."""
        with self._lock:
            listed = self._list()
            rows = [
                {**listed.row(self._by_id[one]), "filters": listed.filters_that_take(self._by_id[one])}
                for one in sorted(ids)
            ]
            filters = [{"name": n, "label": f.label, "meaning": f.meaning} for n, f in filters_of(listed.rows).items()]
        return {"rows": rows, "filters": filters, "sorts": sorts_of()}

    # What a model did -------------------------------------------------------------------------------------------

    def tallies(self) -> dict[str, Tally]:
        """Return its answers by benchmark."""

        def make() -> dict[str, Tally]:
            found: dict[str, dict[int, list[Answer]]] = {}
            for number, given in self._answers.items():
                asked = self._questions[number]
                found.setdefault(asked.benchmark, {})[asked.number] = given
            return {name: Tally(own, self._benchmarks[name]["verifiers"][0]) for name, own in found.items()}

        tallies: dict[str, Tally] = self._once("tallies", make)
        return tallies

    def _overview(self) -> dict[str, Any]:
        results = self._once("results", self._results)
        pairs = [[name, value_text(value)] for name, value in self.settings.items() if name != "chat_template"]
        return {
            "name": self.name, "path": str(self.path), "growing": self.growing, "results": results,
            "differences": self._differences(), "facts": [["model", self.model], *pairs],
            "benchmarks": [[name, value_text(self._benchmarks[name])] for name in self.tallies()],
        }  # fmt: skip

    def _results(self) -> list[dict[str, Any]]:
        asked = [one.benchmark for one in self._questions.values()]
        left_out = ("accuracies", "verifiers")
        rows = []
        for name, tally in self.tallies().items():
            figures = tally.figures(asked.count(name))
            figures["disagreements"] = [[other, len(which)] for other, which in figures["disagreements"].items()]
            figures["pass_at_k"] = [[k, value] for k, value in figures["pass_at_k"].items() if k != "1"]
            rows.append({"benchmark": name, **{k: v for k, v in figures.items() if k not in left_out}})
        return rows

    def _differences(self) -> list[list[str]]:
        """Compare the model with the others on the same questions; return their names and the results in words."""
        found = []
        for peer in self.peers:
            for name, tally in self.tallies().items():
                theirs = peer.tallies().get(name)
                same = theirs is not None and self._same_questions(peer, name)
                row = tally.against(theirs) if same and theirs is not None else None
                if row is not None:
                    words = told({"model": self.name, "against": peer.name, "benchmark": name, **row})
                    found.append([peer.name, words])
        return found

    def _same_questions(self, peer: "Evaluation", benchmark: str) -> bool:
        """Check that the questions of a benchmark that both answered under the same number are the same."""
        ours, theirs = (
            {row.number: row.key for row in one.by_key.values() if row.benchmark == benchmark} for one in (self, peer)
        )
        return all(ours[number] == theirs[number] for number in ours.keys() & theirs.keys())

    def _question(self, row: Answered) -> dict[str, Any]:
        asked = self._questions[row.id]
        columns = columns_of(json.dumps(dict(asked.columns)))
        prompt = asked.prompt if isinstance(asked.prompt, str) else json.dumps(asked.prompt)
        return {
            **self._list().row(row),
            "messages": [[role, cut(text, LONGEST)] for role, text in messages_of(prompt)],
            "columns": [[name, cut(text, LONGEST)] for name, text in {"answer": row.gold, **columns}.items()],
            "trajectories": [self._completion(one, row) for one in self._store.each_answer(self._number, row.id)],
        }

    def _completion(self, one: Answer, row: Answered) -> dict[str, Any]:
        return {
            "id": f"{self._number}.{one.sample}", "sample": one.sample, "model": self.name, "text": cut(one.text, LONGEST),
            "long": len(one.text) > LONGEST, "tokens": one.tokens, "finish": one.finish,
            "verdict": row.verdict(one),
            "rewards": [[name, value] for name, value in sorted(one.rewards.items(), key=lambda r: r[0] != row.decides)],
        }  # fmt: skip
