"""Charts of a run's page, their order, and the texts of empty ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

NOT_LOGGED = (
    "Not in the training log. The trainer writes metrics.jsonl beside the log from its first step; an older run has them in "
    "its checkpoints only."
)
NO_TRAINING_LOG = "No training log was found: neither metrics.jsonl nor a checkpoint lies beside the experience log."


@dataclass(frozen=True)
class Chart:
    """One chart: its lines share a unit.

    Args:
        id, title: to find it, and over it.
        unit: of its vertical axis.
        empty: what it means that it has no line.
        bounds: of the vertical axis, where it has natural ones.
        hidden: whether it is left out while it has no line.
    """

    id: str
    title: str
    unit: str
    empty: str = ""
    bounds: tuple[float, float] | None = None
    hidden: bool = False

    def filled(self, lines: Sequence[dict[str, Any]], logged: bool) -> dict[str, Any]:
        """Return the chart with its lines, without those that have no value."""
        lines = [line for line in lines if any(value is not None for value in line["y"])]
        why = "" if lines else self.empty or (NOT_LOGGED if logged else NO_TRAINING_LOG)
        return {
            "id": self.id, "title": self.title, "unit": self.unit, "bounds": self.bounds, "lines": lines, "empty": why,
            "hidden": self.hidden and not lines,
        }  # fmt: skip


CHARTS = (
    Chart("accuracy", "Fresh Pass@1", "share", "No fresh completion has been scored yet.", (0, 1)),
    Chart("held_out", "Held out", "", "No evaluation was logged: the run has no eval_dataset, or none has come yet."),
    Chart("reward", "Reward", "reward"),
    Chart("replay", "Replay share and gate", "share of groups", "No generation was planned yet.", (0, 1)),
    Chart("groups", "Groups that teach nothing", "share", "No fresh group has been scored yet.", (0, 1)),
    Chart("store", "Stored and retired", "count", "Nothing was stored yet."),
    Chart("ages", "Age of what is replayed", "optimizer steps", "Nothing was replayed yet."),
    Chart("ess", "Effective sample size", "share", "Nothing was replayed yet.", (0, 1)),
    Chart("log_ratio", "Log-ratio of what is replayed", "nats", "Nothing was replayed yet."),
    Chart("clamped", "Clamped share", "share", bounds=(0, 1), hidden=True),
    Chart("push", "Net push", "reward", hidden=True),
    Chart("entropy", "Entropy", "nats"),
    Chart("tokens", "Generated tokens", "tokens", "No state was committed yet."),
    Chart("length", "Length of completions", "tokens", "Nothing was stored yet."),
    Chart("cut", "Completions that were cut", "share", bounds=(0, 1), hidden=True),
    Chart("gradient", "Gradient norm", "norm", hidden=True),
    Chart("step_time", "Time of a step", "seconds", hidden=True),
    Chart("time", "Time of replay by phase", "seconds a generation"),
)
