"""`exgrpo demo`: train several presets on the built-in tiny policy, from one start and on one budget, and compare them."""

import argparse
import json
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..cli.environment import installed_versions, require
from ..cli.numbers import at_least
from ..cli.parser import Formatter, Parser
from ..errors import ConfigurationError
from ..log import FILE_NAME
from ..presets import PRESETS, resolve
from ..runtime.metric_table import FILE_NAME as METRICS
from .studies.regime import DEMO_PRESETS, REGIMES, Regime
from .studies.workers import Job, run_jobs

OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}  # nothing is fetched, and nothing is reported
RUNS = "runs"
QUESTIONS_A_RUN = 60
COMPARED = ("pass_at_1", "pass_at_8", "greedy_accuracy")


def run_arm(preset: str, seed: int = 0, regime: Regime | None = None, **arguments: Any) -> dict[str, Any]:
    """Train one preset and measure it; see `exgrpo.lab.studies.arm.run_arm`. Imported when it is called."""
    from .studies.arm import run_arm

    return run_arm(preset, seed, regime, **arguments)


@dataclass(frozen=True)
class Comparison:
    """The arms and seeds of a demo."""

    presets: tuple[str, ...] = DEMO_PRESETS
    regime: Regime = REGIMES["chains"]
    seeds: tuple[int, ...] = (0,)
    keep: Path | None = None
    """Where the runs of the first seed keep their experience, a folder for each preset, to be looked at."""

    def __post_init__(self) -> None:
        for preset in self.presets:
            if resolve(preset)[0].uses_quality:
                raise ConfigurationError(
                    f"The demo has no encoder, which preset {preset!r} needs: take it with exgrpo train --embedding_model."
                )

    def jobs(self) -> list[Job]:
        """List every seed's start, and after it the seed's arms."""
        jobs = []
        for seed in self.seeds:
            common = {"seed": seed, "regime": self.regime}
            start = Job(f"warm-up of seed {seed}", "exgrpo.lab.studies.arm:evaluate_start", common)
            jobs.append(start)
            for preset in self.presets:
                name = preset if len(self.seeds) == 1 else f"{preset}, seed {seed}"
                arguments = {"preset": preset, **common}
                if self.keep is not None and seed == self.seeds[0]:
                    arguments["options"] = {"experience_log": str((self.keep / preset / FILE_NAME).resolve())}
                jobs.append(Job(name, "exgrpo.lab.studies.arm:run_arm", arguments, after=(start.name,), reports=True))
        return jobs


def compare(comparison: Comparison, workers: int, display: Any) -> dict[str, Any]:
    """Run all arms of a comparison; the results are in the comparison's order whoever finished first."""
    starts: dict[int, Any] = {}
    arms: dict[tuple[int, str], Any] = {}
    jobs = comparison.jobs()
    width = max(len(job.name) for job in jobs)
    with display, closing(run_jobs(jobs, workers, "exgrpo.lab.studies.arm:set_up_worker", OFFLINE)) as events:
        for kind, job, payload in events:
            name, seed = job.name.ljust(width), job.arguments["seed"]
            if kind == "start":
                display.begin(name)
            elif kind == "progress":
                display.update(name, payload)
            elif job.reports:
                arms[seed, job.arguments["preset"]] = payload
                display.finish(name, f"held-out Pass@1 {payload['final']['pass_at_1']:.3f}, {_seconds(payload)}")
            else:
                starts[seed] = payload
                display.finish(name, f"held-out Pass@1 {payload['pass_at_1']:.3f}")
    return {
        "regime": comparison.regime.as_dict(),
        "presets": list(comparison.presets),
        "seeds": list(comparison.seeds),
        "starts": [starts[seed] for seed in comparison.seeds],
        "arms": [arms[seed, preset] for seed in comparison.seeds for preset in comparison.presets],
    }


def _seconds(arm: Mapping[str, Any]) -> str:
    return f"{arm['steps']} steps in {arm['seconds']['train']:.0f} s"


# The command ------------------------------------------------------------------------------------------------------------


