"""A study's pictures: how the arms of a setting learn, and how far they are apart."""

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...report.plots import arm_styles
from .summary import Findings, Run

PANELS: tuple[tuple[str, str, str], ...] = (
    ("pass_at_1", "tokens", "held-out Pass@1 over tokens"),
    ("pass_at_1", "steps", "held-out Pass@1 over steps"),
    ("pass_at_1", "seconds", "held-out Pass@1 over processor time"),
    ("pass_at_k", "tokens", "held-out Pass@{k} over tokens"),
    ("entropy", "tokens", "entropy of the policy (nats)"),
    ("replay/retired", "tokens", "questions retired"),
)
AXES = {
    "tokens": "thousand generated tokens",
    "steps": "optimizer steps",
    "seconds": "processor seconds of training",
}
BANDS = 4  # with more arms their bands would only hide each other
LEAST = 10  # points, of an axis of differences, to both sides: smaller ones are small
GRID = 24  # points at which the curves of several seeds are averaged


def draw_setting(found: Findings, setting: str, path: Path) -> Path:
    """Draw six panels: Pass@1 over tokens, steps and processor time, Pass@k, entropy, and retired questions.

    Lines are means over seeds, each seed's curve read between its evaluations by straight lines; an arm's line ends
    where its quickest seed does. With five seeds and more, and at most four arms, a band is the mean's 95 % interval by
    Student's t.
    """
    here = found.setting(setting)
    arms = [arm.name for arm in here.arms if found.seeds(setting, arm.name)]
    styles = arm_styles(arms)
    figure, canvas = new_figure(13, 7.4)
    panels = figure.subplots(2, 3).ravel()
    handles: dict[str, Any] = {}
    for panel, (figure_name, axis, label) in zip(panels, PANELS, strict=True):
        k = here.regime.num_samples
        name = f"pass_at_{k}" if figure_name == "pass_at_k" else figure_name
        for place, arm in enumerate(arms):
            runs = [found.runs[setting, arm, seed] for seed in found.seeds(setting, arm)]
            line = _draw(panel, runs, name, axis, *styles[arm], width=_width(place, len(arms)), band=len(arms) <= BANDS)
            if line is not None:
                handles.setdefault(arm, line)
        dressed(panel, label.format(k=k), AXES[axis], "y")
        panel.margins(x=0.02)
        _widen(panel, least=1.0 if figure_name == "replay/retired" else 0.05)
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=min(5, len(handles)), frameon=False
    )
    seeds = len({seed for name, _, seed in found.runs if name == setting})
    figure.suptitle(f"{setting}, {seeds} {'seed' if seeds == 1 else 'seeds'}", x=0.01, ha="left", fontsize=13)
    return save(canvas, path)


def draw_arms(found: Findings, settings: Sequence[str], arms: Sequence[str], path: Path) -> Path:
    """Draw one panel for each setting: held-out Pass@1 of a few arms over tokens, with 95 % intervals."""
    figure, canvas = new_figure(4.6 * len(settings), 3.6)
    styles = arm_styles(arms)
    handles: dict[str, Any] = {}
    for panel, setting in zip(figure.subplots(1, len(settings), squeeze=False)[0], settings, strict=True):
        for arm in arms:
            runs = [found.runs[setting, arm, seed] for seed in found.seeds(setting, arm)]
            handles[arm] = _draw(panel, runs, "pass_at_1", "tokens", *styles[arm], width=2.2, band=True)
        dressed(panel, f"{setting}: held-out Pass@1", AXES["tokens"], "y")
        panel.margins(x=0.02)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(arms), frameon=False)
    return save(canvas, path)


