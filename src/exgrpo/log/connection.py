"""Connections to a log: who may write, what is refused, and SQLite's errors in the user's terms."""

import contextlib
import itertools
import json
import os
import re
import shutil
import socket
import sqlite3
import tempfile
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import filelock

from ..errors import DamagedLogError, ExperienceLogError, LogInUseError
from . import schema
from .filesystem import (
    LACKS_LOCKS,
    ROLLBACK,
    UNLOCKED,
    WAL,
    journal_for,
    kind_of,
    lock_error,
    say_once,
    say_rollback,
)

FILE_NAME = "experience.db"
PATIENCE = 300.0
"""Seconds that a commit waits for those who read a log with a rollback journal."""
ATTEMPTS = 5
"""To copy a log while nobody writes to it."""
PRIVATE_NAME = "_experience.db"
"""File name of a log whose folder is pushed to the hub: the hosts leave out names with a leading underscore."""


def log_in(folder: Path) -> Path:
    """Return the log of a run's folder; where there is none yet, its usual place."""
    private = folder / PRIVATE_NAME
    return private if private.is_file() and not (folder / FILE_NAME).is_file() else folder / FILE_NAME


@contextlib.contextmanager
def usable(path: Path) -> Iterator[None]:
    """Translate the file system's errors about a path itself: too long, a loop of links, an unknown home."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error, ExperienceLogError):
            raise
        raise ExperienceLogError(f"{path} is not a usable path ({error}). Use another one.") from error


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


OF_SPACE = ("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE")
OF_LOCKS = ("SQLITE_PROTOCOL", "SQLITE_NOLFS", *(
    f"SQLITE_IOERR_{what}" for what in ("SHMOPEN", "SHMLOCK", "SHMMAP", "LOCK", "UNLOCK", "RDLOCK", "CHECKRESERVEDLOCK")
))  # fmt: skip
OF_PLACE = ("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")
OF_CONTENT = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_CONSTRAINT", "SQLITE_MISMATCH")


def name_of(error: Exception) -> str:
    return getattr(error, "sqlite_errorname", None) or ""


@contextlib.contextmanager
def explained(path: Path, doing: str) -> Iterator[None]:
    """Translate SQLite's errors: which file, what happened, and what to do."""
    try:
        yield
    except sqlite3.Error as error:
        name = name_of(error)
        if name.startswith(OF_SPACE):
            raise ExperienceLogError(
                f"{path}: no space left while {doing}. What was committed before is safe. Free some space (exgrpo experience "
                "prune shrinks a log), then resume from the last checkpoint."
            ) from error
        if name.startswith(OF_PLACE):
            raise ExperienceLogError(
                f"{path} cannot be written or opened while {doing} ({error}). A log and its folder must be writable for "
                "training; check their permissions, or set experience_log to a path that is. To read it, copy it to a folder "
                "that can be written."
            ) from error
        if name.startswith(("SQLITE_NOMEM", "SQLITE_IOERR_NOMEM")):
            raise _no_memory(path, doing) from error
        refused = lock_error(path.parent) if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")) else None
        if name.startswith(OF_LOCKS) or refused is not None:
            kind = kind_of(path)
            raise ExperienceLogError(
                f"the file system of {path}{f' ({kind})' * bool(kind)} does not give the locks that SQLite needs, while "
                f"{doing} ({refused or error}). The log is whole. Set experience_log to a file on a local disk; to read it, "
                "copy it to one."
            ) from error
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise LogInUseError(
                f"{path} is locked by another process while {doing} ({error}). Wait for it, or stop it, and try again."
            ) from error
        if name.startswith("SQLITE_IOERR"):
            raise ExperienceLogError(
                f"{path}: the disk failed while {doing} ({error}, {name}). What was committed before is safe; check the disk "
                "and its space, then resume from the last checkpoint."
            ) from error
        if name.startswith(OF_CONTENT) or re.match(r"no such (table|column)|Could not decode|malformed", str(error)):
            raise damaged(path, f"{error} while {doing}") from error
        if isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError | sqlite3.NotSupportedError):
            raise  # a fault of this package
        raise ExperienceLogError(
            f"{path}: SQLite failed while {doing} ({error}{f', {name}' * bool(name)}). The log is not damaged: what "
            "was committed "
            "before is safe. Try again, or resume from the last checkpoint."
        ) from error
    except MemoryError as error:  # how Python reports SQLite's
        raise _no_memory(path, doing) from error
    except (UnicodeDecodeError, OverflowError) as error:  # bytes that are not text, or have no length
        raise damaged(path, f"{error} while {doing}") from error