class _Formatter(Formatter):
    """Defaults where there is one to show."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        shown = isinstance(action.default, int | str | Path) and action.default is not argparse.SUPPRESS
        return f"{action.help} (default: %(default)s)" if shown and action.nargs != "+" else action.help


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="exgrpo demo",
        description="Train several presets on a built-in tiny policy, from one start and with one budget of generated tokens, "
        "and compare them on held-out questions. No download, no GPU; some minutes on two cores.",
        formatter_class=_Formatter,
    )
    add = parser.add_argument
    add(
        "--output_dir",
        type=Path,
        default=Path("exgrpo-demo"),
        help="folder for results, pictures, page and experience",
    )
    add("--task", choices=list(REGIMES), default="chains", help="family of questions")
    add(
        "--presets",
        nargs="+",
        default=list(DEMO_PRESETS),
        choices=list(PRESETS),
        metavar="PRESET",
        help=f"what to compare, of {', '.join(PRESETS)}; differences are to the first (default: {' '.join(DEMO_PRESETS)})",
    )
    add(
        "--seed",
        type=int,
        default=0,
        metavar="S",
        help="seed of questions, warm-up and training; the first one with --seeds",
    )
    add(
        "--seeds",
        type=at_least(1),
        default=1,
        metavar="N",
        help="number of seeds; 5 or more give intervals",
    )
    add("--jobs", type=at_least(1), default=min(2, os.cpu_count() or 1), metavar="J", help="processes, one thread each")
    sizes = parser.add_argument_group("sizes", "By default the task's own.")
    for name, text in (
        ("steps", "budget of every preset, in on-policy steps' worth of tokens"),
        ("train_questions", "training questions"),
        ("eval_questions", "held-out questions"),
        ("questions_per_step", "questions per step"),
        ("num_generations", "completions per question"),
        ("evaluations", "held-out evaluations per preset"),
        ("warm_up_batches", "supervised steps before training"),
    ):
        sizes.add_argument(f"--{name}", type=at_least(1), default=argparse.SUPPRESS, metavar="N", help=text)
    sizes.add_argument(
        "--learning_rate", type=float, default=argparse.SUPPRESS, metavar="X", help="learning rate, constant"
    )
    return parser  # fmt: skip


def run(argv: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    args = make_parser().parse_args(argv)
    require("trl", "trl", "The demo")
    require("rich", "report", "The demo")
    require("matplotlib", "report", "The demo")
    from rich.console import Console

    from ..cli.progress import make_display

    comparison = Comparison(tuple(dict.fromkeys(args.presets)), _regime(args), _seeds(args), args.output_dir / RUNS)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    _clear(comparison)
    console = Console()
    display = make_display(console, keep_finished=args.seeds == 1)
    display.say(_headline(comparison))
    began = time.perf_counter()
    results = {"versions": installed_versions(), **compare(comparison, args.jobs, display)}
    results["differences"] = differences(results)
    results["seconds"] = {"all": time.perf_counter() - began, "jobs": args.jobs}
    (args.output_dir / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    _report(results, args.output_dir, console)
    return 0


def _regime(args: argparse.Namespace) -> Regime:
    base = REGIMES[args.task]
    return replace(base, **{n: v for n, v in vars(args).items() if n in base.as_dict() and n != "task"})


def _seeds(args: argparse.Namespace) -> tuple[int, ...]:
    return tuple(range(args.seed, args.seed + args.seeds))


def _headline(comparison: Comparison) -> str:
    regime = comparison.regime
    return (
        f"{regime.task}: {regime.train_questions} training questions, {regime.eval_questions} held out; "
        f"{regime.questions_per_step} questions x {regime.num_generations} completions a step; every preset gets the "
        f"generated tokens of {regime.steps} on-policy steps."
    )


# What comes of it -------------------------------------------------------------------------------------------------------


def differences(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every preset's difference to the first, paired by seed, with intervals.

    Empty where there are too few seeds.
    """
    from ..evaluation.paired import MIN_PAIRS, paired_difference

    if len(results["seeds"]) < MIN_PAIRS:
        return []
    base, *others = results["presets"]
    rows = []
    for preset in others:
        for figure in COMPARED:
            theirs, ours = ([arm["final"].get(figure) for arm in _arms_of(results, name)] for name in (base, preset))
            if None in theirs + ours:
                continue
            difference = paired_difference(ours, theirs)
            rows.append(
                {
                    "preset": preset,
                    "against": base,
                    "figure": figure,
                    "difference": difference.mean,
                    "bootstrap": [difference.bootstrap_low, difference.bootstrap_high],
                    "student_t": [difference.t_low, difference.t_high],
                    "pairs": difference.pairs,
                }
            )
    return rows


