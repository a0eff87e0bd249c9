"""The experience log as it grows: time to append a step, to open, to plan with reads from the file, to read at random;
file size and resident memory. Of a step, the time of the caller by phase.

    python benchmarks/log.py                            # 10^4 .. 10^7 trajectories of 8 tokens, and 10^5 of 4,000
    python benchmarks/log.py --sizes 10000 100000       # less

Every size is filled through the real writer (a commit every 512 trajectories) and measured in a process of its own, opened
from the file, which is on this machine's disk and, after filling, partly in its page cache.
"""

import argparse
import gc
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from machine import save

from exgrpo.config import ReplayConfig
from exgrpo.experience import ExperienceBuffer, Group, Trajectory
from exgrpo.experience.events import Observed, Planned, PlannerState
from exgrpo.experience.replayed import snapshot_of
from exgrpo.log import LogReader, LogWriter, Provenance, QuestionRecord, rebuild
from exgrpo.replay import FreshStream, ReplayPlanner

B, K, PER_QUESTION, COMMIT = 64, 8, 10, 512


class Synthetic:
    def __init__(self, number: int):
        self.keys = [f"{i:032x}" for i in range(number)]

    def record(self, question: int) -> QuestionRecord:
        return QuestionRecord(self.keys[question], question, f"What is {question} + {question}?", '{"answer": "42"}')


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def trajectory(question: int, rng: np.random.Generator, tokens: int, step: int) -> Trajectory:
    ids = rng.integers(0, 1 << 17, tokens, dtype=np.int32)
    return Trajectory(question, ids, -rng.random(tokens, np.float32), np.ones(1), step, entropy=float(rng.random()))


