"""`exgrpo data to-verl`: questions as verl reads them."""

import argparse
from pathlib import Path

from ...tasks.datasets import load_questions
from ...verl.data_format import verl_rows
from ..main import UsageError


def run(args: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    path = Path(args.output).expanduser()
    if path.suffix != ".parquet":
        raise UsageError(f"--output must be a .parquet file, which is what verl reads, but is {args.output}.")
    dataset = load_questions(
        args.dataset_name,
        split=args.train_split,
        config_name=args.dataset_config,
        question_column=args.question_column,
        answer_column=args.answer_column,
        prompt_template=args.prompt_template,
        system_prompt=args.system_prompt,
        conversational=True,
        limit=args.limit,
        keep_columns=args.keep_columns,
        drop_incomplete=args.drop_incomplete,
    )
    rows = verl_rows(iter(dataset), args.data_source or args.dataset_name, args.ability, args.train_split)
    path.parent.mkdir(parents=True, exist_ok=True)
    type(dataset).from_list(list(rows)).to_parquet(str(path))
    print(f"{len(dataset):,} questions in {path}: data.train_files={path}")
    return 0
