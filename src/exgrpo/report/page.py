"""One HTML page in the viewer's look that opens from disk: no script, nothing fetched."""

from collections.abc import Sequence
from html import escape

from ..view.assets import styles

MORE = """\
.page img { background: #fff; border-radius: 8px; max-width: 100%; }
.page h2 { margin-top: 24px; }
.page h3 { margin-top: 12px; }
"""


def page(title: str, parts: Sequence[str]) -> str:
    """Return the page of a title and parts that are HTML already."""
    return (
        "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        f"<title>{escape(title)}</title>\n<style>\n{styles()}\n{MORE}</style>\n</head>\n<body>\n<main class='page stack'>\n"
        f"<h1>{escape(title)}</h1>\n" + "\n".join(parts) + "\n</main>\n</body>\n</html>\n"
    )
