"""The experience of a run, opened for reading: what `open_experience` gives, the viewer shows, and commands print."""

import contextlib
import json
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigurationError, ExperienceLogError, MissingExtraError
from ..log import LogReader, log_in
from ..log import schema as log_schema
from ..log.connection import FILE_NAME, connect, explained
from .dataset_card import CARD
from .decoding import Decoder

Columns = dict[str, list[Any]]

QUESTION_COLUMNS = (
    "id", "key", "prompt", "columns", "problem_type", "dataset_row", "successes", "scorable", "observed_at", "groups",
    "completions", "solved", "stored", "failures", "quality", "replays", "retired",
)  # fmt: skip
TRAJECTORY_COLUMNS = (
    "id", "question", "generation", "step", "length", "rewards", "correct", "advantage", "quality", "entropy",
    "entropy_step", "nll", "confidence", "finish_reason", "origin",
)  # fmt: skip
EVENTS = {
    "generation": "generations",
    "observation": "observations",
    "stored": "trajectories",
    "replay": "replays",
    "measurement": "measurements",
    "retirement": "retirements",
    "eviction": "evictions",
}
"""Kinds of events, and the view of each that holds what counts."""
_LEARNED = ("log_ratio", "ess")


@contextlib.contextmanager
def consistent_reader(path: Path) -> Iterator[LogReader]:
    """Open a reader that sees the log as it is now, also while a run goes on writing it."""
    connection = connect(path)
    with contextlib.closing(connection):
        with explained(path, "reading"):
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM branch").fetchone()
        yield LogReader(path, connection)


def open_experience(run: Path | str) -> "Experience":
    """Open the experience of a run for reading, also while the run writes it.

    Args:
        run: an output directory, the file `experience.db` itself, or a folder that `exgrpo experience export` made.

    Raises:
        ExperienceLogError: there is nothing of that kind.
        MissingExtraError: an exported folder is read by pyarrow, which is not installed.
    """
    path = Path(run).expanduser()
    return Experience(path if path.is_file() else find_log(path))


def find_log(path: Path) -> Path:
    """Return the log of a folder; the folder itself where it is an export.

    Raises:
        ExperienceLogError: it holds neither.
    """
    if not path.exists():
        raise ExperienceLogError(
            f"there is no run {path}. Give an output_dir, an experience.db, or an exported folder."
        )
    if path.is_dir() and not log_in(path).is_file() and (path / CARD).is_file():
        return path
    if path.is_dir() and not log_in(path).is_file():
        raise ExperienceLogError(
            f"{path} holds no {FILE_NAME} and is no exported folder: such a run keeps no experience (experience_log='none', or "
            "a preset without replay), or it has another experience_log: give that file."
        )
    return log_in(path) if path.is_dir() else path


