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
    "answers",
    "app",
    "run_app",
    "evaluation_app",
)
"""Our own JavaScript in the order in which it depends on itself."""
APPS: Mapping[str, str] = {"run": "run_app", "evaluation": "evaluation_app"}
"""What is shown, and the module with which its page begins."""
LIBRARIES = ("vendor/uPlot.iife.min.js", "vendor/diff.min.js")
STYLES = ("vendor/uPlot.min.css", "style.css")
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}

FILES: Mapping[str, str] = {
    name: TYPES["." + name.rpartition(".")[2]] + "; charset=utf-8"
    for name in ("index.html", *STYLES, *LIBRARIES, *(f"{module}.js" for module in MODULES))
}
"""Files that a browser may request, with their types. No other file is ever read."""

_IMPORT = re.compile(r"^import [^;]*? from \"\./[\w]+\.js\";\n", re.MULTILINE)
_IMPORTED = re.compile(r"^import [^;]*?\"\./(\w+)\.js\";$", re.MULTILINE)
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


def page(kind: str) -> str:
    """Return the page of a run or of an evaluation: they differ in the module that they begin with."""
    return read("index.html").decode().replace("run_app.js", f"{APPS[kind]}.js")


def modules_of(kind: str) -> list[str]:
    """Return the modules of a page in their order."""
    needed, found = [APPS[kind]], set[str]()
    while needed:
        found.add(module := needed.pop())
        needed += set(_IMPORTED.findall(read(f"{module}.js").decode())) - found
    return [module for module in MODULES if module in found]


def program(kind: str = "run") -> str:
    """Return the JavaScript of a page as one text without imports.

    Every module's names are global there, and a test keeps them distinct.
    """
    parts = [_EXPORT.sub("", _IMPORT.sub("", read(f"{module}.js").decode())) for module in modules_of(kind)]
    return "\n".join(parts)


def in_script(text: str) -> str:
    """Escape a JSON text, so that it cannot end the script element it stands in."""
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e").replace("\u2028", "\\u2028").replace(
        "\u2029", "\\u2029"
    )  # fmt: skip


def digest(text: str) -> str:
    """Return the digest of an inline script or style, as a Content-Security-Policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
