"""Rows of results as a table: in the terminal with rich, or as GitHub Markdown text."""

from collections.abc import Mapping, Sequence
from html import escape
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError, MissingExtraError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Row = Mapping[str, Any]
EMPTY = "–"


def markdown_table(rows: Sequence[Row], columns: Sequence[str] | None = None, digits: int = 3) -> str:
    """Return GitHub Markdown, one line per row, without a newline at its end.

    Args:
        rows: dictionaries; a missing key or None gives a dash.
        columns: which keys, in which order; all, in the order they are met, if None.
        digits: decimals of floats.
    """
    names = _columns(rows, columns)
    numeric = _numeric(rows, names)
    lines = [
        [_escape(name) for name in names],
        ["---:" if name in numeric else "---" for name in names],
        *([_escape(format_cell(row.get(name), digits)) for name in names] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def html_table(rows: Sequence[Row], columns: Sequence[str] | None = None, digits: int = 3) -> str:
    """Return a table in a card, every text escaped; arguments as of `markdown_table`."""
    names = _columns(rows, columns)
    numeric = _numeric(rows, names)

    def line(tag: str, cells: Sequence[tuple[str, str]]) -> str:
        marked = (f'<{tag} class="num">' if name in numeric else f"<{tag}>" for name, _ in cells)
        return (
            "<tr>"
            + "".join(f"{mark}{escape(text)}</{tag}>" for mark, (_, text) in zip(marked, cells, strict=True))
            + "</tr>"
        )

    body = [line("td", [(name, format_cell(row.get(name), digits)) for name in names]) for row in rows]
    head = line("th", [(name, name) for name in names])
    return "\n".join(
        ['<div class="card scroll"><table>', f"<thead>{head}</thead>", "<tbody>", *body, "</tbody></table></div>"]
    )


def rich_table(
    rows: Sequence[Row], columns: Sequence[str] | None = None, digits: int = 3, title: str | None = None
) -> "Table":
    """Return a `rich.table.Table`; raise `MissingExtraError` if rich is not installed."""
    try:
        from rich import box
        from rich.table import Table
        from rich.text import Text
    except ImportError as error:
        raise MissingExtraError("rich", "report", "A table in the terminal") from error
    names = _columns(rows, columns)
    numeric = _numeric(rows, names)
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in names:
        table.add_column(Text(name), justify="right" if name in numeric else "left")
    for row in rows:
        table.add_row(*(Text(format_cell(row.get(name), digits)) for name in names))
    return table


def show_table(
    rows: Sequence[Row],
    columns: Sequence[str] | None = None,
    digits: int = 3,
    title: str | None = None,
    console: "Console | None" = None,
) -> None:
    """Write the table to `console`, by default the terminal."""
    table = rich_table(rows, columns, digits, title)
    if console is None:
        from rich.console import Console

        console = Console()
    console.print(table)


def format_cell(value: Any, digits: int = 3) -> str:
    """Format floats with `digits` decimals, integers with thousands separators, None as a dash, lists with commas."""
    if value is None:
        return EMPTY
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{value:,}"
    if isinstance(value, Real):
        if value and abs(value) < 0.5 * 10**-digits:
            return f"{value:.{max(digits - 1, 0)}e}"
        return f"{value:.{digits}f}"
    if isinstance(value, list | tuple):
        return ", ".join(format_cell(item, digits) for item in value)
    return str(value)


def _columns(rows: Sequence[Row], columns: Sequence[str] | None) -> list[str]:
    known = list(dict.fromkeys(name for row in rows for name in row))
    if columns is None:
        return known
    missing = [name for name in columns if name not in known]
    if missing and rows:
        raise ConfigurationError(f"No row of the table has {missing[0]!r}. Columns: {', '.join(known)}.")
    return list(columns)


def _numeric(rows: Sequence[Row], names: Sequence[str]) -> set[str]:
    """Return the columns to align on the right: numbers or nothing in every row."""
    return {
        name
        for name in names
        if any(isinstance(row.get(name), Real) for row in rows)
        and all(row.get(name) is None or isinstance(row[name], Real) for row in rows)
    }


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\r", "").replace("\n", "<br>")
