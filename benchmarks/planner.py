"""CPU time of `plan` and `observe` + `admit` of one step (64 questions of 8), and resident memory of the index, as the pool
grows: does a step cost more when more is stored?

    python benchmarks/planner.py [--sizes 10000 100000 1000000]
"""

import argparse
import gc
import resource
import statistics
import sys
import time

import numpy as np
from machine import save

from exgrpo.config import ReplayConfig
from exgrpo.experience import Group, Trajectory
from exgrpo.replay import FreshStream, ReplayPlanner

B, K, PER_QUESTION, TOKENS = 64, 8, 10, 8


class OneTrajectoryStore:
    """Token arrays are not what is measured: every serial answers with one and the same."""

    def __init__(self):
        self.questions: dict[int, int] = {}
        self.any = Trajectory(0, np.arange(TOKENS), np.full(TOKENS, -1.0), np.ones(1), 0, entropy=1.0)

    def put(self, serial, trajectory):
        pass

    def get_many(self, serials):
        return [self.any] * len(serials)

    def drop(self, serial):
        pass


def resident() -> int:
    """Bytes now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def filled(size: int, rng: np.random.Generator, choice: str) -> tuple[ReplayPlanner, int]:
    questions = size // PER_QUESTION
    gc.collect()
    before = resident()
    order = rng.permutation(questions)
    config = ReplayConfig(
        start_pass_at_1=0.0,
        capacity=size,
        capacity_per_question=PER_QUESTION,
        trajectory_choice=choice,
        replay_share=1.0,
    )
    planner = ReplayPlanner(config, FreshStream(lambda p: order, questions), K, seed=0, store=OneTrajectoryStore())
    logps, rewards = np.full(TOKENS, -1.0, np.float32), np.ones(1, np.float32)
    for question in range(questions):
        planner.buffer.observe(question, int(rng.integers(0, K)), K)
        for n in range(PER_QUESTION):
            ids = np.array([question & 0xFFFF, question >> 16, n, *range(TOKENS - 3)])
            planner.buffer.admit(Trajectory(question, ids, logps, rewards, 0, entropy=float(rng.random())))
    gc.collect()
    return planner, resident() - before


def measure(planner: ReplayPlanner, rng: np.random.Generator, repeats: int) -> dict[str, float]:
    plan_times, observe_times = [], []
    logps, rewards = np.full(TOKENS, -1.0, np.float32), np.ones(1, np.float32)
    for step in range(repeats):
        start = time.thread_time()
        plan = planner.plan(B, step, 0.0, lambda ts: np.ones(len(ts)))
        plan_times.append(time.thread_time() - start)
        assert plan.num_replayed == B
        outcomes = (rng.random((B, K - 1)) < 0.5).astype(np.int8)
        outcomes[:, 0] = 0
        groups = [Group(int(q), o, True) for q, o in zip(plan.questions, outcomes, strict=True)]
        new = [
            Trajectory(int(q), rng.integers(0, 1 << 20, TOKENS), logps, rewards, step, entropy=float(rng.random()))
            for q in plan.questions
            for _ in range(2)
        ]
        start = time.thread_time()
        planner.observe(plan, groups)
        planner.admit(new)
        observe_times.append(time.thread_time() - start)
    return {
        "plan_ms": statistics.median(plan_times) * 1e3,
        "plan_ms_p95": sorted(plan_times)[int(0.95 * repeats)] * 1e3,
        "observe_admit_ms": statistics.median(observe_times) * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--repeats", type=int, default=200)
    options = parser.parse_args()
    rows = []
    for size in options.sizes:
        for choice in ("lowest_entropy", "random"):
            rng = np.random.default_rng(0)
            planner, held = filled(size, rng, choice)
            row = {
                "trajectories": size,
                "choice": choice,
                "resident_mb": held / 1e6,
                **measure(planner, rng, options.repeats),
            }
            rows.append(row)
            print(row, flush=True)
            del planner
    print("saved", save("planner", "python " + " ".join(["benchmarks/planner.py", *sys.argv[1:]]), {"rows": rows}))


if __name__ == "__main__":
    main()
