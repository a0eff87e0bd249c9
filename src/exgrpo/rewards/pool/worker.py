"""The process in which verifiers run: it reads calls as lines of JSON and answers each with a line, until its input ends.

It is run as a script, by its path, and imports only the standard library; what a verifier needs comes with the verifier.
Values travel as JSON with marks for what JSON lacks: nothing that a worker says can run code in the process that reads it.

A chunk of calls is one line, `{"path", "function", "memory", "calls"}`; the answers are one line `["ready"]` or
`["unusable", why]`, then for each call `["value", ...]`, `["failed", why]` or `["memory"]`.
"""

import base64
import contextlib
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction
from numbers import Integral
from typing import Any

MAX_REASON = 300  # characters
MAX_ANSWER = 1 << 20  # characters of a value; a verifier that returns more is broken
_SMALL = 1 << 63
_PR_SET_PDEATHSIG = 1


# Values -----------------------------------------------------------------------------------------------------------------


def pack(value: Any) -> Any:
    """Make a plain value ready for JSON; raise TypeError for any other.

    Plain are None, bool, int, float, str, bytes and Fraction, and lists, tuples and mappings of them.
    """
    kind = type(value)
    if value is None or kind is str or kind is bool or kind is float:
        return value
    if isinstance(value, bool | Integral):
        number = int(value)
        return number if -_SMALL < number < _SMALL else {"int": hex(number)}
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, list):
        return [pack(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [pack(item) for item in value]}
    if isinstance(value, Mapping):
        return {"dict": [[pack(key), pack(item)] for key, item in value.items()]}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, Fraction):
        return {"fraction": [pack(value.numerator), pack(value.denominator)]}
    raise TypeError(
        f"{kind.__name__} is not a plain value (None, bool, int, float, str, bytes, Fraction, list, tuple, dict)"
    )


def unpack(value: Any) -> Any:
    """Undo `pack`."""
    if type(value) is list:
        return [unpack(item) for item in value]
    if type(value) is not dict:
        return value
    ((mark, content),) = value.items()
    return _UNPACK[mark](content)


_UNPACK: dict[str, Callable[[Any], Any]] = {
    "int": lambda content: int(content, 16),
    "tuple": lambda content: tuple(map(unpack, content)),
    "dict": lambda content: {unpack(key): unpack(item) for key, item in content},
    "bytes": base64.b64decode,
    "fraction": lambda content: Fraction(*map(unpack, content)),
}


def call(function: Callable[..., Any], arguments: list[Any]) -> list[Any]:
    """Make one call, as it is reported; raises MemoryError and KeyboardInterrupt."""
    try:
        value = function(*map(unpack, arguments))
    except (MemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a verifier raises is the answer
        return ["failed", reason(error)]
    try:
        packed = pack(value)
        if len(json.dumps(packed)) > MAX_ANSWER:
            return ["failed", f"returned a value of more than {MAX_ANSWER} characters"]
    except (TypeError, ValueError, RecursionError) as error:
        return ["failed", f"returned {type(value).__name__}: {error}"[:MAX_REASON]]
    return ["value", packed]


def reason(error: BaseException) -> str:
    """Describe an error in one short line: `raised ValueError: ...`."""
    try:
        text = " ".join(str(error)[:MAX_REASON].split())
    except Exception:  # noqa: BLE001 - an exception that cannot be written is one all the same
        text = ""
    return f"raised {type(error).__name__}" + (f": {text}" if text else "")


def find(name: str) -> Callable[..., Any]:
    """Find the function called `module:qualified.name`."""
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


# The process ------------------------------------------------------------------------------------------------------------


class Memory:
    """A limit on how much more a call may allocate than is in use when it begins.

    Counted as the kernel counts RLIMIT_DATA.
    """

    def __init__(self) -> None:
        self._page = os.sysconf("SC_PAGE_SIZE")
        try:
            self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._statm = -1

    def used(self) -> int:
        if self._statm < 0:
            import resource

            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            return peak if sys.platform == "darwin" else peak * 1024
        return int(os.pread(self._statm, 128, 0).split()[5]) * self._page

    def allow(self, more: int | None) -> None:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        soft = resource.RLIM_INFINITY if more is None else self.used() + more
        if hard != resource.RLIM_INFINITY:
            soft = hard if soft == resource.RLIM_INFINITY else min(soft, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def main(parent: int) -> None:
    """Serve until the input ends. `parent` is the process that must still be there."""
    import resource

    _die_with(parent)
    source, sink = os.fdopen(os.dup(0), "rb"), os.dup(1)  # not inherited by what a verifier starts
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # where memory runs out, this goes before the training does
    memory, me, at_start = Memory(), os.getpid(), None
    functions: dict[str, Callable[..., Any]] = {}
    for line in source:
        chunk = json.loads(line)
        memory.allow(None)
        try:
            if sys.path != chunk["path"]:
                sys.path[:] = chunk["path"]
                importlib.invalidate_caches()
            if chunk["function"] not in functions:
                functions[chunk["function"]] = function = find(chunk["function"])
                if (warm_up := getattr(function, "warm_up", None)) is not None:
                    warm_up()
            function = functions[chunk["function"]]
        except BaseException as error:  # noqa: BLE001 - said to the one who asked
            _say(sink, ["unusable", reason(error)])
            return
        _say(sink, ["ready"])
        os.dup2(nowhere, 2)  # what stops a worker from starting can be read; what verifiers say is noise
        at_start = memory.used() if at_start is None else at_start
        for arguments in chunk["calls"]:
            memory.allow(chunk["memory"])
            try:
                answer = call(function, arguments)
            except MemoryError:
                memory.allow(None)
                answer = ["memory"]
            signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm of this call must not ring in the next
            if os.getpid() != me:
                os._exit(0)  # a verifier forked, and this is its child
            _say(sink, answer)
            if answer == ["memory"]:
                return
        if memory.used() > at_start + chunk["memory"]:
            return  # what verifiers left behind goes with this process


def _die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _say(sink: int, message: list[Any]) -> None:
    left = memoryview(json.dumps(message).encode() + b"\n")
    while left:
        left = left[os.write(sink, left) :]


if __name__ == "__main__":
    main(int(sys.argv[1]))
    os._exit(0)  # without what verifiers registered for the end
