"""A log on file systems of all kinds: which journal it takes, what their errors are called, and what can be read there."""

import contextlib
import errno
import json
import os
import shutil
import socket
import sqlite3
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from exgrpo.archive.verify import _Verification, verify
from exgrpo.errors import ConfigurationError, DamagedLogError, ExperienceLogError, LogInUseError
from exgrpo.log import LogReader, connection, filesystem
from exgrpo.log.filesystem import JOURNALS, ROLLBACK, UNLOCKED, VARIABLE, WAL
from tests.support.logs import Dataset, Run

NOBODY = 65534


def sqlite_error(name):
    error = sqlite3.OperationalError("what SQLite says")
    error.sqlite_errorname = name
    return error


@pytest.fixture(autouse=True)
def said(monkeypatch):
    """What is said once, each time."""
    found = []
    for module in (filesystem, connection):
        monkeypatch.setattr(module, "say_once", found.append)
    return found


# Errors -----------------------------------------------------------------------------------------------------------------

LOCKS = "does not give the locks that SQLite needs"
ERRORS = {
    "SQLITE_PROTOCOL": (ExperienceLogError, LOCKS),
    "SQLITE_NOLFS": (ExperienceLogError, LOCKS),
    "SQLITE_IOERR_SHMMAP": (ExperienceLogError, LOCKS),
    "SQLITE_IOERR_SHMLOCK": (ExperienceLogError, LOCKS),
    "SQLITE_IOERR_RDLOCK": (ExperienceLogError, LOCKS),
    "SQLITE_NOMEM": (ExperienceLogError, "no memory left"),
    "SQLITE_IOERR_NOMEM": (ExperienceLogError, "no memory left"),
    "SQLITE_IOERR_READ": (ExperienceLogError, "the disk failed"),
    "SQLITE_FULL": (ExperienceLogError, "no space left"),
    "SQLITE_IOERR_SHMSIZE": (ExperienceLogError, "no space left"),
    "SQLITE_READONLY_ROLLBACK": (ExperienceLogError, "cannot be written or opened"),
    "SQLITE_BUSY": (LogInUseError, "locked by another process"),
    "SQLITE_ERROR": (ExperienceLogError, "The log is not damaged"),
    "SQLITE_INTERRUPT": (ExperienceLogError, "The log is not damaged"),
    "SQLITE_TOOBIG": (ExperienceLogError, "The log is not damaged"),
    "SQLITE_CORRUPT_INDEX": (DamagedLogError, "is damaged"),
    "SQLITE_NOTADB": (DamagedLogError, "is damaged"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_called_what_it_is(tmp_path, name):
    kind, words = ERRORS[name]
    with pytest.raises(kind, match=words) as caught, connection.explained(tmp_path / "x.db", "trying"):
        raise sqlite_error(name)
    assert type(caught.value) is kind
    assert ("is damaged" in str(caught.value)) == (kind is DamagedLogError)


def test_memory_and_refused_locks_are_named(tmp_path, monkeypatch):
    with pytest.raises(ExperienceLogError, match="no memory left"), connection.explained(tmp_path / "x.db", "trying"):
        raise MemoryError
    monkeypatch.setattr(connection, "lock_error", lambda folder: OSError(errno.ENOLCK, "No locks available"))
    with pytest.raises(ExperienceLogError, match=LOCKS) as caught, connection.explained(tmp_path / "x.db", "trying"):
        raise sqlite_error("SQLITE_BUSY")
    assert "another process" not in str(caught.value)


def test_verify_finds_no_damage_in_the_file_system(tmp_path):
    run = Run(tmp_path / "experience.db")
    run.generation()
    with contextlib.closing(connection.connect(run.path)) as opened:
        verification = _Verification(run.path, opened)
        for name in ("SQLITE_PROTOCOL", "SQLITE_NOMEM", "SQLITE_BUSY"):
            with pytest.raises(ExperienceLogError), verification.guarded("tokens"):
                raise sqlite_error(name)
        assert verification.listed() == []
        with verification.guarded("tokens"):
            raise sqlite_error("SQLITE_CORRUPT")
        assert len(verification.listed()) == 1
    run.log.close()


# Kinds ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "kind", "is_shared"),
    [
        ("/home/me/run", "nfs4", True),
        ("/home/local/run", "xfs", False),
        ("/homes/run", "ext4", False),
        ("/my data/run", "lustre", True),
        ("/cloud/run", "fuse.juicefs", True),
        ("/stick/run", "fuseblk", False),
        ("/covered/run", "gpfs", True),
    ],
)  # fmt: skip
def test_the_kind_of_file_system_decides(tmp_path, monkeypatch, path, kind, is_shared):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/a / ext4 rw 0 0\nserver:/home /home nfs4 rw 0 0\n/dev/b /home/local xfs rw 0 0\nl /my\\040data lustre rw 0 0\n"
        "j /cloud fuse.juicefs rw 0 0\ns /stick fuseblk rw 0 0\nx /covered ext4 rw 0 0\ny /covered gpfs rw 0 0\n"
    )
    monkeypatch.setattr(filesystem, "MOUNTS", mounts)
    assert filesystem.kind_of(Path(path)) == kind
    assert filesystem.is_shared(Path(path)) == is_shared