def draw_differences(found: Findings, path: Path, settings: Sequence[str] | None = None) -> Path | None:
    """Draw each arm's paired difference to the baseline in Pass@1 and Pass@k.

    None where no setting has five pairs.
    """
    from .summary import difference_rows

    names = [s for s in settings or [s.name for s in found.study.settings] if difference_rows(found, s)]
    if not names:
        return None
    count = max(len(found.setting(name).arms) for name in names)
    figure, canvas = new_figure(4.2 * len(names) + 1.5, 1.4 + 0.42 * count)
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    before: list[str] = []
    for panel, name in zip(panels, names, strict=True):
        here = found.setting(name)
        arms = [arm.name for arm in here.arms if arm.name != found.study.baseline]
        for offset, figure_name, colour in (
            (-0.14, "pass_at_1", "#000000"),
            (0.14, f"pass_at_{here.regime.num_samples}", "#0072B2"),
        ):
            for place, arm in enumerate(arms):
                difference = found.difference(name, arm, found.study.baseline, figure_name)
                if difference is None:
                    continue
                low, mean, high = (100 * share for share in (difference.t_low, difference.mean, difference.t_high))
                panel.plot([low, high], [place + offset] * 2, color=colour, linewidth=1.6)
                panel.plot([mean], [place + offset], "o", color=colour, markersize=5)
        panel.axvline(0, color="#7F7F7F", linewidth=0.8)
        panel.set_yticks(range(len(arms)), arms if arms != before else [""] * len(arms))
        before = arms
        panel.set_ylim(len(arms) - 0.5, -0.5)
        low, high = panel.get_xlim()
        panel.set_xlim(min(low, -LEAST), max(high, LEAST))
        dressed(panel, name, f"points over {found.study.baseline}", "x")
    handles = [panels[0].plot([], [], "o-", color=colour)[0] for colour in ("#000000", "#0072B2")]
    k = found.setting(names[0]).regime.num_samples
    figure.legend(handles, ["Pass@1", f"Pass@{k}"], loc="outside lower center", ncols=2, frameon=False)
    return save(canvas, path)


def _draw(
    panel: Any, runs: Sequence[Run], figure: str, axis: str, colour: str, line: str, width: float, band: bool
) -> Any:
    curves = [_points(run, figure, axis) for run in runs]
    curves = [points for points in curves if len(points) > 1]
    if not curves:
        return None
    end = min(points[-1][0] for points in curves)
    begin = max(points[0][0] for points in curves)
    xs = [begin + (end - begin) * i / GRID for i in range(GRID + 1)]
    columns = [[_at(points, x) for points in curves] for x in xs]
    means = [math.fsum(column) / len(column) for column in columns]
    if band and len(curves) >= 5:
        halves = [half_width(column) for column in columns]
        low, high = ([m + s * h for m, h in zip(means, halves, strict=True)] for s in (-1, 1))
        panel.fill_between(xs, low, high, color=colour, alpha=0.08, linewidth=0)
    return panel.plot(xs, means, line, color=colour, linewidth=width)[0]


def _width(place: int, arms: int) -> float:
    """Return the width of an arm's line: the later, the thinner, so that overlapping lines are both seen."""
    return 3.4 - 2.0 * place / max(1, arms - 1)


def _widen(panel: Any, least: float) -> None:
    """Make the axis of a figure that is never negative at least this long, so that noise does not look large."""
    if panel.lines:
        low, high = panel.get_ylim()
        high = max(high, low + least)
        panel.set_ylim(max(low, -0.02 * high), high)
    else:
        panel.set_ylim(0, least)


def _points(run: Run, figure: str, axis: str) -> list[tuple[float, float]]:
    tokens = run.axis("tokens")
    places: dict[str, Callable[[int], float | None]] = {
        "tokens": lambda i: tokens[i] / 1000,
        "steps": lambda i: run.curve[i]["step"],
        "seconds": lambda i: run.cpu[i] if run.cpu else None,
    }
    points = []
    for i, point in enumerate(run.curve):
        x, y = places[axis](i), point.get(figure, point.get("log", {}).get(figure))
        if x is not None and y is not None:
            points.append((float(x), float(y)))
    return points


def _at(points: Sequence[tuple[float, float]], x: float) -> float:
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0) if x1 > x0 else y1
    return points[-1][1]


def half_width(values: Sequence[float]) -> float:
    """Return half of the 95 % interval of a mean, by Student's t."""
    import statistics

    from ...evaluation.paired import t_quantile

    return t_quantile(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def new_figure(width: float, height: float) -> tuple[Any, Any]:
    """Return a figure of a size in inches, and its canvas; pyplot is not touched."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    return figure, FigureCanvasAgg(figure)


def dressed(panel: Any, title: str, xlabel: str, grid: str) -> None:
    """Give a panel its title, label, grid and frame."""
    panel.set_title(title, fontsize=11, loc="left")
    panel.set_xlabel(xlabel)
    panel.grid(axis=grid, color="#E4E4E4", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.locator_params(axis="x", nbins=5)  # more ticks would run into each other
    panel.spines[["top", "right"]].set_visible(False)


def save(canvas: Any, path: Path) -> Path:
    """Write a picture as PNG; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.print_png(path)
    return path
