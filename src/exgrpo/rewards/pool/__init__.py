"""A pool of worker processes for verifiers, which read hostile text: `score(function, calls)` with limits that really stop.

A call that takes longer than its limit is ended by killing the process it runs in, which works in the middle of
big-integer arithmetic, in a loop in C, and where signals are ignored. The process is replaced; the other calls are
scored as if nothing had happened. Results are the same from every thread, from an event loop, in a forked child and with
the pool switched off, as long as calls finish.

Environment variables, each overridden by `configure`: `EXGRPO_VERIFIER_WORKERS` (default: up to 4, by the CPUs of this
process and the processes beside it; 0 switches the pool off), `EXGRPO_VERIFIER_TIME_LIMIT` (seconds a call, 5),
`EXGRPO_VERIFIER_MEMORY_MB` (that a call may allocate, 512).
"""

import asyncio
import atexit
import json
import logging
import math
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Any

from ...errors import ConfigurationError, ExGRPOError
from .dispatch import Dispatcher
from .job import Job, Scored
from .worker import call, pack, reason, unpack

logger = logging.getLogger(__name__)

__all__ = ["Scored", "close", "configure", "score", "score_async"]

MAX_WORKERS = 4
SUPPORTED = os.name == "posix"  # elsewhere pipes cannot be waited for


@dataclass(frozen=True)
class Settings:
    workers: int
    time_limit: float
    memory_mb: int
    enabled: bool = True


_lock = threading.Lock()
_settings: Settings | None = None
_current: Dispatcher | None = None
_dispatchers: list[Dispatcher] = []
_warned: set[tuple[str, str]] = set()


def score(
    function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], *, time_limit: float | None = None
) -> list[Scored]:
    """Call `function(*call)` for each of the calls, in worker processes; block until all are done.

    Args:
        function: at the top level of a module that can be imported. An attribute `warm_up`, a function without
            parameters, is called in each worker before its first call, and outside all limits: for imports.
        calls: tuples of plain values: None, bool, int, float, str, bytes, Fraction; lists, tuples and mappings of them.
            So is what the function returns.
        time_limit: seconds a call; that of `configure` if not given.

    Returns:
        One `Scored` a call, in their order. The first failure of each kind is logged with its arguments.

    Raises:
        ConfigurationError: a function or arguments that cannot be sent to another process, or no process can be started.
    """
    name, job = _prepare(function, calls, time_limit)
    future = _submitted(job)
    results = _here(function, job.calls) if future is None else _awaited(future)
    return _noted(name, calls, results)


async def score_async(
    function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], *, time_limit: float | None = None
) -> list[Scored]:
    """Score like `score`, without blocking the event loop."""
    name, job = _prepare(function, calls, time_limit)
    future = _submitted(job)
    if future is None:
        results = await asyncio.to_thread(_here, function, job.calls)
    else:
        results = await asyncio.wrap_future(future)
    return _noted(name, calls, results)


def configure(
    *,
    enabled: bool | None = None,
    workers: int | None = None,
    time_limit: float | None = None,
    memory_mb: int | None = None,
) -> None:
    """Change the given settings for calls from now on; workers that no longer fit end when they are done."""
    global _settings, _current
    given: dict[str, Any] = {"enabled": enabled, "workers": workers, "time_limit": time_limit, "memory_mb": memory_mb}
    with _lock:
        before = _known_settings()
        after = _checked(replace(before, **{name: value for name, value in given.items() if value is not None}))
        _settings = after
        if _current is not None and replace(before, time_limit=1.0) != replace(after, time_limit=1.0):
            _current.retire()
            _current = None


def close() -> None:
    """End all worker processes; calls that are still running fail.

    The next `score` starts others.
    """
    global _current
    with _lock:
        closing, _current = [*_dispatchers], None
        _dispatchers.clear()
    for dispatcher in closing:
        dispatcher.close()


# Settings ---------------------------------------------------------------------------------------------------------------


def _known_settings() -> Settings:
    global _settings
    if _settings is None:
        _settings = _checked(
            Settings(
                workers=int(_variable("WORKERS", _default_workers())),
                time_limit=_variable("TIME_LIMIT", 5.0),
                memory_mb=int(_variable("MEMORY_MB", 512)),
            )
        )
    return _settings


def _variable(name: str, default: float) -> float:
    text = os.environ.get(f"EXGRPO_VERIFIER_{name}", "").strip()
    try:
        return float(text) if text else default
    except ValueError as error:
        raise ConfigurationError(f"EXGRPO_VERIFIER_{name} must be a number, got {text!r}.") from error