def test_a_journal_is_chosen_once_and_said(tmp_path, monkeypatch, said):
    path = tmp_path / "experience.db"
    assert filesystem.journal_for(path) == WAL
    assert said == []
    monkeypatch.setattr(filesystem, "kind_of", lambda path: "lustre")
    assert filesystem.journal_for(path) == ROLLBACK
    assert "its file system is lustre" in said[-1]
    monkeypatch.setattr(filesystem, "lock_error", lambda folder: OSError(errno.ENOSYS, "Function not implemented"))
    assert filesystem.journal_for(path) == UNLOCKED
    assert "refuses locks" in said[-1]
    monkeypatch.setenv(VARIABLE, "wall")
    with pytest.raises(ConfigurationError, match=r"EXGRPO_LOG_JOURNAL must be one of wal, rollback, unlocked"):
        filesystem.journal_for(path)


# Journals ---------------------------------------------------------------------------------------------------------------


def dump(path):
    """All rows but those that tell of this process and this moment."""
    with contextlib.closing(sqlite3.connect(path)) as opened:
        return [
            line for line in opened.iterdump() if not line.startswith(('INSERT INTO "meta"', 'INSERT INTO "branch"'))
        ]


@pytest.mark.parametrize("journal", [ROLLBACK, UNLOCKED])
def test_a_log_is_the_same_with_every_journal(tmp_path, monkeypatch, journal):
    made = {}
    for kind in (WAL, journal):
        monkeypatch.setenv(VARIABLE, kind)
        run = Run(tmp_path / f"{kind}.db")
        for _ in range(4):
            run.generation()
        assert run.path.with_name(f"{kind}.db-wal").exists() == (kind == WAL)
        run.log.close()
        made[kind] = dump(run.path)
        assert verify(run.path) == []
    assert made[WAL] == made[journal]


@pytest.mark.parametrize("before", JOURNALS)
@pytest.mark.parametrize("after", JOURNALS)
def test_a_killed_log_is_continued_with_another_journal(tmp_path, monkeypatch, before, after):
    monkeypatch.setenv(VARIABLE, before)
    first = Run(tmp_path / "first.db")
    position = first.generation(snapshot=True)
    for end in ("", "-wal", "-journal"):  # as a kill leaves them
        if (file := Path(f"{first.path}{end}")).exists():
            (tmp_path / f"killed.db{end}").write_bytes(file.read_bytes())
    monkeypatch.setenv(VARIABLE, after)
    second = Run(tmp_path / "killed.db", position=position)
    second.generation()
    second.log.close()
    assert verify(second.path) == []
    first.log.close()


def test_a_copy_that_finds_no_room_is_not_said_of_the_log(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, ROLLBACK)
    run = Run(tmp_path / "experience.db")
    run.generation()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(ExperienceLogError, match=r"can only be read from a copy, .* Set TMPDIR to a folder"):
        LogReader(run.path)
    run.close()


