"""The pool of verifiers: it stops what must be stopped, and gives the same results from everywhere."""

import asyncio
import gc
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exgrpo.errors import ConfigurationError, ExGRPOError
from exgrpo.rewards import pool
from exgrpo.rewards.pool import Scored, configure, dispatch, process, score, score_async
from exgrpo.rewards.pool.worker import pack, unpack
from tests.support import verifiers

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
PATIENCE = 600.0  # seconds; nothing takes as long unless it hangs, on however busy a machine


@pytest.fixture(autouse=True, scope="module")
def _one_pool():
    yield
    pool.close()


@pytest.fixture(autouse=True)
def _usual(monkeypatch):
    monkeypatch.setattr(pool, "_warned", set())
    configure(enabled=True, workers=2, time_limit=PATIENCE, memory_mb=256)
    yield
    configure(enabled=True, workers=2, time_limit=PATIENCE, memory_mb=256)


def values(results):
    return [scored.value for scored in results]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


# What must be stopped -------------------------------------------------------------------------------------------------

HANGS = [verifiers.tower, verifiers.regex, verifiers.loop_in_c, verifiers.deaf]


@pytest.mark.parametrize("function", HANGS, ids=lambda f: f.__name__)
def test_a_call_that_hangs_is_ended_whatever_it_does(function):
    assert score(function, [()], time_limit=0.3) == [Scored(failure="time limit of 0.3 s")]
    assert values(score(verifiers.double, [(4,)])) == [8]


@pytest.mark.slow
def test_memory_is_bounded():
    assert score(verifiers.grow, [(), ()]) == [Scored(failure="memory limit of 256 MB")] * 2
    assert values(score(verifiers.swallow_growth, [()])) == ["swallowed"]
    assert score(verifiers.big_integer, [()], time_limit=0.5)[0].failure in (
        "time limit of 0.5 s", "memory limit of 256 MB",
    )  # fmt: skip


def test_a_worker_that_dies_by_itself_takes_only_its_call_along():
    assert score(verifiers.segfault, [()]) == [Scored(failure="worker died (SIGSEGV)")]
    assert score(verifiers.leave, [(3,), (0,)]) == [
        Scored(failure="worker died (exit code 3)"), Scored(failure="worker died (exit code 0)"),
    ]  # fmt: skip
    assert values(score(verifiers.double, [(i,) for i in range(50)])) == list(range(0, 100, 2))


@pytest.mark.slow
def test_of_thousands_only_those_that_hang_fail_and_none_is_scored_twice(tmp_path):
    hanging = [3, 4, 1999]
    calls = [(str(tmp_path / "calls"), number, hanging) for number in range(2000)]
    results = score(verifiers.record_or_hang, calls, time_limit=3)
    assert [i for i, scored in enumerate(results) if scored.failure] == hanging
    assert all(scored.value == i for i, scored in enumerate(results) if not scored.failure)
    called = [int(line) for line in (tmp_path / "calls").read_text().split()]
    assert sorted(called) == list(range(2000))


@pytest.mark.parametrize("enabled", [True, False])
def test_what_a_verifier_raises_or_returns_is_said(enabled):
    configure(enabled=enabled)
    calls = [("ValueError", "no\nnumber"), ("SystemExit", "1"), ("RecursionError", "x" * 10_000)]
    first, second, third = score(verifiers.fail, calls)
    assert (first.failure, second.failure) == ("raised ValueError: no number", "raised SystemExit: 1")
    assert third.failure.startswith("raised RecursionError: xxx")
    assert len(third.failure) < 400
    assert "object is not a plain value" in score(verifiers.strange, [()])[0].failure
    assert score(verifiers.chatty, [()])[0].failure.startswith("returned a value of more than")


def test_what_a_verifier_prints_or_reads_goes_nowhere(capfd):
    score(verifiers.double, [(1,)])
    capfd.readouterr()
    assert values(score(verifiers.noisy, [("loud " * 50_000,)] * 3)) == ["", "", ""]
    assert capfd.readouterr() == ("", "")


