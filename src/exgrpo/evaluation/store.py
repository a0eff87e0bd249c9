"""Questions, completions and scores of an evaluation in one SQLite file, a transaction at a time."""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError

FORMAT = 1
SCHEMA = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS model (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, settings TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS benchmark (name TEXT PRIMARY KEY, settings TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS question (
    id INTEGER PRIMARY KEY, benchmark TEXT NOT NULL, number INTEGER NOT NULL, prompt TEXT NOT NULL, gold TEXT NOT NULL,
    columns TEXT NOT NULL, UNIQUE (benchmark, number));
CREATE TABLE IF NOT EXISTS completion (
    model INTEGER NOT NULL REFERENCES model, question INTEGER NOT NULL REFERENCES question, sample INTEGER NOT NULL,
    text TEXT NOT NULL, tokens INTEGER, finish TEXT NOT NULL, rewards TEXT NOT NULL,
    PRIMARY KEY (model, question, sample)) WITHOUT ROWID;
"""
"""`rewards`: a JSON object, verifier -> reward, null where unscorable; `finish`: stop, length or another word of the server."""

Key = tuple[int, int]


@dataclass(frozen=True)
class Answer:
    """One completion of a question.

    Args:
        question, sample: which.
        text: as it was generated, without special tokens.
        tokens: the end token among them; None where the server does not say.
        finish: `stop` where the model ended it, `length` where it was cut.
        rewards: by verifier, None where unscorable.
    """

    question: int
    sample: int
    text: str
    tokens: int | None
    finish: str
    rewards: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return self.question, self.sample


@dataclass(frozen=True)
class StoredQuestion:
    """A question with its number in the file."""

    id: int
    benchmark: str
    number: int
    prompt: Any
    gold: str
    columns: Mapping[str, Any]


class Store:
    """The file at `path`; one process writes.

    Args:
        path: of the file, which is made if need be.
        read_only: open one that is there, and change nothing; texts that are no UTF-8 are mended.

    Raises:
        ConfigurationError: with `read_only`: the file cannot be read, or is no evaluation.
    """

    def __init__(self, path: Path, read_only: bool = False):
        self.path, self._read_only = path, read_only
        if read_only:
            with self._open() as connection:
                [(found,)] = connection.execute("SELECT max(value) FROM about WHERE name = 'format'")
            if found != str(FORMAT):
                raise ConfigurationError(f"{path} is of format {found}, and this version reads format {FORMAT}.")
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._open() as connection:
            connection.executescript(SCHEMA)
            connection.execute("INSERT OR IGNORE INTO about VALUES ('format', ?)", (str(FORMAT),))

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        if self._read_only:
            yield from self._reading()
            return
        with closing(sqlite3.connect(self.path, timeout=60)) as connection:
            connection.execute("PRAGMA synchronous=FULL")
            with connection:
                yield connection

    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            address = f"{self.path.resolve().as_uri()}?mode=ro"
            with closing(sqlite3.connect(address, uri=True, timeout=10)) as connection:
                connection.execute("PRAGMA query_only = 1")
                connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
                yield connection
        except sqlite3.Error as error:
            raise ConfigurationError(
                f"{self.path} cannot be read as an evaluation ({error}). Give the output_dir or the evaluation.db of exgrpo "
                "evaluate; one that was killed while it wrote is mended when it is started again."
            ) from error

    def once(self, name: str, value: str) -> str:
        """Store a fact about the evaluation; return the value that was stored first."""
        with self._open() as connection:
            connection.execute("INSERT OR IGNORE INTO about VALUES (?, ?)", (name, value))
            [(kept,)] = connection.execute("SELECT value FROM about WHERE name = ?", (name,))
        return str(kept)

    def add_benchmark(self, name: str, settings: Mapping[str, Any]) -> None:
        """Store how a benchmark is asked and scored; refuse another way than before."""
        self._keep("benchmark", name, settings)

    def benchmarks(self) -> dict[str, dict[str, Any]]:
        """Return the settings of each benchmark by name."""
        with self._open() as connection:
            return {name: json.loads(text) for name, text in connection.execute("SELECT name, settings FROM benchmark")}

    def _keep(self, table: str, name: str, settings: Mapping[str, Any]) -> None:
        text = json.dumps(settings, sort_keys=True)
        with self._open() as connection:
            connection.execute(f"INSERT OR IGNORE INTO {table} (name, settings) VALUES (?, ?)", (name, text))
            [(before,)] = connection.execute(f"SELECT settings FROM {table} WHERE name = ?", (name,))
        if before != text:
            old, new = json.loads(before), json.loads(text)
            changed = next(key for key in sorted({*old, *new}) if old.get(key) != new.get(key))
            raise ConfigurationError(
                f"{name} was evaluated in {self.path} with {changed}={old.get(changed)!r}, and now it is {new.get(changed)!r}. "
                "Give another --output_dir."
            )

    def add_questions(self, benchmark: str, rows: Sequence[tuple[Any, str, Mapping[str, Any]]]) -> list[StoredQuestion]:
        """Store the prompts, golds and columns of a benchmark; refuse others than those already there."""
        with self._open() as connection:
            there = dict(connection.execute("SELECT number, prompt FROM question WHERE benchmark = ?", (benchmark,)))
            for number, (prompt, gold, columns) in enumerate(rows):
                text = json.dumps(prompt, ensure_ascii=False)
                if there.get(number, text) != text:
                    raise ConfigurationError(
                        f"Question {number} of {benchmark} in {self.path} was asked otherwise: the questions or their prompt "
                        "have changed since. Give another --output_dir."
                    )
                if number not in there:
                    connection.execute(
                        "INSERT INTO question (benchmark, number, prompt, gold, columns) VALUES (?, ?, ?, ?, ?)",
                        (benchmark, number, text, gold, json.dumps(columns, ensure_ascii=False)),
                    )
        return [
            question for question in self.questions() if question.benchmark == benchmark and question.number < len(rows)
        ]

    def questions(self) -> list[StoredQuestion]:
        """Return all questions, by benchmark, in order of arrival."""
        with self._open() as connection:
            rows = connection.execute("SELECT id, benchmark, number, prompt, gold, columns FROM question ORDER BY id")
            return [StoredQuestion(i, b, n, json.loads(p), g, json.loads(c)) for i, b, n, p, g, c in rows]

    def add_model(self, name: str, settings: Mapping[str, Any]) -> int:
        """Return the number of a model; refuse other settings than it was evaluated with before."""
        self._keep("model", name, settings)
        with self._open() as connection:
            [(number,)] = connection.execute("SELECT id FROM model WHERE name = ?", (name,))
        return int(number)

    def done(self, model: int) -> set[Key]:
        """Return (question, sample) of the completions that are kept."""
        with self._open() as connection:
            return set(connection.execute("SELECT question, sample FROM completion WHERE model = ?", (model,)))

    def add(self, model: int, answers: Sequence[Answer]) -> None:
        """Store completions, all or none; on disk when this returns."""
        rows = [
            (model, a.question, a.sample, a.text, a.tokens, a.finish, json.dumps(dict(a.rewards), sort_keys=True))
            for a in answers
        ]
        with self._open() as connection:
            connection.executemany("INSERT INTO completion VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def answers(self, model: int) -> list[Answer]:
        """Return the completions of a model, by question and sample."""
        return list(self.each_answer(model))

    def each_answer(self, model: int, question: int | None = None) -> Iterator[Answer]:
        """Yield the completions of a model, or its completions of one question, by question and sample."""
        which, values = ("", (model,)) if question is None else (" AND question = ?", (model, question))
        query = f"SELECT question, sample, text, tokens, finish, rewards FROM completion WHERE model = ?{which} ORDER BY 1, 2"
        with self._open() as connection:
            for q, s, t, n, f, r in connection.execute(query, values):
                yield Answer(q, s, t, n, f, json.loads(r))

    def models(self) -> list[tuple[int, str, dict[str, Any]]]:
        """Return number, name and settings of each model."""
        with self._open() as connection:
            return [
                (i, n, json.loads(s))
                for i, n, s in connection.execute("SELECT id, name, settings FROM model ORDER BY id")
            ]
