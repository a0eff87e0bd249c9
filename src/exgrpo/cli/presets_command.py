"""`exgrpo presets`: the recipes, where they come from, and what each changes."""

import argparse
import json
import sys
import textwrap
from collections.abc import Sequence

from ..presets import PRESETS, Preset


def run(argv: Sequence[str]) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="exgrpo presets", description="The presets: what each is, where it comes from, and the options it sets."
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    args = parser.parse_args(argv)
    sys.stdout.write(as_json() if args.json else as_text())
    return 0


def as_json() -> str:
    rows = {
        name: {"summary": preset.summary, "source": preset.source, "options": dict(preset.options)}
        for name, preset in PRESETS.items()
    }
    return json.dumps(rows, indent=2) + "\n"


def as_text() -> str:
    """A paragraph a preset, its name in the margin."""
    width = max(map(len, PRESETS)) + 2
    blocks = [_block(name, preset, width) for name, preset in PRESETS.items()]
    return "\n".join(blocks) + (
        "\nTake one with --preset NAME (preset: NAME in a recipe); any option given beside it overrides it.\n"
    )


def _block(name: str, preset: Preset, width: int) -> str:
    changes = ", ".join(f"{option}={value}" for option, value in preset.options.items()) or "nothing: the defaults"
    lines = [preset.summary, f"source: {preset.source}", f"sets: {changes}"]
    text = "\n".join(textwrap.fill(line, 110 - width, break_on_hyphens=False) for line in lines)
    return textwrap.indent(text, " " * width).replace(" " * width, name.ljust(width), 1) + "\n"
