"""`exgrpo bench step`: time of a training step by phase, arms in turn in one process; peak memory, a process for each arm."""

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import wraps
from typing import TYPE_CHECKING, Any

from ...cli.environment import require
from ...cli.experience.output import write, write_table
from ...presets import PRESETS
from . import CONTROL
from .machine import peak, resident
from .process import in_a_process

if TYPE_CHECKING:
    from ...trl import ExGRPOTrainer

PHASES = (
    ("_plan", "plan"),
    ("_scores", "measuring candidates"),
    ("_credit", "observe"),
    ("_finish", "admit"),
    ("compute_loss", "loss forward"),
    ("_generate_and_score_completions", "rest of generation"),
)
REST = "optimizer and the trainer's loop"
WATCHED = {"frac_reward_zero_std": "without_variance", "replay/share": "replayed", "fresh/rows_skipped": "skipped"}


class Clock:
    """Seconds by phase, a phase's own; CPU time of this process, or wall time where a GPU works."""

    def __init__(self, now: Callable[[], float]):
        self.now = now
        self.own: dict[str, float] = defaultdict(float)
        self._stack: list[float] = []

    def timed(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._stack.append(0.0)
            start = self.now()
            try:
                return function(*args, **kwargs)
            finally:
                spent = self.now() - start
                self.own[phase] += spent - self._stack.pop()
                if self._stack:
                    self._stack[-1] += spent

        return timed

    def watch(self, owner: Any, method: str, phase: str) -> None:
        if (function := getattr(owner, method, None)) is not None:
            setattr(owner, method, self.timed(function, phase))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measure all arms; return `setting` and `arms`."""
    require("trl", "trl", "A bench of training steps")
    setting = setting_of(args)
    memory = {} if args.no_memory else peaks(setting)
    from .arms import quietly

    with quietly():
        arms = turns(setting)
    for arm, figures in memory.items():
        arms[arm] |= figures
    shown = asdict(setting) | {"model": "tiny" if setting.tiny else "a directory"}
    return {"setting": shown, "first": setting.arms[0], "arms": arms}


def setting_of(args: argparse.Namespace) -> Any:
    from .arms import Setting

    tiny = args.model == "tiny"
    arms = (
        (CONTROL, *(name for name in PRESETS if name != CONTROL)) if args.presets else tuple(dict.fromkeys(args.arms))
    )
    return Setting(
        args.model, arms, args.questions or (64 if tiny else 8), args.generations or (4 if tiny else 8), args.new_tokens,
        args.variance or ("own" if tiny else "all"), args.skip_rows == "on", args.rounds,
        args.steps or (10 if tiny else 1), args.warm_up or (20 if tiny else 2),
    )  # fmt: skip


# Time -------------------------------------------------------------------------------------------------------------------


def clock_of() -> tuple[str, Callable[[], float]]:
    """Return the name of the clock, and the clock."""
    import torch

    if not torch.cuda.is_available():
        return "cpu", time.process_time

    def now() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return "wall", now


class Arm:
    """A trainer that takes turns."""

    def __init__(self, inputs: Any, name: str, directory: str):
        self.clock = Clock(clock_of()[1])
        self.trainer = trainer = inputs.trainer(name, directory, lambda f: self.clock.timed(f, "reward function"))
        for method, phase in PHASES:
            self.clock.watch(trainer, method, phase)
        self.clock.watch(trainer.model, "generate", "generate")
        self.clock.watch(trainer.accelerator, "backward", "backward")
        self.clock.watch(getattr(trainer, "experience", None), "commit", "log")
        self.steps = _steps(trainer, self.clock.now)
        trainer.add_callback(self.steps)

    def turn(self, steps: int) -> dict[str, Any]:
        """Run some steps; return means over them."""
        self.steps.begin(steps)
        self.clock.own.clear()
        self.trainer.train()
        phases = {phase: seconds / steps for phase, seconds in self.clock.own.items()}
        seconds = self.steps.seconds / steps
        phases[REST] = seconds - sum(phases.values())
        seen = {name: statistics.fmean(values) for name, values in self.steps.seen.items()}
        return {"seconds": seconds, "wall": self.steps.wall / steps, "phases": phases, "seen": seen}


def _steps(trainer: "ExGRPOTrainer", now: Callable[[], float]) -> Any:
    from transformers import TrainerCallback

    class Steps(TrainerCallback):
        """A callback that collects the seconds and logs of a turn's steps, and ends it."""

        def begin(self, steps: int) -> None:
            self.left, self.seconds, self.wall = steps, 0.0, 0.0
            self.seen: dict[str, list[float]] = defaultdict(list)

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self._start, self._wall = now(), time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.seconds += now() - self._start
            self.wall += time.perf_counter() - self._wall
            for name, figure in WATCHED.items():
                if values := trainer._metrics["train"].get(name):
                    self.seen[figure].append(float(values[-1]))
            self.left -= 1
            control.should_training_stop = self.left <= 0

    return Steps()


def turns(setting: Any) -> dict[str, dict[str, Any]]:
    """Warm up every arm, then let them take turns."""
    from .arms import ArmInputs

    inputs, rounds = ArmInputs(setting), []
    with tempfile.TemporaryDirectory() as directory:
        arms = {name: Arm(inputs, name, f"{directory}/{name}") for name in setting.arms}
        for name, arm in arms.items():
            arm.turn(setting.warm_up)
            _say(f"{name}: {setting.warm_up} steps of warm-up")
        for number in range(setting.rounds):
            order = setting.arms if number % 2 else setting.arms[::-1]
            rounds.append({name: arms[name].turn(setting.steps) for name in order})
            told = ", ".join(f"{name} {rounds[-1][name]['seconds']:.3f} s" for name in setting.arms)
            _say(f"round {number + 1} of {setting.rounds}: {told}")
    return {name: row_of(name, setting.arms[0], rounds) for name in setting.arms}


def row_of(arm: str, first: str, rounds: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return medians over rounds, and the range of ratios to the first arm of the same round."""
    mine = [turn[arm] for turn in rounds]
    ratios, walls = ([turn[arm][which] / turn[first][which] for turn in rounds] for which in ("seconds", "wall"))
    phases = {name: None for turn in mine for name in turn["phases"]}
    return {
        "clock": clock_of()[0],
        "seconds": statistics.median(turn["seconds"] for turn in mine),
        "wall_seconds": statistics.median(turn["wall"] for turn in mine),
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
        "wall_ratio": statistics.median(walls),
        "phases": {name: statistics.median(turn["phases"].get(name, 0.0) for turn in mine) for name in phases},
        **{name: statistics.fmean(turn["seen"][name] for turn in mine) for name in mine[0]["seen"]},
    }


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


# Memory -----------------------------------------------------------------------------------------------------------------


def peaks(setting: Any) -> dict[str, dict[str, float]]:
    """Return the peak memory of each arm in a process of its own, and its ratio to the first arm's."""
    found: dict[str, dict[str, float]] = {}
    for arm in setting.arms:
        found[arm] = in_a_process("exgrpo.lab.bench.step:peak_of", setting=asdict(setting), arm=arm)
        _say(f"memory of {arm}: {found[arm]['peak_mb']:.0f} MB at most")
    first = found[setting.arms[0]]
    return {arm: row | {"peak_over": row["peak_mb"] / first["peak_mb"]} for arm, row in found.items()}


def peak_of(setting: Mapping[str, Any], arm: str) -> dict[str, float]:
    """Return MB of this process before the model is there, and at most, over the warm-up and two turns.

    On a GPU, of its memory.
    """
    import torch

    from .arms import ArmInputs, Setting, quietly

    with quietly(), tempfile.TemporaryDirectory() as directory:
        inputs = ArmInputs(Setting(**setting))
        before = resident()
        trainer = inputs.trainer(arm, directory)
        steps = _steps(trainer, time.perf_counter)
        trainer.add_callback(steps)
        steps.begin(setting["warm_up"] + 2 * setting["steps"])
        trainer.train()
        if torch.cuda.is_available():
            return {"before_mb": 0.0, "peak_mb": torch.cuda.max_memory_allocated() / 1e6}
        return {"before_mb": before / 1e6, "peak_mb": peak() / 1e6}


# Text -------------------------------------------------------------------------------------------------------------------


def show(result: Mapping[str, Any]) -> None:
    """Print two tables: arms, and their phases in milliseconds."""
    arms, first = result["arms"], result["first"]
    clock = next(iter(arms.values()))["clock"]
    columns = [
        "arm", f"{clock} ms a step", f"over {first}", "range", "wall over", "peak MB", "memory over", "without variance",
        "replayed", "rows skipped",
    ]  # fmt: skip
    rows = [
        dict(zip(columns, (name, *_figures(row)), strict=True)) for name, row in arms.items()
    ]  # fmt: skip
    write_table(rows, [name for name in columns if any(row[name] is not None for row in rows)])
    write(f"\nPhases, {clock} ms a step:\n")
    phases = list(dict.fromkeys(phase for row in arms.values() for phase in row["phases"]))
    write_table(
        [
            {"phase": phase, **{n: _ms(row["phases"].get(phase)) for n, row in arms.items()}}
            for phase in sorted(phases, key=lambda p: -max(row["phases"].get(p, 0.0) for row in arms.values()))
        ],
        ["phase", *arms],
    )


def _figures(row: Mapping[str, Any]) -> tuple[Any, ...]:
    low, high = row["ratio_range"]
    shares = (row.get(name) for name in WATCHED.values())
    return (
        _ms(row["seconds"]), f"{row['ratio']:.3f}", f"{low:.3f} to {high:.3f}", f"{row['wall_ratio']:.3f}",
        _number(row.get("peak_mb"), ".0f"), _number(row.get("peak_over"), ".3f"), *(_number(s, ".0%") for s in shares),
    )  # fmt: skip


def _ms(seconds: float | None) -> str | None:
    return None if seconds is None else f"{1e3 * seconds:.1f}"


def _number(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form)
