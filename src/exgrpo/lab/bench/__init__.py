"""`exgrpo bench`: what replay costs on this machine: a training step, the buffer, the log.

Here stand the arguments; what is done is in `step`, `buffer` and `log`. Imports nothing heavy.
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...cli.experience.output import write, write_json
from ...cli.numbers import at_least
from ...cli.parser import Parser
from ...presets import PRESETS
from .machine import describe, save

STOCK, CONTROL = "stock", "on-policy"
ARMS = (STOCK, CONTROL, "exgrpo", "rescue")
VARIANCES = ("own", "half", "all")
SIZES = (10_000, 100_000, 1_000_000)


def run(argv: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    args = parser().parse_args(argv)
    found = importlib.import_module(args.does)
    measured = found.measure(args)
    packages = getattr(found, "PACKAGES", ())
    result = {"command": command_of(argv), "machine": describe(*packages), **measured}
    if args.out is not None:
        save(args.out, result)
    if args.json:
        write_json(result)
    else:
        found.show(result)
        if args.out is not None:
            write(f"wrote {args.out}")
    sys.stdout.flush()
    return 0


def command_of(argv: Sequence[str]) -> str:
    """Return the command line without paths of this machine: where a model lies, and where results go."""
    words = iter([part for word in argv for part in (word.split("=", 1) if word.startswith("--") else [word])])
    kept = ["exgrpo bench"]
    for word in words:
        if word in ("--out", "--folder"):
            next(words)
        elif word == "--model":
            kept += [word, "tiny" if next(words) == "tiny" else "DIRECTORY"]
        elif word != "--json":
            kept.append(word)
    return " ".join(kept)


def parser() -> argparse.ArgumentParser:
    top = Parser(
        prog="exgrpo bench",
        description="Measure what replay costs on this machine: a training step, the buffer, the log.",
        epilog="Close other programs: figures are medians, but include whatever else runs.",
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for add in (_step, _buffer, _log):
        add(commands)
    return top


Commands = Any  # a private class of argparse


def _command(commands: Commands, name: str, text: str, more: str, example: str) -> Callable[..., argparse.Action]:
    one = commands.add_parser(
        name,
        allow_abbrev=False,  # `command_of` knows the names
        help=text,
        description=f"{text[0].upper()}{text[1:]}.\n{more}",
        epilog=f"example:\n  exgrpo bench {example}",
    )
    one.set_defaults(does=f"{__name__}.{name}")
    one.add_argument("--out", type=Path, metavar="FILE", help="write figures, machine and versions to this file")
    one.add_argument("--json", action="store_true", help="print JSON")
    return one.add_argument


def _step(commands: Commands) -> None:
    add = _command(
        commands, "step", "time a training step against TRL's GRPOTrainer, phase by phase",
        "Arms take turns, round after round, in one process, with learning rate 0, so that work does not drift. Ratios are\n"
        "medians over rounds of the time of a step: CPU time, or wall time on a GPU. Peak memory is that of a process per arm.",
        "step --variance half --out step.json",
    )  # fmt: skip
    add("--model", default="tiny", metavar="MODEL", help="tiny (built in), or a directory (default: tiny)")
    add(
        "--arms", nargs="+", choices=(STOCK, *PRESETS), default=list(ARMS), metavar="ARM",
        help=f"{STOCK}, or presets; ratios are to the first (default: {' '.join(ARMS)})",
    )  # fmt: skip
    add("--presets", action="store_true", help=f"every preset over {CONTROL}, in place of --arms")
    add("--questions", type=at_least(1), metavar="N", help="questions per step (default: tiny 64, else 8)")
    add("--generations", type=at_least(1), metavar="N", help="completions per question (default: tiny 4, else 8)")
    add("--new_tokens", type=at_least(1), metavar="N", help="tokens per completion (default: tiny the task's, else 24)")
    add(
        "--variance", choices=VARIANCES,
        help="rewards: the task's own, or scripted so that half of the groups or all have variance (default: tiny own, "
            "else all)",
    )  # fmt: skip
    add("--skip_rows", choices=("on", "off"), default="on", help="off: compute rows without gradient, as TRL does")
    add("--rounds", type=at_least(1), default=7, metavar="N", help="rounds per arm (default: %(default)s)")
    add("--steps", type=at_least(1), metavar="N", help="steps per round (default: tiny 10, else 1)")
    add("--warm_up", type=at_least(1), metavar="N", help="warm-up steps per arm (default: tiny 20, else 2)")
    add("--no_memory", action="store_true", help="skip peak memory, which takes a process per arm")


def _buffer(commands: Commands) -> None:
    add = _command(
        commands, "buffer", "time planning and storing in memory, as experience grows",
        "A step is 64 questions of 8, all of them replayed, and 128 new trajectories. Where torchrl can be imported, the same\n"
        "is asked of its prioritized replay buffer, at the largest size.",
        "buffer --sizes 10000 100000",
    )  # fmt: skip
    _sizes(add)


def _log(commands: Commands) -> None:
    add = _command(
        commands, "log", "time the experience log: append, open, commit",
        "A step is 64 questions of 8, half of them replayed with their tokens read from the file, and 128 new trajectories.",
        "log --sizes 10000 100000",
    )  # fmt: skip
    _sizes(add)
    add("--tokens", type=at_least(1), default=8, metavar="N", help="tokens per trajectory (default: %(default)s)")
    add("--folder", type=Path, help="folder for temporary files (default: the system's)")


def _sizes(add: Callable[..., argparse.Action]) -> None:
    add(
        "--sizes", type=_count, nargs="+", default=list(SIZES), metavar="N",
        help="stored trajectories, as 1e6 (default: 1e4 1e5 1e6)",
    )  # fmt: skip
    add("--repeats", type=at_least(1), default=200, metavar="N", help="steps to time (default: %(default)s)")


def _count(text: str) -> int:
    number = float(text)
    if number != int(number) or number < 1000:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1000, but is {text}")
    return int(number)