class Experience:
    """Questions, trajectories and events of a run as tables; see `open_experience`. A context manager.

    Args:
        path: of a log, or of an exported folder, which is read into a log of its own that goes when this is closed.

    Attributes:
        path: as given.
        log: the file that is read.
        exported: whether it came from an exported folder, which knows no events but that trajectories were stored.
    """

    def __init__(self, path: Path):
        self.path, self.exported = path, path.is_dir()
        self._stack = contextlib.ExitStack()
        self.log = self._taken_over(path) if self.exported else path
        try:
            with consistent_reader(self.log):
                pass
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> "Experience":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _taken_over(self, folder: Path) -> Path:
        from .merge import import_folder

        beside = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="exgrpo-"))
        return import_folder(folder, Path(beside) / FILE_NAME).into

    # Tables -----------------------------------------------------------------------------------------------------

    def questions(self, frame: bool = False) -> Any:
        """Return all observed questions, a row each: content, statistics, and how often each was replayed.

        Args:
            frame: whether to return a pandas data frame, in place of a `datasets.Dataset`.
        """
        with consistent_reader(self.log) as reader:
            sql = f"SELECT {', '.join(QUESTION_COLUMNS)} FROM questions ORDER BY id"
            columns = _columns(QUESTION_COLUMNS, reader.rows(sql))
        columns["retired"] = [bool(value) for value in columns["retired"]]
        right, scorable = columns["successes"], columns["scorable"]
        columns["accuracy"] = [s / n if n else None for s, n in zip(right, scorable, strict=True)]
        return _table(columns, frame)

    def trajectories(
        self, frame: bool = False, *, tokens: bool = False, text: bool = False, questions: Collection[int] | None = None
    ) -> Any:
        """Return all trajectories ever stored, a row each; `stored`: still there; `uses`: how often replayed.

        Args:
            frame: whether to return a pandas data frame, in place of a `datasets.Dataset`.
            tokens: add `completion_ids` and `behaviour_logps`, None where they were pruned.
            text: add `completion`, by the tokenizer that the log keeps; None where it keeps none.
            questions: only those of these questions, by their `id`.
        """
        with consistent_reader(self.log) as reader:
            wanted = None if questions is None else {int(number) for number in questions}
            names = ", ".join(f"t.{name}" for name in TRAJECTORY_COLUMNS)
            sql = (
                f"SELECT {names}, t.id NOT IN (SELECT trajectory FROM evictions), coalesce(u.uses, 0) FROM trajectories t "
                "LEFT JOIN (SELECT trajectory, count(*) AS uses FROM replays GROUP BY trajectory) u ON u.trajectory = t.id "
                "ORDER BY t.id"
            )
            rows = [row for row in reader.rows(sql) if wanted is None or row[1] in wanted]
            columns = _columns((*TRAJECTORY_COLUMNS, "stored", "uses"), rows)
            columns["rewards"] = [json.loads(value) for value in columns["rewards"]]
            for name in ("correct", "stored"):
                columns[name] = [bool(value) for value in columns[name]]
            if tokens or text:
                columns |= self._tokens(reader, columns, tokens, text)
        return _table(columns, frame)

    def events(self, frame: bool = False, *, kind: str | None = None) -> Any:
        """Return all events in order, a row each.

        Args:
            frame: whether to return a pandas data frame, in place of a `datasets.Dataset`.
            kind: only `generation`, `observation`, `stored`, `replay`, `measurement`, `retirement` or `eviction`, with the
                columns that it has; by default all, with None where a kind lacks a column.

        Raises:
            ConfigurationError: there is no such kind.
        """
        if kind is not None and kind not in EVENTS:
            raise ConfigurationError(f"events: kind must be one of {', '.join(EVENTS)}, but is {kind!r}.")
        kinds = EVENTS if kind is None else {kind: EVENTS[kind]}
        with consistent_reader(self.log) as reader:
            rows = sorted((row for one in kinds for row in _events(reader, one)), key=lambda row: row["seq"])
        names = dict.fromkeys(name for one in kinds for name in ("seq", "kind", *_event_columns(one)))
        return _table({name: [row.get(name) for row in rows] for name in names}, frame)

    def _tokens(self, reader: LogReader, columns: Columns, tokens: bool, text: bool) -> Columns:
        ids, logps = _token_arrays(reader, columns["id"])
        found: Columns = {"completion_ids": ids, "behaviour_logps": logps} if tokens else {}
        if text:
            decode, origins = Decoder(reader), reader.origins()
            places = zip(columns["origin"], ids, strict=True)
            found["completion"] = [None if one is None else decode(origins[o], [one])[0] for o, one in places]
        return found


def _token_arrays(reader: LogReader, numbers: Sequence[int]) -> tuple[list[Any], list[Any]]:
    """Return token ids and log-probs of trajectories, None where they were pruned."""
    ids: list[Any] = []
    logps: list[Any] = []
    for number in numbers:
        row = next(
            reader.rows("SELECT completion_ids, behaviour_logps FROM tokens WHERE id = ?", (number,)), (b"", b"")
        )
        known = bool(row[0])
        half = len(row[1]) * 2 == len(row[0])
        ids.append(np.frombuffer(row[0], "<i4").tolist() if known else None)
        logps.append(np.frombuffer(row[1], "<f2" if half else "<f4").tolist() if known else None)
    return ids, logps


def _event_columns(kind: str) -> tuple[str, ...]:
    if kind == "stored":
        return ("branch", "generation", "step", "question", "trajectory", "correct", "length")
    return (*log_schema.EVENTS[kind], *(_LEARNED if kind == "replay" else ()))


def _events(reader: LogReader, kind: str) -> Iterator[dict[str, Any]]:
    names = ("seq", *_event_columns(kind))
    asked = ", ".join("id AS trajectory" if kind == "stored" and name == "trajectory" else name for name in names)
    for row in reader.rows(f"SELECT {asked} FROM {EVENTS[kind]}"):
        yield {**dict(zip(names, row, strict=True)), "kind": kind}


def _columns(names: Sequence[str], rows: Any) -> Columns:
    columns: Columns = {name: [] for name in names}
    for row in rows:
        for name, value in zip(names, row, strict=True):
            columns[name].append(value)
    return columns


def _table(columns: Columns, frame: bool) -> Any:
    """Return columns as a `datasets.Dataset`, or as a pandas data frame."""
    if frame:
        try:
            import pandas
        except ImportError as error:
            raise MissingExtraError("pandas", "trl", "A data frame of experience") from error
        return pandas.DataFrame(columns)
    try:
        from datasets import Dataset
    except ImportError as error:
        raise MissingExtraError("datasets", "trl", "A dataset of experience") from error
    return Dataset.from_dict(columns)
