"""Results of a study as one HTML page with its pictures inside, as JSON beside it, and in words."""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ...evaluation.paired import MIN_PAIRS, PairedDifference, ties_spoil
from ...report.page import page
from ...report.table import html_table
from .pictures import draw_differences, draw_setting
from .report import EXPLANATION, regime_line
from .results import write_whole
from .study_file import file_name
from .summary import Findings, answer_rows, arm_rows, label
from .sweep import NEAR, Sweep, draw_sweeps, plain_name

OWN_RATE = (
    "At its own rate: each seed is judged at the rate with the highest mean Pass@1 of the other seeds, so that none chooses "
    f"for itself; a single seed must. A rate suits an arm that has at least {100 * NEAR:.0f} % of its best mean there."
)
EQUAL = ("equal_tokens", "equal_time", "equal_steps")
MOST_SEEDS = 1000  # beyond it, more seeds are no advice


def write_page(found: Findings, folder: Path) -> list[Path]:
    """Write `report.html` and `report.json`; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = ["<ul>", *(f"<li>{escape(line)}</li>" for line in in_words(found)), "</ul>", _machine(found)]
    if (path := draw_differences(found, folder / "differences.png")) is not None:
        parts.append(_picture(path, f"Paired differences to {found.study.baseline}"))
    for setting in found.study.settings:
        if any(name == setting.name for name, _, _ in found.runs):
            parts += _section(found, setting.name, folder)
    parts.append(f"<p class='muted small'>{escape(EXPLANATION.replace('*', ''))}</p>")
    html, figures = folder / "report.html", folder / "report.json"
    write_whole(html, page(found.study.title, parts))
    write_whole(figures, json.dumps(as_json(found), indent=1) + "\n")
    return [html, figures]


def _section(found: Findings, setting: str, folder: Path) -> list[str]:
    path = draw_setting(found, setting, folder / f"{file_name(setting)}.png")
    parts = [f"<h2>{escape(setting)}</h2>", f"<p>{escape(regime_line(found, setting))}</p>"]
    if (sweep := Sweep.of_arms(found, setting)) is not None and sweep.seeds:
        picture = draw_sweeps([sweep], list(sweep.runs), folder / f"{file_name(setting)}-learning-rates.png")
        parts += ["<h3>Learning rates</h3>", html_table(sweep.rows()), f"<p class='muted small'>{escape(OWN_RATE)}</p>"]
        parts.append(_picture(picture, f"Pass@1 over the learning rate, {setting}"))
    parts += ["<h3>Arms</h3>", html_table(arm_rows(found, setting))]
    parts += ["<h3>Pairs of the same seed</h3>", html_table(pair_rows(found, setting))]
    parts += ["<h3>Answers</h3>", html_table(answer_rows(found, setting))]
    return [*parts, _picture(path, f"Learning curves of {setting}")]


def _picture(path: Path, text: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{escape(text)}" src="data:image/png;base64,{data}">'


def _machine(found: Findings) -> str:
    about = found.about
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items() if version)
    machine = f"{about.get('cores')} cores, {about.get('processor')}; {versions}; {about.get('date')}; "
    return f"<p class='muted small'>{escape(machine)}<code>{escape(about['command'])}</code></p>"


# Pairs ------------------------------------------------------------------------------------------------------------------


def compared(found: Findings, setting: str) -> list[tuple[str, str]]:
    """Return pairs of arms with results: each to the baseline, and the study's contrasts.

    With several learning rates, the baseline is the one at the arm's own.
    """
    arms = {arm.name: (plain_name(arm.name), arm.options.get("learning_rate")) for arm in found.setting(setting).arms}
    names, base = list(arms), plain_name(found.study.baseline)
    of_rate = {rate: name for name, (plain, rate) in arms.items() if plain == base}
    to = {name: of_rate.get(rate, found.study.baseline) for name, (_, rate) in arms.items()}
    pairs = [(name, to[name]) for name in names if name != to[name]]
    pairs += [pair for pair in found.study.contrasts if set(pair) <= set(names)]
    return [pair for pair in pairs if found.seeds(setting, *pair)]


def pair_rows(found: Findings, setting: str) -> list[dict[str, Any]]:
    """Return a row for each pair of arms, in points: mean difference with its interval.

    Without an interval below five pairs.
    """
    k = f"pass_at_{found.setting(setting).regime.num_samples}"
    rows = []
    for ours, theirs in compared(found, setting):
        row: dict[str, Any] = {"arm": ours, "against": theirs, "pairs": len(found.seeds(setting, ours, theirs))}
        for axis in EQUAL:
            for figure in dict.fromkeys((axis, f"{axis}:{k}")):
                row[label(figure)] = in_points(found, setting, ours, theirs, figure)
        rows.append(row)
    return rows


def in_points(found: Findings, setting: str, ours: str, theirs: str, figure: str) -> str | None:
    """Format a difference: `+7.0 [-3.8, +17.9]`; without an interval below five pairs.

    None where a run lacks the figure.
    """
    values = found.pairs(setting, ours, theirs, figure)
    if not values:
        return None
    mean = 100 * math.fsum(a - b for a, b in values) / len(values)
    difference = found.difference(setting, ours, theirs, figure)
    if difference is None or ties_spoil([a - b for a, b in values]):
        return f"{mean:+.1f}, no interval"
    return f"{mean:+.1f} [{100 * difference.t_low:+.1f}, {100 * difference.t_high:+.1f}]"


# Words ------------------------------------------------------------------------------------------------------------------


def in_words(found: Findings) -> list[str]:
    """Say which differences are significant, a sentence for each pair of arms; and what collapsed."""
    lines = []
    for setting in found.study.settings:
        if (sweep := Sweep.of_arms(found, setting.name)) is not None and sweep.seeds:
            lines += sweep.in_words(plain_name(found.study.baseline))
            if sweep.runs.keys() == {plain_name(arm.name) for arm in setting.arms}:
                continue
        for ours, theirs in compared(found, setting.name):
            lines.append(f"{setting.name}: {_told(found, setting.name, ours, theirs)}")
        for arm in setting.arms:
            collapsed, of = found.collapsed(setting.name, arm.name)
            if collapsed:
                lines.append(f"{setting.name}: {arm.name} collapsed in {collapsed} of {of} seeds.")
    return lines or ["No pair of arms has a result yet."]


def _told(found: Findings, setting: str, ours: str, theirs: str) -> str:
    values = found.pairs(setting, ours, theirs, "equal_tokens")
    mean = 100 * math.fsum(a - b for a, b in values) / len(values)
    far = f"{abs(mean):.1f} points {'above' if mean > 0 else 'below'}" if round(mean, 1) else "level with"
    head = f"{ours} is {far} {theirs} in Pass@1 at equal tokens, on average of {_pairs(len(values))}"
    difference = found.difference(setting, ours, theirs, "equal_tokens")
    if difference is None:
        return f"{head}. With fewer than {MIN_PAIRS} pairs there is no interval: this may well be chance."
    if ties_spoil([a - b for a, b in values]):
        return f"{head}. So many pairs tie exactly that there is no interval."
    interval = f"95 % interval {100 * difference.t_low:+.1f} to {100 * difference.t_high:+.1f}"
    if difference.significant:
        return f"{head} ({interval}): told apart."
    return f"{head} ({interval}): not told apart.{_advice(difference)}"


def _pairs(number: int) -> str:
    return f"{number} {'pair' if number == 1 else 'pairs'}"


def _advice(difference: PairedDifference) -> str:
    needed = difference.pairs_needed()
    if needed is None or needed > MOST_SEEDS:
        return ""
    return f" About {needed} seeds would tell a difference of this size apart, if they scatter as these do."


def as_json(found: Findings) -> Mapping[str, Any]:
    """Return tables and words as JSON values; differences as numbers."""
    settings = {}
    for setting in found.study.settings:
        pairs = compared(found, setting.name)
        settings[setting.name] = {
            "arms": arm_rows(found, setting.name),
            "learning_rates": sweep.rows() if (sweep := Sweep.of_arms(found, setting.name)) is not None else [],
            "differences": [_numbers(found, setting.name, *pair, EQUAL) for pair in pairs],
        }
    return {"title": found.study.title, "words": in_words(found), "settings": settings}


def _numbers(found: Findings, setting: str, ours: str, theirs: str, axes: Sequence[str]) -> dict[str, Any]:
    k = f"pass_at_{found.setting(setting).regime.num_samples}"
    figures = {}
    for figure in (f"{axis}:{name}" for axis in axes for name in dict.fromkeys(("pass_at_1", k))):
        values = found.pairs(setting, ours, theirs, figure)
        difference = found.difference(setting, ours, theirs, figure)
        spoilt = ties_spoil([a - b for a, b in values])
        figures[figure] = {
            "by_pair": [a - b for a, b in values],
            "interval": None if difference is None or spoilt else [difference.t_low, difference.t_high],
        }
    return {"arm": ours, "against": theirs, "seeds": found.seeds(setting, ours, theirs), "figures": figures}
