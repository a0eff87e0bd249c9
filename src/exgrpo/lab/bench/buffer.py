"""`exgrpo bench buffer`: the cost of planning a step and storing its outcome, in memory, as experience grows."""

import argparse
import gc
import importlib.util
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...cli.experience.output import write, write_table
from ...config import ReplayConfig
from ...experience import ExperienceBuffer, Group, Trajectory
from ...experience.policy_stats import PolicyStats
from ...experience.replayed import restore, snapshot_of
from ...replay import FreshStream, ReplayPlanner, StepPlan
from ..studies.workers import WorkerError
from .machine import resident
from .process import in_a_process

B, K, PER_QUESTION, TOKENS = 64, 8, 10, 8
NEW = 2 * B
CHOICES = ("lowest_entropy", "random")
PACKAGES = ("torchrl", "tensordict")
SAME = PolicyStats(1.0)


class OneTrajectoryStore:
    """A store that returns the same trajectory for every serial: token arrays are not measured."""

    def __init__(self) -> None:
        self.any = Trajectory(0, np.arange(TOKENS), np.full(TOKENS, -1.0), np.ones(1), 0, entropy=1.0)

    def put_many(self, serials: Sequence[int], trajectories: Sequence[Trajectory]) -> None:
        """Forget them."""

    def get_many(self, serials: Sequence[int]) -> list[Trajectory]:
        return [self.any] * len(serials)

    def drop_many(self, serials: Sequence[int]) -> None:
        """Do nothing: there is nothing to forget."""


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measure each size in a process of its own, a row for each choice; and torchrl's buffer where installed."""
    rows = [
        row
        for size in args.sizes
        for row in in_a_process("exgrpo.lab.bench.buffer:rows_of", size=size, repeats=args.repeats)
    ]
    result: dict[str, Any] = {"questions": B, "generations": K, "new": NEW, "rows": rows}
    if all(importlib.util.find_spec(package) for package in PACKAGES):
        try:
            result["against"] = against(rows[-1], args.repeats)
        except WorkerError as error:  # a torchrl that does not fit this torch
            result["against_failed"] = str(error)
    return result


def rows_of(size: int, repeats: int) -> list[dict[str, Any]]:
    """Measure one size in this process; each choice begins with the same experience."""
    rng = np.random.default_rng(0)
    gc.collect()
    before = resident()
    buffer, append = filled(planner_of(size, CHOICES[0]), rng)
    gc.collect()
    held = resident() - before
    full, rows = snapshot_of(buffer), []
    del buffer
    for choice in CHOICES:
        planner = planner_of(size, choice)
        restore(planner.buffer, full)
        costs = {"append_us": 1e6 * append, "resident_bytes": held / size}
        rows.append({"trajectories": size, "choice": choice, **costs, **steps_of(planner, rng, repeats)})
    return rows


def planner_of(size: int, choice: str) -> ReplayPlanner:
    """Make a planner that replays whole batches, with room for ten trajectories a question."""
    questions = size // PER_QUESTION
    order = np.random.default_rng(0).permutation(questions)
    config = ReplayConfig(
        start_pass_at_1=0.0,
        capacity=size,
        capacity_per_question=PER_QUESTION,
        trajectory_choice=choice,
        replay_share=1.0,
    )
    return ReplayPlanner(config, FreshStream(lambda p: order, questions), K, seed=0, store=OneTrajectoryStore())


def filled(planner: ReplayPlanner, rng: np.random.Generator) -> tuple[ExperienceBuffer, float]:
    """Fill the planner's buffer; return it, and the seconds per admitted trajectory over the last tenth."""
    buffer, questions = planner.buffer, planner.buffer.config.capacity // PER_QUESTION
    seconds, counted = 0.0, 0
    for question in range(questions):
        buffer.observe(question, int(rng.integers(0, K)), K)
        made = [trajectory(question, rng, 0, n) for n in range(PER_QUESTION)]
        start = time.thread_time()
        buffer.admit(made)
        if question >= 0.9 * questions:
            seconds, counted = seconds + time.thread_time() - start, counted + len(made)
    return buffer, seconds / counted


def trajectory(question: int, rng: np.random.Generator, step: int, number: int) -> Trajectory:
    """Make a trajectory of eight tokens, unlike any other of its question."""
    ids = np.array([question & 0xFFFF, question >> 16, number, step, *range(TOKENS - 4)])
    logps, rewards = np.full(TOKENS, -1.0, np.float32), np.ones(1, np.float32)
    return Trajectory(question, ids, logps, rewards, step, entropy=float(rng.random()))


def steps_of(planner: ReplayPlanner, rng: np.random.Generator, repeats: int) -> dict[str, float]:
    """Measure the CPU milliseconds of plan, and of observe and admit.

    Medians, and of their sum also the 95 % quantile.
    """
    plans, observes, admits = [], [], []
    for step in range(1, repeats + 1):
        start = time.thread_time()
        plan = planner.plan(B, step, 0.0, lambda trajectories: [SAME] * len(trajectories))
        plans.append(time.thread_time() - start)
        groups, new = outcome_of(plan, rng, step)
        start = time.thread_time()
        planner.observe(plan, groups)
        observes.append(time.thread_time() - start)
        start = time.thread_time()
        planner.admit(new)
        admits.append(time.thread_time() - start)
    sums = sorted(map(sum, zip(plans, observes, admits, strict=True)))
    return {
        "plan_ms": 1e3 * statistics.median(plans),
        "observe_ms": 1e3 * statistics.median(observes),
        "admit_ms": 1e3 * statistics.median(admits),
        "step_ms": 1e3 * statistics.median(sums),
        "step_ms_p95": 1e3 * sums[int(0.95 * repeats)],
    }