def test_leftovers_of_a_call_do_not_reach_the_next():
    configure(workers=1)
    assert values(score(verifiers.alarm, [()])) == [1]
    (one, two) = values(score(verifiers.forks, [(), ()]))
    assert one == two  # a child that a verifier left answers nothing
    assert values(score(verifiers.record, [(os.devnull, 5, 0.2)])) == [5]


@pytest.mark.slow
@LINUX
def test_what_a_verifier_started_is_ended_with_it(tmp_path):
    assert score(verifiers.spawns, [(str(tmp_path / "pid"),)], time_limit=3)[0].failure == "time limit of 3 s"
    assert eventually(lambda: not is_running(int((tmp_path / "pid").read_text())))


def test_the_first_failure_of_a_kind_is_logged_with_its_sample(caplog):
    calls = [("ValueError", "a"), ("ValueError", "b" * 999), ("SystemExit", "c")]
    score(verifiers.fail, calls)
    score(verifiers.fail, calls)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert "tests.support.verifiers:fail" in messages[0]
    assert "raised ValueError: a" in messages[0]
    assert "'ValueError', 'a'" in messages[0]
    assert "SystemExit" in messages[1]


# The same from everywhere ---------------------------------------------------------------------------------------------

SAMPLES = [
    ("\ud800\u202e\x00", 10**400, -0.0),
    (b"\xff", Fraction(-1, 3), [(1, None)]),
    ({"a": {2: True}}, 1e-300, "x" * 10**6),
]


def everywhere():
    """Results of the samples from here, a thread, several at once, an event loop."""
    yield score(verifiers.echo, SAMPLES)
    found = []
    threads = [threading.Thread(target=lambda: found.append(score(verifiers.echo, SAMPLES))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    yield from found
    yield asyncio.run(score_async(verifiers.echo, SAMPLES))

    async def at_once():
        return await asyncio.gather(*(score_async(verifiers.echo, SAMPLES) for _ in range(4)))

    yield from asyncio.run(at_once())


@pytest.mark.parametrize("enabled", [True, False])
def test_results_are_the_same_from_every_thread_and_event_loop(enabled):
    configure(enabled=enabled)
    for results in everywhere():
        assert values(results) == SAMPLES


def test_an_event_loop_is_not_blocked():
    ticks = []

    async def tick():
        while True:
            ticks.append(1)
            await asyncio.sleep(0.01)

    async def run():
        ticking = asyncio.ensure_future(tick())
        result = await score_async(verifiers.record, [(os.devnull, 1, 0.5)])
        ticking.cancel()
        return result

    assert values(asyncio.run(run())) == [1]
    assert len(ticks) > 2


def test_a_cancelled_caller_leaves_the_pool_as_it_was():
    async def run():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(score_async(verifiers.record, [(os.devnull, i, 0.2) for i in range(500)]), 0.3)
        return await score_async(verifiers.double, [(3,)])

    assert values(asyncio.run(run())) == [6]


@pytest.mark.slow
def test_a_small_job_does_not_wait_for_a_large_one():
    done = []
    large = threading.Thread(
        target=lambda: done.append(score(verifiers.record, [(os.devnull, i, 0.02) for i in range(200)]))
    )
    large.start()
    eventually(lambda: pool._current is not None and pool._current._jobs)
    assert values(score(verifiers.double, [(3,)])) == [6]
    assert not done
    large.join()
    assert values(done[0]) == list(range(200))


def test_a_forked_child_has_workers_of_its_own():
    (mine,) = values(score(verifiers.me, [()]))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            results = score(verifiers.double, [(i,) for i in range(100)])
            os.write(writing, str(values(score(verifiers.me, [()]))[0]).encode())
            pool.close()
            code = 0 if values(results) == list(range(0, 200, 2)) else 2
            gc.collect()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert int(os.read(reading, 100)) != mine
    os.close(reading)
    os.close(writing)
    assert mine in values(score(verifiers.me, [()] * 40))


@LINUX
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_daemonic_process_can_score_and_leaves_nothing(method):
    score(verifiers.double, [(1,)])
    context = multiprocessing.get_context(method)
    results = context.Queue()
    child = context.Process(target=verifiers.scores_of_a_child, args=(results,), daemon=True)
    child.start()
    doubled, worker = results.get(timeout=2 * PATIENCE)
    child.join(PATIENCE)
    assert (doubled, child.exitcode) == ([2, 4], 0)
    assert eventually(lambda: not is_running(worker))
    results.close()


def test_a_worker_of_a_data_loader_can_score():
    from torch.utils.data import DataLoader

    loader = DataLoader(verifiers.Scoring(), batch_size=2, num_workers=1, multiprocessing_context="fork")
    assert [batch.tolist() for batch in loader] == [[0, 2], [4, 6]]


def test_workers_import_nothing_that_the_verifier_does_not_need_and_order_is_the_same_in_all():
    assert values(score(verifiers.where, [()])) == [[True, False, False]]
    configure(workers=1)
    first = values(score(verifiers.order, [()]))
    configure(workers=2)
    assert values(score(verifiers.order, [()] * 8)) == first * 8


def test_a_warm_up_is_not_counted():
    assert values(score(verifiers.warmed, [()], time_limit=1)) == ["warm"]


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters()) | st.binary()
    | st.fractions(),
    lambda inner: st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple)
    | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(plain)
