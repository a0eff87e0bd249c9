"""`exgrpo explain`: what a setting would replay in one step, and how hard it would push, before anything is trained.

Here stand the arguments; the figures are made in `figures`. Imports nothing heavy, so that help takes no time.
"""

import argparse
import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ...config import ObjectiveConfig, ReplayConfig
from ...errors import ConfigurationError
from ...presets import PRESETS, resolve
from ...registry import resolve_rules
from ...yaml_file import with_numbers
from ..experience import RUN, log_path
from ..main import UsageError
from ..numbers import at_least, between
from ..parser import Parser, run_piped

if TYPE_CHECKING:
    from .pool import Pool

SHAPES = ("uniform", "hard", "easy")
BATCH, K, QUESTIONS, STEP = 128, 8, 1000, 100
EXAMPLE = """\
examples:
  exgrpo explain --preset exgrpo --batch 128 --k 8
  exgrpo explain --sigma 1.0 --pool 0:400,1:100,4:50 --earlier 2
  exgrpo explain --preset rescue --experience outputs/run-1
"""


def run(argv: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    args = parser().parse_args(argv)
    return run_piped(lambda: explain(args))


def explain(args: argparse.Namespace) -> int:
    """Make the figures, and write them."""
    given = {name: getattr(args, name) for name in option_types()}
    if args.config is not None:
        recipe = of_recipe(args.config)
        given = {name: recipe.get(name) if value is None else value for name, value in given.items()}
        args.preset = args.preset or recipe.get("preset")
        args.k = args.k or recipe.get("num_generations")
    args.preset = args.preset or "exgrpo"
    try:
        replay, objective = resolve(args.preset, **given)
        resolve_rules(replay, objective)
    except ConfigurationError as error:
        raise UsageError(str(error)) from error
    from ..experience.output import write_json
    from .figures import Setting, describe
    from .text import as_text

    pool = pool_of(args, replay) if replay.replays else None
    k = pool.planner.num_generations if pool is not None else args.k or K
    found = describe(
        Setting(
            args.preset, given, replay, objective, args.batch, k, args.epoch, args.draws, args.epsilon, args.vocabulary
        ),
        pool,
    )
    if args.json:
        write_json(found)
    else:
        as_text(found)
    return 0


def of_recipe(path: str) -> dict[str, Any]:
    """Return the options of a recipe file that matter here: preset, replay, objective, `num_generations`."""
    from ..train import read_recipe

    recipe = with_numbers(read_recipe(path))
    return {name: recipe[name] for name in ("preset", "num_generations", *option_types()) if name in recipe}


def _earlier(asked: int | None, config: ReplayConfig) -> int:
    """Return the number of earlier groups of each question.

    With prefixes one, or no hard question would have a success.
    """
    return int(config.mixing == "prefix") if asked is None else asked


def pool_of(args: argparse.Namespace, replay: ReplayConfig) -> "Pool":
    """Return the experience of a run, or one that is made up."""
    from .pool import from_log, made_up, measured, sizes_of

    of_made_up = {
        "--pool": args.pool,
        "--questions": args.questions,
        "--accuracy": args.accuracy,
        "--earlier": args.earlier,
    }
    if args.experience is not None:
        if idle := [name for name, value in of_made_up.items() if value is not None]:
            raise UsageError(
                f"{idle[0]} describes a made-up pool, but --experience {args.experience} was given. Remove one of them."
            )
        pool = from_log(log_path(args.experience), replay, args.k, args.step, args.seed)
    else:
        if args.pool is not None and (args.questions is not None or args.accuracy is not None):
            raise UsageError(
                "--pool says how many questions there are of each accuracy. Remove --questions and --accuracy."
            )
        k, step = args.k or K, STEP if args.step is None else args.step
        questions = QUESTIONS if args.questions is None else args.questions
        sizes = sizes_in(args.pool, k) if args.pool is not None else sizes_of(questions, args.accuracy or SHAPES[0], k)
        pool = made_up(replay, k, sizes, _earlier(args.earlier, replay), step, args.seed)
    if args.pass_at_1 is not None:
        measured(pool.planner.gate, args.pass_at_1)
    return pool


def sizes_in(text: str, k: int) -> list[int]:
    """Read question counts with 0, 1, ..., K right from `0:400,1:100`."""
    sizes = [0] * (k + 1)
    for part in text.split(","):
        bucket, colon, number = part.strip().partition(":")
        if not (colon and bucket.isdecimal() and number.isdecimal() and int(bucket) <= k):
            raise UsageError(
                f"--pool needs RIGHT:QUESTIONS pairs, RIGHT from 0 to {k} (of --k {k}), for example 0:400,1:100,{k}:50; "
                f"but it holds {part!r}."
            )
        sizes[int(bucket)] += int(number)
    if not 0 < sum(sizes) <= 1_000_000:
        raise UsageError(f"--pool needs 1 to 1,000,000 questions in all, but has {sum(sizes):,}.")
    return sizes


# Arguments --------------------------------------------------------------------------------------------------------------


def option_types() -> dict[str, Any]:
    """Return every option of replay and objective, and how its value is read."""
    return {f.name: _READERS[f.type] for config in (ReplayConfig, ObjectiveConfig) for f in fields(config)}


def parser() -> argparse.ArgumentParser:
    top = Parser(
        prog="exgrpo explain",
        usage="exgrpo explain [--preset NAME] [--config RECIPE] [--OPTION VALUE ...]\n"
        "                      [--experience RUN | --pool ...] [--json]",
        description=textwrap.fill(
            "Show what a preset, with any options over it, would replay in one step, and how hard it would push: from the "
            "experience of a run, or from a pool made up as a run with these options would hold it after one group of K "
            "completions for each of 1,000 questions, as many with 0, 1, ..., K right."
        ),
        epilog=EXAMPLE,
        allow_abbrev=False,
    )
    argument = top.add_argument
    argument("--preset", choices=PRESETS, metavar="NAME", help=f"one of {', '.join(PRESETS)} (default: exgrpo)")
    argument("--config", metavar="RECIPE", help="take preset and options from this recipe of `exgrpo train`")
    argument("--batch", type=at_least(1), default=BATCH, metavar="B", help="questions per step (default: %(default)s)")
    argument("--k", type=at_least(2), help=f"completions per question (default: {K}, or that of the run)")
    argument("--step", type=at_least(0), help=f"optimizer steps done (default: {STEP}, or that of the run)")
    argument(
        "--epoch", type=between(0.0), default=0.0, help="epochs done, for gate and schedule (default: %(default)s)"
    )
    argument(
        "--pass_at_1",
        type=between(0.0, 1.0),
        help="Pass@1 of the latest completions, for the gate (default: that of the pool)",
    )
    argument("--seed", type=at_least(0), default=0, help="seed of every draw (default: %(default)s)")
    argument("--draws", type=at_least(2), metavar="N", help="plans to average over (default: as many as are needed)")
    argument("--epsilon", type=between(0.0), default=0.2, help="epsilon of PPO's clip (default: %(default)s)")
    argument(
        "--vocabulary", type=at_least(2), default=151_936, metavar="V",
        help="vocabulary size, for correction=likelihood (default: %(default)s)",
    )  # fmt: skip
    argument("--json", action="store_true", help="print JSON")
    pool = top.add_argument_group("source of the experience").add_argument
    pool("--experience", metavar="RUN", help=RUN.partition(" (")[0])
    pool("--questions", type=at_least(1), metavar="N", help=f"questions in a made-up pool (default: {QUESTIONS:,})")
    pool(
        "--accuracy", choices=SHAPES,
        help="shape of a made-up pool: as many questions in each bucket, or linearly more hard or easy ones "
        f"(default: {SHAPES[0]})",
    )  # fmt: skip
    pool("--pool", metavar="R:N,...", help="N questions with R of K right, as 0:400,1:100,8:50")
    pool(
        "--earlier",
        type=at_least(0),
        metavar="N",
        help="earlier groups of each question, with one success each (default: 0; 1 with `prefix` mixing, or no hard "
        "question would have a success)",
    )
    options = top.add_argument_group("options of replay and objective; `exgrpo train --help` says what each does")
    for name, read in option_types().items():
        more: dict[str, Any] = {}
        if read is shares:  # as `train` takes them, one after the other, or with commas between
            more = {"nargs": "+", "action": _Shares}
        elif read is boolean:
            more = {"nargs": "?", "const": True}
        options.add_argument(f"--{name}", type=read, metavar="VALUE", help=argparse.SUPPRESS, **more)
    options.description = textwrap.fill(", ".join(option_types()))
    return top


def boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"must be true or false, but is {text!r}")
    return text.lower() == "true"


def mapping(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"must be a JSON object, but is {text!r}: {error}") from error
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, but is {text!r}")
    return found


def shares(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be numbers with commas between, 0.5,0.3,0.2, but is {text!r}") from None


class _Shares(argparse.Action):
    """An argument action that takes all numbers given, together or one by one."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, tuple(number for part in values for number in part))


_READERS: dict[Any, Any] = {
    str: str, int: int, float: float, bool: boolean, tuple[float, ...]: shares, Mapping[str, Any] | None: mapping,
}  # fmt: skip