def outcome_of(plan: StepPlan, rng: np.random.Generator, step: int) -> tuple[list[Group], list[Trajectory]]:
    """Make up the outcome of a planned step.

    Fresh completions right or wrong, at least one wrong; two new trajectories a question.
    """
    outcomes = (rng.random((B, K)) < 0.5).astype(np.int8)
    outcomes[:, 0] = 0
    groups = [
        Group(int(question), mine[: K - len(choices)], bool(replayed))
        for question, mine, choices, replayed in zip(plan.questions, outcomes, plan.replays, plan.replayed, strict=True)
    ]
    return groups, [trajectory(int(question), rng, step, n) for question in plan.questions for n in range(NEW // B)]


# Against torchrl's ------------------------------------------------------------------------------------------------------


def against(row: Mapping[str, Any], repeats: int) -> dict[str, Any]:
    """Measure the same in torchrl's prioritized replay buffer: sample 64, change priorities, extend by 128.

    Args:
        row: of ours: there, to sample is to plan, and to extend is to admit.
    """
    size = row["trajectories"]
    found = in_a_process("exgrpo.lab.bench.buffer:theirs", size=size, repeats=repeats)
    both = {"sample_ms": row["plan_ms"], "extend_ms": row["admit_ms"]}
    ours = both | {"sample_and_extend_ms": sum(both.values())}
    ratio = ours["sample_and_extend_ms"] / found["sample_and_extend_ms"]
    return {"trajectories": size, "sampled": B, "extended": NEW, "ours": ours, "torchrl": found, "ratio": ratio}


def theirs(size: int, repeats: int) -> dict[str, float]:
    """Measure torchrl's buffer: rows of the same columns, default priorities."""
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

    torch.set_num_threads(1)

    def rows(number: int) -> Any:
        columns = {
            "question": torch.randint(0, size // PER_QUESTION, (number,)),
            "ids": torch.randint(0, 1 << 17, (number, TOKENS), dtype=torch.int32),
            "logps": -torch.rand(number, TOKENS), "reward": torch.ones(number, 1), "entropy": torch.rand(number),
        }  # fmt: skip
        return TensorDict(columns, [number])

    buffer = TensorDictPrioritizedReplayBuffer(alpha=0.7, beta=0.5, storage=LazyTensorStorage(size), batch_size=B)
    for start in range(0, size, 10_000):
        buffer.extend(rows(min(10_000, size - start)))
    sample: list[float] = []
    extend: list[float] = []
    update: list[float] = []
    for _ in range(repeats):
        new, priorities = rows(NEW), torch.rand(B)
        sampled = _timed(sample, buffer.sample)
        _timed(extend, partial(buffer.extend, new))
        sampled.set("td_error", priorities)
        _timed(update, partial(buffer.update_tensordict_priority, sampled))
    found = {name: 1e3 * statistics.median(v) for name, v in (("sample_ms", sample), ("extend_ms", extend))}
    return found | {"update_ms": 1e3 * statistics.median(update), "sample_and_extend_ms": sum(found.values())}


def _timed(seconds: list[float], call: Callable[[], Any]) -> Any:
    start = time.thread_time()
    result = call()
    seconds.append(time.thread_time() - start)
    return result


# Text -------------------------------------------------------------------------------------------------------------------


def show(result: Mapping[str, Any]) -> None:
    """Print a row for each size and choice, and the comparison where there is one."""
    write(
        f"A step: {B} questions of {K}, all replayed; {NEW} new trajectories of {TOKENS} tokens. CPU time, medians.\n"
    )
    columns = ("plan_ms", "observe_ms", "admit_ms", "step_ms", "step_ms_p95", "append_us", "resident_bytes")
    heads = ("plan ms", "observe ms", "admit ms", "step ms", "step ms, 95 %", "append µs", "bytes each")
    rows = [
        {"trajectories": row["trajectories"], "choice": row["choice"]}
        | {head: f"{row[name]:.3g}" for head, name in zip(heads, columns, strict=True)}
        for row in result["rows"]
    ]
    write_table(rows, ["trajectories", "choice", *heads])
    if (found := result.get("against")) is None:
        write(
            f"\n{result.get('against_failed', 'With torchrl installed, its prioritized replay buffer is measured beside.')}"
        )
        return
    write(f"\nSampling {B} and extending by {NEW}, of {found['trajectories']:,}, over torchrl: {found['ratio']:.2f}\n")
    names = ("sample_ms", "extend_ms", "sample_and_extend_ms")
    write_table(
        [
            {
                "buffer": who,
                **{name.removesuffix("_ms").replace("_", " ") + " ms": f"{row[name]:.3g}" for name in names},
            }
            for who, row in (("exgrpo", found["ours"]), ("torchrl", found["torchrl"]))
        ],
        ["buffer", "sample ms", "extend ms", "sample and extend ms"],
    )