def test_readers_do_not_hold_up_who_writes_a_rollback_journal(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, ROLLBACK)
    monkeypatch.setattr(connection, "PATIENCE", 0.0)
    run = Run(tmp_path / "experience.db")
    end = run.generation()
    with LogReader(run.path) as reader:
        rows = reader.rows("SELECT seq FROM observation")
        next(rows)  # under way
        for _ in range(3):
            run.generation()
        assert reader.position() == end
        rows.close()
    with LogReader(run.path) as reader:
        assert reader.position() == run.log.position
    run.log.close()


# Locks ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_where_flock_is_refused_a_file_takes_its_place(tmp_path, monkeypatch, said, number):
    def refused(self, *args, **kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(connection.filelock.FileLock, "acquire", refused)
    path = tmp_path / "experience.db"
    first = connection.WriterLock(path)
    first.acquire()
    assert "refuses locks" in said[-1]
    with pytest.raises(LogInUseError, match=rf"process {os.getpid()} on .* delete .*experience\.db\.held"):
        connection.WriterLock(path).acquire()
    first.release()
    second = connection.WriterLock(path)
    second.acquire()
    second.release()


def deleted(path):
    path.unlink()


def moved(path):
    path.rename(path.with_name("elsewhere.db"))


def replaced(path):
    copy = path.with_name("copy.db")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)


def folder_deleted(path):
    shutil.rmtree(path.parent)


@pytest.mark.parametrize("fault", [deleted, moved, replaced, folder_deleted])
def test_a_log_that_goes_while_it_is_written_is_missed_at_the_next_commit(tmp_path, fault):
    """The system would go on writing into what has no name any more."""
    run = Run(tmp_path / "run" / "experience.db")
    run.generation()
    fault(run.path)
    with pytest.raises(
        ExperienceLogError, match=r"was (deleted or moved|replaced) while .*resume from the last checkpoint"
    ):
        run.generation()
    run.close()


