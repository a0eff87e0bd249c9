"""Output of `exgrpo experience`: tables for people, in a terminal or a pipe, and JSON for machines."""

import dataclasses
import json
import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from ...report.table import format_cell

Row = Mapping[str, Any]
PIPED_WIDTH = 120
NARROWEST = 20  # columns of a long text
_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def write(text: str = "") -> None:
    """Write lines in which nothing commands the terminal: text of a model or a dataset is not trusted."""
    sys.stdout.write(harmless(text) + "\n")


def harmless(text: str) -> str:
    """Escape control characters, direction marks, and lone surrogates."""
    return _COMMANDS.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


def write_json(value: Any) -> None:
    """Write JSON that every parser reads: NaN and infinities are null."""
    sys.stdout.write(json.dumps(plain(value), indent=2, allow_nan=False, ensure_ascii=sys.stdout.isatty()) + "\n")


def plain(value: Any) -> Any:
    """Convert to dictionaries, lists, strings and numbers that JSON knows."""
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
    """Return the columns of the terminal, or of a pipe; `COLUMNS` overrules both."""
    return shutil.get_terminal_size((PIPED_WIDTH, 24)).columns


def _tears() -> bool:
    """Return whether a line that is too long is broken where it is shown; a pipe takes any."""
    return sys.stdout.isatty() or "COLUMNS" in os.environ


def write_fields(fields: Row) -> None:
    """Write names and values in two columns; a long value goes on below itself."""
    margin = max(map(len, fields)) + 2
    for name, value in fields.items():
        text = format_cell(value)
        if "\n" not in text and margin + len(text) > width() > margin + NARROWEST:
            text = textwrap.fill(
                text, width() - margin, break_long_words=False, break_on_hyphens=False
            ).replace("\n", "\n" + " " * margin)  # fmt: skip
        write(f"{name:<{margin}}{text}")


def write_table(
    rows: Sequence[Row], columns: Sequence[str], long: str | None = None, spare: Sequence[str] = ()
) -> None:
    """Write a table in which only the column `long`, the last, is cut, to the width that is left.

    Where it does not fit into the terminal, columns of `spare` are left out, which is said; where that does not do, each row
    is a block of names and values.

    Args:
        rows: values by column; identifiers as text, so that they are not grouped like quantities.
        columns: which, in which order.
        long: a column of long texts.
        spare: columns that may be left out, the first first.
    """
    cells = {name: [_one_line(format_cell(row.get(name))) for row in rows] for name in columns}
    widths = {name: max(map(len, [name, *texts])) for name, texts in cells.items()}

    def room() -> int:
        return width() - sum(widths[name] + 2 for name in widths if name != long) + 2 * (long is None)

    needed = 0 if long is None else NARROWEST
    left_out = []
    for name in spare if _tears() else ():
        if room() < needed and name in widths:
            left_out.append(name)
            del widths[name]
    if _tears() and room() < (0 if long is None else len(long)):
        for number in range(len(rows)):
            write_fields({name: cells[name][number] for name in widths})
            write()
    else:
        if long is not None:
            cells[long] = [shortened(text, max(NARROWEST, room() - 2)) for text in cells[long]]
            widths[long] = 0
        right = {name for name in widths if any(isinstance(row.get(name), Real) for row in rows)}
        for line in [columns, *([cells[name][i] for name in columns] for i in range(len(rows)))]:
            texts = zip(columns, line, strict=True)
            aligned = [t.rjust(widths[n]) if n in right else t.ljust(widths[n]) for n, t in texts if n in widths]
            write("  ".join(aligned).rstrip())
    if left_out:
        write(f"(without {', '.join(left_out)}: the terminal is too narrow; --json has all)")


def shortened(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 1] + "…"


def _one_line(text: str) -> str:
    return harmless(" ".join(text.split()))


def prompt_text(prompt: str | None) -> str:
    """Return a prompt as people read it: of messages, the user's last."""
    try:
        messages = json.loads(prompt or "")
        said = [m["content"] for m in messages if m.get("role") == "user"] or [m["content"] for m in messages]
        return str(said[-1])
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        return prompt or ""


def quantity(bytes_: int) -> str:
    """Format a size in bytes."""
    size = float(bytes_)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{bytes_} bytes" if unit == "bytes" else f"{size:.1f} {unit}"


def bar(share: float, room: int = 30) -> str:
    return "#" * round(share * room)


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """Format a count: `1 question`, `2,000 questions`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def listed(items: Iterable[Any]) -> str:
    return ", ".join(map(str, items)) or "none"


def gathered_as_json(report: Any) -> dict[str, Any]:
    """Return a report of what came into a log (`archive.merge.Gathered`), for machines."""
    sources = [{"name": name, **plain(inherited)} for name, inherited in report.sources]
    return {**plain(report), "sources": sources}


def write_gathered(report: Any) -> None:
    """Write a report of what came into a log (`archive.merge.Gathered`), for people."""
    for name, inherited in report.sources:
        write(f"{name}: {inherited}.")
    for warning in report.warnings:
        write(f"Warning: {warning}")
    stored = counted(report.trajectories, "trajectory", "trajectories")
    write(f"{report.into} holds {stored} of {counted(report.questions, 'question')} now (branch {report.branch}).")
