"""Worker processes: order, progress, failure, death, Ctrl-C; and that none is left."""

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from exgrpo.lab.studies.workers import Job, WorkerError, run_jobs

HERE = "tests.support.jobs"
ROOT = Path(__file__).parents[2]


def job(name, function, /, after=(), reports=False, **arguments):
    return Job(name, f"{HERE}:{function}", arguments, after, reports)


def run(jobs, workers=2, **options):
    return list(run_jobs(jobs, workers, f"{HERE}:nothing", **options))


@pytest.fixture(autouse=True)
def _none_left():
    yield
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_results_progress_and_order():
    jobs = [
        job("b", "double", after=("a",), number=4),
        job("a", "environment", name="A_NAME", reports=True),
        job("c", "double", number=5),
    ]
    events = run(jobs, environment={"A_NAME": "a value"})
    done = {j.name: payload for kind, j, payload in events if kind == "done"}
    assert done["b"] == 8
    assert done["c"] == 10
    assert done["a"]["value"] == "a value"
    assert not done["a"]["torch"]
    assert done["a"]["pid"] != os.getpid()
    order = [(kind, j.name) for kind, j, _ in events]
    assert order.index(("done", "a")) < order.index(("start", "b"))
    assert ("progress", "a") in order


def test_one_thread_is_set_before_anything_is_imported():
    events = run([job("a", "environment", name="OMP_NUM_THREADS", reports=True)], workers=1)
    assert events[-1][2]["value"] == "1"
    assert not events[-1][2]["torch"]


@pytest.mark.slow
def test_a_job_with_an_environment_has_a_process_of_its_own():
    names = ("a", "b", "c", "d")
    jobs = [
        Job(
            n, f"{HERE}:environment", {"name": "A_NAME"}, reports=True, environment={"A_NAME": n} if n in "bc" else None
        )
        for n in names
    ]
    done = {j.name: payload for kind, j, payload in run(jobs, 1, environment={"A_NAME": "common"}) if kind == "done"}
    assert [done[n]["value"] for n in names] == ["common", "b", "c", "common"]
    assert len({done[n]["pid"] for n in names}) == 4


def test_a_job_that_fails_ends_the_others_and_says_why():
    with pytest.raises(WorkerError, match="bad failed: ValueError: out of tune") as caught:
        run([job("long", "sleep", seconds=1e6), job("bad", "fail", message="out of tune")])
    assert "Traceback" in caught.value.details


@pytest.mark.slow
def test_a_worker_that_dies_is_named():
    with pytest.raises(WorkerError, match="process of short-lived ended with exit code 7"):
        run([job("short-lived", "die", code=7)])


def test_a_setup_that_fails():
    with pytest.raises(WorkerError, match=r"failed: AttributeError: module .* has no attribute"):
        list(run_jobs([job("a", "double", number=1)], 1, f"{HERE}:missing"))


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_leaves_no_process():
    script = (
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored where tests run in the background
        "from exgrpo.lab.studies.workers import Job, run_jobs\n"
        "if __name__ == '__main__':\n"
        f"    job = Job('a', '{HERE}:environment', {{'name': 'HOME'}}, (), True)\n"
        f"    slow = Job('b', '{HERE}:sleep', {{'seconds': 1e6}}, ('a',))\n"
        f"    for kind, job, payload in run_jobs([job, slow], 1, '{HERE}:nothing'):\n"
        "        print(kind, job.name, payload, flush=True)\n"
    )
    path = ROOT / "tests" / "support"
    worker = None
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=path.parents[1],
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            for line in process.stdout:
                if line.startswith("progress a"):
                    worker = int(line.split("'pid': ")[1].rstrip("}\n"))
                if line.startswith("start b"):
                    break
            os.killpg(process.pid, signal.SIGINT)
            _, errors = process.communicate()
        finally:  # whatever went wrong, nothing is left for other tests to trip over
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGINT
    assert errors.count("Traceback") == 1, errors  # the parent's own; workers say nothing
    assert worker is not None
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
