"""Every option of `exgrpo train`, as a table in the package, so that help needs no host library.

python -m exgrpo.cli.reference --write    fields.json and docs/configuration.md from the dataclasses
python -m exgrpo.cli.reference --check    exit code 1 if either is out of date
"""

import argparse
import enum
import json
import re
import sys
import textwrap
import types
import typing
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..registry import did_you_mean
from .main import UsageError
from .parser import prose_width

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
HOSTS = ("trl", "transformers")

Row = dict[str, Any]


@cache
def table() -> dict[str, Any]:
    """`fields.json`: `versions` of the hosts that it was made with, and `fields`."""
    return json.loads(TABLE.read_text(encoding="utf-8"))


def rows_of(group: str) -> list[Row]:
    return [row for row in table()["fields"] if row["group"] == group]


# Help -------------------------------------------------------------------------------------------------------------------


def help_text(usage: str, topics: Sequence[str] = ()) -> str:
    """The options that most runs set; with topics the options of groups, single ones, or all.

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
    """Paragraphs filled to the width; a usage line stays as it is."""
    blocks = text.strip().split("\n\n")
    return "\n\n".join(b if b.startswith("usage") else textwrap.fill(b, prose_width()) for b in blocks) + "\n"


def _group_help(group: str, title: str) -> str:
    return f"{title}\n{'-' * len(title)}\n" + "".join(map(_help_of, rows_of(group)))


def _help_of(row: Row, short: bool = False) -> str:
    """An option with what is said of it, or the first sentence of that."""
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


# The table --------------------------------------------------------------------------------------------------------------


def build() -> dict[str, Any]:
    """The table as the installed hosts and this package's dataclasses give it."""
    from trl import GRPOConfig, ModelConfig

    from ..trl import ExGRPOConfig
    from .arguments import ScriptArguments

    host = {f.name: f for f in fields(GRPOConfig)}
    ours = {f.name: f for f in fields(ExGRPOConfig)}
    rows = [_row(ExGRPOConfig, f, "replay") for name, f in ours.items() if name not in host]
    rows += [_row(ScriptArguments, f, "script") for f in fields(ScriptArguments)]
    rows += [_row(ModelConfig, f, "model") for f in fields(ModelConfig)]
    for name in host:
        row = _row(ExGRPOConfig, ours[name], "host")
        if (theirs := _default(host[name])) != row["default"]:
            row["host_default"] = theirs
        rows.append(row)
    return {"versions": {package: version(package) for package in HOSTS}, "fields": rows}


def _row(cls: type, f: "Field[Any]", group: str) -> Row:
    return {
        "name": f.name,
        "group": group,
        "type": type_name(typing.get_type_hints(cls)[f.name]),
        "default": _default(f),
        "help": " ".join(f.metadata.get("help", "").replace("%%", "%").split()),
    }


def _default(f: "Field[Any]") -> Any:
    value = f.default if f.default is not MISSING else None if f.default_factory is MISSING else f.default_factory()
    value = value.value if isinstance(value, enum.Enum) else value
    return value if value is None or isinstance(value, bool | int | float | str | list | dict) else str(value)


def type_name(hint: Any) -> str:
    """A type as a user reads it; `None` is left out, since not giving an option is always possible."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(dict.fromkeys(type_name(part) for part in arguments if part is not type(None)))
    if origin is typing.Literal:
        return " | ".join(map(repr, arguments))
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(type_name, arguments))}]"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return " | ".join(str(member.value) for member in hint)
    return getattr(hint, "__name__", str(hint))


# Command ----------------------------------------------------------------------------------------------------------------


def generated() -> dict[Path, str]:
    """Files and their contents. The page is there only in a source tree."""
    from .reference_page import page

    made = build()
    files = {TABLE: json.dumps(made, indent=1, ensure_ascii=False) + "\n"}
    docs = Path(__file__).parents[3] / "docs"
    if docs.is_dir():
        files[docs / "configuration.md"] = page(made["fields"])
    return files


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m exgrpo.cli.reference", description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the files")
    parser.add_argument("--check", action="store_true", help="fail if a file is out of date (the default)")
    args = parser.parse_args(argv)
    files = generated()
    stale = [path for path, text in files.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if args.write:
            path.write_text(files[path], encoding="utf-8")
        sys.stderr.write(f"{path.name} {'written' if args.write else 'is out of date'}\n")
    if stale and not args.write:
        sys.stderr.write(_advice())
        return 1
    return 0


def _advice() -> str:
    made_with = table()["versions"] if TABLE.is_file() else {}
    other = [f"{name} {version(name)}, not {made}" for name, made in made_with.items() if version(name) != made]
    because = f"They were made with another version ({'; '.join(other)} is installed). " if other else ""
    return f"{because}Run: python -m exgrpo.cli.reference --write\n"


if __name__ == "__main__":
    sys.exit(main())
