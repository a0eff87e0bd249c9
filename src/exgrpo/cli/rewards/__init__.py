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
        description="Check verifiers: on the gold answers of a dataset, and on what a run stored.",
        epilog="Every command takes --json, and its --help has an example.",
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    check = commands.add_parser(
        "check",
        help="check that a reward function reads the gold answers of a dataset",
        description=(
            "Check that a reward function reads the gold answers of a dataset and gives 1 to each as its own answer: as "
            '\\boxed{gold}, and as "The answer is gold." Name data and reward as in `exgrpo train`.\n\nExit code 1: '
            "more golds than allowed cannot be read, or do not score themselves 1 in a box."
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
        help="list suspicious completions that a run stored",
        description=(
            "List suspicious stored completions: those to which a second verifier does not give 1, that state several "
            "answers,\nwere cut at the limit, are much shorter than the others, or are stored for several questions."
        ),
        epilog="example:\n  exgrpo rewards audit outputs/run-1 --with math_reward",
    )
    _audit(audit)
    return top


def _check(command: argparse.ArgumentParser) -> None:
    argument = command.add_argument
    argument("old", nargs="?", metavar="", help=argparse.SUPPRESS)
    argument(
        "--dataset_name", metavar="DATASET", help="a dataset on the hub, or a local file, folder or pattern (required)"
    )
    argument(
        "--reward_funcs", nargs="+", default=["math_reward"], metavar="NAME",
        help="reward functions; the deciding one is checked (default: math_reward)",
    )  # fmt: skip
    argument("--correctness_function", metavar="NAME", help="the reward function that decides (default: the first)")
    argument("--train_split", default="train", metavar="SPLIT", help="split to read (default: %(default)s)")
    argument("--dataset_config", metavar="NAME", help="configuration of a hub dataset that has several")
    argument("--question_column", metavar="NAME", help="column of the question (default: found by its name)")
    argument("--answer_column", metavar="NAME", help="column of the gold answer (default: found by its name)")
    argument(
        "--answer_name", metavar="NAME",
        help="name under which the reward function gets the gold answer (default: answer; solution for TRL's functions)",
    )  # fmt: skip
    argument(
        "--keep_columns", nargs="+", default=[], metavar="NAME", help="further columns that the reward function reads"
    )
    argument("--drop_incomplete", action="store_true", help="leave out rows without question or answer")
    argument("--limit", type=int, metavar="N", help="read only the first N rows")
    argument(
        "--max_unscorable", type=_share, default=0.02, metavar="SHARE",
        help="highest share of unreadable golds (default: %(default)s)",
    )  # fmt: skip
    argument(
        "--max_misread", type=_share, default=0.02, metavar="SHARE",
        help="highest share of the other golds that do not score themselves 1 in a box (default: %(default)s)",
    )  # fmt: skip
    argument(
        "--examples", type=int, default=10, metavar="N", help="golds to show (default: %(default)s; all with --json)"
    )
    argument("--json", action="store_true", help="print JSON")
    command.set_defaults(does=CHECK)


def _audit(command: argparse.ArgumentParser) -> None:
    argument = command.add_argument
    argument("run", nargs="?", default=".", metavar="RUN", help=RUN)
    argument(
        "--with", dest="second", metavar="NAME",
        help="the second verifier (default: choice_reward, numeric_reward or math_reward, by the gold answer, and if "
            "possible not the one that decided in the run)",
    )  # fmt: skip
    argument("--answer_name", metavar="NAME", help="column of the gold answer (default: answer, else solution)")
    argument("--all", action="store_true", help="include completions that have left the store")
    argument(
        "--limit", type=int, default=50, metavar="N", help="list at most N (default: %(default)s; all with --json)"
    )
    argument("--json", action="store_true", help="print JSON")
    command.set_defaults(does=AUDIT)


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"a share is between 0 and 1, got {text}")
    return value
