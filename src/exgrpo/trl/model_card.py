"""The section of a model card on replay."""

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl import GRPOTrainer

from .. import __version__
from ..presets import PRESETS

PAPER: dict[str, str] = {
    "title": "ExGRPO: Learning to Reason from Experience",
    "id": "2510.02245",
    # docstyle-ignore
    "citation": textwrap.dedent("""\
        @inproceedings{zhan2026exgrpo,
            title     = {{ExGRPO: Learning to Reason from Experience}},
            author    = {Zhan, Runzhe and Li, Yafu and Wang, Zhi and Qu, Xiaoye and Liu, Dongrui and Shao, Jing and Wong, Derek F. and Cheng, Yu},
            booktitle = {International Conference on Learning Representations},
            year      = 2026,
            eprint    = {arXiv:2510.02245},
        }"""),  # noqa: E501
}
NEXT = "### Framework versions"
"""The section of the host's card that this one stands before."""


def method_of(preset: str) -> tuple[str, dict[str, str]]:
    """Return name and paper of a preset's method.

    ExGRPO where that paper is its source, else GRPO, with or without replay.
    """
    if PRESETS[preset].source.startswith(f"arXiv {PAPER['id']}"):
        return "ExGRPO", PAPER
    return GRPOTrainer._name, GRPOTrainer._paper


@dataclass(frozen=True)
class Replayed:
    """A summary of what a run replayed.

    Args:
        args: an `ExGRPOConfig`.
        step: optimizer steps.
        generated_tokens: completion tokens.
        counts: of what was `stored`, `replayed` and `retired`; None without replay.
    """

    args: Any
    step: int
    generated_tokens: int
    counts: Mapping[str, int] | None


def add_to_card(path: Path, run: Replayed) -> None:
    """Write the section into the host's card. path: of the card."""
    text = path.read_text(encoding="utf-8")
    place = text.find(NEXT)
    place = len(text) if place < 0 else place
    path.write_text(f"{text[:place]}{section(run)}\n{text[place:]}", encoding="utf-8")


def section(run: Replayed) -> str:
    """Describe the preset, its source, what differs from it, and what was replayed."""
    args, counts = run.args, run.counts
    preset = PRESETS[args.preset]
    source = re.sub(r"arXiv (\d+\.\d+)", r"[arXiv \1](https://huggingface.co/papers/\1)", preset.source)
    lines = [
        "### Experience replay" if counts is not None else "### Preset",
        "",
        f"- Preset: `{args.preset}` of exgrpo {__version__}: {preset.summary}. Source: {source}.",
    ]
    changed = [f"`{name}={value!r}` (preset: `{default!r}`)" for name, (value, default) in args.changed_options.items()]
    lines.append(f"- Options that differ from it: {', '.join(changed) or 'none'}.")
    lines.append(f"- Steps: {run.step:,}. AdmissionCandidate tokens generated: {run.generated_tokens:,}.")
    if counts is None:
        lines.append("- Nothing was replayed.")
    else:
        lines.append(
            f"- Completions stored: {counts['stored']:,}. Stored completions replayed: {counts['replayed']:,} times. "
            f"Questions retired: {counts['retired']:,}."
        )
    return "\n".join(lines) + "\n"
