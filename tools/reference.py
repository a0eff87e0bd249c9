"""Every option of `exgrpo train`, as a table in the package, so that help needs no host library.

python -m tools.reference --write    fields.json, docs/configuration.md and verl's configuration from the dataclasses
python -m tools.reference --check    exit code 1 if one is out of date
"""

import argparse
import enum
import json
import sys
import types
import typing
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import exgrpo
from exgrpo.cli.fields import TABLE, Row, table
from exgrpo.verl.options import OPTIONS

HOSTS = ("trl", "transformers")

# The table --------------------------------------------------------------------------------------------------------------


def build() -> dict[str, Any]:
    """The table as the installed hosts and this package's dataclasses give it."""
    from exgrpo.cli.arguments import ScriptArguments
    from exgrpo.trl import ExGRPOConfig
    from trl import GRPOConfig, ModelConfig

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
    if "default" in f.metadata:  # filled in when it is not given
        return f.metadata["default"]
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
    docs = Path(__file__).parents[1] / "docs"
    if docs.is_dir():
        files[docs / "configuration.md"] = page(made["fields"])
    settings = Path(exgrpo.__file__).parent / "verl" / "config" / "exgrpo_settings.yaml"
    files[settings] = _with_options(settings.read_text(encoding="utf-8"))
    return files


def _with_options(text: str) -> str:
    """Write the options of a run under verl into its configuration, where they stand last."""
    head, begins, _ = text.partition("\nexgrpo:\n")
    return head + begins + "".join(f"  {name}: {'exgrpo' if name == 'preset' else 'null'}\n" for name in OPTIONS)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.reference", description=__doc__.partition("\n")[0])
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
    return f"{because}Run: python -m tools.reference --write\n"


if __name__ == "__main__":
    sys.exit(main())
