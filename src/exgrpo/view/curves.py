"""Curves of a run that follow from its log: accuracy, replay, ages, how far replayed tokens are, and questions by accuracy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .history import History

Array = NDArray[Any]
MOST_POINTS = 400
HEAT_COLUMNS = 120


def plain(values: Any, digits: int = 5) -> list[float | None]:
    """Round numbers for JSON; NaN becomes None."""
    array = np.asarray(values, np.float64)
    known = np.isfinite(array)
    return [float(f"{v:.{digits}g}") if k else None for v, k in zip(array.tolist(), known.tolist(), strict=True)]


def series(name: str, label: str, unit: str, meaning: str, x: Any, y: Any, **more: Any) -> dict[str, Any]:
    """Make one line of a chart."""
    return {
        "name": name,
        "label": label,
        "unit": unit,
        "meaning": meaning,
        "x": np.asarray(x).tolist(),
        "y": plain(y),
        **more,
    }


class Bins:
    """Steps in at most so many bins of equal width.

    Args:
        steps: that occur.
        most: bins.

    Attributes:
        x: last step of each bin, (b,).
    """

    def __init__(self, steps: Array, most: int = MOST_POINTS):
        self._first, last = (int(steps.min()), int(steps.max())) if len(steps) else (0, 0)
        self._width = max(1, -(-(last - self._first + 1) // most))
        self.size = max(1, -(-(last - self._first + 1) // self._width))
        self.x = np.minimum(self._first + self._width * np.arange(1, self.size + 1) - 1, last)

    def of(self, steps: Array) -> Array:
        return np.asarray(np.clip((steps - self._first) // self._width, 0, self.size - 1))

    def total(self, steps: Array, values: Array) -> Array:
        return np.bincount(self.of(steps), values, self.size)

    def latest(self, steps: Array, values: Array) -> Array:
        """Return the last value of each bin; of an empty bin, the value before it."""
        place = np.searchsorted(self.of(steps), np.arange(self.size), side="right") - 1
        return np.where(place >= 0, values[np.maximum(place, 0)], np.nan) if len(values) else np.full(self.size, np.nan)


def steps_of(history: History) -> Array:
    """Return steps at which generations began; of an export, which knows none, those at which things were stored."""
    for columns in (history.generations, history.observations, history.trajectories):
        if len(columns):
            return columns["step"]
    return history.states["step"]


def charts_of(history: History) -> dict[str, list[dict[str, Any]]]:
    """Return the series that a log gives, by the chart they belong to."""
    h, bins = history, Bins(steps_of(history))
    at = bins.x

    def total(name: str) -> Array:
        return bins.total(h.sums.steps, h.sums[name])

    def line(name: str, label: str, unit: str, meaning: str, part: str, whole: str) -> dict[str, Any]:
        with np.errstate(invalid="ignore", divide="ignore"):
            return series(f"log/{name}", label, unit, meaning, at, total(part) / total(whole))

    steps, counted = h.sums.steps, h.sums["replays"] > 0
    with np.errstate(invalid="ignore", divide="ignore"):
        p90 = bins.total(steps, h.sums["age_p90"] * counted) / bins.total(steps, counted)
        unscorable = total("unscorable") / (total("scorable") + total("unscorable"))
    gate = bins.latest(h.states["step"], h.states["gate_open"].astype("f8"))
    tokens = bins.latest(h.states["step"], h.states["tokens"].astype("f8"))
    return {
        "accuracy": [
            line("pass_at_1", "fresh Pass@1", "share",
                 "right among the scorable fresh completions, fresh members of replayed groups among them", "successes",
                 "scorable"),
        ],
        "groups": [
            line("unsolved", "no success", "share of groups", "fresh groups without a right completion", "unsolved", "groups"),
            line("solved", "all right", "share of groups", "fresh groups whose scorable completions were all right", "solved",
                 "groups"),
            series("log/unscorable", "unscorable", "share of completions", "fresh completions that the verifier gave None", at,
                   unscorable),
        ],
        "replay": [
            line("share", "replay share", "share of groups", "groups that replay chose, of all of a generation", "replayed",
                 "questions"),
            series("log/gate", "gate open", "0 or 1", "1 once replay has started", at, gate, steps=True),
        ],
        "ages": [
            line("age_mean", "mean", "optimizer steps", "mean age of the replayed trajectories", "age", "replays"),
            series("log/age_p90", "90 %", "optimizer steps", "90th percentile of their ages at a step", at, p90),
        ],
        "ess": [
            line("ess", "ESS, mean of trajectories", "share",
                 "effective sample size (sum w)^2 / (n sum w^2) over the tokens of each replayed trajectory, averaged", "ess",
                 "esss"),
        ],
        "log_ratio": [
            line("log_ratio", "mean log-ratio", "nats",
                 "mean of log pi - log pi_behaviour over the tokens of a replayed trajectory, averaged over trajectories",
                 "log_ratio", "log_ratios"),
        ],
        "store": [
            series("log/stored", "stored", "completions", "stored trajectories", at,
                   np.cumsum(total("stored") - total("left"))),
            series("log/retired", "retired", "questions", "questions that have left replay and the fresh stream", at,
                   np.cumsum(total("retired")), scale="right"),
        ],
        "tokens": [
            series("log/tokens", "generated tokens", "tokens", "completion tokens sampled since the start", at, tokens),
        ],
        "length": [
            line("length", "stored completions", "tokens", "mean length of the completions stored at that time", "length",
                 "stored"),
        ],
        "entropy": [
            line("entropy", "stored completions", "nats",
                 "mean token entropy of what was stored, under the policy that generated it", "entropy", "entropies"),
        ],
    }  # fmt: skip


# Questions by accuracy --------------------------------------------------------------------------------------------------


def heat_map(history: History) -> dict[str, Any]:
    """Count questions by accuracy over steps.

    Rows of K + 2 counts, the last of retired ones, for some of the steps.
    """
    k, x = history.num_generations, Bins(steps_of(history), HEAT_COLUMNS).x
    counts = np.zeros((len(x), k + 2), int) if history.places is None else history.places.counts(x)
    return {"steps": x.tolist(), "rows": [*(f"{i}/{k}" for i in range(k + 1)), "retired"], "counts": counts.T.tolist()}


# Marks on the time axis -------------------------------------------------------------------------------------------------


def idle_marks(history: History, most: int = 60) -> list[dict[str, Any]]:
    """Return stretches of generations that replayed nothing, and why: runs of the same kind of reason."""
    rows = history.generations
    words = history.generations.words["idle"]
    marks: list[dict[str, Any]] = []
    step, replayed, idle = rows["step"], rows["replayed"], rows["idle"]
    for place in np.flatnonzero(replayed == 0).tolist():
        reason = words[int(idle[place])] or "no reason was written"
        kind = reason.split(":")[0]
        last = marks[-1] if marks else None
        if last is not None and last["reason"] == kind and last["place"] == place - 1:
            last |= {"to": int(step[place]), "place": place, "count": last["count"] + 1, "text": reason}
        else:
            at = int(step[place])
            marks.append(
                {
                    "kind": "idle",
                    "step": at,
                    "to": at,
                    "reason": kind,
                    "first": reason,
                    "text": reason,
                    "count": 1,
                    "place": place,
                }
            )
    found = [{name: value for name, value in mark.items() if name != "place"} for mark in marks]
    return _longest(found, most)


def _longest(marks: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Return the first, the last and the longest marks, in order."""
    if len(marks) <= most:
        return list(marks)
    kept = sorted(range(1, len(marks) - 1), key=lambda i: -marks[i]["count"])[: most - 2]
    return [marks[i] for i in sorted({0, len(marks) - 1, *kept})]
