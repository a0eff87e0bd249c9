"""How results of `exgrpo experience` are written: tables for people, in a terminal and in a pipe, and JSON for machines."""

import dataclasses
import importlib.util
import json
import math
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from ..report.table import format_cell

Row = Mapping[str, Any]
PIPED_WIDTH = 120
_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def write(text: str = "") -> None:
    """A line, or several, in which nothing commands the terminal: what a model or a dataset says is not trusted."""
    sys.stdout.write(harmless(text) + "\n")


def harmless(text: str) -> str:
    """Control characters, and those that turn the direction of writing, as their escapes."""
    return _COMMANDS.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


def write_json(value: Any) -> None:
    """As JSON that every parser reads: NaN and infinities are null."""
    sys.stdout.write(json.dumps(plain(value), indent=2, allow_nan=False, ensure_ascii=sys.stdout.isatty()) + "\n")


def plain(value: Any) -> Any:
    """As dictionaries, lists, strings and numbers that JSON knows."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    raise TypeError(f"{type(value).__name__} is no value for JSON")


def width() -> int:
    """Columns of the terminal, or of a pipe."""
    return shutil.get_terminal_size((PIPED_WIDTH, 24)).columns


def write_facts(facts: Row) -> None:
    """Names and values in two columns."""
    margin = max(map(len, facts)) + 2
    for name, value in facts.items():
        write(f"{name:<{margin}}{format_cell(value)}")


def write_table(rows: Sequence[Row], columns: Sequence[str], long: str | None = None) -> None:
    """A table in which nothing is cut but the column `long`, which stands last and gets what width is left.

    Args:
        rows: values by column; identifiers as text, so that they are not grouped like quantities.
        columns: which, in which order.
        long: a column of long texts.
    """
    cells = [[_one_line(format_cell(row.get(name))) for name in columns] for row in rows]
    widths = [max(map(len, texts)) for texts in zip(columns, *cells, strict=True)]
    if long is not None:
        place = columns.index(long)
        room = max(20, width() - sum(w + 2 for i, w in enumerate(widths) if i != place) - 2)
        for line in cells:
            line[place] = shortened(line[place], room)
    numeric = [any(isinstance(row.get(name), Real) for row in rows) for name in columns]
    if sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
        _write_rich(cells, columns, numeric)
        return
    widths = [max(map(len, texts)) for texts in zip(columns, *cells, strict=True)]
    for line in [list(columns), *cells]:
        texts = [t.rjust(w) if right else t.ljust(w) for t, w, right in zip(line, widths, numeric, strict=True)]
        write("  ".join(texts).rstrip())


def _write_rich(cells: Sequence[Sequence[str]], columns: Sequence[str], numeric: Sequence[bool]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for name, right in zip(columns, numeric, strict=True):
        table.add_column(Text(name), justify="right" if right else "left", no_wrap=True)
    for line in cells:
        table.add_row(*map(Text, line))
    needed = sum(max(map(len, texts)) + 3 for texts in zip(columns, *cells, strict=True))
    Console(width=max(width(), needed)).print(table)  # where the terminal is too narrow, it breaks lines itself


def shortened(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 1] + "…"


def _one_line(text: str) -> str:
    return harmless(" ".join(text.split()))


def prompt_text(prompt: str | None) -> str:
    """A prompt as people read it: of messages what the user said last."""
    try:
        messages = json.loads(prompt or "")
        said = [m["content"] for m in messages if m.get("role") == "user"] or [m["content"] for m in messages]
        return str(said[-1])
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        return prompt or ""


def quantity(bytes_: int) -> str:
    """A size in bytes, as people say it."""
    size = float(bytes_)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{bytes_} bytes" if unit == "bytes" else f"{size:.1f} {unit}"


def bar(share: float, room: int = 30) -> str:
    return "#" * round(share * room)


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """`1 question`, `2,000 questions`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def listed(items: Iterable[Any]) -> str:
    return ", ".join(map(str, items)) or "none"