def test_plain_values_arrive_as_they_were(value):
    assert repr(unpack(pack(value))) == repr(value)


@given(st.lists(st.tuples(plain), max_size=5))
@settings(max_examples=20)
def test_plain_values_come_back_from_a_worker(calls):
    assert repr(values(score(verifiers.echo, calls))) == repr(calls)


def test_relatives_of_plain_values_arrive_as_them():
    assert unpack(pack([np.int64(3), np.float64(0.5), np.str_("a"), signal.SIGKILL])) == [3, 0.5, "a", 9]
    assert math.isnan(unpack(pack(math.nan)))


# No processes left ----------------------------------------------------------------------------------------------------


@LINUX
def test_closing_leaves_no_process_and_no_zombie():
    workers = set(values(score(verifiers.me, [()] * 60)))
    raised = []

    def wait_in_vain():
        with pytest.raises(ExGRPOError) as error:
            score(verifiers.deaf, [()])
        raised.append(str(error.value))

    thread = threading.Thread(target=wait_in_vain)
    thread.start()
    eventually(lambda: pool._current is not None and pool._current._jobs)
    pool.close()
    thread.join(PATIENCE)
    assert raised == ["The pool of verifiers was closed while it scored."]
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
    assert values(score(verifiers.double, [(1,)])) == [2]


@LINUX
def test_other_settings_replace_the_workers_when_they_are_done():
    done = []
    slow = threading.Thread(target=lambda: done.append(score(verifiers.record, [(os.devnull, 1, 1.0)])))
    slow.start()
    eventually(lambda: pool._current is not None and any(w.job for w in pool._current._workers))
    old = [worker.process.pid for worker in pool._current._workers]
    configure(memory_mb=128)
    assert score(verifiers.grow, [()]) == [Scored(failure="memory limit of 128 MB")]
    slow.join()
    assert values(done[0]) == [1]
    assert eventually(lambda: not any(map(is_running, old)))


PARENT = """
    import os, signal, sys, threading, time
    from exgrpo.rewards import pool
    from tests.support import verifiers
    pool.configure(workers=2, time_limit=600)
    threading.Thread(target=pool.score, args=(verifiers.loop_in_c, [()]), daemon=True).start()
    print(pool.score(verifiers.me, [()])[0].value, flush=True)
    while not pool._current._workers[0].ready: time.sleep(0.01)
    print(*(w.process.pid for w in pool._current._workers), flush=True)
    {end}
"""


@LINUX
@pytest.mark.parametrize(
    "end", ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(0)", "raise SystemError", "os._exit(3)"]
)
def test_however_the_parent_ends_its_workers_end_too(end):
    code = textwrap.dedent(PARENT).format(end=end)
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=2 * PATIENCE
    )
    workers = [int(word) for word in done.stdout.split()]
    assert len(workers) >= 3
    assert eventually(lambda: not any(map(is_running, workers)))


