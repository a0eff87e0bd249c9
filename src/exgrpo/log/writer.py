"""Writing a log: the listener of a buffer and a planner, and the store of their token arrays.

Events gather in memory and reach the file in one transaction a commit; what is not written yet can be read all the same.
"""

import contextlib
import json
import os
import socket
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ExperienceLogError, LogInUseError
from ..experience.events import Admitted, Began, Event, Planned, PlannerState
from ..experience.trajectory import Trajectory
from . import schema
from .codec import rows_of
from .commits import Commit, Kept
from .connection import WriterLock, connect, create, explained, now, put_in_place, synchronous_of, usable
from .filesystem import is_shared
from .question_map import NONE, QuestionMap
from .reader import LogReader
from .records import Branch, Position, Provenance, Questions, Span, storable
from .snapshot import packed
from .store import StoredTrajectories

INHERITED = -1
"""The generation under which stands what happened before the first one of a run."""


class LogWriter:
    """The one process that writes a log, on one branch of it.

    Use: `open`, then `begin` a branch, then give it to a planner as listener and as store, and `commit` after each
    generation. Questions carry the numbers of the run's own buffer.

    Args:
        path: of the file; made if it is not there.
        questions: of this run.
        logp_dtype: `float32` or `float16`: in what log-probs are kept.

    Raises:
        LogInUseError: another process writes it.
        ExperienceLogError, DamagedLogError: it cannot be opened, written or trusted.
    """

    def __init__(self, path: Path | str, questions: Questions, logp_dtype: str = "float32"):
        with usable(Path(path)):
            self.path = Path(path).resolve()  # one lock for all names of a file
        self.questions = questions
        self._logp_dtype = np.dtype(logp_dtype).newbyteorder("<")
        self._lock = WriterLock(self.path)
        self._lineage: tuple[Span, ...] = ()
        self._gathered = Commit()
        self._unwritten: dict[int, Trajectory] = {}  # by serial; each leaves once its transaction is in the file
        self._last_state: PlannerState | None = None
        self._generation, self._step = INHERITED, 0
        self._lock_and_read()

    def _lock_and_read(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ExperienceLogError(f"the folder of {self.path} cannot be created ({error}).") from error
        with contextlib.ExitStack() as undo:
            self._lock.acquire()
            undo.callback(self._lock.release)
            self._connection = connect(self.path, write=True) if self.path.exists() else create(self.path)
            undo.callback(self._connection.close)
            with explained(self.path, "opening it for writing"):
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.execute("ROLLBACK")
                self._synchronous = synchronous_of(self._connection)
            self.reader = LogReader(self.path, self._connection)
            listed = ((number, record.key) for number, record in self.reader.questions())
            self.question_map = QuestionMap(self.questions.keys, listed)
            self._origins = {origin.as_json(): number for number, origin in self.reader.origins().items()}
            self._end = self.reader.end()
            self._next_seq = max([self._end + 1, *(b.first_seq for b in self.reader.branches.values())])
            self._file = _identity(self.path)
            undo.pop_all()

    @property
    def writing(self) -> bool:
        """True while this writer holds the log."""
        return self._lock.held

    def pause(self) -> None:
        """Release the log for other writers.

        What was stored can still be read; the next commit needs a new writer.
        """
        if not self._lock.held:
            return
        with contextlib.suppress(sqlite3.Error):  # a reader may have it open; then the file stays
            self._connection.execute("PRAGMA busy_timeout = 500")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._connection.execute("PRAGMA busy_timeout = 30000")
        self._lock.release()

    def close(self) -> None:
        """Free the log for other writers, as `pause`; reading through this one ends too."""
        self.pause()
        self._connection.close()

    # Branches ---------------------------------------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """The end of the last commit."""
        return Position(self.reader.id, self._lineage[-1].branch, self._lineage[-1].last)

    def begin(self, origin: Provenance, parent: Position | None = None, step: int = 0, note: str | None = None) -> None:
        """Start a branch: a new run, or the continuation of another from a position.

        It is in the file from its first commit on.

        Args:
            origin: of the trajectories that will be stored.
            parent: where this branch leaves another; None for one that sees nothing of what is there.
            step: optimizer steps done.
            note: for people.
        """
        reader = self.reader
        spans = reader.lineage(parent) if parent is not None else ()
        number, first = (reader.head or 0) + 1, self._next_seq
        serial = self._next_serial(spans)
        fork = parent.seq if parent is not None else None
        self.origin = self._number_of_origin(origin)
        row = (
            number, parent.branch if parent is not None else None, fork, first, serial, step, self.origin, storable(note),
            now(), os.getpid(), socket.gethostname(),
        )  # fmt: skip
        self._gathered.add("branch", *row)
        reader.branches[number] = Branch(*row)
        self._lineage = (*spans, Span(number, first, first - 1, serial))
        self._stored = StoredTrajectories(reader, self._lineage, self.question_map.question_of)
        self._generation, self._step = reader.latest_generation(spans) or (INHERITED, step)

    @contextmanager
    def at_step(self, step: int) -> Iterator[None]:
        """Date events inside this context to an optimizer step, not to that of the latest generation."""
        own, self._step = self._step, step
        try:
            yield
        finally:
            self._step = own

    def _next_serial(self, spans: Sequence[Span]) -> int:
        """Return the first free serial number at the end of a lineage."""
        for span in reversed(spans):
            base = span.branch << schema.SERIAL_BITS
            sql = "SELECT id FROM trajectory WHERE id BETWEEN ? AND ? AND seq <= ? ORDER BY id DESC LIMIT 1"
            for (number,) in self.reader.rows(sql, (base, base | (1 << schema.SERIAL_BITS) - 1, span.last)):
                return int(number) - base + 1
        return 0

    def _number_of_origin(self, origin: Provenance) -> int:
        text = origin.as_json()
        if text not in self._origins:
            self._origins[text] = max(self._origins.values(), default=0) + 1
            self._gathered.add("origin", self._origins[text], text)
        return self._origins[text]

    def add_tokenizer(self, digest: str, text: str) -> None:
        """Store a tokenizer, so that completions can be shown as text."""
        if next(self.reader.rows("SELECT 1 FROM tokenizer WHERE hash = ?", (digest,)), None) is not None:
            return
        with self._transaction("storing the tokenizer"):
            self._connection.execute("INSERT INTO tokenizer VALUES (?, ?)", (digest, zlib.compress(text.encode())))

    @contextmanager
    def origin_of_others(self, origin: Provenance) -> Iterator[None]:
        """Attribute trajectories admitted inside this context to another origin."""
        own, self.origin = self.origin, self._number_of_origin(origin)
        try:
            yield
        finally:
            self.origin = own

    # As a listener ----------------------------------------------------------------------------------------------

    def __call__(self, event: Event) -> None:
        if isinstance(event, Began | Planned):
            self._generation, self._step = event.generation, event.step
        if isinstance(event, Began):
            return
        if isinstance(event, Admitted):
            for one in event.each():
                self._add_trajectory(one.serial, one.trajectory)
            return
        table, rows = rows_of(event, self, self._generation, self._step)
        for values in rows:
            self._add(table, *values)

    def _add(self, table: str, *values: Any) -> None:
        self._gathered.add(table, self._next_seq, self._lineage[-1].branch, *values)
        self._next_seq += 1

    def _add_trajectory(self, serial: int, trajectory: Trajectory) -> None:
        self._gathered.kept.append(
            Kept(
                self._next_seq, self._lineage[-1].branch, self.id_of(serial), serial, self._generation,
                self.number_of(trajectory.question), self.origin, trajectory,
            )
        )  # fmt: skip
        self._next_seq += 1
        self._unwritten[serial] = trajectory

    def number_of(self, question: int) -> int:
        """Return the log's number of a question of this run; a new one where it has none yet."""
        if (number := self.question_map.number_of(question)) == NONE:
            number = self.question_map.add(question)
            record = self.questions.record(question)
            self._gathered.add(
                "question", number, record.key, record.dataset_row, record.prompt, record.columns, record.problem_type
            )
        return number

    def id_of(self, serial: int) -> int:
        """Return the id of a trajectory of this lineage."""
        return self._stored.id_of(serial)

    # As a store -------------------------------------------------------------------------------------------------

    def put_many(self, serials: Sequence[int], trajectories: Sequence[Trajectory]) -> None:
        """Hold trajectories in memory until their `Admitted` event brings them into the log."""
        for serial, trajectory in zip(serials, trajectories, strict=True):
            self._stored.remember(serial, trajectory)

    def get_many(self, serials: Sequence[int]) -> list[Trajectory]:
        return [self._unwritten.get(serial) or self._stored.get(serial) for serial in serials]

    def drop_many(self, serials: Sequence[int]) -> None:
        self._stored.drop_many(serials)

    @property
    def waits(self) -> bool:
        """True if anything happened since the last commit."""
        return bool(self._gathered)

    def copy_to(self, path: Path) -> None:
        """Copy all that was committed, as a log of its own; whole or not at all."""
        beside = path.with_name(f".{path.name}")
        with explained(self.path, f"copying it to {path}"):
            beside.unlink(missing_ok=True)
            with contextlib.closing(sqlite3.connect(beside, isolation_level=None)) as copy:
                self._connection.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")
        os.replace(beside, path)

    # Commits ----------------------------------------------------------------------------------------------------

    def commit(
        self, state: PlannerState, checkpoint: bool = False, snapshot: Mapping[str, NDArray[Any]] | None = None
    ) -> Position:
        """Write all events since the last commit, and the resulting state, in one transaction.

        Does nothing where nothing happened.

        Args:
            state: of the planner now.
            checkpoint: whether a checkpoint will refer to this; the operating system is then asked to put it on the disk.
            snapshot: of the buffer now, from which it is opened again in no time.

        Raises:
            ExperienceLogError: it could not be written; nothing of it was, and all of it may be tried again.
        """
        if not self._lock.held:
            raise ExperienceLogError(f"{self.path}: this writer was paused; open another one to continue.")
        deferred = json.dumps([self.number_of(question) for question in state.deferred])
        if state == self._last_state and not (self._gathered or checkpoint):
            return self.position
        seq = self._next_seq
        row = (
            seq, self._lineage[-1].branch, state.generation, state.step, int(state.gate_open), state.pass_at_1,
            state.pass_number, state.cursor, deferred, state.generated_tokens, state.reviewed,
            int(checkpoint),
        )  # fmt: skip
        data = None if snapshot is None else packed(self.question_map.snapshot_for_log(snapshot))
        commit = self._gathered.finished(row, data, checkpoint)
        self._write(commit)
        self._next_seq, self._end = seq + 1, seq
        self._lineage = (*self._lineage[:-1], replace(self._lineage[-1], last=seq))
        self._gathered, self._last_state = Commit(), state
        return self.position

    def _write(self, commit: Commit) -> None:
        with self._transaction("committing", durable=commit.durable):
            commit.write(self._connection, self._logp_dtype)
        for kept in commit.kept:  # last: concurrent readers look here first
            self._unwritten.pop(kept.serial, None)

    @contextmanager
    def _transaction(self, doing: str, durable: bool = False) -> Iterator[None]:
        connection = self._connection
        with explained(self.path, doing):
            connection.execute(f"PRAGMA synchronous = {self._synchronous[durable]}")
            self._check_file()
            connection.execute("BEGIN IMMEDIATE")
            try:
                self._check_end()
                yield
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _check_file(self) -> None:
        """Check that the path still names the file being written: a renamed or unlinked one stays writable.

        Raises:
            ExperienceLogError: it is not; where it was deleted or moved, a copy of it is made in its place.
        """
        try:
            found = _identity(self.path)
        except OSError:  # a network drive may be away for a moment
            return
        if found == self._file or (found is not None and is_shared(self.path)):  # some network file systems renumber
            return
        kept = "What was committed before is in the file that was there: put that back"
        if found is None and self.path.parent.is_dir():
            with contextlib.suppress(ExperienceLogError, OSError, sqlite3.Error):
                copy = self.path.with_name(f".{self.path.name}.kept")
                self.copy_to(copy)
                put_in_place(copy, self.path)
                kept = "What was committed before is in a copy that was made in its place"
        raise ExperienceLogError(
            f"{self.path} was {'deleted or moved' if found is None else 'replaced'} while this run was writing it. {kept}. "
            "Then resume from the last checkpoint."
        )

    def _check_end(self) -> None:
        """Check that nobody else has written: a deleted lock file keeps nobody out."""
        if (end := self.reader.end()) != self._end:
            raise LogInUseError(
                f"another process has written to {self.path} (up to event {end}, after {self._end} of this one), although this "
                f"one held its lock: was {self._lock.path.name}.lock deleted? Stop one of the two, and resume this run from "
                "its last checkpoint, or with another output_dir (or experience_log)."
            )


def _identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of the file that has this name now; None where none has."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
