"""`exgrpo data`: questions in the layout of another trainer. The parser; imports nothing heavy."""

import argparse
import importlib
from collections.abc import Sequence

from ..parser import Parser, run_piped

TO_VERL = f"{__name__}.to_verl"


def run(argv: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    args = parser().parse_args(argv)
    return run_piped(lambda: importlib.import_module(args.does).run(args))


def parser() -> argparse.ArgumentParser:
    top = Parser(prog="exgrpo data", description="Convert questions to the layout of another trainer.")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser(
        "to-verl",
        help="write the Parquet layout that verl reads",
        description=(
            "Write questions as the Parquet file that verl reads (prompt as messages, reward_model.ground_truth, "
            "extra_info). Name data as in `exgrpo train`; whatever it loads can be written."
        ),
        epilog=(
            "example:\n  exgrpo data to-verl --dataset_name openai/gsm8k --dataset_config main --output gsm8k/train.parquet"
        ),
    )
    _to_verl(command)
    return top


def _to_verl(command: argparse.ArgumentParser) -> None:
    argument = command.add_argument
    argument(
        "--dataset_name",
        metavar="DATASET",
        required=True,
        help="a dataset on the hub, or a local file, folder or pattern (required)",
    )
    argument("--output", metavar="FILE", required=True, help="Parquet file to write (required)")
    argument("--train_split", default="train", metavar="SPLIT", help="split to read (default: %(default)s)")
    argument("--dataset_config", metavar="NAME", help="configuration of a hub dataset that has several")
    argument("--question_column", metavar="NAME", help="column of the question (default: found by its name)")
    argument("--answer_column", metavar="NAME", help="column of the gold answer (default: found by its name)")
    argument("--prompt_template", metavar="TEXT", help="text around the question, with {question} in its place")
    argument("--system_prompt", metavar="TEXT", help="first message of each prompt")
    argument("--keep_columns", nargs="+", default=[], metavar="NAME", help="further columns to keep, in extra_info")
    argument("--drop_incomplete", action="store_true", help="leave out rows without question or answer")
    argument("--limit", type=int, metavar="N", help="read only the first N rows")
    argument("--data_source", metavar="NAME", help="verl's data_source (default: DATASET)")
    argument("--ability", default="math", metavar="NAME", help="verl's ability (default: %(default)s)")
    command.set_defaults(does=TO_VERL)
