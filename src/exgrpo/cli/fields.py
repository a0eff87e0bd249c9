"""Help of `exgrpo train`, from a table of its options that needs no host library (`tools/reference.py` writes it)."""

import json
import re
import textwrap
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..spelling import did_you_mean
from .main import UsageError
from .parser import prose_width, underscored

TABLE = Path(__file__).with_name("fields.json")
GROUPS = {
    "replay": ("replay", "Experience replay (ExGRPOConfig)"),
    "data": ("script", "Dataset, reward and task"),
    "model": ("model", "Model (TRL's ModelConfig)"),
    "training": ("host", "Training and generation (TRL's GRPOConfig)"),
}
"""Topics of help: the group in the table, and its title."""
MOST_USED = (
    "dataset_name", "reward_funcs", "task", "model_name_or_path", "output_dir", "preset", "replay_share", "experience_from",
    "num_generations", "per_device_train_batch_size", "gradient_accumulation_steps", "max_completion_length", "max_steps",
    "num_train_epochs", "learning_rate", "use_vllm", "eval_strategy", "save_steps", "logging_steps", "report_to",
    "resume_from_checkpoint", "seed",
)  # fmt: skip

BOOLEANS = ("true", "false", "yes", "no", "t", "f", "y", "n", "1", "0")
Row = dict[str, Any]


@cache
def table() -> dict[str, Any]:
    """Read `fields.json`: `fields`, and the `versions` of the hosts that it was made with."""
    return json.loads(TABLE.read_text(encoding="utf-8"))


def rows_of(group: str) -> list[Row]:
    return [row for row in table()["fields"] if row["group"] == group]


def split_off(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command line into words that are no options of `exgrpo train`, and options with their values."""
    types = {row["name"]: row["type"] for row in table()["fields"]}
    others, options, place = list[str](), list[str](), 0
    while place < len(argv):
        word = underscored(argv[place])
        place += 1
        name, equals, _ = word.removeprefix("--").partition("=")
        if not word.startswith("--") or name not in types:
            others.append(argv[place - 1])
            continue
        options.append(word)
        most = 0 if equals else len(argv) if types[name].startswith("list") else 1
        while most and place < len(argv) and not argv[place].startswith("--"):
            if types[name] == "bool" and argv[place].lower() not in BOOLEANS:
                break
            options.append(argv[place])
            place, most = place + 1, most - 1
    return others, options


# Help -------------------------------------------------------------------------------------------------------------------


def help_text(usage: str, topics: Sequence[str] = ()) -> str:
    """Return help on the options that most runs set; with topics, on groups, single options, or all.

    Raises:
        UsageError: a topic is none of these.
    """
    by_name = {row["name"]: row for row in table()["fields"]}
    if not topics:
        most = "".join(_help_of(by_name[name], short=True) for name in MOST_USED)
        topics_there = "".join(
            f"  exgrpo train --help {topic:<9} {title.partition(' (')[0].lower()} ({len(rows_of(group))})\n"
            for topic, (group, title) in GROUPS.items()
        )
        return (
            f"{filled(usage)}\noptions that most runs set:\n{most}\nall options:\n{topics_there}"
            f"  exgrpo train --help all       all of them ({len(by_name)})\n"
            "  exgrpo train --help NAME ...  single options, for example --help sigma mu\n"
        )
    text = []
    for topic in topics:
        name = topic.lstrip("-").replace("-", "_")
        if name == "all":
            text += [_group_help(group, title) for group, title in GROUPS.values()]
        elif name in GROUPS:
            text.append(_group_help(*GROUPS[name]))
        elif name in by_name:
            text.append(_help_of(by_name[name]))
        else:
            near = did_you_mean(name, (*GROUPS, "all", *by_name))
            raise UsageError(
                f"--help: there is no option and no group {topic!r}.{near} Groups: {', '.join(GROUPS)}, all."
            )
    return "\n".join(text)


def filled(text: str) -> str:
    """Fill paragraphs to the width; leave a usage line as it is."""
    blocks = text.strip().split("\n\n")
    return "\n\n".join(b if b.startswith("usage") else textwrap.fill(b, prose_width()) for b in blocks) + "\n"


def _group_help(group: str, title: str) -> str:
    return f"{title}\n{'-' * len(title)}\n" + "".join(map(_help_of, rows_of(group)))


def _help_of(row: Row, short: bool = False) -> str:
    """Return an option with its help text, or its first sentence."""
    default = "" if row["default"] is None else f", default {row['default']}"
    head = f"--{row['name']}  ({row['type']}{default})"
    text = " ".join(row["help"].split())
    text = re.split(r"(?<=[a-z`)])\. (?=[A-Z])|; ", text)[0].rstrip(".") if short else text
    return "".join(
        textwrap.fill(
            part, prose_width(), initial_indent=" " * indent, subsequent_indent=" " * 6, break_on_hyphens=False
        )
        + "\n"
        for part, indent in ((head, 2), (text, 6))
    )
