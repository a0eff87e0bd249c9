"""A few worker processes that run jobs, report progress, and leave nothing behind.

Not a `ProcessPoolExecutor`: workers report while they work, one that dies is noticed at once and named, and leaving the
`with` block, by Ctrl-C too, ends all of them. Imports nothing heavy; workers import what their jobs need.
"""

import contextlib
import importlib
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from ...errors import ExGRPOError

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
GRACE_SECONDS = 10.0


class WorkerError(ExGRPOError, RuntimeError):
    """A job failed, or its process died; `details` holds the traceback of the worker, where there is one."""

    def __init__(self, message: str, details: str = ""):
        super().__init__(message)
        self.details = details


@dataclass(frozen=True)
class Job:
    """A call of `function`, `package.module:name`, in a worker; once those of `after` are done.

    The function gets the keyword `on_progress` beside these arguments if `reports`. With an `environment` the job has a process
    of its own, with these variables: of a large model nothing is left behind for the next.
    """

    name: str
    function: str
    arguments: Mapping[str, Any]
    after: tuple[str, ...] = ()
    reports: bool = False
    environment: Mapping[str, str] | None = None


@dataclass(eq=False)
class Worker:
    """One process, the pipe to it, the job that it has, and whether it may take more of them."""

    process: Any
    pipe: Connection
    job: Job | None = None
    lasts: bool = True


def run_jobs(
    jobs: Sequence[Job], workers: int, setup: str, environment: Mapping[str, str] | None = None
) -> Generator[tuple[str, Job, Any], None, None]:
    """Run all jobs on `workers` processes; yields ("start" | "progress" | "done", job, payload) as it happens.

    Args:
        jobs: in order of precedence.
        workers: processes, each with one thread for its arithmetic unless a job's environment says otherwise.
        setup: `package.module:name`, called once in each worker before its first job.
        environment: variables of the workers, set before they import anything.

    Raises:
        WorkerError: a job raised, or a worker died. The others are ended first.
    """
    common, size = dict(environment or {}), min(workers, len(jobs))
    team = [_start(setup, common) for _ in range(size) if jobs[0].environment is None]
    waiting, done = list(jobs), set[str]()
    try:
        while waiting or any(worker.job for worker in team):
            for _ in range(size):
                idle = [worker for worker in team if worker.job is None]
                if (not idle and len(team) == size) or (job := _next(waiting, done)) is None:
                    break
                waiting.remove(job)
                worker = _worker_for(job, team, idle, setup, common)
                worker.job = job
                worker.pipe.send(job)
                yield "start", job, None
            ready = wait([worker.pipe for worker in team])
            for worker in [worker for worker in team if worker.pipe in ready]:
                kind, payload = _receive(worker)
                assert worker.job is not None
                job = worker.job
                if kind == "done":
                    done.add(job.name)
                    worker.job = None
                    if not worker.lasts:
                        team.remove(worker)
                        _end([worker])
                yield kind, job, payload
    finally:
        _end(team)


def _next(waiting: Sequence[Job], done: set[str]) -> Job | None:
    return next((job for job in waiting if done.issuperset(job.after)), None)


def _worker_for(job: Job, team: list[Worker], idle: Sequence[Worker], setup: str, common: Mapping[str, str]) -> Worker:
    """Return an idle worker, or a new one in its place for a job that has a process of its own."""
    if idle and job.environment is None:
        return idle[0]
    for worker in idle[:1]:
        team.remove(worker)
        _end([worker])
    worker = _start(setup, {**common, **(job.environment or {})})
    worker.lasts = job.environment is None
    team.append(worker)
    return worker


def _start(setup: str, environment: Mapping[str, str]) -> Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, setup, environment), daemon=True)
    process.start()
    theirs.close()  # so that the end of the process ends our side too
    return Worker(process, ours)


def _receive(worker: Worker) -> tuple[str, Any]:
    try:
        kind, payload = worker.pipe.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join(GRACE_SECONDS)
        raise WorkerError(
            f"The process of {worker.job.name if worker.job else 'a worker'} ended with exit code "
            f"{worker.process.exitcode} before its work was done."
            + (" It was killed, perhaps for want of memory." if worker.process.exitcode == -signal.SIGKILL else "")
        ) from None
    if kind == "failed":
        message, details = payload
        raise WorkerError(f"{worker.job.name if worker.job else 'A worker'} failed: {message}", details)
    return kind, payload


def _end(team: Sequence[Worker]) -> None:
    """Close the pipe of a worker without a job, at which it ends by itself.

    A signal might hit it while it cleans up, and leave semaphores behind that Python then complains about.
    """
    for worker in team:
        worker.pipe.close()
        if worker.job is not None:
            worker.process.terminate()
    for worker in team:
        worker.process.join(GRACE_SECONDS)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()


# In the worker ----------------------------------------------------------------------------------------------------------


def _work(pipe: Connection, setup: str, environment: Mapping[str, str]) -> None:
    """Run jobs until the pipe is closed, or SIGTERM comes: as an exception, so that temporary files are removed.

    Ctrl-C reaches the whole process group and is the parent's to handle.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1") | dict(environment))
    try:
        find(setup)()
        while True:
            job = pipe.recv()
            progress = {"on_progress": lambda payload: pipe.send(("progress", payload))} if job.reports else {}
            pipe.send(("done", find(job.function)(**job.arguments, **progress)))
    except (EOFError, BrokenPipeError):
        return  # the parent is gone
    except Exception as error:  # noqa: BLE001 - the parent raises it
        text = str(error) if isinstance(error, ExGRPOError) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            pipe.send(("failed", (text, traceback.format_exc())))
    finally:
        signal.signal(
            signal.SIGTERM, signal.SIG_DFL
        )  # nothing left to clean up; an exception in atexit would be printed


def find(path: str) -> Callable[..., Any]:
    """Return the function at `package.module:name`."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
