"""The same arms at several learning rates: which rate suits each, how far it can be off, and the arms each at its own.

An arm that is judged at the rate where it did best is judged too well. So the rate of a seed is the one that the *other* seeds
choose by their mean final Pass@1.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...evaluation.paired import MIN_PAIRS, PairedDifference, paired_difference, ties_spoil
from ...report.plots import arm_styles
from .pictures import BANDS, dressed, half_width, new_figure, save
from .summary import Findings, Run

NEAR = 0.8
"""A rate suits an arm if its mean Pass@1 there is at least this share of the one at the arm's best rate."""
OPTION = re.compile(r",? ?learning_rate=[^, ]+")


@dataclass(frozen=True)
class Sweep:
    """Runs by arm, learning rate and seed; `title` says of what."""

    title: str
    runs: Mapping[str, Mapping[float, Mapping[int, Run]]]

    @classmethod
    def of_arms(cls, found: Findings, setting: str) -> "Sweep | None":
        """Gather the arms of a setting that differ in their learning rate only; None where no arm has two rates.

        A rate at which some arm has no run yet is left out.
        """
        runs: dict[str, dict[float, dict[int, Run]]] = {}
        for arm in found.setting(setting).arms:
            if "learning_rate" in arm.options:
                by_seed = {seed: found.runs[setting, arm.name, seed] for seed in found.seeds(setting, arm.name)}
                runs.setdefault(plain_name(arm.name), {})[float(arm.options["learning_rate"])] = by_seed
        runs = {arm: rates for arm, rates in runs.items() if len(rates) > 1}
        begun = {rate for rates in runs.values() for rate, by_seed in rates.items() if not by_seed}
        several = {arm: {r: of for r, of in sorted(rates.items()) if r not in begun} for arm, rates in runs.items()}
        several = {arm: rates for arm, rates in several.items() if len(rates) > 1}
        return cls(setting, several) if several else None

    @classmethod
    def of_settings(cls, found: Findings, family: str) -> "Sweep":
        """Gather the settings called `FAMILY RATE`."""
        named = [(s, s.name.rpartition(" ")) for s in found.study.settings]
        rates = sorted((float(rate), s) for s, (name, _, rate) in named if name == family)
        arms = [arm.name for arm in rates[0][1].arms]
        return cls(
            family,
            {
                arm: {
                    rate: {seed: found.runs[s.name, arm, seed] for seed in found.seeds(s.name, arm)}
                    for rate, s in rates
                }
                for arm in arms
            },
        )

    @cached_property
    def seeds(self) -> list[int]:
        """Seeds that every arm has at every rate."""
        every = [set(by_seed) for rates in self.runs.values() for by_seed in rates.values()]
        return sorted(set.intersection(*every))

    def values(self, arm: str, rate: float, figure: str = "pass_at_1") -> list[float]:
        """Return a final figure by seed."""
        return [float(self.runs[arm][rate][seed].final[figure]) for seed in self.seeds]

    def mean(self, arm: str, rate: float, figure: str = "pass_at_1") -> float:
        """Return the mean of a final figure over seeds."""
        return math.fsum(self.values(arm, rate, figure)) / len(self.seeds)

    def best(self, arm: str) -> float:
        """Return the rate with the highest mean Pass@1; of equal ones the lowest."""
        return max(self.runs[arm], key=lambda rate: self.mean(arm, rate))

    def chosen(self, arm: str, seed: int) -> float:
        """Return the rate that the other seeds choose; with one seed its own best."""
        if len(self.seeds) == 1:
            return self.best(arm)
        place = self.seeds.index(seed)

        def others(rate: float) -> float:
            values = self.values(arm, rate)
            return math.fsum(values[:place] + values[place + 1 :])

        return max(self.runs[arm], key=others)

    def tuned(self, arm: str, figure: str = "pass_at_1") -> list[float]:
        """Return a final figure at the chosen rate, by seed."""
        return [float(self.runs[arm][self.chosen(arm, seed)][seed].final[figure]) for seed in self.seeds]

    def untuned(self, arm: str, figure: str = "pass_at_1") -> list[float]:
        """Return a final figure averaged over all rates, by seed: what to expect without knowing the rate."""
        columns = zip(*(self.values(arm, rate, figure) for rate in self.runs[arm]), strict=True)
        return [math.fsum(column) / len(column) for column in columns]

    def pairs(self, arm: str, base: str, figure: str = "pass_at_1", at: str = "tuned") -> list[float]:
        """Return differences by seed, each arm at its chosen rate (`tuned`) or over all rates (`untuned`)."""
        values = {"tuned": self.tuned, "untuned": self.untuned}[at]
        return [ours - theirs for ours, theirs in zip(values(arm, figure), values(base, figure), strict=True)]

    def difference(self, arm: str, base: str, figure: str = "pass_at_1", at: str = "tuned") -> PairedDifference | None:
        """Compare two arms as `pairs` does; None below five pairs, or where too many tie."""
        apart = self.pairs(arm, base, figure, at)
        if len(apart) < MIN_PAIRS or ties_spoil(apart):
            return None
        return paired_difference(apart, [0.0] * len(apart))

    def collapsed(self, arm: str) -> tuple[int, int]:
        """Count the runs that collapsed, and all runs, over every rate."""
        runs = [by_seed[seed] for by_seed in self.runs[arm].values() for seed in self.seeds]
        return sum(run.collapsed for run in runs), len(runs)

    def suits(self, arm: str) -> int:
        """Count the rates that suit an arm, see `NEAR`."""
        means = [self.mean(arm, rate) for rate in self.runs[arm]]
        return sum(value >= NEAR * max(means) for value in means)

    def rows(self) -> list[dict[str, Any]]:
        """Return a table row an arm: Pass@1 at each rate and at the chosen one, the rates that suit it, and collapses."""
        found = []
        for arm, rates in self.runs.items() if self.seeds else ():
            collapsed, of = self.collapsed(arm)
            found.append(
                {
                    "arm": arm,
                    **{f"{rate:g}": f"{self.mean(arm, rate):.3f}" for rate in rates},
                    "at its own rate": f"{math.fsum(self.tuned(arm)) / len(self.seeds):.3f}",
                    "rates that suit it": f"{self.suits(arm)}/{len(rates)}",
                    "collapsed": f"{collapsed}/{of}",
                    "seeds": len(self.seeds),
                }
            )
        return found

    def in_words(self, base: str) -> list[str]:
        """Say how each arm compares with another at its own rate, and how many rates suit it."""
        lines = []
        for arm in self.runs if self.seeds else ():
            collapsed, of = self.collapsed(arm)
            width = f"{self.suits(arm)} of {len(self.runs[arm])} rates suit it, {collapsed} of {of} runs collapsed"
            if arm == base or base not in self.runs:
                lines.append(f"{self.title}: {arm} does best at {self.best(arm):g}; {width}.")
                continue
            apart = self.pairs(arm, base)
            mean = f"{100 * math.fsum(apart) / len(apart):+.1f} points"
            difference = self.difference(arm, base)
            if difference is not None:
                told = "told apart" if difference.significant else "not told apart"
                mean += f" [{100 * difference.t_low:+.1f}, {100 * difference.t_high:+.1f}], {told}"
            else:
                mean += ", no interval"
            if len(self.seeds) == 1:
                mean += " (the one seed chose both rates, which flatters them)"
            lines.append(f"{self.title}: {arm} against {base}, each at its own rate: {mean}. {width.capitalize()}.")
        return lines


