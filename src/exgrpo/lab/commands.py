"""`exgrpo lab`: run a study, and make tables and pictures of its results."""

import argparse
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from ..cli.environment import require
from ..cli.numbers import at_least
from ..cli.parser import Parser
from .bench.machine import describe
from .studies.probe import check_arms, probed
from .studies.recipe_regime import RecipeRegime
from .studies.regime import Regime
from .studies.results import Results
from .studies.running import duration, estimated_seconds, run_study
from .studies.study import Cell, Study
from .studies.study_file import load_study, read_study

DEFAULT_FOLDER = Path("exgrpo-lab")


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="exgrpo lab",
        description="Run paired experiments on the built-in tiny policy: arms on equal budgets, seed by seed, from a study "
        "file to tables with intervals. docs/evidence.md shows our own.",
    )
    commands = parser.add_subparsers(dest="action", required=True, metavar="run | report")
    run = commands.add_parser(
        "run",
        help="run a study, or what is left of it",
        description="Run a study. Finished runs are kept one by one: an interrupted study resumes and ends with the same "
        "results.jsonl.",
    )
    run.add_argument("study", type=Path, metavar="STUDY.yaml", help="settings, arms and seeds; docs/lab.md shows one")
    run.add_argument(
        "--output_dir", type=Path, help=f"folder for the results (default: {DEFAULT_FOLDER}/ and the study's name)"
    )
    run.add_argument(
        "--jobs",
        type=at_least(1),
        default=min(2, os.cpu_count() or 1),
        metavar="J",
        help="processes, one thread each",
    )
    run.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="KEY",
        help="run only these, as setting/arm/seed; * and ? are wildcards",
    )
    run.add_argument("--short", action="store_true", help="one seed and a few steps, to see that it runs")
    run.add_argument("--discard_changed", action="store_true", help="run again those whose options have changed")
    run.add_argument("--dry_run", action="store_true", help="print what would run and how long it takes, and stop")
    report = commands.add_parser("report", help="make tables and pictures of a study's results")
    report.add_argument(
        "folder",
        type=Path,
        metavar="STUDY.yaml | DIR",
        help=f"the study, or where its results are if not in {DEFAULT_FOLDER}/",
    )
    report.add_argument(
        "--output_dir", type=Path, help="folder for report.md and the pictures (default: beside the results)"
    )
    return parser


def run(argv: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    args = make_parser().parse_args(argv)
    require("trl", "trl", "The lab")
    require("rich", "report", "The lab")
    return _run(args, argv) if args.action == "run" else _report(args)


def _run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    from rich.console import Console

    from ..cli.progress import make_display

    study = load_study(args.study)
    if args.short:
        study = study.shortened()
    cells = study.only(args.only)
    folder = args.output_dir or DEFAULT_FOLDER / (study.name + ("-short" if args.short else ""))
    console = Console()
    display = make_display(console, keep_finished=False)
    display.say(study.title)
    results = Results(folder)
    there = results.rows()
    todo = [cell for cell in cells if there.get(cell.key, {}).get("fingerprint") != cell.fingerprint]
    tiny = [cell for cell in todo if isinstance(cell.setting.regime, Regime)]
    seconds = estimated_seconds(tiny, _tokens, args.jobs) + _recipe_seconds(study, todo, folder) / args.jobs
    cores = "an idle core" if args.jobs == 1 else f"{args.jobs} idle cores"
    display.say(
        f"{len(study.settings)} settings, {len(cells)} runs, {len(todo)} of them to do: about {duration(seconds)} on {cores}."
    )
    if args.dry_run:
        for cell in todo:
            display.say(f"  {cell.key}")
        return 0
    about = {
        "command": shlex.join(["exgrpo", "lab", *argv]),
        "name": study.name,
        "study": read_study(args.study),
        "short": args.short,
        **describe("transformers"),
    }
    run_study(study, cells, results, about, args.jobs, display, args.discard_changed)
    display.say(f"wrote {folder / 'results.jsonl'}; next: exgrpo lab report {folder}")
    return 0


def _recipe_seconds(study: Study, cells: Sequence[Cell], folder: Path) -> float:
    """Time of the cells on recipes, one after the other; their arms are checked, and a setting is probed once."""
    total = 0.0
    for setting in study.settings:
        here = [cell for cell in cells if cell.setting == setting]
        if here and isinstance(setting.regime, RecipeRegime):
            check_arms(study, setting)
            total += sum(map(probed(setting, study.seeds[0], folder).seconds, here))
    return total


def _tokens(cell: Cell) -> float:
    """Estimate the tokens of a cell: generated for training, and for evaluations at a fifth of the cost."""
    from ..tasks import Family, get_task
    from .studies.regime import tokens_of

    regime = cell.setting.regime
    assert isinstance(regime, Regime)
    task = get_task(regime.task, **regime.knobs)
    assert isinstance(task, Family)
    trained = tokens_of(task, cell.seed, regime) * cell.arm.budget if cell.arm else 0.0
    length = trained / max(1, regime.steps * regime.questions_per_step * regime.num_generations)
    evaluations = regime.evaluations * cell.arm.budget if cell.arm else 1.0
    return trained + 0.2 * evaluations * regime.eval_questions * (regime.num_samples + 1) * length


def _report(args: argparse.Namespace) -> int:
    from rich.console import Console

    from .studies.report import write_report

    folder = DEFAULT_FOLDER / args.folder.stem if args.folder.suffix in (".yaml", ".yml") else args.folder
    for path in write_report(folder, args.output_dir or folder):
        Console().print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)
    return 0
