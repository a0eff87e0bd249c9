"""`exgrpo rewards check`: a reward function against the gold answers of a dataset."""

import argparse
import shlex
from typing import Any

from ...rewards import TRL_REWARDS, get_reward
from ...rewards.check import GoldReport, check_golds
from ...spelling import spelled
from ..environment import require
from ..experience.output import write, write_fields, write_json, write_table
from ..main import UsageError


def run(args: argparse.Namespace) -> int:
    """Run the command; return exit code 1 above a threshold."""
    _refuse_the_old_form(args)
    require("datasets", "trl", "Loading a dataset")
    reward = _deciding(args)
    args.of_trl = getattr(reward, "__name__", "") in TRL_REWARDS
    name = args.answer_name or ("solution" if args.of_trl else "answer")
    report = check_golds(reward, _dataset(args, name), answer_name=name)
    if args.json:
        write_json(_as_json(report, args))
    else:
        _write(report, args)
    return int(bool(_exceeded(report, args)))


def _refuse_the_old_form(args: argparse.Namespace) -> None:
    if args.old is not None and args.dataset_name is None:
        raise UsageError(f"the data is named as in train: exgrpo rewards check --dataset_name {shlex.quote(args.old)}")
    if args.old is not None:
        raise UsageError(f"{args.old!r} is one argument too many. See exgrpo rewards check --help.")
    if args.dataset_name is None:
        raise UsageError("there is no data: set --dataset_name. See exgrpo rewards check --help.")


def _deciding(args: argparse.Namespace) -> Any:
    """Return the reward function that decides: the first, or that of `--correctness_function`."""
    functions = {getattr(f, "__name__", ""): f for f in map(get_reward, args.reward_funcs)}
    if args.correctness_function is None:
        return next(iter(functions.values()))
    name = spelled(args.correctness_function, functions)
    if name not in functions:
        raise UsageError(
            f"--correctness_function {args.correctness_function} is not one of the reward functions {', '.join(functions)}."
        )
    return functions[name]


def _dataset(args: argparse.Namespace, answer_name: str) -> Any:
    from ...tasks.datasets import load_questions

    dataset = load_questions(
        args.dataset_name,
        split=args.train_split,
        config_name=args.dataset_config,
        question_column=args.question_column,
        answer_column=args.answer_column,
        conversational=args.of_trl,
        limit=args.limit,
        keep_columns=args.keep_columns,
        drop_incomplete=args.drop_incomplete,
    )
    return dataset if answer_name == "answer" else dataset.rename_column("answer", answer_name)


def _exceeded(report: GoldReport, args: argparse.Namespace) -> list[str]:
    """Say what is above its threshold."""
    shares = (
        ("cannot be read", report.share_unscorable, "max_unscorable", args.max_unscorable),
        ("do not score themselves 1 in a box", report.share_not_themselves, "max_misread", args.max_misread),
    )
    return [
        f"{share:.2%} of the gold answers {what}, more than --{option} {limit:g}. Take another reward function, mend the "
        "answers, or allow more."
        for what, share, option, limit in shares
        if share > limit
    ]


def _as_json(report: GoldReport, args: argparse.Namespace) -> dict[str, Any]:
    return {
        "dataset": args.dataset_name, "split": args.train_split, "reward": report.reward, "rows": report.rows,
        "unscorable": report.unscorable, "share_unscorable": report.share_unscorable, "not_boxed": report.not_boxed,
        "share_not_themselves": report.share_not_themselves, "not_stated": report.not_stated, "found": list(report.found),
        "no_numbers": [{"row": row, "gold": gold} for row, gold in report.no_numbers],
        "exceeded": _exceeded(report, args),
    }  # fmt: skip


def _write(report: GoldReport, args: argparse.Namespace) -> None:
    scorable = report.rows - report.unscorable
    write_fields(
        {
            "dataset": args.dataset_name, "reward function": report.reward, "gold answers": report.rows,
            "unreadable": _part(report.unscorable, report.rows),
            "1 as \\boxed{gold}": _part(scorable - report.not_boxed, scorable),
            "1 as \"The answer is gold.\"": _part(scorable - report.not_stated, scorable),
        }
    )  # fmt: skip
    shown = report.found[: max(0, args.examples)]
    if shown:
        write()
        rows = [
            {"row": str(g.row), "boxed": _reward(g.boxed), "sentence": _reward(g.sentence), "gold": g.gold}
            for g in shown
        ]
        write_table(rows, ["row", "boxed", "sentence", "gold"], long="gold")
        if len(report.found) > len(shown):
            write(f"and {len(report.found) - len(shown):,} more; --examples N shows more, --json all")
    if odd := report.no_numbers:
        examples = ", ".join(f"row {row}: {gold[:40]!r}" for row, gold in odd[: max(1, args.examples)])
        write(f"\nMost gold answers are numbers, but {len(odd):,} of {report.rows:,} are not: {examples}")
    for line in _exceeded(report, args):
        write(f"\n{line}")


def _part(number: int, whole: int) -> str:
    return f"{number:,}" + (f" ({number / whole:.2%})" if whole else "")


def _reward(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"
