"""Tables for the terminal and for Markdown."""

import io
import sys

import numpy as np
import pytest
from rich.console import Console

from exgrpo.errors import ConfigurationError, MissingExtraError
from exgrpo.report import html_table, markdown_table, rich_table, show_table
from exgrpo.report.table import format_cell

ROWS = [
    {"arm": "exgrpo", "pass@1": 0.51234, "tokens": 1234567, "p": None},
    {"arm": "a|b\n[x]", "pass@1": np.float32(1.0), "tokens": np.int64(12)},
]


def test_markdown():
    assert markdown_table(ROWS) == (
        "| arm | pass@1 | tokens | p |\n"
        "| --- | ---: | ---: | --- |\n"
        "| exgrpo | 0.512 | 1,234,567 | – |\n"
        "| a\\|b<br>[x] | 1.000 | 12 | – |"
    )
    assert markdown_table(ROWS, ["tokens", "arm"], digits=1).splitlines()[2] == "| 1,234,567 | exgrpo |"
    assert markdown_table([], ["a"]) == "| a |\n| --- |"


def test_terminal():
    out = io.StringIO()
    show_table(ROWS, title="Results", console=Console(file=out, width=80))
    text = out.getvalue()
    for part in ("Results", "exgrpo", "0.512", "1,234,567", "[x]", "–"):
        assert part in text
    assert rich_table(ROWS).row_count == 2


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (True, "yes"), (False, "no"), (1234, "1,234"), (0.0, "0.000"), (-0.5, "-0.500"), (1e-9, "1.00e-09"),
        (float("nan"), "nan"), ([1, 0.5], "1, 0.500"), ("x", "x"),
    ],
)  # fmt: skip
def test_cells(value, text):
    assert format_cell(value) == text


def test_a_column_that_no_row_has():
    with pytest.raises(ConfigurationError, match=r"No row of the table has 'pass@2'. Columns: arm"):
        markdown_table(ROWS, ["pass@2"])


def test_rich_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.table", None)
    with pytest.raises(MissingExtraError, match=r"exgrpo\[report\]"):
        rich_table(ROWS)


def test_html_escapes_everything_and_aligns_numbers():
    text = html_table([{"<b>": "<script>", "n": 1.5}, {"<b>": 'a"&', "n": None}])
    assert "<script>" not in text
    assert "<b>" not in text
    assert "<td>&lt;script&gt;</td>" in text
    assert '<td class="num">1.500</td>' in text
    assert '<th class="num">n</th>' in text
    assert text.count("<tr>") == 3