def test_a_file_system_that_is_away_for_a_moment_has_not_lost_the_log(tmp_path, monkeypatch):
    run = Run(tmp_path / "experience.db")
    stat = Path.stat

    def away(path, **kwargs):
        if path == run.path:
            raise OSError(errno.ESTALE, "Stale file handle")
        return stat(path, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", away)
        run.generation()
    run.generation()
    run.close()
    assert verify(run.path) == []
    assert not list(tmp_path.glob("*left-behind*"))


@pytest.mark.parametrize("first_to_commit", [0, 1])
def test_two_writers_without_the_lock_s_file_do_not_mix(tmp_path, first_to_commit):
    runs = [Run(tmp_path / "experience.db")]
    runs[0].generation()
    (tmp_path / "experience.db.lock").unlink()
    runs.append(Run(tmp_path / "experience.db", seed=1))
    runs[first_to_commit].generation()
    with pytest.raises(LogInUseError, match=r"another process has written to .*experience\.db\.lock deleted\?"):
        runs[1 - first_to_commit].generation()
    runs[first_to_commit].generation()
    for run in runs:
        run.close()
    assert verify(tmp_path / "experience.db") == []


@pytest.mark.parametrize("text", ["", "[]", "null", '"x"', '{"pid": 1e999, "host": "a", "since": "b"}', '{"pid": 1}'])
def test_what_says_who_writes_a_log_may_say_anything(tmp_path, text):
    path = tmp_path / "experience.db"
    run = Run(path)
    Path(f"{path}.owner").write_text(text)
    with pytest.raises(LogInUseError, match="is being written by another process"):
        connection.WriterLock(path).acquire()
    assert connection.owner_of(path) is None
    Path(f"{path}.owner").write_text(json.dumps({"pid": 2**70, "host": socket.gethostname(), "since": ""}))
    assert connection.owner_of(path).is_gone
    run.close()


def test_a_path_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for place in (tmp_path / "circle", tmp_path / ("x" * 300), tmp_path / "nul\0"):
        for use in (Run, LogReader):
            with pytest.raises(ExperienceLogError, match=r"usable path|cannot be created|there is no experience log"):
                use(place / "experience.db")


def test_what_lies_in_a_log_s_place_is_kept_with_its_journal(tmp_path):
    path, kept = tmp_path / "experience.db", []
    for seed in range(3):
        kept.append(fault_bytes(path, seed))
        Run(tmp_path / "new.db", seed=seed).close()
        connection.put_in_place(tmp_path / "new.db", path)
        assert verify(path) == []
    for name, (main, wal) in zip(["left-behind", "left-behind-2", "left-behind-3"], kept, strict=True):
        assert (tmp_path / f"experience.db.{name}").read_bytes() == main
        assert (tmp_path / f"experience.db.{name}-wal").read_bytes() == wal
    (tmp_path / "new.db-wal").write_bytes(b"not in the file yet")
    Run(tmp_path / "other.db").close()
    with pytest.raises(ExperienceLogError, match="could not be written in full"):
        connection.put_in_place(tmp_path / "new.db", path)


def fault_bytes(path, seed):
    """Of a log and of its journal, after a kill."""
    run = Run(path.with_name("killed.db"), seed=seed)
    run.generation()
    found = tuple(run.path.with_name(f"killed.db{end}").read_bytes() for end in ("", "-wal"))
    run.close()
    run.path.unlink()
    for end, data in zip(("", "-wal"), found, strict=True):
        path.with_name(f"{path.name}{end}").write_bytes(data)
    return found


def test_text_that_unicode_does_not_have_is_kept_as_its_escape(tmp_path):
    class Hostile(Dataset):
        def record(self, question):
            return replace(
                super().record(question), prompt="a\ud800\0", problem_type="\udcff", columns='{"x": "\udcfe"}'
            )

    run = Run(tmp_path / "experience.db", Hostile(), note="from /data/\udcff")
    run.generation()
    run.close()
    with LogReader(run.path) as reader:
        record = next(record for _, record in reader.questions())
        assert (record.prompt, record.problem_type) == ("a\\ud800\0", "\\udcff")
        assert reader.branches[1].note == "from /data/\\udcff"
    assert verify(run.path) == []


# Read-only places -------------------------------------------------------------------------------------------------------


def as_somebody_else(look):
    """What a function answers in a process that permissions bind, also where tests run as root."""
    end, start = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            answer = repr(look())
        except BaseException as error:  # noqa: BLE001 - the test shows it
            answer = repr(error)
        os.write(start, answer.encode())
        os._exit(0)
    os.close(start)
    os.waitpid(pid, 0)
    with os.fdopen(end) as answers:
        return answers.read()


def generations_and_findings(path):
    with LogReader(path) as reader:
        return next(reader.rows("SELECT count(*) FROM generation"))[0], verify(path)


@pytest.mark.parametrize("journal", JOURNALS)
def test_a_killed_run_can_be_read_where_nothing_can_be_written(monkeypatch, journal):
    """As another user, whom permissions bind also where tests run as root."""
    monkeypatch.setenv(VARIABLE, journal)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        run = Run(Path(folder) / "made.db")
        for _ in range(3):
            run.generation()
        place = Path(folder) / "killed"
        place.mkdir()
        run.log._connection.execute("BEGIN IMMEDIATE")
        run.log._connection.execute("PRAGMA cache_size = 1")
        run.log._connection.execute("PRAGMA cache_spill = 1")
        run.log._connection.execute("DELETE FROM generation")  # half done, and partly in the file already
        run.log._connection.execute("UPDATE tokens SET completion_ids = zeroblob(9000)")
        for end in ("", "-wal", "-journal"):
            if (file := Path(f"{run.path}{end}")).exists():
                (place / f"experience.db{end}").write_bytes(file.read_bytes())
        run.log._connection.execute("ROLLBACK")
        run.log.close()
        os.chmod(place, 0o555)
        found = as_somebody_else(lambda: generations_and_findings(place / "experience.db"))
        os.chmod(place, 0o755)
        assert found == "(3, [])"
