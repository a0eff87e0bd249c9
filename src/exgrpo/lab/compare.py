"""`exgrpo compare`: presets against each other on a recipe of `exgrpo train`, from one start and on equal budgets."""

import argparse
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..cli.environment import require
from ..cli.numbers import at_least, between
from ..cli.parser import Parser
from ..cli.train import read_recipe
from ..errors import ConfigurationError
from ..yaml_file import with_numbers
from .bench.machine import describe
from .studies.emit import scheduler_script, shell_script
from .studies.probe import Probe, check_arms, probed
from .studies.recipe_regime import RecipeRegime
from .studies.results import Results
from .studies.running import duration, run_study
from .studies.study import Cell, Study
from .studies.study_file import make_study
from .studies.sweep import plain_name

DEFAULT_FOLDER = Path("exgrpo-compare")
SIZES = ("eval_questions", "num_samples", "evaluations", "eval_temperature", "eval_batch")
EPILOG = """\
examples:
  exgrpo compare recipe.yaml --presets on-policy positive-weight --seeds 5
  exgrpo compare recipe.yaml --presets on-policy "exgrpo replay_share=0.25"
  exgrpo compare recipe.yaml --presets on-policy rehearsal --learning_rates 1e-6 3e-6 --seeds 5
  exgrpo compare recipe.yaml --presets on-policy rescue --hours 2 --emit slurm
"""


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="exgrpo compare",
        description="Train a recipe with several presets and seeds on equal budgets, and compare them on held-out questions. "
        "Prints the cost before it starts; started again, it resumes. Fewer than 5 seeds give no intervals.",
        epilog=EPILOG,
    )
    add = parser.add_argument
    add(
        "recipe",
        metavar="RECIPE.yaml",
        help="a recipe of exgrpo train with held-out questions (eval_dataset, eval_split)",
    )
    add(
        "--presets", nargs="+", required=True, metavar="PRESET",
        help="presets to compare, the baseline first; with options in quotes: \"exgrpo replay_share=0.25\"",
    )  # fmt: skip
    add(
        "--learning_rates", nargs="+", type=between(0.0), default=[], metavar="RATE",
        help="train every preset at each of these rates and compare each preset at its own best (default: the recipe's rate)",
    )  # fmt: skip
    add("--seeds", type=at_least(1), default=1, metavar="N", help="number of seeds (default: 1)")
    add("--first_seed", type=at_least(0), default=0, metavar="S", help="first seed (default: 0)")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--tokens", type=between(1), metavar="N", help="generated completion tokens per run")
    budget.add_argument("--steps", type=at_least(1), metavar="N", help="optimizer steps per run")
    budget.add_argument(
        "--hours", type=between(0), metavar="H",
        help="hours of training per run (default budget: the tokens that the recipe's max_steps generate on-policy)",
    )  # fmt: skip
    sizes = parser.add_argument_group("held-out questions")
    sizes.add_argument(
        "--eval_questions", type=at_least(1), metavar="N", help="number of questions at most (default: 256)"
    )
    sizes.add_argument("--num_samples", type=at_least(1), metavar="K", help="completions per question (default: 4)")
    sizes.add_argument("--eval_temperature", type=between(0.0), metavar="T", help="sampling temperature (default: 1)")
    sizes.add_argument("--evaluations", type=at_least(1), metavar="N", help="evaluations per run (default: 6)")
    sizes.add_argument(
        "--eval_batch", type=at_least(1), metavar="N", help="completions generated at once (default: 256)"
    )
    add(
        "--output_dir",
        type=Path,
        help=f"folder for results and report (default: {DEFAULT_FOLDER}/ and the recipe's name)",
    )
    add("--jobs", type=at_least(1), default=1, metavar="J", help="runs at the same time (default: 1)")
    add(
        "--only",
        nargs="+",
        default=[],
        metavar="KEY",
        help="run only these, as recipe/preset/seed; * is a wildcard",
    )
    add("--dry_run", action="store_true", help="print what would run and what it costs, and stop")
    add("--discard_changed", action="store_true", help="run those again whose options have changed")
    add(
        "--emit",
        choices=("shell", "slurm"),
        help="write a script of one command per run, instead of running them",
    )
    add(
        "--launcher", metavar="COMMAND",
        help="launcher of each run in that script: \"accelerate launch --num_processes 8 -m\"",
    )  # fmt: skip
    add("--run", metavar="KEY", help=argparse.SUPPRESS)  # what such a script calls
    return parser