def _default_workers() -> int:
    """Return this process's share of the CPUs, where a launcher started several processes on the machine."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    text = os.environ.get("LOCAL_WORLD_SIZE", "1")
    beside = int(text) if text.isdecimal() and int(text) else 1
    return max(1, min(MAX_WORKERS, cpus // beside))


def _checked(settings: Settings) -> Settings:
    if isinstance(settings.workers, bool) or not isinstance(settings.workers, int) or settings.workers < 0:
        raise ConfigurationError(
            f"Verifier workers must be 0 (no pool) or a positive integer, got {settings.workers!r}."
        )
    _check_limit(settings.time_limit)
    if isinstance(settings.memory_mb, bool) or not isinstance(settings.memory_mb, int) or settings.memory_mb < 16:
        raise ConfigurationError(f"The memory limit of a verifier must be at least 16 MB, got {settings.memory_mb!r}.")
    return settings


def _check_limit(seconds: float) -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise ConfigurationError(f"The time limit of a verifier must be a positive number of seconds, got {seconds!r}.")
    return float(seconds)


# Before -----------------------------------------------------------------------------------------------------------------


def _prepare(
    function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], time_limit: float | None
) -> tuple[str, Job]:
    with _lock:
        default = _known_settings().time_limit
    name = _name_of(function)
    limit = default if time_limit is None else _check_limit(time_limit)
    return name, Job(name, [_written(name, arguments) for arguments in calls], limit)


def _name_of(function: Callable[..., Any]) -> str:
    """Return `module:name`, by which another process finds a function."""
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    known_as = spec.name if module == "__main__" and spec is not None else module
    found: Any = sys.modules.get(module or "")
    for part in (path or "<none>").split("."):
        found = getattr(found, part, None)
    if found is not function or known_as in (None, "__main__"):
        raise ConfigurationError(
            f"A verifier must be a function at the top level of a module that can be imported, since it runs in another "
            f"process; {module}.{path} is not. Move it into a module of its own."
        )
    return f"{known_as}:{path}"


def _written(name: str, arguments: tuple[Any, ...]) -> str:
    try:
        return json.dumps([pack(argument) for argument in arguments])
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"Arguments of the verifier {name} cannot be sent to another process: {error}."
        ) from error


# Scoring ----------------------------------------------------------------------------------------------------------------


def _submitted(job: Job) -> "Future[list[Scored]] | None":
    """Return the future results; None if they are to be made in this process."""
    if not job.calls:
        job.future.set_result([])
        return job.future
    while True:
        with _lock:
            dispatcher = _dispatcher()
        if dispatcher is None:
            return None
        if dispatcher.submit(job):
            return job.future
        _forget(dispatcher)


def _dispatcher() -> Dispatcher | None:
    global _current
    settings = _known_settings()
    if not settings.enabled or not settings.workers or not SUPPORTED:
        _warn_off()
        return None
    if _current is None:
        _dispatchers[:] = [dispatcher for dispatcher in _dispatchers if dispatcher.is_alive()]
        _current = Dispatcher(settings.workers, settings.memory_mb)
        _dispatchers.append(_current)
        _close_with_this_process()
    return _current


def _forget(dispatcher: Dispatcher) -> None:
    global _current
    with _lock:
        if _current is dispatcher:
            _current = None


def _awaited(future: "Future[list[Scored]]") -> list[Scored]:
    try:
        while not wait([future], timeout=10).done:
            if not any(dispatcher.is_alive() for dispatcher in [*_dispatchers]):
                raise ExGRPOError("The thread that serves the verifiers has ended; nothing was scored.")
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _here(function: Callable[..., Any], calls: Sequence[str]) -> list[Scored]:
    """Call in this process: without limits, and otherwise with the same results."""
    results = []
    for text in calls:
        try:
            kind, content = call(function, json.loads(text))
        except MemoryError as error:
            kind, content = "failed", reason(error)
        results.append(Scored(unpack(content)) if kind == "value" else Scored(failure=content))
    return results


# Said once --------------------------------------------------------------------------------------------------------------


def _noted(name: str, calls: Sequence[tuple[Any, ...]], results: list[Scored]) -> list[Scored]:
    """Return the results; log the first failure of each kind."""
    for arguments, scored in zip(calls, results, strict=True):
        if scored.failure is None:
            continue
        kind = (name, scored.failure.partition(":")[0])
        if kind not in _warned:
            _warned.add(kind)
            logger.warning(
                "The verifier %s did not finish on a sample: %s. Its arguments: %s. The others of the batch are not affected. "
                "Further failures of this kind are not logged.",
                name,
                scored.failure,
                ", ".join(_shortened(argument) for argument in arguments),
            )
    return results


def _shortened(value: Any, room: int = 160) -> str:
    if isinstance(value, str | bytes) and len(value) > room:
        return f"{value[: room // 2]!r} ... {value[-room // 2 :]!r} ({len(value):,} characters)"
    text = repr(value)
    return text if len(text) <= room else f"{text[:room]}..."


def _warn_off() -> None:
    if ("", "off") not in _warned:
        _warned.add(("", "off"))
        logger.warning(
            "Verifiers run in this process, without limits of time and memory: one hostile completion can stall it."
        )


# Processes --------------------------------------------------------------------------------------------------------------


def _close_with_this_process() -> None:
    """Register the closing with multiprocessing too: its children run their own finalizers, and none of `atexit`."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, close, exitpriority=10)


def _after_fork() -> None:
    """Drop the parent's pool in a forked child, which lacks its thread; another starts when needed."""
    global _lock, _current
    _lock, _current = threading.Lock(), None
    for dispatcher in _dispatchers:
        dispatcher.abandon()
    _dispatchers.clear()


atexit.register(close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
