"""Writing behind the caller's back: one thread, a bounded queue, and nothing lost on the way."""

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable

from .commits import Commit

WAITING = 8
"""Commits that may wait; who brings another one waits until there is room."""


class WriteBehind:
    """Commits on their way into the file, in their order.

    The thread runs from the first `put` to `stop`. A commit leaves the queue only when it is written: after an error the
    thread waits with it at the head until `put` or `flush` has told the caller, and then tries it again. When the
    interpreter ends what waits is written first; only a process that is killed loses it. A forked child has none of this.

    Args:
        write: writes one; called by the thread alone, and never at the same time as `flush` is seen to be over.
        limit: commits that may wait.
    """

    def __init__(self, write: Callable[[Commit], None], limit: int = WAITING):
        self._write = write
        self._limit = limit
        self._waiting: deque[Commit] = deque()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def put(self, commit: Commit) -> None:
        """Hand a commit over; wait for room if need be.

        Raises:
            ExperienceLogError: an earlier one could not be written; this one was not taken.
        """
        with self._changed:
            self._tell()
            self._changed.wait_for(lambda: len(self._waiting) < self._limit or self._error is not None)
            self._tell()
            self._start()
            self._waiting.append(commit)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all is written.

        Raises:
            ExperienceLogError: one could not be; it and those behind it still wait, and may be tried again.
        """
        with self._changed:
            self._wait_until_written()
            self._tell()

    def stop(self) -> None:
        """Write all, and end the thread.

        Raises:
            ExperienceLogError: one could not be written; it and those behind it are given up.
        """
        if self._thread is None or os.getpid() != self._pid:
            return
        try:
            with self._changed:
                self._wait_until_written()
        finally:
            with self._changed:
                self._is_stopping = True
                self._changed.notify_all()
            self._thread.join()
            self._thread, self._is_stopping = None, False
            self._waiting.clear()
            atexit.unregister(self.stop)
        if (error := self._error) is not None:
            self._error = None
            raise error

    def _wait_until_written(self) -> None:
        self._changed.wait_for(lambda: not self._waiting or self._error is not None)

    def _tell(self) -> None:
        """Raise the error of the thread, once; it then tries again."""
        if (error := self._error) is not None:
            self._error = None
            self._changed.notify_all()
            raise error

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="experience log", daemon=True)
            self._thread.start()
            atexit.register(self.stop)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_stopping or (self._waiting and self._error is None))
                if self._is_stopping:
                    return
                commit = self._waiting[0]
            error: BaseException | None = None
            try:
                self._write(commit)
            except BaseException as caught:  # noqa: BLE001 - whatever it is, the caller is told
                error = caught
            with self._changed:
                if error is None:
                    self._waiting.popleft()
                self._error = error
                self._changed.notify_all()
