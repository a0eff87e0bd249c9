"""Fill the questions of `exgrpo presets --advise` with what the stored results say: each row one paired difference."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from exgrpo.lab.studies.summary import Findings, interval
from exgrpo.lab.studies.sweep import Sweep

ROOT = Path(__file__).resolve().parents[1]
QUESTIONS = ROOT / "benchmarks" / "advice.yaml"
FILE = ROOT / "src" / "exgrpo" / "cli" / "advice.json"
FIGURES = {"pass_at_1": "Pass@1", "pass_at_8": "Pass@8", "equal_time": "Pass@1 at equal time"}
SWEPT = {"tuned": "Pass@1, each at its own learning rate", "untuned": "Pass@1 over all learning rates"}
"""Figures of a study over learning rates, whose settings are a family's."""


def advice(findings: Callable[[str], Findings]) -> str:
    """Return the contents of the file in the package. findings: study -> its stored results."""
    asked = yaml.safe_load(QUESTIONS.read_text(encoding="utf-8"))
    for question in asked:
        for answer in question["answers"]:
            answer["rows"] = [_row(findings, *row) for row in answer["rows"]]
    return json.dumps(asked, indent=1, ensure_ascii=False) + "\n"


def _row(findings: Callable[[str], Findings], *row: str) -> dict[str, Any]:
    study, setting, arm, against, figure = row
    found = findings(study)
    if figure in SWEPT:
        sweep = Sweep.of_settings(found, setting)
        difference, seeds = sweep.difference(arm, against, at=figure), len(sweep.seeds)
    else:
        difference, seeds = found.difference(setting, arm, against, figure), len(found.seeds(setting, arm, against))
    if difference is None:
        raise SystemExit(f"advice: {', '.join(row)} has fewer than five pairs.")
    return {
        "study": study, "setting": setting, "arm": arm, "against": against, "figure": (FIGURES | SWEPT)[figure],
        "difference": interval(difference), "told_apart": told_apart(difference.t_low, difference.t_high),
        "seeds": seeds,
    }  # fmt: skip


def told_apart(low: float, high: float) -> str:
    """Say on which side of 0 an interval lies."""
    return "better" if low > 0 else "worse" if high < 0 else "not told apart"
