"""A log whose commits are written by a thread: the same file, read and told of as if they had been written at once."""

import contextlib
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from hypothesis import settings

from exgrpo.errors import ExperienceLogError, LogInUseError
from exgrpo.experience import ExperienceBuffer, Trajectory
from exgrpo.experience.events import Observed, Stored
from exgrpo.experience.log import LogReader, LogWriter, PlannerState, rebuild
from exgrpo.experience.log.audit import verify
from exgrpo.experience.log.behind import WAITING, WriteBehind
from exgrpo.experience.log.commits import Commit
from exgrpo.experience.replayed import fingerprint_of
from tests.logs import EVENTFUL, ORIGIN, TOKENIZER, Dataset, K, Run, fingerprints
from tests.properties.test_log import LogMachine, Numbered

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Disk:
    """Stands for the disk of a writer: it can be held up, and be full.

    Attributes:
        is_free: as long as it is set, commits are written.
        is_full: whether each commit fails.
        tried: commits that came, in order.
    """

    def __init__(self, writer):
        self._write, writer._behind._write = writer._write, self
        self.writer, self.tried = writer, []
        self.is_full, self.is_free, self.arrived = False, threading.Event(), threading.Event()
        self.is_free.set()

    def __call__(self, commit):
        self.tried.append(commit)
        self.arrived.set()
        assert self.is_free.wait(30)
        if self.is_full:
            with self.writer._transaction("committing"):
                raise full()
        self._write(commit)


def full():
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorname = "SQLITE_FULL"
    return error


@pytest.fixture
def path(tmp_path):
    return tmp_path / "experience.db"


@pytest.fixture
def writer(path):
    writer = LogWriter(path, Dataset(), threaded=True)
    writer.begin(ORIGIN)
    yield writer
    with contextlib.suppress(ExperienceLogError):  # where a test has filled the disk
        writer.close()


@pytest.fixture
def disk(writer):
    disk = Disk(writer)
    yield disk
    disk.is_free.set()
    disk.is_full = False


@pytest.fixture
def buffer(writer):
    return ExperienceBuffer(24, K, store=writer, listener=writer)


def trajectory(number, question=0):
    return Trajectory(question, np.array([number, 1]), np.array([-0.5, -0.25]), np.array([1.0]), number)


def seqs(path):
    """Of the commits in the file."""
    with LogReader(path) as reader:
        return [seq for (seq,) in reader.rows("SELECT seq FROM state ORDER BY seq")]


# The same file ----------------------------------------------------------------------------------------------------------