# Mistakes and misfortunes ---------------------------------------------------------------------------------------------


def test_functions_that_another_process_cannot_find_are_refused():
    for function in (lambda: 1, verifiers.Scoring().__getitem__, print.__call__):
        with pytest.raises(ConfigurationError, match="top level of a module"):
            score(function, [()])
    with pytest.raises(ConfigurationError, match="cannot be sent to another process: object is not a plain"):
        score(verifiers.echo, [(object(),)])


def test_a_module_that_only_this_process_has_is_said(monkeypatch):
    module = types.ModuleType("only_in_this_process")
    exec("def f(): return 1", module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(ConfigurationError, match=r"cannot be used in a worker process.*ModuleNotFoundError"):
        score(module.f, [()])


@pytest.mark.parametrize(
    ("script", "limit", "message"),
    [("import sys; sys.exit(7)", 60.0, "exit code 7"), ("import time; time.sleep(100)", 0.2, "said nothing for 0.2 s")],
)
def test_workers_that_never_begin_are_an_error_and_no_hang(tmp_path, monkeypatch, script, limit, message):
    (tmp_path / "script.py").write_text(script)
    pool.close()
    monkeypatch.setattr(process, "SCRIPT", tmp_path / "script.py")
    monkeypatch.setattr(dispatch, "START_LIMIT", limit)
    with pytest.raises(ConfigurationError, match=f"3 worker processes.*{message}.*EXGRPO_VERIFIER_WORKERS=0"):
        score(verifiers.double, [(1,)])


def test_a_system_without_room_for_a_process_is_an_error(monkeypatch):
    def refuse(*args, **kwargs):
        raise BlockingIOError("Resource temporarily unavailable")

    pool.close()
    monkeypatch.setattr(process.subprocess, "Popen", refuse)
    with pytest.raises(ConfigurationError, match="No process for verifiers can be started"):
        score(verifiers.double, [(1,)])


def test_a_thread_that_fails_lets_nobody_wait(monkeypatch):
    pool.close()
    monkeypatch.setattr(dispatch.Dispatcher, "_enforce", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        score(verifiers.double, [(1,)])
    monkeypatch.undo()
    configure(enabled=True, workers=2)
    assert values(score(verifiers.double, [(1,)])) == [2]


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"workers": -1}, "workers"),
        ({"time_limit": 0}, "time limit"),
        ({"time_limit": math.inf}, "time limit"),
        ({"memory_mb": 1}, "memory limit"),
    ],
)
def test_settings_that_cannot_be(given_, message):
    with pytest.raises(ConfigurationError, match=message):
        configure(**given_)


def test_settings_from_the_environment(monkeypatch, caplog):
    for name, text in {"WORKERS": "0", "TIME_LIMIT": "1.5", "MEMORY_MB": "64"}.items():
        monkeypatch.setenv(f"EXGRPO_VERIFIER_{name}", text)
    monkeypatch.setattr(pool, "_settings", None)
    monkeypatch.setattr(pool, "_current", None)
    assert pool._known_settings() == pool.Settings(0, 1.5, 64)
    assert values(score(verifiers.me, [(), ()])) == [os.getpid()] * 2
    assert [record.getMessage() for record in caplog.records] == [
        "Verifiers run in this process, without limits of time and memory: one hostile completion can stall it."
    ]
    monkeypatch.setenv("EXGRPO_VERIFIER_WORKERS", "many")
    monkeypatch.setattr(pool, "_settings", None)
    with pytest.raises(ConfigurationError, match="EXGRPO_VERIFIER_WORKERS must be a number"):
        score(verifiers.me, [()])
    monkeypatch.setattr(pool, "_settings", pool.Settings(2, 1.0, 64))


def test_processes_on_one_machine_share_its_cpus(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    assert pool._default_workers() == 4
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "32")
    assert pool._default_workers() == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "128")
    assert pool._default_workers() == 1
