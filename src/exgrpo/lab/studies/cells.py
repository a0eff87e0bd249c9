"""One run of a study, as it is kept: what a worker process does with a cell."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .arm import evaluate_start, run_arm
from .study import Cell

LOGGED = (
    "entropy",
    "grad_norm",
    "fresh/pass_at_1",
    "fresh/groups_solved",
    "fresh/groups_unsolved",
    "replay/share",
    "replay/size",
    "replay/retired",
    "replay/age_mean",
    "replay/ratio_mean",
    "replay/ess",
    "replay/clamped_share",
    "replay/net_push",
    "replay/entropy",
    "replay/injected",
)
"""Metrics whose means between two evaluations are kept from a run's log, to six digits."""

Row = dict[str, Any]


def run_cell(cell: Cell, on_progress: Callable[[Mapping[str, Any]], None]) -> tuple[Row, Row]:
    """Run a cell; return its results and its costs.

    Only the costs differ from one time to the next.
    """
    setting = cell.setting
    head = {"key": cell.key, "setting": setting.name, "arm": cell.arm.name if cell.arm else None, "seed": cell.seed}
    head["fingerprint"] = cell.fingerprint
    if cell.arm is None:
        start = evaluate_start(cell.seed, setting.regime)
        return {**head, "curve": [start]}, {"key": cell.key}
    result = run_arm(
        cell.arm.preset,
        cell.seed,
        setting.regime,
        options=cell.arm.options,
        budget_factor=cell.arm.budget,
        demonstrations=cell.arm.demonstrations,
        on_progress=on_progress,
    )
    kept = ("token_budget", "tokens", "steps", "ended_by", "questions_solved", "retired", "replay_share", "experience")
    row = {**head, **{name: result[name] for name in kept}, "curve": with_log(result["curve"], result["history"])}
    return row, {"key": cell.key, "seconds": result["seconds"]}


def with_log(curve: Sequence[Mapping[str, Any]], history: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Add to each point of a curve the means of the log since the point before."""
    rows, since = [], 0
    for point in curve:
        steps = [row for row in history if since < row["step"] <= point["step"]]
        means = {name: _mean([row.get(name) for row in steps]) for name in LOGGED}
        rows.append({**point, "log": {name: mean for name, mean in means.items() if mean is not None}})
        since = point["step"]
    return rows


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(f"{math.fsum(known) / len(known):.6g}") if known else None
