"""`exgrpo presets`: the recipes, where they come from, and what each changes."""

import json
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from ..config import ObjectiveConfig, ReplayConfig
from ..presets import PRESETS, Preset
from . import advice
from .parser import Parser, prose_width

DEFAULTS: dict[str, Any] = {f.name: f.default for config in (ReplayConfig, ObjectiveConfig) for f in fields(config)}


def run(argv: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    parser = Parser(
        prog="exgrpo presets", description="List the presets: what each is, where it comes from, which options it sets."
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--advise",
        action="store_true",
        help="show five questions about a run, and what the stored studies say for each answer",
    )
    args = parser.parse_args(argv)
    if args.advise:
        sys.stdout.write(json.dumps(advice.advice(), indent=2) + "\n" if args.json else advice.as_text())
    else:
        sys.stdout.write(as_json() if args.json else as_text())
    return 0


def as_json() -> str:
    rows = {
        name: {
            "summary": preset.summary,
            "source": preset.source,
            "options": dict(preset.options),
            "defaults": {option: DEFAULTS[option] for option in preset.options},
            "host": dict(preset.host),
        }
        for name, preset in PRESETS.items()
    }
    return json.dumps(rows, indent=2) + "\n"


def as_text() -> str:
    """Write a paragraph for each preset, its name in the margin."""
    width = max(map(len, PRESETS)) + 2
    blocks = [_block(name, preset, width) for name, preset in PRESETS.items()]
    after = (
        "Take one with --preset NAME (preset: NAME in a recipe); any option given beside it overrides it. What it would replay "
        "in one step, and how hard it would push: exgrpo explain --preset NAME. Which one for you: exgrpo presets --advise."
    )
    return "\n".join([*blocks, textwrap.fill(after, prose_width())]) + "\n"


def _block(name: str, preset: Preset, width: int) -> str:
    options = [f"{option}={value} {_beside(option, value)}" for option, value in preset.options.items()]
    changes = ", ".join(options) or "nothing: the defaults"
    lines = [preset.summary, f"source: {preset.source}", f"sets: {changes}"]
    if preset.host:
        lines.append(
            "sets of the trainer's own: " + ", ".join(f"{name}={value}" for name, value in preset.host.items())
        )
    filled = [
        textwrap.fill(
            line, prose_width() - width, break_on_hyphens=False, subsequent_indent="  " * line.startswith("sets")
        )
        for line in lines
    ]
    return textwrap.indent("\n".join(filled), " " * width).replace(" " * width, name.ljust(width), 1) + "\n"


def _beside(option: str, value: Any) -> str:
    default = DEFAULTS[option]
    return "(as by default)" if value == default else f"(default {default})"
