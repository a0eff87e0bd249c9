"""Hooks of the documentation site (mkdocs.yml): files outside docs/ that pages link to become part of it.

Markdown becomes a page, code and recipes a page that shows them, a folder a list of its files, data a file as it is. So
links that work in a clone work on the site, and a strict build finds those that do not.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")
SHOWN = {".py": "python", ".yaml": "yaml", ".sh": "bash", ".toml": "toml"}
REFERENCE = re.compile(r"\[<code>~?(?:[\w.]+\.)?(\w+)</code>\]")
"""A name as docstrings of the Hugging Face libraries refer to it."""
TYPE, RAW = re.compile(r"<code>[^<]*`[^<]*</code>"), re.compile(r"\[`~?(?:[\w.]+\.)?(\w+)`\]")
"""The same where the name stands in a type, which is code as a whole."""
STYLE = ".md-typeset td:first-child code { white-space: nowrap; }\n"
"""Names of options and metrics stand whole at the head of a table's row."""
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def on_config(config: Any) -> Any:
    """Name the style sheet that `on_files` adds."""
    config.extra_css.append("tables.css")
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the style sheet, and what pages of docs/, and what they lead to, link to outside docs/."""
    files.append(File.generated(config, "tables.css", content=STYLE))
    waiting = [ROOT / "docs" / page.src_uri for page in files.documentation_pages()]
    seen: set[str] = set()
    while waiting:
        page = waiting.pop()
        for target in outside(page):
            if target in seen or not (ROOT / target).exists():
                continue
            seen.add(target)
            file = generated(target, config)
            file.inclusion = InclusionLevel.NOT_IN_NAV
            files.append(file)
            if (ROOT / target).suffix == ".md":
                waiting.append(ROOT / target)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead links from or to files outside docs/ to the pages made of what they name."""
    here = page.file.src_uri
    source = here.removeprefix("files/") if here.startswith("files/") else f"docs/{here}"

    def led(match: re.Match[str]) -> str:
        before, path, after = match.groups()
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if not (ROOT / target).exists():
            return match[0]
        there = target.removeprefix("docs/") if target.startswith("docs/") else uri_of(target)
        return before + posixpath.relpath(there, posixpath.dirname(here) or ".") + after

    return LINK.sub(led, markdown)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Show references of docstrings as names, in the types of the API's tables too."""
    html = REFERENCE.sub(r"<code>\1</code>", html)
    if page.file.src_uri != "api.md":
        return html
    return TYPE.sub(lambda found: RAW.sub(r"\1", found[0]).replace("`", ""), html)


def outside(page: Path) -> list[str]:
    """Paths, from the root, of what a page links to outside docs/."""
    prose = FENCED.sub("", page.read_text(encoding="utf-8"))
    targets = [(page.parent / path).resolve() for _, path, _ in LINK.findall(prose)]
    inside = [target for target in targets if target.is_relative_to(ROOT)]
    return [target.relative_to(ROOT).as_posix() for target in inside if not target.is_relative_to(ROOT / "docs")]


def uri_of(target: str) -> str:
    """Where on the site a file or folder of the repository stands."""
    path = ROOT / target
    if path.is_dir():
        return f"files/{target}/index.md"
    return f"files/{target}" if path.suffix not in SHOWN else f"files/{target}.md"


def generated(target: str, config: Any) -> File:
    path, uri = ROOT / target, uri_of(target)
    if path.is_dir():
        names = sorted(
            entry.name + "/" * entry.is_dir() for entry in path.iterdir() if not entry.name.startswith(("_", "."))
        )
        return File.generated(config, uri, content=f"# {target}/\n\n" + "".join(f"- `{name}`\n" for name in names))
    if path.suffix in SHOWN:
        text = path.read_text(encoding="utf-8")
        return File.generated(config, uri, content=f"# {target}\n\n````{SHOWN[path.suffix]}\n{text}````\n")
    return File.generated(config, uri, abs_src_path=str(path))
