"""Metrics that the host logged: from the file that the trainer writes beside the log, else from the newest checkpoint."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..runtime.alarm_messages import WatchedRun
from ..runtime.alarms import ReplayMonitor
from ..runtime.metric_table import FILE_NAME, metric_of

HOST_STATE = "trainer_state.json"
MOST_POINTS = 400

HOST_METRICS = {
    "reward": ("reward", "mean reward of fresh completions, all reward functions with their weights"),
    "reward_std": ("reward", "mean over groups of the standard deviation of their rewards"),
    "loss": ("loss", "of the objective; it says little by itself"),
    "grad_norm": ("norm", "of the gradient before clipping"),
    "learning_rate": ("rate", "of the optimizer"),
    "entropy": ("nats", "mean token entropy as the host logs it"),
    "completions/mean_length": ("tokens", "mean length of fresh completions"),
    "completions/clipped_ratio": ("share", "fresh completions that reached the length limit"),
    "step_time": ("seconds", "of an optimizer step"),
    "kl": ("nats", "divergence from the reference policy"),
}
"""Unit and meaning of what TRL logs, where it is shown."""

CHARTS: Mapping[str, Mapping[str, str]] = {
    "accuracy": {"fresh/pass_at_1": "fresh Pass@1"},
    "reward": {"reward": "fresh", "replay/reward_mixed": "stored ones among them"},
    "entropy": {"fresh/entropy": "fresh", "replay/entropy": "replayed"},
    "ess": {"replay/ess": "over all replayed tokens"},
    "clamped": {"replay/clamped_share": "clamped"},
    "push": {"replay/net_push": "net push"},
    "length": {"completions/mean_length": "fresh"},
    "gradient": {"grad_norm": "gradient"},
    "cut": {"completions/clipped_ratio": "cut"},
}
"""The logged metrics of each chart, with their labels."""


class Metrics:
    """Rows of a training log, read again as they grow.

    Args:
        folder: of the run; None: there is none.

    Attributes:
        rows: with a step each, in order; of a resumed run what was logged after its checkpoint is left out.
        source: which file they come from; None: there is none.
    """

    def __init__(self, folder: Path | None):
        self._folder = folder
        self.rows: list[dict[str, Any]] = []
        self.source: str | None = None
        self._read_to = 0
        self._state_of: tuple[Path, float] | None = None

    def refresh(self) -> bool:
        """Read new rows; return whether there were any."""
        if self._folder is None:
            return False
        path = self._folder / FILE_NAME
        return self._follow(path) if path.is_file() else self._of_checkpoint()

    def _follow(self, path: Path) -> bool:
        size = path.stat().st_size
        if self.source != path.name or size < self._read_to:
            self.rows, self._read_to, self.source = [], 0, path.name
        if size == self._read_to:
            return False
        with open(path, "rb") as file:
            file.seek(self._read_to)
            whole, newline, _ = file.read(size - self._read_to).rpartition(b"\n")
        self._read_to += len(whole) + len(newline)
        for line in whole.splitlines():
            try:
                row = json.loads(line)
            except ValueError:  # cut by a crash
                continue
            if isinstance(row, dict):
                self._add(row)
        return True

    def _add(self, row: dict[str, Any]) -> None:
        step = row.get("step")
        if not isinstance(step, int):
            return
        again = step if "loss" in row else step + 1
        while self.rows and self.rows[-1]["step"] >= again:  # before a resume
            self.rows.pop()
        self.rows.append(row)

    def _of_checkpoint(self) -> bool:
        assert self._folder is not None
        states = [path / HOST_STATE for path in self._folder.glob("checkpoint-*")] + [self._folder / HOST_STATE]
        states = [path for path in states if path.is_file()]
        newest = max(states, key=lambda path: path.stat().st_mtime, default=None)
        if newest is None or self._state_of == (newest, newest.stat().st_mtime):
            return False
        self._state_of = (newest, newest.stat().st_mtime)
        try:
            history = json.loads(newest.read_text(encoding="utf-8"))["log_history"]
        except (OSError, ValueError, KeyError, TypeError):
            return False
        self.rows, self.source = [], f"{newest.parent.name}/{HOST_STATE}"
        for row in history:
            if isinstance(row, dict):
                self._add(row)
        return True

    # What follows -----------------------------------------------------------------------------------------------

    def series(self, name: str, label: str | None = None) -> dict[str, Any] | None:
        """Return one logged metric as a line of a chart; None where it was never logged."""
        points = [(row["step"], row[name]) for row in self.rows if is_number(row.get(name))]
        if not points:
            return None
        points = _thinned(points)
        unit, meaning = described(name)
        x, y = zip(*points, strict=True)
        y = [float(f"{value:.5g}") for value in y]
        return {"name": name, "label": label or name, "unit": unit, "meaning": meaning, "x": list(x), "y": y}

    def charts(self) -> dict[str, list[dict[str, Any]]]:
        """Return lines by the chart they belong to; of evaluations and phases as many as were logged."""
        found = {
            chart: [s for name in names if (s := self.series(name)) is not None] for chart, names in CHARTS.items()
        }
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        held_out = [n for n in names if n.startswith("eval_") and any(p in n for p in ("reward", "pass", "accuracy"))]
        held_out = [n for n in held_out if not n.endswith(("/std", "_std"))]
        found["held_out"] = [s for name in held_out[:4] if (s := self.series(name, name.removeprefix("eval_")))]
        phases = [name for name in names if name.startswith("replay/time/")]
        found["time"] = [s for name in phases if (s := self.series(name, name.removeprefix("replay/time/")))]
        found["step_time"] = [s for name in ("step_time",) if (s := self.series(name, "a step"))]
        return found

    def clock(self) -> dict[str, list[Any]]:
        """Return generated tokens at steps, as far as they were logged."""
        line = self.series("fresh/generated_tokens")
        return {"steps": [], "tokens": []} if line is None else {"steps": line["x"], "tokens": line["y"]}

    def alarms(self, options: Mapping[str, Any], num_questions: int | None) -> list[dict[str, Any]]:
        """Return the alarms that the trainer would raise for these rows, as marks on the time axis."""
        monitor = ReplayMonitor()
        known = {name: options[name] for name in WatchedRun.__dataclass_fields__ if name in options}
        monitor.run = WatchedRun(**{**known, "num_questions": num_questions})
        for row in self.rows:
            if "loss" in row:
                monitor.update(row, row["step"])
        return [
            {"kind": "alarm", "step": a.step, "to": a.step, "reason": a.kind, "text": a.message} for a in monitor.raised
        ]


def described(name: str) -> tuple[str, str]:
    """Return unit and meaning of a metric; an undescribed one has only its name."""
    if (metric := metric_of(name)) is not None:
        return metric.unit, metric.meaning
    plain = name.removeprefix("eval_")
    unit, meaning = HOST_METRICS.get(plain, ("", ""))
    return unit, f"held out: {meaning or plain}" if name.startswith("eval_") else meaning


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Reduce to at most so many points, each the mean of its neighbours."""
    width = -(-len(points) // MOST_POINTS)
    if width == 1:
        return points
    parts = [points[i : i + width] for i in range(0, len(points), width)]
    return [(part[-1][0], math.fsum(y for _, y in part) / len(part)) for part in parts]
