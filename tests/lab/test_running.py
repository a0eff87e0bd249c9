"""A study that was killed, torn or has lost a worker ends with the same bytes as one that ran through."""

import os
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from exgrpo.cli.main import main
from exgrpo.lab.studies import results as results_module
from exgrpo.lab.studies import running
from exgrpo.lab.studies.cells import run_cell
from exgrpo.lab.studies.results import Results
from exgrpo.lab.studies.running import duration, estimated_seconds, run_study
from exgrpo.lab.studies.study import Cell
from exgrpo.lab.studies.workers import WorkerError

from ..support.tiny import ABOUT, LINES, Silent, arguments, tiny


def lines(folder):
    path = folder / "results.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@contextmanager
def started(study_file, folder):
    """The command in a process of its own; whatever goes wrong, nothing of it is left for other tests to trip over."""
    with subprocess.Popen(
        arguments("run", str(study_file), "--output_dir", str(folder), "--jobs", "1"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def wait_for(process, condition):
    """Poll until the condition holds; the process must not end before."""
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def workers_of(process):
    """Process ids of the command's workers; not of the tracker that Python starts beside them."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def gone(pid):
    """Whether a process has ended; one that nobody has waited for counts."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def cut_tail(path, count):
    path.write_bytes(path.read_bytes()[:-count])


# Really killed ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children of a process are read from /proc")
def test_killed_torn_and_without_a_worker_and_still_the_same_bytes(whole, study_file, tmp_path, capsys):
    """SIGKILL of the command; a torn last line; SIGKILL of a worker in the second go; the third runs to the end."""
    with started(study_file, tmp_path) as first:
        wait_for(first, lambda: lines(tmp_path) >= 2)
        orphans = workers_of(first)
        first.kill()
        assert first.wait() == -signal.SIGKILL
        first.communicate()
    assert len(orphans) == 1
    while not gone(orphans[0]):  # a worker notices at its next report, and ends
        time.sleep(0.01)
    after_kill = lines(tmp_path)
    assert 2 <= after_kill < LINES
    cut_tail(tmp_path / "results.jsonl", 9)
    cut_tail(tmp_path / "times.jsonl", 40)

    with started(study_file, tmp_path) as second:
        wait_for(second, lambda: lines(tmp_path) >= after_kill)
        (worker,) = workers_of(second)
        os.kill(worker, signal.SIGKILL)
        said, error = second.communicate()
    assert second.returncode == 1
    assert f"{LINES} runs, {LINES - after_kill + 1} of them to do" in said
    assert "ended with exit code -9 before its work was done. It was killed, perhaps for want of memory." in error
    assert "Traceback" not in error
    after_death = lines(tmp_path)
    assert after_kill <= after_death < LINES

    assert main(["lab", "run", str(study_file), "--output_dir", str(tmp_path), "--jobs", "1"]) == 0
    assert f"{LINES} runs, {LINES - after_death} of them to do" in capsys.readouterr().out
    assert (tmp_path / "results.jsonl").read_bytes() == whole.rows
    assert Results(tmp_path).times().keys() == Results(whole.path).times().keys()


# Recorded runs: the same path, but a worker's result is read from the study that ran through ---------------------------


class Crash(BaseException):
    """The machine stops here."""


@pytest.fixture
def recorded(whole, monkeypatch):
    """Jobs give the rows of the study that ran through, at once, in this process; returns the keys that were run."""
    rows, times, ran = Results(whole.path).rows(), Results(whole.path).times(), []

    def run_jobs(jobs, workers, setup, environment=None):
        for job in jobs:
            yield "start", job, None
            ran.append(job.name)
            yield "done", job, (rows[job.name], times[job.name])

    monkeypatch.setattr(running, "run_jobs", run_jobs)
    monkeypatch.setattr(results_module.os, "fsync", lambda number: None)  # nothing here depends on the disk's own cache
    return ran


def go(folder, cells=None, study=None, **options):
    study = study or tiny()
    display = Silent()
    run_study(study, study.cells() if cells is None else cells, Results(folder), ABOUT, 1, display, **options)
    return display


@pytest.fixture
def half(whole, tmp_path):
    """A folder with three runs done."""
    folder = tmp_path / "half"
    folder.mkdir()
    for name in ("results.jsonl", "times.jsonl"):
        done = (whole.path / name).read_bytes().splitlines(keepends=True)[:3]
        (folder / name).write_bytes(b"".join(done))
    return folder


@pytest.mark.slow
def test_recorded_runs_give_the_same_bytes(recorded, whole, tmp_path):
    display = go(tmp_path)
    assert recorded == [cell.key for cell in tiny().cells()]
    assert (tmp_path / "results.jsonl").read_bytes() == whole.rows
    assert "8/8" in display.said[-1]
    assert go(tmp_path).said == []
    assert len(recorded) == LINES


def places(path):
    """Where a last line can be torn: before it, within it at its start, middle and end, and before its newline."""
    data = path.read_bytes()
    begin = data.rstrip(b"\n").rfind(b"\n") + 1
    return sorted({begin, begin + 1, begin + 8, (begin + len(data)) // 2, len(data) - 3, len(data) - 2, len(data) - 1})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["results.jsonl", "times.jsonl"])
def test_a_torn_last_line_is_run_again_or_forgotten(name, recorded, whole, half, tmp_path):
    for place in places(half / name):
        folder = tmp_path / f"{name}-{place}"
        shutil.copytree(half, folder)
        os.truncate(folder / name, place)
        recorded.clear()
        go(folder)
        assert (folder / "results.jsonl").read_bytes() == whole.rows, place
        assert Results(folder).times() == Results(whole.path).times() or name == "times.jsonl"
        assert len(recorded) == (6 if name == "results.jsonl" else 5), place


@pytest.mark.slow
def test_every_length_of_both_files_goes_on(recorded, whole, half, tmp_path):
    """Not only of the last line: an editor, a full disk. Every 23rd byte, of both files at once too."""
    size = (half / "results.jsonl").stat().st_size
    for i, place in enumerate(range(0, size, 23)):
        folder = tmp_path / str(place)
        shutil.copytree(half, folder)
        os.truncate(folder / "results.jsonl", place)
        if i % 2:
            os.truncate(folder / "times.jsonl", (folder / "times.jsonl").stat().st_size * place // size)
        go(folder)
        assert (folder / "results.jsonl").read_bytes() == whole.rows, place
        shutil.rmtree(folder)


class Stopper:
    """Lets so many writes, syncs and renames happen, then crashes in the middle of the next."""

    def __init__(self, monkeypatch):
        self.left = None
        self.count = 0
        replace, open_, fsync = Path.replace, Path.open, os.fsync
        write_text = Path.write_text

        def replacing(path, target):
            self.tick()
            return replace(path, target)

        def writing(path, text, *args, **options):
            if self.last():
                write_text(path, text[: len(text) // 2], *args, **options)
            self.tick()
            return write_text(path, text, *args, **options)

        def opening(path, mode="r", *args, **options):
            file = open_(path, mode, *args, **options)
            if "a" in mode:
                whole = file.write

                def half(text):
                    if self.last():
                        whole(text[: len(text) // 2])
                        file.flush()
                    self.tick()
                    whole(text)

                file.write = half
            return file

        def syncing(number):
            self.tick()
            fsync(number)

        monkeypatch.setattr(Path, "replace", replacing)
        monkeypatch.setattr(Path, "write_text", writing)
        monkeypatch.setattr(Path, "open", opening)
        monkeypatch.setattr(results_module.os, "fsync", syncing)

    def last(self):
        return self.left == 0

    def tick(self):
        self.count += 1
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Crash


@pytest.mark.slow
def test_a_crash_in_any_write(recorded, whole, tmp_path, monkeypatch):
    """Every write, sync and rename of a whole study is the last one once; then the study is started again."""
    stopper = Stopper(monkeypatch)
    go(tmp_path / "uncut")
    writes = stopper.count
    assert writes > 4 * LINES
    interrupted = 0
    for n in range(writes):
        folder = tmp_path / str(n)
        stopper.left = n
        with pytest.raises(Crash):
            go(folder)
        stopper.left = None
        interrupted += 0 < lines(folder) < LINES
        go(folder)
        assert (folder / "results.jsonl").read_bytes() == whole.rows, n
        assert Results(folder).times() == Results(whole.path).times(), n
    assert interrupted > 2 * LINES


@pytest.mark.slow
def test_parts_in_any_order_give_the_same_bytes(recorded, whole, tmp_path):
    study = tiny()
    for pattern in ("*/rescue/1", "chains/*/1", "chains/on-policy/*"):
        go(tmp_path, study.only([pattern]))
    assert 0 < lines(tmp_path) < LINES
    go(tmp_path)
    assert sorted(recorded) == sorted(cell.key for cell in study.cells())
    assert (tmp_path / "results.jsonl").read_bytes() == whole.rows


@pytest.mark.slow
def test_a_run_that_fails_keeps_what_was_done(recorded, whole, tmp_path, monkeypatch):
    recorded_jobs = running.run_jobs

    def failing(jobs, *args, **options):
        for event in recorded_jobs(jobs, *args, **options):
            if event[0] == "start" and event[1].name == "chains/rescue/0":
                raise WorkerError("chains/rescue/0 failed: ValueError: out of tune")
            yield event

    monkeypatch.setattr(running, "run_jobs", failing)
    with pytest.raises(WorkerError, match="out of tune"):
        go(tmp_path)
    assert lines(tmp_path) == 3
    monkeypatch.setattr(running, "run_jobs", recorded_jobs)
    go(tmp_path)
    assert (tmp_path / "results.jsonl").read_bytes() == whole.rows


# What a run gives -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_run_alone_is_the_study_s(whole):
    """Bit for bit, in another process, without the runs that were before it."""
    cell = next(cell for cell in tiny().cells() if cell.key == "chains/exgrpo/1")
    row, times = run_cell(cell, lambda progress: None)
    assert row == Results(whole.path).rows()[cell.key]
    assert times["key"] == cell.key
    assert len(times["seconds"]["cpu"]) == len(row["curve"]) == 2
    assert 0 < times["seconds"]["cpu"][0] < times["seconds"]["cpu"][1]


@pytest.mark.slow
def test_arms_are_pairs(whole):
    """One start a seed, one budget, evaluations at the same places; the first step of on-policy and rescue is the same."""
    rows = Results(whole.path).rows()
    assert list(rows) == [cell.key for cell in tiny().cells()]
    for seed in (0, 1):
        arms = [rows[f"chains/{arm}/{seed}"] for arm in ("on-policy", "exgrpo", "rescue")]
        assert {row["token_budget"] for row in arms} == {6 * 8 * 4 * 2}
        assert {tuple(p["at"] for p in row["curve"]) for row in arms} == {(192, 384)}
        assert all(row["tokens"] >= row["token_budget"] == row["curve"][-1]["at"] for row in arms)
    assert rows["chains/(start)/0"]["curve"] != rows["chains/(start)/1"]["curve"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "budget",
    [
        1.5,
        2.0,
        0.75,
        0.2,
    ],
)
def test_the_last_evaluation_is_at_the_end_of_the_budget(budget):
    study = tiny()
    setting = study.settings[0]
    row, _ = run_cell(Cell(setting, replace(setting.arms[0], budget=budget), 0), lambda progress: None)
    assert row["token_budget"] == round(budget * 384)
    ats = [p["at"] for p in row["curve"]]
    assert ats[-1] == row["token_budget"]
    assert ats == sorted(set(ats))
    assert all(at % 192 == 0 for at in ats[:-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "options"),
    [
        (1.0, {}),
        (5.0, {}),
        (1.0, {"num_iterations": 6}),
    ],
)
def test_an_arm_has_all_its_tokens(budget, options):
    """However many steps that takes: equal tokens are what makes arms comparable."""
    setting = tiny(evaluations=1).settings[0]
    row, _ = run_cell(Cell(setting, replace(setting.arms[0], budget=budget, options=options), 0), lambda progress: None)
    assert row["token_budget"] == budget * 384
    assert row["ended_by"] == "tokens"
    assert row["token_budget"] <= row["tokens"] < row["token_budget"] + 8 * 4 * 2


# Words ------------------------------------------------------------------------------------------------------------------


def test_durations():
    texts = [duration(s) for s in (0, 40.4, 89, 90, 12 * 60, 89.4 * 60, 200 * 60, 3 * 3600 + 300)]
    assert texts == ["0 s", "40 s", "89 s", "2 min", "12 min", "89 min", "3 h 20 min", "3 h 05 min"]


def test_the_estimate_counts_runs_and_tokens():
    cells = tiny().cells()
    nothing = estimated_seconds(cells, lambda cell: 0.0)
    steps = 2 * 40 * running.SECONDS_PER_BATCH + 6 * 6 * running.SURPLUS * running.SECONDS_PER_STEP
    assert nothing == pytest.approx(running.SECONDS_PER_PROCESS + LINES * running.SECONDS_PER_CELL + steps)
    more = estimated_seconds(cells, lambda cell: 1000.0 if cell.arm else 0.0)
    assert more - nothing == pytest.approx(6 * 1000 * running.SECONDS_PER_TOKEN)
    assert estimated_seconds([], lambda cell: 0.0) == 0


def test_more_processes_than_runs_do_not_make_a_study_shorter_than_a_start_and_an_arm():
    cells = tiny().cells()
    assert estimated_seconds(cells, lambda cell: 0.0, 2) < estimated_seconds(cells, lambda cell: 0.0)
    chain = running._seconds(cells[0], 0.0) + running._seconds(cells[1], 0.0)
    assert estimated_seconds(cells, lambda cell: 0.0, 100) == pytest.approx(running.SECONDS_PER_PROCESS + chain)


def test_a_start_comes_before_its_arms():
    jobs = running._jobs(tiny().cells(), 1)
    assert [job.after for job in jobs[:4]] == [(), *[("chains/(start)/0",)] * 3]
    assert jobs[5].after == ("chains/(start)/1",)
    assert running._jobs(tiny().cells()[1:3], 1)[0].after == ()  # the start is done already


@pytest.mark.slow
def test_main_is_the_same_command(whole, study_file, capsys):
    """A study that is done says so and leaves the bytes alone."""
    before = whole.rows
    assert main(["lab", "run", str(study_file), "--output_dir", str(whole.path)]) == 0
    assert "8 runs, 0 of them to do" in capsys.readouterr().out
    assert whole.rows == before
