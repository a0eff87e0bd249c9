"""`exgrpo presets --advise`: five questions, and what the stored studies say for each answer."""

import json
import textwrap
from pathlib import Path
from typing import Any

from ..presets import PRESETS
from .parser import prose_width

TABLE = Path(__file__).with_name("advice.json")
"""Made by tools/evidence.py from the results of the page "Evidence"."""
WHAT_IT_CAN_SAY = (
    "From studies on tiny policies: differences in points with 95 % intervals, paired by seed, at equal generated tokens. They "
    "show what an idea does to GRPO, not the size of an effect on a language model. Run on-policy and positive-weight beside "
    "whatever you take."
)


def advice() -> list[dict[str, Any]]:
    """Read the questions, their answers, and the rows behind each."""
    questions: list[dict[str, Any]] = json.loads(TABLE.read_text(encoding="utf-8"))
    return questions


def as_text() -> str:
    """Write a paragraph a question; under each answer a preset, its reasons, and the rows behind it."""
    blocks = [textwrap.fill(WHAT_IT_CAN_SAY, prose_width())]
    for number, question in enumerate(advice(), 1):
        blocks.append(f"{number}. {question['question']}")
        blocks += [_answer(answer) for answer in question["answers"]]
    return "\n\n".join(blocks) + "\n"


def _answer(answer: dict[str, Any]) -> str:
    preset = f"-> {answer['preset']}" if answer["preset"] in PRESETS else "-> no preset"
    said = textwrap.fill(answer["says"], prose_width() - 5)
    rows = [_row(row) for row in answer["rows"]] or ["no stored study answers this"]
    return textwrap.indent("\n".join([f"{answer['answer']}  {preset}", textwrap.indent(said, "  "), *rows]), "   ")


def _row(row: dict[str, Any]) -> str:
    place = f"{row['study']}, {row['setting']}"
    first = f"  {row['figure']} {row['difference']} {row['told_apart']}: {row['arm']} against {row['against']}"
    return f"{first}\n      ({place}; {row['seeds']} seeds)"
