"""Opening the file: who may write, what is refused, and what SQLite's errors mean to a user."""

import contextlib
import json
import os
import socket
import sqlite3
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import filelock

from ...errors import DamagedLogError, ExperienceLogError, LogInUseError
from . import schema

FILE_NAME = "experience.db"
PRIVATE_NAME = "_experience.db"
"""Where a run's folder is pushed to the hub: the hosts leave out what begins with an underscore."""


def log_in(folder: Path) -> Path:
    """The log of a run's folder; where there is none yet, its usual place."""
    private = folder / PRIVATE_NAME
    return private if private.is_file() and not (folder / FILE_NAME).is_file() else folder / FILE_NAME


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextlib.contextmanager
def explained(path: Path, doing: str) -> Iterator[None]:
    """SQLite's errors as ours: what happened to which file, and what to do."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "") or ""
        if name.startswith("SQLITE_FULL"):
            raise ExperienceLogError(
                f"{path}: no space left while {doing}. What was committed before is safe. Free some space (exgrpo experience "
                "prune shrinks a log), then resume from the last checkpoint."
            ) from error
        if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")):
            raise ExperienceLogError(
                f"{path} cannot be written or opened while {doing} ({error}). A log and its folder must be writable for "
                "training; check their permissions, or set experience_log to a path that is."
            ) from error
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise LogInUseError(
                f"{path} is locked by another process while {doing} ({error}). Wait for it, or stop it, and try again."
            ) from error
        if name.startswith("SQLITE_IOERR"):
            raise ExperienceLogError(
                f"{path}: the disk failed while {doing} ({error}). What was committed before is safe; check the disk and its "
                "space, then resume from the last checkpoint."
            ) from error
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or isinstance(error, sqlite3.DatabaseError):
            raise damaged(path, f"{error} while {doing}") from error
        raise
    except (UnicodeDecodeError, OverflowError) as error:  # bytes that are no text, or no length
        raise damaged(path, f"{error} while {doing}") from error


def damaged(path: Path, what: str) -> DamagedLogError:
    return DamagedLogError(
        f"{path} is damaged: {what}. Nothing was changed. `exgrpo experience verify {path}` lists the damage. Restore the file "
        "from a copy; or move it away (with its -wal and -shm) and train on: from a checkpoint's weights with empty experience "
        "(model=CHECKPOINT), or with what `exgrpo experience export {path} DIR --skip_damaged` can still read "
        "of it (experience_from)."
    )


def connect(path: Path, write: bool = False) -> sqlite3.Connection:
    """A connection to an existing log of a known schema.

    Raises:
        ExperienceLogError: no such file, another kind of file, or a schema of another version.
        DamagedLogError: no database, or a truncated one.
    """
    if not path.is_file():
        what = "is a folder, and no experience log" if path.is_dir() else "does not exist"
        raise ExperienceLogError(f"there is no experience log {path}: it {what}.")
    with explained(path, "opening it"):
        connection = _open(path, write)
        try:
            _check_schema(path, connection)
        except BaseException:
            connection.close()
            raise
    return connection


def _open(path: Path, write: bool) -> sqlite3.Connection:
    location = path.resolve().as_uri()
    if not write and not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists():
        location += "?immutable=1"  # a reader of a WAL database writes beside it, unless nobody else ever will
    elif not write:
        location += "?mode=ro"
    connection = sqlite3.connect(location, uri=True, isolation_level=None, timeout=30, check_same_thread=False)
    if write:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA cache_size = -16384")
    return connection


def _check_schema(path: Path, connection: sqlite3.Connection) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if path.stat().st_size == 0:
        raise damaged(path, "the file is empty")
    if application != schema.APPLICATION_ID:
        raise ExperienceLogError(f"{path} is a SQLite database, but no experience log of exgrpo.")
    if version > schema.SCHEMA_VERSION:
        needs = connection.execute("SELECT value FROM meta WHERE key = 'needs'").fetchone()
        raise ExperienceLogError(
            f"{path} has schema {version}; this exgrpo reads schemas up to {schema.SCHEMA_VERSION}. Install exgrpo "
            f"{'of a later version' if needs is None else needs[0] + ' or later'}."
        )
    if 1 <= version < schema.SCHEMA_VERSION:
        raise ExperienceLogError(
            f"{path} has schema {version}, which a development version of exgrpo wrote; this one reads schema "
            f"{schema.SCHEMA_VERSION}. Nothing was changed. Export it with the version that wrote it (exgrpo experience "
            "export), and take that over here (experience_from=DIR, or exgrpo experience import RUN DIR); or start anew, with "
            "another output_dir or experience_log."
        )


def put_in_place(beside: Path, path: Path) -> None:
    """A whole new log becomes `path`. A write-ahead log that another one left there would be taken for its own: it is
    renamed."""
    left = path.with_name(f"{path.name}-wal")
    if left.exists():
        os.replace(left, path.with_name(f"{left.name}.left-behind"))
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
    os.replace(beside, path)


def create(path: Path) -> sqlite3.Connection:
    """A new log, made by who holds its lock; a crash on the way leaves either nothing that counts as one, or a whole one."""
    for leftover in path.parent.glob(f".{path.name}.new-*"):  # of a process that was killed here
        leftover.unlink(missing_ok=True)
    beside = path.with_name(f".{path.name}.new-{uuid.uuid4().hex[:8]}")
    with explained(path, "creating it"):
        try:
            connection = sqlite3.connect(beside, isolation_level=None)
            with contextlib.closing(connection):
                schema.create(connection)
                rows = {"id": uuid.uuid4().hex, "created": now(), "needs": schema.NEEDS}
                connection.executemany("INSERT INTO meta VALUES (?, ?)", list(rows.items()))
                connection.execute("PRAGMA journal_mode = WAL")
            put_in_place(beside, path)
        finally:
            for leftover in (beside, Path(f"{beside}-wal"), Path(f"{beside}-shm"), Path(f"{beside}-journal")):
                leftover.unlink(missing_ok=True)
    return connect(path, write=True)


class WriterLock:
    """Held by the one process that writes a log; the operating system frees it when that process dies."""

    def __init__(self, path: Path):
        self.path = path
        self._lock = filelock.FileLock(f"{path}.lock", thread_local=False)

    def acquire(self) -> None:
        """Take it at once, or refuse with the holder's pid and host."""
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise LogInUseError(
                f"{self.path} is being written by {self._holder()}. Two trainers cannot share one log: stop that one, wait "
                "for it, or set another output_dir (or experience_log)."
            ) from None
        except OSError as error:
            raise ExperienceLogError(
                f"{self.path}: its folder cannot be written ({error}). Set experience_log to a path that can."
            ) from error
        with contextlib.suppress(OSError):
            owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": now()}
            Path(f"{self.path}.owner").write_text(json.dumps(owner), encoding="utf-8")

    def _holder(self) -> str:
        try:
            owner = json.loads(Path(f"{self.path}.owner").read_text(encoding="utf-8"))
            return f"process {owner['pid']} on {owner['host']} (since {owner['since']})"
        except (OSError, ValueError, KeyError):
            return "another process"

    @property
    def held(self) -> bool:
        return self._lock.is_locked

    def release(self) -> None:
        if self._lock.is_locked:
            with contextlib.suppress(OSError):
                Path(f"{self.path}.owner").unlink(missing_ok=True)
            self._lock.release()
