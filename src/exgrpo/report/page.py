"""One HTML page that opens from disk: no script, nothing fetched."""

import importlib.resources
from collections.abc import Sequence
from html import escape

PLAIN = """\
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid #8884; padding: .3rem .6rem; text-align: left; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.note { color: #777; font-size: .9em; }
.page img { background: white; max-width: 100%; }
pre { overflow-x: auto; white-space: pre-wrap; }
"""


def page(title: str, parts: Sequence[str]) -> str:
    """The page of a title and parts that are HTML already."""
    return (
        "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        f"<title>{escape(title)}</title>\n<style>\n{_style()}</style>\n</head>\n<body>\n<main class='page'>\n"
        f"<h1>{escape(title)}</h1>\n" + "\n".join(parts) + "\n</main>\n</body>\n</html>\n"
    )


def _style() -> str:
    """The viewer's style where it is there, and what a page of tables needs beside it."""
    shared = importlib.resources.files("exgrpo") / "view" / "static" / "style.css"
    return (shared.read_text(encoding="utf-8") if shared.is_file() else "") + PLAIN