def dump(path):
    """Every row of every table, but who wrote it and when."""
    with LogReader(path) as reader:
        tables = [name for (name,) in reader.rows("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        found = {table: list(reader.rows(f"SELECT * FROM {table} ORDER BY 1")) for table in tables if table != "meta"}
        found["branch"] = [row[:8] for row in found["branch"]]
        return found


@pytest.mark.parametrize("options", [{}, EVENTFUL], ids=["defaults", "eventful"])
def test_the_file_is_the_same_with_and_without_a_thread(tmp_path, monkeypatch, options):
    paths = [tmp_path / "plain.db", tmp_path / "threaded.db"]
    for path, threaded in zip(paths, (False, True), strict=True):
        monkeypatch.setattr("tests.logs.LogWriter", lambda *args, at=threaded: LogWriter(*args, threaded=at))
        run = Run(path, seed=3, logp_dtype="float16", **options)
        run.generations(12)
        run.generation(checkpoint=tmp_path / path.stem)
        run.generations(3, snapshot=True)
        run.close()
    assert dump(paths[0]) == dump(paths[1])
    assert fingerprints(paths[0]) == fingerprints(paths[1])
    assert verify(paths[1]) == []


def test_a_threaded_run_continues_from_a_checkpoint_as_one_that_went_on(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.logs.LogWriter", lambda *args: LogWriter(*args, threaded=True))
    run = Run(tmp_path / "a.db", seed=3, **EVENTFUL)
    run.generations(5)
    position = run.generation(checkpoint=tmp_path)
    run.generations(6)
    wanted = fingerprint_of(run.buffer)
    run.close()
    again = Run(tmp_path / "a.db", seed=3, position=position, **EVENTFUL)
    again.generations(6)
    assert fingerprint_of(again.buffer) == wanted
    again.close()
    assert verify(tmp_path / "a.db") == []


class ThreadedLogMachine(LogMachine):
    """Whatever happens, in whatever order, with a thread that writes."""

    def open(self, position):
        self.log = LogWriter(self.path, Numbered(), self.dtype, threaded=True)
        self.log.begin(self.origin, position, self.step)
        self.buffer = ExperienceBuffer(len(Numbered.keys), K, self.config, self.log, self.log)
        return rebuild(self.log.reader, self.buffer, position, self.log.indices())


TestThreadedLog = ThreadedLogMachine.TestCase
TestThreadedLog.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)


# Barriers ---------------------------------------------------------------------------------------------------------------


def test_a_commit_returns_its_position_before_it_is_written(writer, disk, buffer, path):
    """The events are numbered from 1: a trajectory, the state; a trajectory, the state."""
    disk.is_free.clear()
    buffer.admit([trajectory(1)])
    first = writer.commit(PlannerState(1))
    buffer.admit([trajectory(2)])
    second = writer.commit(PlannerState(2))
    assert (first.seq, second.seq) == (2, 4)
    assert writer.position == second
    assert seqs(path) == []
    disk.is_free.set()
    writer.flush()
    assert seqs(path) == [2, 4]


def test_a_commit_for_a_checkpoint_waits_for_all_before_it(writer, disk, path):
    disk.is_free.clear()
    positions = [writer.commit(PlannerState(generation)) for generation in (1, 2, 3)]
    assert disk.arrived.wait(30)
    threading.Timer(0.2, disk.is_free.set).start()
    last = writer.commit(PlannerState(4), checkpoint=True)
    assert seqs(path) == [position.seq for position in (*positions, last)]


def test_the_queue_is_bounded_and_nothing_is_dropped(writer, disk, path):
    disk.is_free.clear()
    for generation in range(WAITING):
        writer.commit(PlannerState(generation))
    came = threading.Event()

    def one_more():
        writer.commit(PlannerState(WAITING))
        came.set()

    thread = threading.Thread(target=one_more)
    thread.start()
    assert not came.wait(0.3)
    disk.is_free.set()
    thread.join(30)
    assert came.is_set()
    writer.close()
    assert seqs(path) == list(range(1, WAITING + 2))


@pytest.mark.parametrize("end", ["pause", "close"])
def test_pause_and_close_write_what_waits_and_free_the_log(writer, disk, path, end):
    disk.is_free.clear()
    writer.commit(PlannerState(1))
    writer.commit(PlannerState(2))
    threading.Timer(0.2, disk.is_free.set).start()
    getattr(writer, end)()
    wal = path.with_name(f"{path.name}-wal")
    assert not wal.exists() or wal.stat().st_size == 0  # all is in the main file
    assert seqs(path) == [1, 2]
    LogWriter(path, Dataset()).close()
    assert not any(thread.name == "experience log" for thread in threading.enumerate())
    with pytest.raises(ExperienceLogError, match="was paused"):
        writer.commit(PlannerState(3))
    writer.close()


def test_the_reader_and_another_branch_see_what_waited(writer, disk, buffer):
    disk.is_free.clear()
    serial = buffer.admit([trajectory(1)])[0]
    position = writer.commit(PlannerState(1))
    threading.Timer(0.2, disk.is_free.set).start()
    assert writer.reader.position() == position
    disk.is_free.clear()
    buffer.admit([trajectory(2)])
    position = writer.commit(PlannerState(2))
    threading.Timer(0.2, disk.is_free.set).start()
    writer.begin(ORIGIN, position)
    assert writer.reader.branches[2].first_serial == serial + 2
    writer.add_tokenizer(ORIGIN.tokenizer, TOKENIZER)
    writer.commit(PlannerState(3))
    assert writer.reader.tokenizer(ORIGIN.tokenizer) == TOKENIZER


# Reading meanwhile ------------------------------------------------------------------------------------------------------


def test_what_waits_can_be_read(writer, disk, buffer):
    disk.is_free.clear()
    made = [trajectory(n) for n in range(3)]
    serials = [buffer.admit([one])[0] for one in made[:2]]
    writer.commit(PlannerState(1))
    serials.append(buffer.admit([made[2]])[0])
    for serial in serials:
        writer.drop_many([serial])  # from the cache
    assert [t.digest for t in writer.get_many(serials)] == [t.digest for t in made]


def test_a_trajectory_is_found_while_its_commit_is_being_written(writer, buffer):
    """In one of both places at every instant: each is asked for, again and again, until all are in the file."""
    made = {}
    for generation in range(60):
        for n in range(4):
            one = trajectory(4 * generation + n, question=n)
            made[buffer.admit([one])[0]] = one.digest
        writer.commit(PlannerState(generation))
        recent = list(made)[-24:]
        for serial in recent:
            writer.drop_many([serial])
        assert [t.digest for t in writer.get_many(recent)] == [made[serial] for serial in recent]
    writer.flush()
    assert writer._unwritten == {}


def test_a_trajectory_is_found_while_its_transaction_is_open(writer, buffer, monkeypatch):
    inner, arrived, go_on = Commit.write, threading.Event(), threading.Event()

    def write(commit, *args):
        inner(commit, *args)
        arrived.set()
        assert go_on.wait(30)

    monkeypatch.setattr(Commit, "write", write)
    serial = buffer.admit([trajectory(7)])[0]
    writer.commit(PlannerState(1))
    assert arrived.wait(30)
    writer.drop_many([serial])
    try:
        assert writer.get_many([serial])[0].step == 7
    finally:
        go_on.set()
    writer.flush()
    writer.drop_many([serial])
    assert writer.get_many([serial])[0].step == 7


def test_what_was_paused_can_be_read(writer, buffer):
    serial = buffer.admit([trajectory(1)])[0]
    writer.commit(PlannerState(1))
    writer.pause()
    writer.drop_many([serial])
    assert writer.get_many([serial])[0].step == 1


# Errors -----------------------------------------------------------------------------------------------------------------


def failed(disk, writer):
    """A commit that the disk had no room for, of which the caller does not know yet."""
    disk.is_full = True
    position = writer.commit(PlannerState(1))
    assert disk.arrived.wait(30)
    with writer._behind._changed:
        assert writer._behind._changed.wait_for(lambda: writer._behind._error is not None, 30)
    return position


FULL = r"experience\.db: no space left while committing\. .*Free some space .*resume from the last checkpoint"


@pytest.mark.parametrize(
    "call",
    [
        lambda writer: writer.commit(PlannerState(2)), lambda writer: writer.commit(PlannerState(2), checkpoint=True),
        LogWriter.flush, LogWriter.pause, LogWriter.close, lambda writer: writer.reader,
    ],
    ids=["commit", "checkpoint", "flush", "pause", "close", "reader"],
)  # fmt: skip
def test_the_next_call_tells_what_went_wrong(writer, disk, path, call):
    failed(disk, writer)
    with pytest.raises(ExperienceLogError, match=FULL):
        call(writer)
    assert seqs(path) == []


def test_what_failed_is_tried_again_and_nothing_is_lost(writer, disk, buffer, path):
    buffer.admit([trajectory(1)])
    failed(disk, writer)
    buffer.admit([trajectory(2)])
    with pytest.raises(ExperienceLogError, match=FULL):
        writer.commit(PlannerState(2))
    disk.is_full = False
    for _ in range(2):  # it may have been tried, in vain, before there was room
        try:
            assert writer.commit(PlannerState(2)).seq == 4
            break
        except ExperienceLogError:
            pass
    writer.close()
    assert seqs(path) == [2, 4]
    with LogReader(path) as reader:
        assert [e.serial for _, e in reader.events(reader.lineage()) if isinstance(e, Stored)] == [0, 1]
    assert verify(path) == []


def test_a_checkpoint_fails_with_a_commit_before_it_and_can_be_made_later(writer, disk, path):
    first = failed(disk, writer)
    for _ in range(2):
        with pytest.raises(ExperienceLogError, match=FULL):
            writer.commit(PlannerState(2), checkpoint=True)
    disk.is_full = False
    for _ in range(2):
        try:
            last = writer.commit(PlannerState(2), checkpoint=True)
            break
        except ExperienceLogError:
            pass
    assert seqs(path) == [first.seq, last.seq]


def test_a_checkpoint_that_fails_itself_leaves_nothing_and_can_be_made_later(writer, buffer, path):
    """As without a thread: SQLite has no page for it."""
    writer.commit(PlannerState(1), checkpoint=True)
    (pages,) = writer._connection.execute("PRAGMA page_count").fetchone()
    writer._connection.execute(f"PRAGMA max_page_count = {pages}")
    buffer.admit([Trajectory(0, np.arange(20_000), np.full(20_000, -0.5), np.array([1.0]), 1)])
    with pytest.raises(ExperienceLogError, match=FULL):
        writer.commit(PlannerState(2), checkpoint=True)
    assert seqs(path) == [1]
    writer._connection.execute("PRAGMA max_page_count = 100000")
    assert writer.commit(PlannerState(2), checkpoint=True).seq == 3
    assert seqs(path) == [1, 3]


def test_a_log_that_is_locked_is_told_too(writer, path):
    writer._connection.execute("PRAGMA busy_timeout = 1")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    writer.commit(PlannerState(1))
    with pytest.raises(LogInUseError, match="is locked by another process while committing"):
        writer.flush()
    other.execute("ROLLBACK")
    other.close()
    writer._connection.execute("PRAGMA busy_timeout = 30000")
    writer.close()
    assert seqs(path) == [1]


def test_pause_frees_a_log_that_it_cannot_write(writer, disk, path):
    failed(disk, writer)
    with pytest.raises(ExperienceLogError, match=FULL):
        writer.pause()
    assert not writer.writing
    LogWriter(path, Dataset()).close()
    assert not any(thread.name == "experience log" for thread in threading.enumerate())
    writer.close()


def test_any_error_of_the_thread_reaches_the_caller():
    def write(commit):
        raise ZeroDivisionError("of the writer")

    behind = WriteBehind(write)
    behind.put(Commit())
    with pytest.raises(ZeroDivisionError, match="of the writer"):
        behind.flush()
    with pytest.raises(ZeroDivisionError, match="of the writer"):
        behind.stop()
    behind.stop()


# The end of the interpreter ---------------------------------------------------------------------------------------------

PROGRAM = """
import sys, time
from exgrpo.experience.events import Observed
from exgrpo.experience.log import LogWriter, PlannerState
from exgrpo.experience.replayed import fingerprint_of
from tests.logs import ORIGIN, Dataset

writer = LogWriter(sys.argv[1], Dataset(), threaded=True)
inner = writer._behind._write
def slowly(commit):
    time.sleep(0.1)
    {fault}
    inner(commit)
writer._behind._write = slowly
writer.begin(ORIGIN)
for generation in range(6):
    writer(Observed(generation, generation, generation, 1, 4, 0, False))
    writer.commit(PlannerState(generation))
print("handed over", flush=True)
{end}
"""


def program(path, end, fault=""):
    code = textwrap.dedent(PROGRAM).format(end=end, fault=fault)
    return subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, cwd=ROOT, timeout=120, check=False
    )


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 0), ("sys.exit(3)", 3), ("raise ValueError('of the program')", 1), ("raise KeyboardInterrupt", -2),
        ("import threading; threading.Thread(target=time.sleep, args=(0.05,)).start()", 0),
    ],
    ids=["the end", "sys.exit", "exception", "interrupt", "another thread"],
)  # fmt: skip
def test_the_end_of_the_interpreter_waits_for_what_waits(path, end, code):
    ended = program(path, end)
    assert (ended.returncode, ended.stdout) == (code, "handed over\n")
    assert seqs(path) == list(range(2, 13, 2))
    assert verify(path) == []


def test_what_cannot_be_written_at_the_end_of_the_interpreter_is_told(path):
    ended = program(path, "", "raise sys.modules['exgrpo.errors'].ExperienceLogError('no space left')")
    assert "ExperienceLogError: no space left" in ended.stderr
    assert seqs(path) == []


def test_a_killed_process_leaves_whole_commits_without_holes(path):
    ended = program(path, "import os, signal; time.sleep(0.25); os.kill(os.getpid(), signal.SIGKILL)")
    assert ended.returncode == -9
    found = seqs(path)
    assert found == list(range(2, 13, 2))[: len(found)]
    assert 1 <= len(found) < 6
    assert verify(path) == []
    with LogReader(path) as reader:
        assert len([e for _, e in reader.events(reader.lineage()) if isinstance(e, Observed)]) == len(found)


def test_a_child_that_was_forked_neither_hangs_nor_writes(path):
    ended = program(
        path, "import os, signal; signal.alarm(60)\nif (pid := os.fork()): assert os.waitpid(pid, 0)[1] == 0"
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert seqs(path) == list(range(2, 13, 2))