def _no_memory(path: Path, doing: str) -> ExperienceLogError:
    return ExperienceLogError(
        f"{path}: no memory left while {doing}. The log is whole. Free some memory, then resume from the last checkpoint."
    )


def damaged(path: Path, what: str) -> DamagedLogError:
    return DamagedLogError(
        f"{path} is damaged: {what}. Nothing was changed. `exgrpo experience verify {path}` lists the damage. Move it away "
        "with its -wal, -shm and -journal. Restore it from a copy; or train on: from a checkpoint's weights with empty "
        f"experience (model=CHECKPOINT), or with what `exgrpo experience export {path} DIR --skip_damaged` can still read of "
        "it (experience_from)."
    )


def connect(path: Path, write: bool = False) -> sqlite3.Connection:
    """Return a connection to an existing log of a known schema.

    Raises:
        ExperienceLogError: no such file, another kind of file, or a schema of another version.
        DamagedLogError: no database, or a truncated one.
    """
    with usable(path):
        if not path.is_file():
            what = "is a folder, and no experience log" if path.is_dir() else "does not exist"
            raise ExperienceLogError(f"there is no experience log {path}: it {what}.")
    with explained(path, "opening it"):
        return _to_write(path) if write else _to_read(path)


def _checked(path: Path, connection: sqlite3.Connection) -> sqlite3.Connection:
    try:
        _check_schema(path, connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _open(path: Path, how: str, timeout: float = 30) -> sqlite3.Connection:
    """Open a connection; how: the query part of the SQLite address."""
    address = f"{path.resolve().as_uri()}?{how}"
    return sqlite3.connect(address, uri=True, isolation_level=None, timeout=timeout, check_same_thread=False)


# Writing ----------------------------------------------------------------------------------------------------------------

SYNCHRONOUS = {WAL: ("NORMAL", "FULL"), ROLLBACK: ("FULL", "EXTRA"), UNLOCKED: ("FULL", "EXTRA")}
"""SQLite's setting for each journal: for an ordinary commit, and for one that must reach the disk."""


def _to_write(path: Path) -> sqlite3.Connection:
    journal = journal_for(path)
    try:
        return _with_journal(path, journal)
    except sqlite3.Error as error:
        if journal != WAL or not name_of(error).startswith(OF_LOCKS):
            raise
        say_rollback(path, f"its file system does not give the locks of one ({error})")
        return _with_journal(path, ROLLBACK)


def _with_journal(path: Path, journal: str) -> sqlite3.Connection:
    wants_wal = journal == WAL
    connection = _open(path, "vfs=unix-none" if journal == UNLOCKED else "mode=rw", 30 if wants_wal else PATIENCE)
    try:
        if not wants_wal:  # held by one process, a write-ahead log that is still there needs no shared memory
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        _check_schema(path, connection)
        wanted = "wal" if wants_wal else "truncate"
        (came,) = connection.execute(f"PRAGMA journal_mode = {wanted}").fetchone()
        if not wants_wal:
            connection.execute("PRAGMA locking_mode = NORMAL")
        if came != wanted:
            raise ExperienceLogError(
                f"{path} cannot be given the journal {wanted!r} (it has {came!r}). Set experience_log to a file on a local "
                "disk."
            )
        connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS[journal][0]}")
        connection.execute("PRAGMA cache_size = -16384")
        if connection.execute("PRAGMA user_version").fetchone()[0] < schema.SCHEMA_VERSION:
            schema.upgrade(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def synchronous_of(connection: sqlite3.Connection) -> tuple[str, str]:
    """Return an open log's setting, as in `SYNCHRONOUS`."""
    (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
    return SYNCHRONOUS[WAL if journal == "wal" else ROLLBACK]


# Reading ----------------------------------------------------------------------------------------------------------------


def _to_read(path: Path) -> sqlite3.Connection:
    """Connect to a log, or to a copy of it where it cannot be read in place.

    A copy serves too where the log has a rollback journal and is being written: a reader would block its writer.
    """
    beside = [path.with_name(path.name + end) for end in JOURNAL_ENDS]
    is_whole = not any(other.exists() and other.stat().st_size for other in beside)
    if lock_error(path.parent) is not None:  # report at once, not after `timeout`
        return _checked(path, _copy_of_files(path))
    try:
        if is_whole and not os.access(path.parent, os.W_OK) and not Path(f"{path}.owner").exists():
            # a reader writes beside a log, unless nobody else ever will
            return _checked(path, _open(path, "immutable=1"))
        connection = _checked(path, _open(path, "mode=ro"))
        (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
        if journal == "wal" or not Path(f"{path}.owner").exists():
            return connection
    except sqlite3.Error as error:
        if not name_of(error).startswith((*OF_PLACE, *OF_LOCKS, *OF_SPACE)):
            raise
        if not os.access(path, os.R_OK):
            raise
        return _checked(path, _copy_of_files(path))
    with contextlib.closing(connection), _room_for_a_copy(path) as folder:
        copy = _of_our_own(folder / path.name)
        try:
            connection.backup(copy)
        except BaseException:
            copy.close()
            raise
    return copy


@contextlib.contextmanager
def _room_for_a_copy(path: Path) -> Iterator[Path]:
    """Provide a temporary folder, whose disk errors are not blamed on the log."""
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    except (OSError, sqlite3.Error) as error:
        if isinstance(error, ExperienceLogError):
            raise
        if isinstance(error, sqlite3.Error) and not name_of(error).startswith((*OF_SPACE, "SQLITE_IOERR_WRITE")):
            raise
        raise ExperienceLogError(
            f"{path} can only be read from a copy, and that could not be made in a temporary folder ({error}). Set TMPDIR to a "
            "folder that can be written and has room for it."
        ) from error


def _of_our_own(path: Path) -> sqlite3.Connection:
    """Connect to a temporary file that nobody else opens, and that is unlinked while open."""
    connection = _open(path, "vfs=unix-none" if os.name == "posix" else "mode=rwc")
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    return connection


def _copy_of_files(path: Path) -> sqlite3.Connection:
    """Copy a log with all files beside it, until nobody writes to it meanwhile, and connect to the copy."""
    beside = [path, *(path.with_name(path.name + end) for end in JOURNAL_ENDS)]

    def state() -> list[tuple[int, int] | None]:
        return [(file.stat().st_size, file.stat().st_mtime_ns) if file.exists() else None for file in beside]

    with _room_for_a_copy(path) as folder:
        for _ in range(ATTEMPTS):
            before = state()
            for file, there in zip(beside, before, strict=True):
                (folder / file.name).unlink(missing_ok=True)
                if there is not None:
                    shutil.copyfile(file, folder / file.name)
            if state() == before:
                break
            time.sleep(0.1)
        else:
            raise LogInUseError(
                f"{path} is being written, and cannot be read meanwhile where it lies. Try again later."
            )
        copy = _of_our_own(folder / path.name)
        try:
            copy.execute(
                "PRAGMA journal_mode = DELETE"
            ).fetchone()  # all in one file, which stays open after it is unlinked
        except BaseException:
            copy.close()
            raise
    return copy


def _check_schema(path: Path, connection: sqlite3.Connection) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if path.stat().st_size == 0:
        raise damaged(path, "the file is empty")
    if application != schema.APPLICATION_ID:
        raise ExperienceLogError(f"{path} is a SQLite database, but not an experience log of exgrpo.")
    if version > schema.SCHEMA_VERSION:
        needs = connection.execute("SELECT value FROM meta WHERE key = 'needs'").fetchone()
        raise ExperienceLogError(
            f"{path} has schema {version}; this version of exgrpo reads schemas up to {schema.SCHEMA_VERSION}. Install exgrpo "
            f"{'of a later version' if needs is None else needs[0] + ' or later'}."
        )
    if 1 <= version < min(schema.READABLE):
        raise ExperienceLogError(
            f"{path} has schema {version}, which a development version of exgrpo wrote; this one reads schemas "
            f"{' and '.join(map(str, schema.READABLE))}. Nothing was changed. Export it with the version that wrote it "
            "(exgrpo experience "
            "export), and import that here (experience_from=DIR, or exgrpo experience import RUN DIR); or start over, with "
            "another output_dir or experience_log."
        )


JOURNAL_ENDS = ("-wal", "-journal")


def put_in_place(beside: Path, path: Path) -> None:
    """Rename a finished new log to `path`, and first what lies there, with its journals, to another name.

    Nobody's experience is overwritten, and a journal of another log is not taken for the new one's.

    Raises:
        ExperienceLogError: the new log is not whole: a part of it is in a journal still.
    """
    for end in JOURNAL_ENDS:
        journal = beside.with_name(f"{beside.name}{end}")
        if journal.exists() and journal.stat().st_size:
            raise ExperienceLogError(
                f"{path} could not be written in full: there may be no space left. Nothing was changed; free some space, and "
                "try again."
            )
    aside = _free_name(path)
    for end in ("", *JOURNAL_ENDS):
        left = path.with_name(f"{path.name}{end}")
        if left.exists() and (left.stat().st_size or not end):
            os.replace(left, path.with_name(f"{aside}{end}"))
        left.unlink(missing_ok=True)
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
    os.replace(beside, path)


def _free_name(path: Path) -> str:
    """Return a free name for a log beside another, with its journals."""
    for number in itertools.count(1):
        name = f"{path.name}.left-behind{f'-{number}' * (number > 1)}"
        if not any(path.with_name(f"{name}{end}").exists() for end in ("", *JOURNAL_ENDS)):
            return name
    raise AssertionError


def create(path: Path) -> sqlite3.Connection:
    """Create a new log, while holding its lock; a crash leaves either nothing that counts as a log, or a whole one."""
    for leftover in path.parent.glob(f".{path.name}.new-*"):  # left by a killed process of this machine
        leftover.unlink(missing_ok=True)
    beside = path.with_name(f".{path.name}.new-{uuid.uuid4().hex[:8]}")
    with explained(path, "creating it"):
        try:
            how = "vfs=unix-none" if journal_for(path) == UNLOCKED else "mode=rwc"
            with contextlib.closing(_open(beside, how)) as connection:
                schema.create(connection)
                rows = {"id": uuid.uuid4().hex, "created": now(), "needs": schema.NEEDS}
                connection.executemany("INSERT INTO meta VALUES (?, ?)", list(rows.items()))
            put_in_place(beside, path)
        finally:
            for leftover in (beside, Path(f"{beside}-journal")):
                leftover.unlink(missing_ok=True)
    return connect(path, write=True)


class Owner(NamedTuple):
    """The writer of a log, as its lock file describes it."""

    pid: int
    host: str
    since: str

    @property
    def is_gone(self) -> bool:
        """True if it died on this machine without releasing the log."""
        if self.host != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return True
        except OSError:
            pass
        return False


def owner_of(path: Path) -> Owner | None:
    """Return who claims to write a log; None where nobody does, or nobody can tell."""
    try:
        owner = json.loads(Path(f"{path}.owner").read_text(encoding="utf-8"))
        return Owner(int(owner["pid"]), str(owner["host"]), str(owner["since"]))
    except (OSError, ValueError, LookupError, TypeError, OverflowError):
        return None


class WriterLock:
    """Held by the one process that writes a log; the operating system frees it when that process dies."""

    def __init__(self, path: Path):
        self.path = path
        self._lock = filelock.FileLock(f"{path}.lock", thread_local=False)

    def acquire(self) -> None:
        """Acquire the lock at once, or refuse with the holder's pid and host."""
        try:
            self._take()
        except (OSError, NotImplementedError) as error:
            if isinstance(error, ExperienceLogError):
                raise
            if isinstance(error, OSError) and error.errno not in LACKS_LOCKS:
                raise ExperienceLogError(
                    f"{self.path}: its folder cannot be written ({error}). Set experience_log to a path that can."
                ) from error
            say_once(
                f"{self.path.parent} is on a file system that refuses locks ({error}). A file {self._soft.name} takes their "
                "place."
            )
            self._lock = filelock.SoftFileLock(str(self._soft), thread_local=False)
            self._take()
        with contextlib.suppress(OSError):
            owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": now()}
            Path(f"{self.path}.owner").write_text(json.dumps(owner), encoding="utf-8")

    @property
    def _soft(self) -> Path:
        return Path(f"{self.path}.held")

    def _take(self) -> None:
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            left = f" If that process has ended, delete {self._soft}." if self._soft.exists() else ""
            raise LogInUseError(
                f"{self.path} is being written by {self._holder()}. Two trainers cannot share one log: stop that one, wait "
                f"for it, or set another output_dir (or experience_log).{left}"
            ) from None

    def _holder(self) -> str:
        owner = owner_of(self.path)
        return "another process" if owner is None else f"process {owner.pid} on {owner.host} (since {owner.since})"

    @property
    def held(self) -> bool:
        return self._lock.is_locked

    def release(self) -> None:
        if self._lock.is_locked:
            with contextlib.suppress(OSError):
                Path(f"{self.path}.owner").unlink(missing_ok=True)
            self._lock.release()
