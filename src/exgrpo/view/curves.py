"""Curves of a run that follow from its log: accuracy, replay, ages, how far replayed tokens are, and questions by accuracy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .history import STORED, History

Array = NDArray[Any]
MOST_POINTS = 400
HEAT_COLUMNS = 120


def plain(values: Any, digits: int = 5) -> list[float | None]:
    """Numbers as JSON knows them, rounded; NaN is None."""
    array = np.asarray(values, np.float64)
    known = np.isfinite(array)
    return [float(f"{v:.{digits}g}") if k else None for v, k in zip(array.tolist(), known.tolist(), strict=True)]


def series(name: str, label: str, unit: str, meaning: str, x: Any, y: Any, **more: Any) -> dict[str, Any]:
    """One line of a chart."""
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
        steps: that occur, ascending.
        most: bins.

    Attributes:
        x: last step of each bin, (b,).
    """

    def __init__(self, steps: Array, most: int = MOST_POINTS):
        self._first = int(steps.min(initial=0))
        last = int(steps.max(initial=0))
        self._width = max(1, -(-(last - self._first + 1) // most))
        self.size = max(1, -(-(last - self._first + 1) // self._width))
        self.x = np.minimum(self._first + self._width * np.arange(1, self.size + 1) - 1, last)

    def of(self, steps: Array) -> Array:
        return np.clip((steps - self._first) // self._width, 0, self.size - 1)

    def total(self, steps: Array, values: Array | None = None) -> Array:
        return np.bincount(self.of(steps), None if values is None else np.nan_to_num(values), self.size)

    def mean(self, steps: Array, values: Array) -> Array:
        known = ~np.isnan(values)
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.total(steps[known], values[known]) / self.total(steps[known])

    def share(self, steps: Array, part: Array, whole: Array) -> Array:
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.total(steps, part) / self.total(steps, whole)

    def quantile(self, steps: Array, values: Array, q: float) -> Array:
        """Of the whole numbers of each bin, NaN where there are none."""
        place, found = self.of(steps), np.full(self.size, np.nan)
        low = int(values.min(initial=0))
        ordered = np.sort(place.astype("i8") << 32 | (values - low))
        count = np.bincount(place, minlength=self.size)
        known = count > 0
        at = (np.cumsum(count) - count + np.floor(q * (count - 1)).astype(int))[known]
        found[known] = (ordered[at] & 0xFFFFFFFF) + low
        return found

    def latest(self, steps: Array, values: Array) -> Array:
        """The last value of each bin; of a bin without one that before it."""
        place = np.searchsorted(self.of(steps), np.arange(self.size), side="right") - 1
        return np.where(place >= 0, values[np.maximum(place, 0)], np.nan) if len(values) else np.full(self.size, np.nan)


def steps_of(history: History) -> Array:
    """Steps at which generations began; of an export, which knows none, those at which things were stored."""
    for columns in (history.generations, history.observations, history.trajectories):
        if len(columns):
            return columns["step"]
    return history.states["step"]


def charts_of(history: History) -> dict[str, list[dict[str, Any]]]:
    """Series that a log gives, by the chart they belong to."""
    h = history
    seen, planned = h.observations, h.generations
    bins = Bins(steps_of(h))
    right, scorable = seen["successes"].astype("f8"), seen["scorable"].astype("f8")
    unscorable = seen["unscorable"].astype("f8")
    known = scorable > 0
    at = bins.x
    return {
        "accuracy": [
            series(
                "log/pass_at_1", "fresh Pass@1", "share",
                "right among the scorable fresh completions, fresh members of replayed questions among them", at,
                bins.share(seen["step"], right, scorable),
            ),
        ],
        "groups": [
            series("log/unsolved", "no success", "share of groups", "fresh groups without any right completion", at,
                   bins.share(seen["step"], (known & (right == 0)).astype("f8"), known.astype("f8"))),
            series("log/solved", "all right", "share of groups", "fresh groups whose scorable completions were all right", at,
                   bins.share(seen["step"], (known & (right == scorable)).astype("f8"), known.astype("f8"))),
            series("log/unscorable", "unscorable", "share of completions", "fresh completions that the verifier gave None", at,
                   bins.share(seen["step"], unscorable, scorable + unscorable)),
        ],
        "replay": [
            series("log/share", "replay share", "share of groups", "groups that replay chose, of all of a generation", at,
                   bins.share(planned["step"], planned["replayed"].astype("f8"), planned["questions"].astype("f8"))),
            series("log/gate", "gate open", "0 or 1", "1 once replay has started", at,
                   bins.latest(h.states["step"], h.states["gate_open"].astype("f8")), steps=True),
        ],
        "ages": [
            series("log/age_mean", "mean", "optimizer steps", "mean age of the replayed trajectories", at,
                   bins.mean(h.replays["step"], h.replays["age"].astype("f8"))),
            series("log/age_p90", "90 %", "optimizer steps", "90th percentile of their ages", at,
                   bins.quantile(h.replays["step"], h.replays["age"], 0.9)),
        ],
        "ess": [
            series("log/ess", "ESS, mean of trajectories", "share",
                   "effective sample size (sum w)^2 / (n sum w^2) over the tokens of each replayed trajectory, averaged", at,
                   bins.mean(h.replays["step"], h.replays["ess"].astype("f8"))),
        ],
        "log_ratio": [
            series("log/log_ratio", "mean log-ratio", "nats",
                   "mean of log pi - log pi_behaviour over the tokens of a replayed trajectory, averaged over trajectories", at,
                   bins.mean(h.replays["step"], h.replays["log_ratio"].astype("f8"))),
        ],
        "store": _store(h, bins),
        "tokens": [
            series("log/tokens", "generated tokens", "tokens", "completion tokens sampled since the start", at,
                   bins.latest(h.states["step"], h.states["tokens"].astype("f8"))),
        ],
        "length": [
            series("log/length", "stored completions", "tokens", "mean length of the completions stored at that time", at,
                   bins.mean(h.trajectories["step"], h.trajectories["length"].astype("f8"))),
        ],
        "entropy": [
            series("log/entropy", "stored completions", "nats",
                   "mean token entropy of what was stored, under the policy that generated it", at,
                   bins.mean(h.trajectories["step"], h.trajectories["entropy"].astype("f8"))),
        ],
    }  # fmt: skip


def _store(h: History, bins: Bins) -> list[dict[str, Any]]:
    left = h.trajectories["left"]
    came, gone = bins.total(h.trajectories["step"]), bins.total(left[left != STORED])
    sign = np.where(h.retirements["back"], -1.0, 1.0)
    return [
        series("log/stored", "stored", "completions", "stored trajectories", bins.x, np.cumsum(came - gone)),
        series("log/retired", "retired", "questions", "questions that have left replay and the fresh stream", bins.x,
               np.cumsum(bins.total(h.retirements["step"], sign)), scale="right"),
    ]  # fmt: skip


# Questions by accuracy --------------------------------------------------------------------------------------------------


def heat_map(history: History) -> dict[str, Any]:
    """Questions by accuracy over steps: counts of rows (K + 2, the last of retired ones) for each of some steps."""
    k, x = history.num_generations, Bins(steps_of(history), HEAT_COLUMNS).x
    counts = np.zeros((len(x), k + 2), int) if history.places is None else history.places.counts(x)
    return {"steps": x.tolist(), "rows": [*(f"{i}/{k}" for i in range(k + 1)), "retired"], "counts": counts.T.tolist()}


# Marks on the time axis -------------------------------------------------------------------------------------------------


def idle_marks(history: History, most: int = 60) -> list[dict[str, Any]]:
    """Stretches of generations that replayed nothing, and why: runs of the same kind of reason."""
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
    """The first, the last and the longest of them, in their order."""
    if len(marks) <= most:
        return list(marks)
    kept = sorted(range(1, len(marks) - 1), key=lambda i: -marks[i]["count"])[: most - 2]
    return [marks[i] for i in sorted({0, len(marks) - 1, *kept})]