def plain_name(arm: str) -> str:
    """Return an arm's name without its learning rate."""
    return OPTION.sub("", arm).strip().rstrip(",")


def draw_sweeps(sweeps: Sequence[Sweep], arms: Sequence[str], path: Path) -> Path:
    """Draw final held-out Pass@1 over the learning rate, a panel a sweep; 95 % intervals for up to four arms of five seeds."""
    figure, canvas = new_figure(4.2 * len(sweeps) + 0.4 * (len(sweeps) == 1), 3.6)
    styles, handles = arm_styles(arms), {}
    for panel, sweep in zip(figure.subplots(1, len(sweeps), squeeze=False)[0], sweeps, strict=True):
        for arm in arms:
            rates = list(sweep.runs[arm])
            colour, line = styles[arm]
            means = [sweep.mean(arm, rate) for rate in rates]
            if len(sweep.seeds) >= MIN_PAIRS and len(arms) <= BANDS:
                half = [half_width(sweep.values(arm, rate)) for rate in rates]
                low, high = ([max(0.0, m + s * h) for m, h in zip(means, half, strict=True)] for s in (-1, 1))
                panel.fill_between(rates, low, high, color=colour, alpha=0.08, linewidth=0)
            handles[arm] = panel.plot(rates, means, line, color=colour, linewidth=2.2, marker="o", markersize=4)[0]
        dressed(panel, f"{sweep.title}: held-out Pass@1", "learning rate", "y")
        panel.set_xscale("log")
        ticks = sorted({rate for arm in arms for rate in sweep.runs[arm]})
        panel.minorticks_off()
        panel.set_xticks(ticks, [f"{rate:g}" for rate in ticks])
        panel.tick_params(axis="x", labelsize=8)
        panel.set_ylim(bottom=0)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(6, len(arms)), frameon=False)
    return save(canvas, path)
