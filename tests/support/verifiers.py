"""Verifiers that the tests of the pool run: easy, hostile and broken ones."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from fractions import Fraction

started = time.time()


def double(number):
    return 2 * number


def echo(*values):
    return values


def length(text):
    return len(text)


def tower():
    return 9**9**9


def regex():
    return bool(re.match(r"(a+)+$", "a" * 60 + "b"))


def loop_in_c():
    return sum(range(10**12))


def deaf():
    """Ignores every signal that can be ignored, and swallows every exception."""
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    while True:
        try:
            time.sleep(100)
        except BaseException:  # noqa: BLE001 - that is what it is for
            continue


def grow():
    held = []
    while True:
        held.append(bytearray(1 << 20))


def big_integer():
    return (10**10**9) % 7 + len(bytes(10**11))


def swallow_growth():
    try:
        grow()
    except MemoryError:
        return "swallowed"


def segfault():
    return ctypes.string_at(0)


def leave(code):
    os._exit(code)


def fail(kind, message):
    raise {"ValueError": ValueError, "SystemExit": SystemExit, "RecursionError": RecursionError}[kind](message)


def noisy(text):
    print(text)  # noqa: T201 - likewise
    sys.stderr.write(text)
    os.write(1, text.encode())
    os.write(2, text.encode())
    return sys.stdin.read()


def strange():
    return object()


def chatty():
    return "x" * (2 << 20)


def forks():
    os.fork()
    return os.getpid()


def alarm():
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    return 1


def spawns(path):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(path, "w") as file:
        file.write(str(child.pid))
    time.sleep(600)


def record(path, number, seconds=0.0):
    """Leaves a line for each time that it is called."""
    with open(path, "a") as file:
        file.write(f"{number}\n")
    time.sleep(seconds)
    return number


def hang_if(number, every):
    while number % every == every - 1:
        pass
    return number


def third():
    return Fraction(1, 3)


def me():
    return os.getpid()


def where():
    return [threading.current_thread() is threading.main_thread(), "torch" in sys.modules, "numpy" in sys.modules]


def order():
    """Depends on the hash seed."""
    return list({f"name{i}" for i in range(20)})


def warmed():
    return warmed.state


warmed.state = "cold"


def _warm_up():
    time.sleep(1.2)
    warmed.state = "warm"


warmed.warm_up = _warm_up


def record_or_hang(path, number, hanging):
    record(path, number)
    while number in hanging:
        pass
    return number


def scores_of_a_child(results):
    """In a process that multiprocessing made."""
    from exgrpo.rewards import pool

    results.put(([scored.value for scored in pool.score(double, [(1,), (2,)])], pool.score(me, [()])[0].value))


class Scoring:
    """A dataset that scores what it gives, in whichever process it is asked."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        from exgrpo.rewards import pool

        return pool.score(double, [(index,)])[0].value
