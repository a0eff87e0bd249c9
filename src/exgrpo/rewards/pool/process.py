"""One worker process as its parent sees it: how it starts, and how it is ended."""

import contextlib
import os
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path

from .job import Job

SCRIPT = Path(__file__).with_name("worker.py")
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Worker:
    """A process, the calls sent to it, and its messages so far."""

    def __init__(self) -> None:
        environment = {**os.environ, **dict.fromkeys(ONE_THREAD, "1"), "PYTHONHASHSEED": "0"}
        environment["EXGRPO_VERIFIER_WORKERS"] = "0"  # a verifier that scores does it in its own process
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(SCRIPT), str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdin is not None and self.process.stdout is not None
        self.input, self.output = self.process.stdin, self.process.stdout
        for pipe in (self.input, self.output):
            os.set_blocking(pipe.fileno(), False)
        self.job: Job | None = None
        self.chunk: deque[int] = deque()
        self.function = ""
        self.ready, self.size = False, 0
        self.began = self.deadline = 0.0
        self.outgoing = memoryview(b"")
        self.incoming = bytearray()

    def close(self) -> None:
        self.input.close()
        self.output.close()

    def kill(self) -> None:
        """Kill the worker and what it started; no process can prevent that."""
        for kill, number in ((os.killpg, self.process.pid), (os.kill, self.process.pid)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(number, signal.SIGKILL)
        self.close()

    def how_it_ended(self, patience: float = 1.0) -> str:
        """Describe how it ended once it has been dropped: by which signal, or with which exit code."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        code = self.process.returncode
        if code is None or code >= 0:
            return f"exit code {code}"
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"


def search_path() -> list[str]:
    return [entry or os.getcwd() for entry in sys.path if isinstance(entry, str)]