def fill(path: Path, size: int, tokens: int) -> dict:
    """Append `size` trajectories in commits of 512, with an observation for every ten."""
    questions = size // PER_QUESTION
    rng = np.random.default_rng(0)
    log = LogWriter(path, Synthetic(questions))
    log.begin(Provenance(model="synthetic", num_generations=K))
    config = ReplayConfig(capacity=size, capacity_per_question=PER_QUESTION)
    buffer = ExperienceBuffer(questions, K, config, log, log)
    cpu, wall = [], []
    for start in range(0, size, COMMIT):
        batch = [
            trajectory(i % questions, rng, tokens, start // COMMIT) for i in range(start, min(size, start + COMMIT))
        ]
        a, b = time.process_time(), time.perf_counter()
        log(Planned(start // COMMIT, start // COMMIT, B, 0, 0, None))
        for made in batch[:: max(1, len(batch) // B)]:
            log(Observed(start // COMMIT, start // COMMIT, made.question, 3, K, 0, False))
            buffer.observe(made.question, 3, K)
        buffer.admit(batch)
        log.commit(PlannerState(generation=start // COMMIT + 1, step=start // COMMIT))
        cpu.append(time.process_time() - a)
        wall.append(time.perf_counter() - b)
    for question in range(questions):  # so that all can be replayed
        if not buffer.questions.scorable[question]:
            log(Observed(0, 0, question, 3, K, 0, False))
            buffer.observe(question, 3, K)
    a = time.perf_counter()
    log.commit(PlannerState(generation=size // COMMIT + 2, step=size // COMMIT), True, snapshot_of(buffer))
    checkpoint = time.perf_counter() - a
    log.close()
    tail = slice(len(cpu) // 2, None)
    return {
        "append_cpu_us": 1e6 * statistics.median(cpu[tail]) / COMMIT,
        "append_wall_us": 1e6 * statistics.median(wall[tail]) / COMMIT,
        "checkpoint_s": checkpoint,
        "file_mb": path.stat().st_size / 1e6,
        "bytes_a_trajectory": path.stat().st_size / size,
    }


class Clock:
    """Of the calling thread: wall time by phase, and processor time of all that is measured.

    Args:
        phases: into which seconds go.
    """

    def __init__(self, phases: dict[str, list[float]]):
        self._phases = phases
        self.cpu = 0.0
        self.begin()

    def begin(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.thread_time()

    def tick(self, phase: str) -> None:
        """A phase is over, and the next begins."""
        wall, cpu = self._wall, self._cpu
        self.begin()
        self._phases[phase].append(self._wall - wall)
        self.cpu += self._cpu - cpu


def measure(path: Path, size: int, tokens: int, repeats: int) -> dict:
    """Open, plan and read, from the file."""
    questions = size // PER_QUESTION
    known = Synthetic(questions)
    rng = np.random.default_rng(1)
    gc.collect()
    before = resident()
    start = time.perf_counter()
    log = LogWriter(path, known)
    position = log.reader.position()
    log.begin(Provenance(model="synthetic", num_generations=K), position)
    config = ReplayConfig(
        start_pass_at_1=0.0,
        capacity=size,
        capacity_per_question=PER_QUESTION,
        trajectory_choice="random",
        replay_share=0.5,
    )
    order = np.arange(questions)
    planner = ReplayPlanner(config, FreshStream(lambda p: order, questions), K, 0, store=log, listener=log)
    planner.restore(rebuild(log.reader, planner.buffer, position, log.question_map))
    opened = time.perf_counter() - start
    gc.collect()
    held = resident() - before
    log.commit(planner.state(size))
    phases: dict[str, list[float]] = {name: [] for name in ("plan", "observe", "admit", "commit", "cpu")}
    steps, reads = [], []
    for step in range(size, size + repeats):
        clock = Clock(phases)
        plan = planner.plan(B, step, 0.0, lambda ts: np.ones(len(ts)))
        clock.tick("plan")
        outcomes = (rng.random((B, K)) < 0.5).astype(np.int8)
        outcomes[:, 0] = 0
        groups = [
            Group(int(q), o[: K - len(choices)], bool(replayed))
            for q, o, choices, replayed in zip(plan.questions, outcomes, plan.replays, plan.replayed, strict=True)
        ]
        new = [trajectory(int(q), rng, tokens, step) for q in plan.questions for _ in range(2)]
        clock.begin()
        planner.observe(plan, groups)
        clock.tick("observe")
        planner.admit(new)
        clock.tick("admit")
        log.commit(planner.state(step))
        clock.tick("commit")
        phases["cpu"].append(clock.cpu)
        steps.append(sum(phases[name][-1] for name in ("plan", "observe", "admit", "commit")))
    for _ in range(repeats):
        serials = rng.integers(0, size, B).tolist()
        fresh = LogReader(path)  # nothing cached by us
        numbers = [log.id_of(serial) for serial in serials]
        a = time.perf_counter()
        for number in numbers:
            fresh.trajectory(number)
        reads.append((time.perf_counter() - a) / B)
        fresh.close()
    log.close()
    row = {
        "open_s": opened,
        "resident_mb": held / 1e6,
        **{f"{name}_ms": 1e3 * statistics.median(taken) for name, taken in phases.items()},
        "plan_observe_admit_log_ms": 1e3 * statistics.median(steps),
        "plan_observe_admit_log_ms_p95": 1e3 * sorted(steps)[int(0.95 * repeats)],
        "random_read_us": 1e6 * statistics.median(reads),
    }
    if size <= 1_000_000 and tokens < 100:
        with LogReader(path) as reader:
            buffer = ExperienceBuffer(questions + 1, K)
            start = time.perf_counter()
            rebuild(reader, buffer, position, use_snapshot=False)
            row["open_without_snapshot_s"] = time.perf_counter() - start
    return row


def in_a_process(*arguments: object) -> dict:
    run = subprocess.run(
        [sys.executable, __file__, *map(str, arguments)], capture_output=True, text=True, check=True
    )  # fmt: skip
    return json.loads(run.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000, 10_000_000])
    parser.add_argument("--long", type=int, default=100_000, help="trajectories of 4,000 tokens; 0: none")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--folder", help="where the files are made")
    parser.add_argument("--one", nargs=4, metavar=("WHAT", "PATH", "SIZE", "TOKENS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        what, path, size, tokens = options.one
        row = fill(Path(path), int(size), int(tokens)) if what == "fill" else None
        print(json.dumps(row or measure(Path(path), int(size), int(tokens), options.repeats)))
        return
    rows = []
    for size, tokens in [*((size, 8) for size in options.sizes), *([(options.long, 4000)] if options.long else [])]:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            path = Path(folder) / "experience.db"
            row = {"trajectories": size, "tokens": tokens}
            row |= in_a_process("--one", "fill", path, size, tokens)
            row |= in_a_process("--repeats", options.repeats, "--one", "measure", path, size, tokens)
        rows.append(row)
        print(json.dumps(row), flush=True)
    sizes = "" if options.sizes == parser.get_default("sizes") else f" --sizes {' '.join(map(str, options.sizes))}"
    print("saved", save("log", f"python benchmarks/log.py{sizes}", {"sizes": rows}))


if __name__ == "__main__":
    main()
