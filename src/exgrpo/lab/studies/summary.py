"""Results of a study: means of arms, paired differences with intervals, tokens to an accuracy, collapses.

Plain numbers from the rows of `results.jsonl` and `times.jsonl`. No interval on fewer than five pairs.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...evaluation.paired import MIN_PAIRS, PairedDifference, paired_difference
from .results import Results
from .study import START, Arm, Cell, Setting, Study
from .study_file import make_study

Row = Mapping[str, Any]

COLLAPSE = 0.5
"""An arm of a seed collapsed if its final Pass@1 is at most this share of the best on its curve, or below its start's, and
farther below than noise explains."""
NOISE = 3.0
"""Standard errors of the difference of two evaluations: of their samples, since the questions are the same."""


@dataclass(frozen=True)
class Run:
    """One arm with one seed.

    Its curve from the common start on, the processor seconds of training at each point, and how many samples an
    evaluation is of.
    """

    row: Row
    curve: tuple[Row, ...]
    cpu: tuple[float, ...]
    samples: int = 0

    @property
    def final(self) -> Row:
        return self.curve[-1]

    def figure(self, name: str) -> float | None:
        """Return a figure by name: of the final evaluation, the run, the stored experience, or the end of the log."""
        for place in (self.final, self.row, self.row["experience"], self.final.get("log", {})):
            if name in place:
                return place[name]
        return None

    def at(self, axis: Sequence[float], value: float, figure: str) -> float:
        """Interpolate a figure linearly at a value of an axis; constant beyond the ends."""
        heights = [point[figure] for point in self.curve]
        for i in range(1, len(axis)):
            if axis[i] >= value:
                part = (value - axis[i - 1]) / (axis[i] - axis[i - 1]) if axis[i] > axis[i - 1] else 1.0
                return heights[i - 1] + max(0.0, part) * (heights[i] - heights[i - 1])
        return heights[-1]

    def axis(self, name: str) -> Sequence[float]:
        """Return the curve's points on the axis `tokens`, `steps` or `time`; none where time is not known.

        Of arms that end by their tokens the places are those of the budget, the same for all arms.
        """
        if name == "time":
            return self.cpu
        if name == "steps":
            return [point["step"] for point in self.curve]
        planned = self.row.get("token_budget") is not None
        return [point["at" if planned else "tokens"] for point in self.curve]

    def tokens_to(self, accuracy: float) -> float | None:
        """Return generated tokens at which held-out Pass@1 first reaches an accuracy; None if it never does."""
        before = self.curve[0]
        if before["pass_at_1"] >= accuracy:
            return 0.0
        for point in self.curve[1:]:
            if point["pass_at_1"] >= accuracy:
                part = (accuracy - before["pass_at_1"]) / (point["pass_at_1"] - before["pass_at_1"])
                return before["at"] + part * (point["at"] - before["at"])
            before = point
        return None

    @property
    def collapsed(self) -> bool:
        """True if it collapsed; see `COLLAPSE`."""
        best, start = max(point["pass_at_1"] for point in self.curve), self.curve[0]["pass_at_1"]
        final = self.final["pass_at_1"]
        return self._is_above(best, final) and (final <= COLLAPSE * best or self._is_above(start, final))

    @property
    def learned(self) -> bool:
        """True if it ends above its start by more than noise, and did not collapse."""
        return self._is_above(self.final["pass_at_1"], self.curve[0]["pass_at_1"]) and not self.collapsed

    def _is_above(self, high: float, low: float) -> bool:
        """Return whether one Pass@1 is above another by more than `NOISE`."""
        noise = NOISE * math.sqrt(2 * high * (1 - high) / self.samples) if self.samples else 0.0
        return high - low > noise


@dataclass(frozen=True)
class Findings:
    """A study with its results; `runs` by setting, arm and seed.

    `short`: of the shortened study, no evidence.
    """

    study: Study
    runs: Mapping[tuple[str, str, int], Run]
    about: Mapping[str, Any]

    @property
    def short(self) -> bool:
        return bool(self.about.get("short"))

    def setting(self, name: str) -> Setting:
        for setting in self.study.settings:
            if setting.name == name:
                return setting
        raise KeyError(f"Study {self.study.name} has no setting {name!r}.")

    def seeds(self, setting: str, *arms: str) -> list[int]:
        """Return seeds for which all these arms have a result."""
        return [seed for seed in self.study.seeds if all((setting, arm, seed) in self.runs for arm in arms)]

    def mean(self, setting: str, arm: str, figure: str) -> float | None:
        """Return the mean over all seeds that have the figure."""
        values = [self.runs[setting, arm, seed].figure(figure) for seed in self.seeds(setting, arm)]
        known = [float(value) for value in values if value is not None]
        return math.fsum(known) / len(known) if known else None

    def difference(self, setting: str, arm: str, base: str, figure: str) -> PairedDifference | None:
        """Return an arm's difference to another over their common seeds.

        None for fewer than five, or where a run lacks the figure.

        `equal_time` is Pass@1 at the processor time that the quicker of the two needed in all, seed by seed; `equal_tokens` and
        `equal_steps` are alike. `equal_time:pass_at_8` is of another figure.
        """
        values = self.pairs(setting, arm, base, figure)
        if len(values) < MIN_PAIRS:
            return None
        return paired_difference([ours for ours, _ in values], [theirs for _, theirs in values])

    def pairs(self, setting: str, arm: str, base: str, figure: str) -> list[tuple[float, float]]:
        """Return a figure of both arms, by seed; none at all where a run lacks it."""
        runs = [
            (self.runs[setting, arm, seed], self.runs[setting, base, seed]) for seed in self.seeds(setting, arm, base)
        ]
        if figure.startswith("equal_"):
            axis, _, name = figure.removeprefix("equal_").partition(":")
            values: list[Any] = [_equal(ours, theirs, axis, name or "pass_at_1") for ours, theirs in runs]
        else:
            values = [(ours.figure(figure), theirs.figure(figure)) for ours, theirs in runs]
        return [] if any(None in pair for pair in values) else values

    def tokens_to_baseline(self, setting: str, arm: str, base: str | None = None) -> tuple[float | None, int, int]:
        """Return the median share of the budget at which an arm reaches the baseline's final Pass@1.

        The baseline of the same seed.

        Returns the median (None where half of them or more never get there), how many seeds do, and of how many. Seeds in
        which the baseline learned nothing, or collapsed, give no accuracy to get to, and are left out.
        """
        base = base or self.study.baseline
        shares = []
        for seed in self.seeds(setting, arm, base):
            target = self.runs[setting, base, seed]
            if not target.learned:
                continue
            tokens = self.runs[setting, arm, seed].tokens_to(target.final["pass_at_1"])
            shares.append(math.inf if tokens is None else tokens / target.final["at"])
        if not shares:
            return None, 0, 0
        median = statistics.median(shares)
        reached = sum(math.isfinite(share) for share in shares)
        return (median if math.isfinite(median) else None), reached, len(shares)

    def collapsed(self, setting: str, arm: str) -> tuple[int, int]:
        """Count the seeds that collapsed, and all."""
        runs = [self.runs[setting, arm, seed] for seed in self.seeds(setting, arm)]
        return sum(run.collapsed for run in runs), len(runs)


def _equal(ours: Run, theirs: Run, axis: str, figure: str) -> tuple[float, float] | tuple[None, None]:
    """Return the figures of two runs where the one that ends first on the axis does."""
    places = ours.axis(axis), theirs.axis(axis)
    if not all(places):
        return None, None
    end = min(places[0][-1], places[1][-1])
    return ours.at(places[0], end, figure), theirs.at(places[1], end, figure)


def load_findings(folder: Any) -> Findings:
    """Load what `exgrpo lab run` wrote."""
    results = Results(folder)
    about = results.about()
    study = make_study(about["study"], about["name"])
    study = study.shortened() if about.get("short") else study
    rows, times = results.rows(), results.times()
    runs = {}
    for cell in study.cells():
        start = rows.get(Cell(cell.setting, None, cell.seed).key)
        row = rows.get(cell.key)
        if cell.arm is not None and start is not None and row is not None and row["fingerprint"] == cell.fingerprint:
            seconds = times.get(cell.key, {}).get("seconds")
            cpu = (0.0, *seconds[seconds.get("clock", "cpu")]) if seconds else ()
            runs[cell.setting.name, cell.arm.name, cell.seed] = Run(
                row, (*start["curve"], *row["curve"]), cpu, _samples(cell)
            )
    return Findings(study, runs, about)


def _samples(cell: Cell) -> int:
    return cell.setting.regime.eval_questions * cell.setting.regime.num_samples


# Tables -----------------------------------------------------------------------------------------------------------------


def arm_rows(found: Findings, setting: str) -> list[dict[str, Any]]:
    """Return a table row for each arm: means over its seeds."""
    here = found.setting(setting)
    k = f"pass_at_{here.regime.num_samples}"
    rows = [_start_row(found, here, k)]
    for arm in here.arms:
        if seeds := found.seeds(setting, arm.name):
            rows.append(_arm_row(found, here, arm, k, len(seeds)))
    return rows


def _start_row(found: Findings, setting: Setting, k: str) -> dict[str, Any]:
    starts = {seed: run.curve[0] for (name, _, seed), run in found.runs.items() if name == setting.name}
    means = {f: math.fsum(s[f] for s in starts.values()) / max(1, len(starts)) for f in ("pass_at_1", k)}
    return {"arm": START, "Pass@1": means["pass_at_1"], label(k): means[k], "seeds": len(starts)}


def _arm_row(found: Findings, setting: Setting, arm: Arm, k: str, seeds: int) -> dict[str, Any]:
    share, reached, of = found.tokens_to_baseline(setting.name, arm.name)
    collapsed, _ = found.collapsed(setting.name, arm.name)
    cpu = [found.runs[setting.name, arm.name, seed].cpu for seed in found.seeds(setting.name, arm.name)]
    retired = found.mean(setting.name, arm.name, "retired")
    tokens = found.mean(setting.name, arm.name, "tokens")
    steps = found.mean(setting.name, arm.name, "steps")
    return {
        "arm": arm.name,
        "Pass@1": found.mean(setting.name, arm.name, "pass_at_1"),
        label(k): found.mean(setting.name, arm.name, k),
        "greedy": found.mean(setting.name, arm.name, "greedy_accuracy"),
        "entropy": found.mean(setting.name, arm.name, "entropy"),
        "tokens to baseline": tokens_text(share, reached, of),
        "collapsed": f"{collapsed}/{seeds}",
        "k tokens": None if tokens is None else round(tokens / 1000),
        "steps": None if steps is None else round(steps),
        "CPU s": round(math.fsum(times[-1] for times in cpu) / len(cpu)) if all(cpu) else None,
        "retired": None if retired is None else round(retired),
        "replayed": None if (s := found.mean(setting.name, arm.name, "replay_share")) is None else f"{s:.1%}",
        "tried": arm.tried,
        "seeds": seeds,
    }


def answer_rows(found: Findings, setting: str) -> list[dict[str, Any]]:
    """Return a table row for each arm: how much is right by right reasoning, and how varied it is."""
    here = found.setting(setting)
    k = f"pass_at_{here.regime.num_samples}"
    columns = {
        "Pass@1": "pass_at_1",
        label(k): k,
        "valid": "valid_share",
        "different": "distinct_right",
        "stored, valid": "stored_valid",
        "replayed, valid": "replayed_valid",
        "different picks": "distinct_picks",
    }
    rows = []
    for arm in here.arms:
        if seeds := found.seeds(setting, arm.name):
            means = {label: found.mean(setting, arm.name, figure) for label, figure in columns.items()}
            rows.append({"arm": arm.name, **means, "seeds": len(seeds)})
    return rows


def tokens_text(share: float | None, reached: int, of: int) -> str | None:
    """Format `0.48 (7/8)`, `never (2/8)`; None without a pair."""
    return f"{'never' if share is None else format(share, '.2f')} ({reached}/{of})" if of else None


def difference_rows(
    found: Findings, setting: str, figures: Sequence[str] | None = None, pairs: Sequence[tuple[str, str]] | None = None
) -> list[dict[str, Any]]:
    """Return a table row for each pair of arms.

    Every arm to the baseline and the study's contrasts, or the given pairs.
    """
    here = found.setting(setting)
    figures = figures or ("pass_at_1", f"pass_at_{here.regime.num_samples}", "equal_time")
    tried = {arm.name: arm.tried for arm in here.arms}
    names = list(tried)
    if pairs is None:
        pairs = [(name, found.study.baseline) for name in names if name != found.study.baseline]
        pairs += [pair for pair in found.study.contrasts if set(pair) <= set(names)]
    rows = []
    for ours, theirs in pairs:
        row: dict[str, Any] = {"arm": ours, "against": theirs}
        for figure in figures:
            difference = found.difference(setting, ours, theirs, figure)
            if difference is not None:
                row |= {"pairs": difference.pairs, label(figure): interval(difference)}
                if figure == "pass_at_1":
                    row["bootstrap"] = f"[{_points(difference.bootstrap_low)}, {_points(difference.bootstrap_high)}]"
        if len(row) > 2:
            rows.append({**row, "tried": tried[ours]})
    return rows


def interval(difference: PairedDifference) -> str:
    """Write the mean and its Student t interval in points: `+4.4 [+1.5, +7.3]`."""
    return f"{_points(difference.mean)} [{_points(difference.t_low)}, {_points(difference.t_high)}]"


def _points(share: float) -> str:
    """Write a share in hundredths with a sign; no minus sign on what rounds to zero."""
    return f"{round(100 * share, 1) + 0.0:+.1f}"


def label(figure: str) -> str:
    if figure.startswith("equal_"):
        axis, _, name = figure.removeprefix("equal_").partition(":")
        return f"{label(name or 'pass_at_1')} at equal {axis}"
    return figure.replace("pass_at_", "Pass@").replace("_", " ")
