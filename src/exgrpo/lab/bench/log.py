"""`exgrpo bench log`: append to the experience log, open it, commit after each step, as it grows."""

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...cli.experience.output import write, write_table
from ...config import ReplayConfig
from ...experience import Trajectory
from ...experience.events import Observed, Planned, PlannerState
from ...experience.replayed import snapshot_of
from ...log import LogWriter, Provenance, QuestionRecord, rebuild
from ...replay import FreshStream, ReplayPlanner
from .buffer import NEW, PER_QUESTION, SAME, B, K, outcome_of
from .machine import resident
from .process import in_a_process

COMMIT = 512
ORIGIN = Provenance(model="synthetic", num_generations=K)


class Synthetic:
    """Questions of a log."""

    def __init__(self, number: int):
        self.keys = [f"{i:032x}" for i in range(number)]

    def record(self, question: int) -> QuestionRecord:
        return QuestionRecord(self.keys[question], question, f"What is {question} + {question}?", '{"answer": "42"}')


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measure each size: filled in one process, opened and measured in another."""
    rows = []
    for size in args.sizes:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            where = {"path": str(Path(folder) / "experience.db"), "size": size, "tokens": args.tokens}
            row = {"trajectories": size, "tokens": args.tokens}
            row |= in_a_process("exgrpo.lab.bench.log:fill", **where)
            rows.append(row | in_a_process("exgrpo.lab.bench.log:steps", **where, repeats=args.repeats))
    return {"questions": B, "generations": K, "new": NEW, "rows": rows}


def planner_on(log: LogWriter, size: int) -> ReplayPlanner:
    """Make a planner that replays half of each batch."""
    questions = size // PER_QUESTION
    config = ReplayConfig(
        start_pass_at_1=0.0,
        capacity=size,
        capacity_per_question=PER_QUESTION,
        trajectory_choice="random",
        replay_share=0.5,
    )
    order = np.arange(questions)
    return ReplayPlanner(config, FreshStream(lambda p: order, questions), K, 0, store=log, listener=log)


def trajectory(question: int, rng: np.random.Generator, step: int, tokens: int) -> Trajectory:
    ids = rng.integers(0, 1 << 17, tokens, dtype=np.int32)
    return Trajectory(question, ids, -rng.random(tokens, np.float32), np.ones(1), step, entropy=float(rng.random()))


def fill(path: str, size: int, tokens: int) -> dict[str, float]:
    """Append in commits of 512, with an observation of every question, CPU time of this thread; a checkpoint at the end."""
    questions, rng = size // PER_QUESTION, np.random.default_rng(0)
    log = LogWriter(path, Synthetic(questions))
    log.begin(ORIGIN)
    buffer = planner_on(log, size).buffer
    seconds = []
    for step, start in enumerate(range(0, size, COMMIT)):
        made = [trajectory(i % questions, rng, step, tokens) for i in range(start, min(size, start + COMMIT))]
        began = time.thread_time()
        log(Planned(step, step, B, 0, 0, None))
        new = np.unique([one.question for one in made if not buffer.questions.scorable[one.question]])
        if new.size:
            right, none = np.full(new.size, 3), np.zeros(new.size, int)
            log(Observed(step, step, new, right, np.full(new.size, K), none, none > 0, np.full(new.size, np.nan)))
            buffer.observe(new, right, K)
        buffer.admit(made)
        log.commit(PlannerState(generation=step + 1, step=step))
        seconds.append((time.thread_time() - began) / len(made))
    began = time.perf_counter()
    log.commit(PlannerState(generation=size // COMMIT + 2, step=size // COMMIT), True, snapshot_of(buffer))
    checkpoint = time.perf_counter() - began
    log.close()
    return {
        "append_us": 1e6 * statistics.median(seconds),
        "checkpoint_ms": 1e3 * checkpoint,
        "file_bytes": Path(path).stat().st_size / size,
    }


def steps(path: str, size: int, tokens: int, repeats: int) -> dict[str, float]:
    """Open, then plan, observe, admit and commit: CPU time of this thread; and wall time until the commit is written."""
    rng, questions = np.random.default_rng(1), Synthetic(size // PER_QUESTION)
    before, began = resident(), time.perf_counter()
    log = LogWriter(path, questions)
    position = log.reader.position()
    log.begin(ORIGIN, position)
    planner = planner_on(log, size)
    planner.restore(rebuild(log.reader, planner.buffer, position, log.question_map))
    opened, held = time.perf_counter() - began, resident() - before
    log.commit(planner.state(size))
    took: dict[str, list[float]] = {name: [] for name in ("plan", "observe_admit", "commit", "written")}
    for step in range(size, size + repeats):
        start = time.thread_time()
        plan = planner.plan(B, step, 0.0, lambda trajectories: [SAME] * len(trajectories))
        planned = time.thread_time()
        groups, _ = outcome_of(plan, rng, step)
        new = [trajectory(int(question), rng, step, tokens) for question in plan.questions for _ in range(NEW // B)]
        scored = time.thread_time()
        planner.observe(plan, groups)
        planner.admit(new)
        admitted, handed = time.thread_time(), time.perf_counter()
        log.commit(planner.state(step))
        committed = time.thread_time()
        spent = (planned - start, admitted - scored, committed - admitted, time.perf_counter() - handed)
        for kept, seconds in zip(took.values(), spent, strict=True):
            kept.append(1e3 * seconds)
    log.close()
    sums = [sum(three) for three in zip(took["plan"], took["observe_admit"], took["commit"], strict=True)]
    return {
        "open_ms": 1e3 * opened,
        "resident_bytes": held / size,
        **{f"{name}_ms": statistics.median(values) for name, values in took.items()},
        "step_ms": statistics.median(sums),
        "step_ms_p95": sorted(sums)[int(0.95 * repeats)],
    }


def show(result: Mapping[str, Any]) -> None:
    """Print a row for each size."""
    write(
        f"A step: {B} questions of {K}, half replayed; {NEW} new trajectories. Medians, CPU time of the caller; until written, "
        "open and checkpoint: wall time.\n"
    )
    heads = {
        "plan_ms": "plan ms", "observe_admit_ms": "observe, admit ms", "commit_ms": "commit ms",
        "written_ms": "until written ms", "step_ms": "step ms", "append_us": "append µs", "open_ms": "open ms",
        "checkpoint_ms": "checkpoint ms", "file_bytes": "file, bytes each",
    }  # fmt: skip
    rows = [
        {"trajectories": row["trajectories"], "tokens": row["tokens"]}
        | {head: f"{row[name]:.3g}" for name, head in heads.items()}
        for row in result["rows"]
    ]
    write_table(rows, ["trajectories", "tokens", *heads.values()])
