"""`exgrpo rewards`: check that verifiers read a dataset's gold answers, and audit what they accepted.

Here stand the commands; what they do is in `check` and `audit`. Imports nothing heavy.
"""

import argparse
import importlib
from collections.abc import Sequence

from ..experience import RUN
from ..parser import Parser, run_piped

CHECK, AUDIT = (f"{__name__}.{name}" for name in ("check", "audit"))


def run(argv: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    args = parser().parse_args(argv)
    return run_piped(lambda: importlib.import_module(args.does).run(args))


def parser() -> argparse.ArgumentParser:
    top = Parser(
        prog="exgrpo rewards",
        description="Whether verifiers can be trusted: with the gold answers of a dataset, and with what a run stored.",
        epilog="Every command takes --json, and its --help has an example.",
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    check = commands.add_parser(
        "check",
        help="whether a reward function reads the gold answers of a dataset",
        description=(
            "Whether a reward function reads the gold answers of a dataset, and gives 1 to each as its own answer: as "
            '\\boxed{gold}, and as "The answer is gold." Data and reward are named as in `exgrpo train`.\n\n'
            "Exit code 1: more golds than allowed cannot be read, or do not score themselves 1 in a box."
        ),
        epilog=(
            "example:\n  exgrpo rewards check --dataset_name openai/gsm8k --dataset_config main \\\n"
            "      --reward_funcs numeric_reward"
        ),
        renamed={"--split": "--train_split", "--reward": "--reward_funcs"},
        allow_abbrev=False,  # else --reward would be taken for --reward_funcs, and the message not seen
    )
    _check(check)
    audit = commands.add_parser(
        "audit",
        help="what is suspicious of what a run stored",
        description=(
            "What is suspicious of what a run stored: completions to which a second verifier does not give 1, that state "
            "several\nanswers, were cut at the limit, are much shorter than the others, or are stored for several questions."
        ),
        epilog="example:\n  exgrpo rewards audit outputs/run-1 --with math_reward",
    )
    _audit(audit)
    return top


def _check(command: argparse.ArgumentParser) -> None:
    argument = command.add_argument
    argument("old", nargs="?", metavar="", help=argparse.SUPPRESS)
    argument("--dataset_name", metavar="DATASET", help="on the hub, or a local file, folder or pattern; required")
    argument(
        "--reward_funcs", nargs="+", default=["math_reward"], metavar="NAME",
        help="reward functions, of which the one that decides is checked (default: math_reward)",
    )  # fmt: skip
    argument("--correctness_function", metavar="NAME", help="the one that decides (default: the first)")
    argument("--train_split", default="train", metavar="SPLIT", help="split that is read (default: %(default)s)")
    argument("--dataset_config", metavar="NAME", help="configuration of a hub dataset that has several")
    argument("--question_column", metavar="NAME", help="column of the question; found by its name if not given")
    argument("--answer_column", metavar="NAME", help="column of the gold answer; found by its name if not given")
    argument(
        "--answer_name", metavar="NAME",
        help="name under which the reward function gets the gold answer (default: answer; solution for those of TRL)",
    )  # fmt: skip
    argument("--keep_columns", nargs="+", default=[], metavar="NAME", help="further columns that the function reads")
    argument("--drop_incomplete", action="store_true", help="leave rows without question or answer out")
    argument("--limit", type=int, metavar="N", help="only the first N rows")
    argument(
        "--max_unscorable", type=_share, default=0.02, metavar="SHARE",
        help="share of golds that may be unreadable (default: %(default)s)",
    )  # fmt: skip
    argument(
        "--max_misread", type=_share, default=0.02, metavar="SHARE",
        help="share of the other golds that may not score themselves 1 in a box (default: %(default)s)",
    )  # fmt: skip
    argument(
        "--examples", type=int, default=10, metavar="N", help="golds shown (default: %(default)s); with --json all"
    )
    argument("--json", action="store_true", help="as JSON, for machines")
    command.set_defaults(does=CHECK)


def _audit(command: argparse.ArgumentParser) -> None:
    argument = command.add_argument
    argument("run", nargs="?", default=".", metavar="RUN", help=RUN)
    argument(
        "--with", dest="second", metavar="NAME",
        help="the second verifier (default, by the gold answer: choice_reward, numeric_reward or math_reward, but not the one "
        "that decided in the run, where there is another)",
    )  # fmt: skip
    argument("--answer_name", metavar="NAME", help="column of the gold answer (default: answer, or else solution)")
    argument("--all", action="store_true", help="also what was stored once and left")
    argument(
        "--limit", type=int, default=50, metavar="N", help="at most N of them (default: %(default)s); with --json all"
    )
    argument("--json", action="store_true", help="as JSON, for machines")
    command.set_defaults(does=AUDIT)


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"a share is between 0 and 1, got {text}")
    return value