def run(argv: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    args = make_parser().parse_args(argv)
    require("trl", "trl", "A comparison")
    require("rich", "report", "A comparison")
    if not (args.emit or args.run or args.dry_run):
        require("matplotlib", "report", "A comparison's report")  # before hours of training, not after them
    recipe = with_numbers(read_recipe(args.recipe))
    os.environ.update({name: str(value) for name, value in (recipe.get("env") or {}).items()})
    results = Results(args.output_dir or DEFAULT_FOLDER / Path(args.recipe).stem)
    if args.emit or args.run:
        _check_budget_is_given(args, recipe)
    cost = _probe(_study(args, recipe, {"steps": 1}), results) if _needs_probe(args, recipe) else None
    study = _study(args, recipe, _budget(args, recipe, cost), cost)
    check_arms(study, study.settings[0])
    if args.emit:
        return _emit(args, study, argv)
    if args.run:
        return _run_alone(study, args.run, results)
    return _run(args, argv, recipe, study, results, cost or _probe(study, results))


def _probe(study: Study, results: Results) -> Probe:
    check_arms(study, study.settings[0])
    return probed(study.settings[0], study.seeds[0], results.folder)


# The study --------------------------------------------------------------------------------------------------------------


def _study(
    args: argparse.Namespace, recipe: Mapping[str, Any], budget: Mapping[str, float], cost: Probe | None = None
) -> Study:
    return make_study(_raw(args, recipe, budget, cost), Path(args.recipe).stem)


def _raw(
    args: argparse.Namespace, recipe: Mapping[str, Any], budget: Mapping[str, float], cost: Probe | None
) -> dict[str, Any]:
    """Return the study's dictionary, as a file of `exgrpo lab run` would hold it."""
    name = Path(args.recipe).stem
    setting: dict[str, Any] = {"recipe": dict(recipe), "budget": dict(budget)}
    setting |= {size: getattr(args, size) for size in SIZES if getattr(args, size) is not None}
    if cost is not None and "tokens" in budget:
        setting["most_steps"] = cost.steps_of(budget["tokens"])
    arms = dict(map(_arm, args.presets))
    rates = args.learning_rates
    if rates and (fixed := [name for name, arm in arms.items() if "learning_rate" in arm]):
        raise ConfigurationError(f"--learning_rates is given, and {fixed[0]!r} sets its own: leave one of them out.")
    if len(set(rates)) < len(rates):
        raise ConfigurationError(f"--learning_rates names one twice: {', '.join(f'{rate:g}' for rate in rates)}.")
    if len(arms) < len(args.presets):
        raise ConfigurationError(f"--presets names one twice: {', '.join(args.presets)}.")
    return {
        "title": f"{name}: {', '.join(arms)}",
        "seeds": {"first": args.first_seed, "count": args.seeds},
        **({} if rates else {"baseline": next(iter(arms))}),
        "settings": {name: setting},
        "arms": {arm: {**value, "grid": {"learning_rate": rates}} for arm, value in arms.items()} if rates else arms,
    }


def _arm(text: str) -> tuple[str, dict[str, Any]]:
    """Read `exgrpo replay_share=0.25` as an arm of that name."""
    import yaml

    preset, *options = shlex.split(text)
    values = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals:
            raise ConfigurationError(f"--presets {text!r}: options are written NAME=VALUE, but {option!r} came.")
        values[name.replace("-", "_")] = with_numbers(yaml.safe_load(value))
    return text, {"preset": preset, **values}


# The budget -------------------------------------------------------------------------------------------------------------


def _given(args: argparse.Namespace) -> dict[str, float]:
    return {name: getattr(args, name) for name in ("tokens", "steps", "hours") if getattr(args, name) is not None}


def _is_tiny(recipe: Mapping[str, Any]) -> bool:
    return recipe.get("task") is not None and recipe.get("model_name_or_path") is None


def _needs_probe(args: argparse.Namespace, recipe: Mapping[str, Any]) -> bool:
    """Return whether the budget itself follows from a probe."""
    return not _given(args) and not _is_tiny(recipe)


def _budget(args: argparse.Namespace, recipe: Mapping[str, Any], cost: Probe | None) -> dict[str, float]:
    if given := _given(args):
        return {name: int(size) if name != "hours" else size for name, size in given.items()}
    if not (steps := recipe.get("max_steps")) or steps < 1:
        raise ConfigurationError(
            "The recipe has no max_steps, and no budget is given: set --tokens, --steps or --hours."
        )
    return {"right_answers": steps} if cost is None else {"tokens": cost.tokens_of(steps)}


def _check_budget_is_given(args: argparse.Namespace, recipe: Mapping[str, Any]) -> None:
    if _needs_probe(args, recipe):
        raise ConfigurationError(
            "--emit needs --tokens, --steps or --hours: without one the budget is measured by two steps, and those should run "
            "where the runs do."
        )


# The runs ---------------------------------------------------------------------------------------------------------------


def _run(
    args: argparse.Namespace,
    argv: Sequence[str],
    recipe: Mapping[str, Any],
    study: Study,
    results: Results,
    cost: Probe,
) -> int:
    from rich.console import Console

    from ..cli.progress import make_display
    from .studies.page import in_words, write_page
    from .studies.summary import load_findings

    display = make_display(Console(), keep_finished=False)
    cells = study.only(args.only)
    there = results.rows()
    todo = [cell for cell in cells if there.get(cell.key, {}).get("fingerprint") != cell.fingerprint]
    display.say(study.title)
    display.say(in_all(study, cells, todo, cost, args.jobs))
    if args.dry_run:
        return 0
    regime = study.settings[0].regime
    assert isinstance(regime, RecipeRegime)
    about = {
        "command": shlex.join(["exgrpo", "compare", *argv]),
        "name": study.name,
        "study": _raw(args, recipe, regime.budget_of, cost if regime.most_steps else None),
        "short": False,
        **describe("transformers"),
    }
    run_study(study, cells, results, about, args.jobs, display, args.discard_changed)
    found = load_findings(results.folder)
    for line in in_words(found):
        display.say(line)
    for path in write_page(found, results.folder):
        display.say(f"wrote {path}")
    return 0


def in_all(study: Study, cells: Sequence[Cell], todo: Sequence[Cell], cost: Probe, jobs: int) -> str:
    """Say what will run and how long it takes."""
    seconds = sum(map(cost.seconds, todo)) / min(jobs, max(1, len(todo)))
    [(kind, size)] = study.settings[0].regime.budget_of.items()  # type: ignore[union-attr]
    what = (
        f"the tokens of {size:g} steps, as if all answers were right"
        if kind == "right_answers"
        else f"{size:,g} {kind}"
    )
    few = "" if len(study.seeds) >= 5 else " Fewer than 5 seeds give no interval."
    names = [plain_name(arm.name) for arm in study.settings[0].arms]
    each = {names.count(name) for name in names}
    presets, rates = len(names), ""
    if len(each) == 1 and each != {1}:
        presets, rates = len(set(names)), f"{each.pop()} learning rates x "
    seeds = "1 seed" if len(study.seeds) == 1 else f"{len(study.seeds)} seeds"
    return (
        f"{presets} presets x {rates}{seeds}, each {what}, and the start of each seed: {len(cells)} jobs, "
        f"{len(todo)} to do. A generation took {cost.generate:.1f} s and {cost.tokens:,.0f} tokens, its update "
        f"{cost.update:.1f} s, an evaluation {cost.evaluate:.1f} s: about {duration(seconds)} in all.{few}"
    )


def _emit(args: argparse.Namespace, study: Study, argv: Sequence[str]) -> int:
    import sys

    words, given, of_only = [], iter(argv), False
    for word in given:
        name = word.partition("=")[0].replace("-", "_")
        if name in ("__emit", "__launcher", "__jobs"):
            of_only = False
            if "=" not in word:
                next(given, None)
        elif name.startswith("__") or not of_only:
            of_only = name == "__only"
            if not of_only:
                words.append(word)
    script = shell_script if args.emit == "shell" else scheduler_script
    sys.stdout.write(script([cell.key for cell in study.only(args.only)], words, args.launcher, study.name))
    return 0


def _run_alone(study: Study, key: str, results: Results) -> int:
    """Run one cell in this process, or in those of its launcher; the main one stores it in a file."""
    from .studies.arm import set_up_worker
    from .studies.cells import run_cell

    cells = {cell.key: cell for cell in study.cells()}
    if key not in cells:
        raise ConfigurationError(f"There is no run {key!r}. Keys look like {next(reversed(cells))!r}.")
    set_up_worker()
    row, times = run_cell(cells[key], on_progress=lambda state: None)
    if os.environ.get("RANK", "0") == "0":
        results.keep_alone(row, times)
    return 0
