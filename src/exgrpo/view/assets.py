"""The files that the page consists of, and all of them in one."""

import base64
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

MODULES = (
    "dom",
    "text",
    "data",
    "charts",
    "heat",
    "tokens",
    "timeline",
    "run",
    "questions",
    "question",
    "steps",
    "app",
)
"""Our own JavaScript in the order in which it depends on itself."""
LIBRARIES = ("vendor/uPlot.iife.min.js", "vendor/diff.min.js")
STYLES = ("vendor/uPlot.min.css", "style.css")
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}

FILES: Mapping[str, str] = {
    name: TYPES["." + name.rpartition(".")[2]] + "; charset=utf-8"
    for name in ("index.html", *STYLES, *LIBRARIES, *(f"{module}.js" for module in MODULES))
}
"""Files that a browser may request, with their types. No other file is ever read."""

_IMPORT = re.compile(r"^import [^;]*? from \"\./[\w]+\.js\";\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function |const |let |class )", re.MULTILINE)


@cache
def read(name: str) -> bytes:
    """Return the content of one of `FILES`."""
    return files(__package__).joinpath("static", *name.split("/")).read_bytes()


def styles() -> str:
    """Return all styles as one text, for a page of one's own: `<style>{styles()}</style>`.

    Light and dark follow the reader.
    """
    return "\n".join(read(name).decode() for name in STYLES)


def program() -> str:
    """Return all JavaScript as one text without imports.

    Every module's names are global there, and a test keeps them distinct.
    """
    parts = [_EXPORT.sub("", _IMPORT.sub("", read(f"{module}.js").decode())) for module in MODULES]
    return "\n".join(parts)


def in_script(text: str) -> str:
    """Escape a JSON text, so that it cannot end the script element it stands in."""
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e").replace("\u2028", "\\u2028").replace(
        "\u2029", "\\u2029"
    )  # fmt: skip


def digest(text: str) -> str:
    """Return the digest of an inline script or style, as a Content-Security-Policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