def summary(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return table rows: the start, then each preset; means over the seeds."""
    pass_k = f"Pass@{results['regime']['num_samples']}"
    k = f"pass_at_{results['regime']['num_samples']}"
    rows = [
        {
            "preset": "(start)",
            "Pass@1": _mean(start["pass_at_1"] for start in results["starts"]),
            pass_k: _mean(start[k] for start in results["starts"]),
            "greedy": _mean(start["greedy_accuracy"] for start in results["starts"]),
        }
    ]
    for preset in results["presets"]:
        arms = _arms_of(results, preset)
        rows.append(
            {
                "preset": preset,
                "Pass@1": _mean(arm["final"]["pass_at_1"] for arm in arms),
                pass_k: _mean(arm["final"][k] for arm in arms),
                "greedy": _mean(arm["final"]["greedy_accuracy"] for arm in arms),
                "tokens": round(_mean(arm["tokens"] for arm in arms)),
                "steps": round(_mean(arm["steps"] for arm in arms)),
                "seconds": round(_mean(arm["seconds"]["train"] for arm in arms)),
                "solved": round(_mean(arm["questions_solved"] for arm in arms)),
                "retired": None if arms[0]["retired"] is None else round(_mean(arm["retired"] for arm in arms)),
                "replayed": "–" if arms[0]["replay_share"] is None else f"{_mean(a['replay_share'] for a in arms):.1%}",
            }
        )
    return rows


def _arms_of(results: Mapping[str, Any], preset: str) -> list[Mapping[str, Any]]:
    return [arm for arm in results["arms"] if arm["preset"] == preset]


def _mean(values: Any) -> float:
    values = list(values)
    return sum(values) / len(values)


def _report(results: Mapping[str, Any], output_dir: Path, console: Any) -> None:
    from ..report import rich_table
    from .pictures import draw

    wide = console if console.is_terminal else type(console)(width=120)
    seeds = len(results["seeds"])
    title = f"Held out, {'one seed' if seeds == 1 else f'means of {seeds} seeds'}"
    wide.print(rich_table(summary(results), title=title))
    wide.print(EXPLANATION, markup=False, highlight=False)
    if len(results["seeds"]) == 1:
        wide.print(ONE_SEED, markup=False, highlight=False)
    if results["differences"]:
        rows = [{**row, "figure": row["figure"].replace("pass_at_", "Pass@")} for row in results["differences"]]
        wide.print(rich_table(rows, title="Paired differences, 95 % intervals"))
    page = _page(results, output_dir)
    for path in (output_dir / "results.json", *draw(results, output_dir), page):
        wide.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)
    runs = " ".join(shlex.quote(str(output_dir / RUNS / preset)) for preset in results["presets"])
    for line in (f"Its page: {page.resolve().as_uri()}", f"All of it, question by question: exgrpo view {runs}"):
        wide.print(line, markup=False, highlight=False, soft_wrap=True)


def _clear(comparison: Comparison) -> None:
    """Remove an earlier demo's logs, which the runs would otherwise continue."""
    for preset in comparison.presets:
        assert comparison.keep is not None
        for name in (FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm", METRICS):
            (comparison.keep / preset / name).unlink(missing_ok=True)


def _page(results: Mapping[str, Any], output_dir: Path) -> Path:
    """Write the page of the first seed's runs, those that replay before the others, with held-out figures."""
    from ..view.page import write_page
    from ..view.run import Run

    arms = [arm for arm in results["arms"] if arm["seed"] == results["seeds"][0]]
    for arm in arms:
        _add_held_out(output_dir / RUNS / arm["preset"] / METRICS, arm["curve"])
    first = sorted(arms, key=lambda arm: arm["replay_share"] is None)
    runs = [Run(output_dir / RUNS / arm["preset"], arm["preset"]) for arm in first]
    path = output_dir / "demo.html"
    write_page(runs, path, QUESTIONS_A_RUN)
    for run in runs:
        run.close()
    return path


def _add_held_out(path: Path, curve: Sequence[Mapping[str, Any]]) -> None:
    """Add held-out figures to the rows of a training log, as the host logs its own evaluations."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows += [{"step": point["step"], "eval_pass_at_1": point["pass_at_1"]} for point in curve]
    rows.sort(key=lambda row: (row["step"], "eval_pass_at_1" in row))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


EXPLANATION = """\
tokens: completion tokens generated in training. seconds: of training, without evaluation; arms ran side by side.
solved: training questions ever answered rightly. retired: those whose fresh group was all right, out of replay.
replayed: share of the groups of a batch that held a stored completion, over the run.
While training, fresh Pass@1 is of the questions of that step: it falls where the solved ones have retired."""
ONE_SEED = "One seed is no result: `exgrpo demo --seeds 6` takes about a quarter of an hour. Next: docs/quickstart.md."
