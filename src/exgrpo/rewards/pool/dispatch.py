"""One thread that owns the worker processes of a pool: it starts them, hands out calls, and kills what takes too long.

All callers, from whichever thread or event loop, give it a `Job` and wait for its future, so a score never depends on
where it was asked for. The thread lives as long as its workers, which the kernel kills when it ends.
"""

import contextlib
import json
import logging
import os
import selectors
import threading
import time
from collections import deque
from typing import Any

from ...errors import ConfigurationError, ExGRPOError
from .job import Job, Scored
from .process import Worker, search_path
from .worker import unpack

logger = logging.getLogger(__name__)

START_LIMIT = 120.0  # seconds for a worker to start and to import a verifier
MAX_STARTS = 3  # in a row that may fail
CHUNK_SECONDS = 0.05  # of work sent at once
FIRST_CHUNK, MAX_CHUNK = 16, 512  # calls
MAX_CHUNK_CHARS = 1 << 20  # but at least one call
PATIENCE = 10.0  # seconds for killed processes to be gone
LATE = 1.0  # seconds that this thread may be late before its own absence is no longer counted against a call


class Dispatcher:
    """The dispatching thread; see the module.

    `submit` and `close` may be called from any thread, the rest is the thread's own.
    """

    def __init__(self, workers: int, memory_mb: int):
        self._limit, self._memory_mb = workers, memory_mb
        self._inbox: deque[Job] = deque()
        self._jobs: deque[Job] = deque()
        self._workers: list[Worker] = []
        self._dying: list[Worker] = []
        self._seconds: dict[str, float] = {}  # a call takes, by function
        self._failed_starts = 0
        self._last_words = ""
        self._closing = self._retiring = self._ended = False
        self._selector = selectors.PollSelector() if hasattr(selectors, "PollSelector") else selectors.SelectSelector()
        self._bell, self._ring = os.pipe()
        for end in (self._bell, self._ring):
            os.set_blocking(end, False)
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._guard = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="exgrpo-verifiers", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # a limit on processes counts threads
            self._selector.close()
            os.close(self._bell)
            os.close(self._ring)
            raise ConfigurationError(
                f"The pool of verifiers cannot start a thread ({error}). Raise the limit on processes (ulimit -u), or set "
                "EXGRPO_VERIFIER_WORKERS=0, which scores without limits."
            ) from error

    # From any thread ----------------------------------------------------------------------------------------------------

    def submit(self, job: Job) -> bool:
        """Hand a job in; False if this dispatcher takes no more."""
        with self._guard:
            if self._closing or self._retiring or self._ended:
                return False
            self._inbox.append(job)
            self._wake()
        return True

    def retire(self) -> None:
        """Finish what was submitted, then end."""
        with self._guard:
            self._retiring = True
            self._wake()

    def close(self) -> None:
        """End at once. Jobs that are not done fail; no process is left."""
        with self._guard:
            self._closing = True
            self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(2 * PATIENCE)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def abandon(self) -> None:
        """Release the parent's resources in a forked child, where the thread does not run."""
        for worker in (*self._workers, *self._dying):
            worker.close()
            worker.process.returncode = 0  # not a child of this process
        for end in (self._bell, self._ring):
            with contextlib.suppress(OSError):
                os.close(end)

    def _wake(self) -> None:
        if not self._ended:
            with contextlib.suppress(BlockingIOError):  # full: it wakes anyway
                os.write(self._ring, b"!")

    # The thread ---------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        error: BaseException = ExGRPOError("The pool of verifiers was closed while it scored.")
        try:
            while not self._closing and not (self._retiring and not self._jobs and not self._inbox):
                while self._inbox:
                    self._jobs.append(self._inbox.popleft())
                self._hand_out()
                self._wait()
                self._enforce()
        except BaseException as problem:  # noqa: BLE001 - whoever waits must learn of it
            error = problem
        finally:
            with self._guard:
                self._ended = True
                for end in (self._bell, self._ring):
                    os.close(end)
            for worker in (*self._workers,):
                self._drop(worker)
            for worker in self._dying:
                worker.how_it_ended(PATIENCE)
            for job in (*self._jobs, *self._inbox):
                if job.future.set_running_or_notify_cancel():
                    job.future.set_exception(error)

    def _wait(self) -> None:
        """Wait until a worker reports or can be given more, a caller rings, or the next deadline."""
        deadlines = [worker.deadline for worker in self._workers if worker.job is not None]
        timeout = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        if self._dying:
            timeout = min(0.05, timeout if timeout is not None else 0.05)
        asleep = time.monotonic()
        events = self._selector.select(timeout)
        absent = time.monotonic() - asleep - (timeout if timeout is not None else float("inf"))
        if absent > LATE:  # stopped, suspended or starved, and perhaps the workers with it
            for worker in self._workers:
                worker.deadline += absent
        for key, mask in events:
            if key.fd == self._bell:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._bell, 4096)
                continue
            worker = key.data
            if worker in self._workers and mask & selectors.EVENT_WRITE:
                self._write(worker)
            if worker in self._workers and mask & selectors.EVENT_READ:
                self._read(worker)

    def _enforce(self) -> None:
        now = time.monotonic()
        for worker in [w for w in self._workers if w.job is not None and w.deadline <= now]:
            while worker in self._workers and self._read(worker):
                pass  # what it said in time counts, however late this thread is
            if worker not in self._workers or worker.job is None or worker.deadline > time.monotonic():
                continue
            if worker.ready:
                self._lose(worker, f"time limit of {worker.job.time_limit:g} s")
            else:
                self._last_words = f"it said nothing for {START_LIMIT:g} s"
                self._lose(worker, None)
        for worker in [w for w in self._dying if w.process.poll() is not None]:
            self._dying.remove(worker)

    # Handing out --------------------------------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        for job in [j for j in self._jobs if j.future.cancelled()]:
            self._jobs.remove(job)
        waiting = sum(bool(job.pending) for job in self._jobs)
        while waiting:
            job = self._jobs[0]
            self._jobs.rotate(-1)  # several callers take turns
            if not job.pending:
                continue
            worker = self._idle(job.function) or self._start()
            if worker is None:
                return
            self._send(worker, job)
            waiting -= not job.pending

    def _idle(self, function: str) -> Worker | None:
        idle = [worker for worker in self._workers if worker.job is None]
        return next((worker for worker in idle if worker.function == function), idle[0] if idle else None)

    def _start(self) -> Worker | None:
        if len(self._workers) >= self._limit:
            return None
        try:
            worker = Worker()
        except OSError as error:
            if self._workers:
                return None  # those that are there do it
            raise ConfigurationError(
                f"No process for verifiers can be started: {error}. Set EXGRPO_VERIFIER_WORKERS=0 to score without them, and "
                "without limits."
            ) from error
        self._workers.append(worker)
        self._selector.register(worker.output, selectors.EVENT_READ, worker)
        return worker

    def _send(self, worker: Worker, job: Job) -> None:
        seconds = self._seconds.get(job.function)
        size = FIRST_CHUNK if seconds is None else int(CHUNK_SECONDS / max(seconds, 1e-7))
        size = max(1, min(size, MAX_CHUNK, len(job.pending) // (2 * self._limit)))
        texts: list[str] = []
        chars = 0
        while (
            job.pending
            and len(texts) < size
            and (not texts or chars + len(job.calls[job.pending[0]]) < MAX_CHUNK_CHARS)
        ):
            index = job.pending.popleft()
            worker.chunk.append(index)
            texts.append(job.calls[index])
            chars += len(texts[-1])
        head = {"path": search_path(), "function": job.function, "memory": self._memory_mb << 20}
        line = f'{json.dumps(head)[:-1]}, "calls": [{", ".join(texts)}]}}\n'
        worker.job, worker.function, worker.ready, worker.size = job, job.function, False, len(texts)
        worker.deadline = time.monotonic() + START_LIMIT
        worker.outgoing = memoryview(line.encode())
        self._write(worker)

    def _write(self, worker: Worker) -> None:
        was_waiting = worker.input.fileno() in self._selector.get_map()
        try:
            while worker.outgoing:
                worker.outgoing = worker.outgoing[os.write(worker.input.fileno(), worker.outgoing) :]
        except BlockingIOError:
            if not was_waiting:
                self._selector.register(worker.input, selectors.EVENT_WRITE, worker)
            return
        except BrokenPipeError:
            worker.outgoing = memoryview(b"")  # its end is read from the other pipe
        if was_waiting:
            self._selector.unregister(worker.input)

    # Taking in ----------------------------------------------------------------------------------------------------------

    def _read(self, worker: Worker) -> bool:
        """Read a worker's messages; return whether there were any."""
        try:
            data = os.read(worker.output.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self._ended_itself(worker)
            return False
        worker.incoming += data
        *lines, rest = worker.incoming.split(b"\n")
        worker.incoming = rest
        for line in lines:
            try:
                self._take(worker, *json.loads(line))
            except (ValueError, TypeError, LookupError):  # a verifier found the pipe and wrote into it
                self._lose(worker, "worker died (it wrote what is no answer)" if worker.ready else None)
            if worker not in self._workers:
                break
        return True

    def _take(self, worker: Worker, kind: str, content: Any = None) -> None:
        now, job = time.monotonic(), worker.job
        if job is None:
            raise ValueError("a worker sent a result that nobody asked for")
        if kind == "ready":
            worker.ready, worker.began, self._failed_starts = True, now, 0
            worker.deadline = now + job.time_limit
            return
        if kind == "unusable":
            self._drop(worker)
            worker.job = None
            self._fail(job, ConfigurationError(
                f"The verifier {job.function} cannot be used in a worker process, which imports it again: {content}."
            ))  # fmt: skip
            return
        if kind == "memory":
            self._lose(worker, f"memory limit of {self._memory_mb} MB")
            return
        self._settle(
            job, worker.chunk.popleft(), Scored(unpack(content)) if kind == "value" else Scored(failure=content)
        )
        worker.deadline = now + job.time_limit
        if not worker.chunk:
            seconds = (now - worker.began) / worker.size
            self._seconds[job.function] = (self._seconds.get(job.function, seconds) + seconds) / 2
            worker.job = None

    def _ended_itself(self, worker: Worker) -> None:
        self._drop(worker)
        how = worker.how_it_ended()
        if worker.job is not None and worker.ready:
            self._lose(worker, f"worker died ({how})")
        elif worker.job is not None:
            self._last_words = f"it ended with {how}"
            self._lose(worker, None)

    def _lose(self, worker: Worker, failure: str | None) -> None:
        """Kill a worker with the call that it had begun, if any; hand its other calls out again."""
        self._drop(worker)
        job = worker.job
        if job is None:
            return
        if failure is not None:
            self._settle(job, worker.chunk.popleft(), Scored(failure=failure))
        else:
            self._failed_starts += 1
        job.pending.extendleft(reversed(worker.chunk))
        worker.job = None
        if self._failed_starts >= MAX_STARTS:
            self._failed_starts = 0
            self._fail(job, ConfigurationError(
                f"{MAX_STARTS} worker processes in a row could not begin with the verifier {job.function}; of the last, "
                f"{self._last_words}. Set EXGRPO_VERIFIER_WORKERS=0 to score without them, and without limits."
            ))  # fmt: skip

    def _drop(self, worker: Worker) -> None:
        if worker not in self._workers:
            return
        self._workers.remove(worker)
        for pipe in (worker.output, worker.input):
            if pipe.fileno() in self._selector.get_map():
                self._selector.unregister(pipe)
        worker.kill()
        self._dying.append(worker)

    def _settle(self, job: Job, index: int, scored: Scored) -> None:
        assert job.results[index] is None, "a call was scored twice"
        job.results[index] = scored
        job.left -= 1
        if not job.left and job in self._jobs:
            self._jobs.remove(job)
            if job.future.set_running_or_notify_cancel():
                job.future.set_result(job.results)  # type: ignore[arg-type]

    def _fail(self, job: Job, error: Exception) -> None:
        job.pending.clear()
        if job in self._jobs:
            self._jobs.remove(job)
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(error)
