"""Training curves of several arms as one PNG."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError, MissingExtraError

# Okabe and Ito's palette, which colour-blind readers can tell apart; without its yellow, too pale for a line.
PRESET_STYLES = {
    "on-policy": ("#000000", "-"),
    "exgrpo": ("#0072B2", "-"),
    "exgrpo-paper-text": ("#0072B2", "--"),
    "random-replay": ("#0072B2", ":"),
    "rescue": ("#D55E00", "-"),
    "rehearsal": ("#D55E00", "--"),
    "positive-weight": ("#009E73", "-"),
    "prompt-replay": ("#009E73", "--"),
    "entropy-guided": ("#CC79A7", "-"),
    "quality-tiers": ("#E69F00", "-"),
    "headroom-drift": ("#56B4E9", "-"),
    "hard-questions": ("#7F7F7F", "-"),
}
OTHER_COLOURS = ("#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
LINE_STYLES = ("--", ":", "-.")
WIDTH_PX, HEIGHT_PX, DPI = 1200, 700, 150


def plot_curves(
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
    x: str,
    y: str,
    path: str | PathLike[str],
    title: str | None = None,
    xlabel: str | None = None,
    ylabel: str | None = None,
) -> Path:
    """Draw `y` over `x`, one line an arm, and write a PNG of 1200 by 700 pixels.

    Rows of one arm with the same `x` (several seeds) become their mean, with a thin line for each.
    Rows without a finite `x` and `y` are left out. The presets keep their colour in every picture.

    Args:
        runs: arm -> rows, such as the log of a run, or of several.
        x, y: keys of the rows.
        path: of the picture; its folder is made if need be.
        title, xlabel, ylabel: texts; the labels are the keys by default.

    Returns:
        `path`.

    Raises:
        ConfigurationError: an arm without a row that has both. MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "report", "A plot") from error
    if not runs:
        raise ConfigurationError("plot_curves needs at least one arm, got none.")
    curves = {arm: _curve(arm, rows, x, y) for arm, rows in runs.items()}
    styles = arm_styles(list(runs))
    style = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left"}
    with rc_context(style):
        figure = Figure(figsize=(WIDTH_PX / DPI, HEIGHT_PX / DPI), dpi=DPI)
        figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.1)
        canvas = FigureCanvasAgg(figure)  # a figure of our own: pyplot and its list of open figures are not touched
        axes = figure.add_subplot()
        axes.grid(axis="y", color="#E4E4E4", linewidth=0.8)
        axes.set_axisbelow(True)
        for arm, (xs, means, seeds) in curves.items():
            colour, line = styles[arm]
            marker = "o" if len(xs) < 15 else None
            axes.plot(xs, means, line, color=colour, linewidth=2.0, marker=marker, markersize=4, label=arm)
            for seed in seeds:
                axes.plot(xs, seed, line, color=colour, linewidth=0.7, alpha=0.35)
        axes.set_xlabel(xlabel or x)
        axes.set_ylabel(ylabel or y)
        axes.margins(x=0.02)
        if title:
            axes.set_title(title, fontsize=13)
        if len(runs) > 1:
            figure.legend(loc="outside right upper", frameon=False)
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        canvas.print_png(path)
    return path


def arm_styles(arms: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return (colour, line style) of each arm: that of the preset of this name, else the next free one."""
    free = [(colour, line) for line in LINE_STYLES for colour in OTHER_COLOURS]
    others = [arm for arm in arms if arm not in PRESET_STYLES]
    return {arm: PRESET_STYLES[arm] for arm in arms if arm in PRESET_STYLES} | {
        arm: free[index % len(free)] for index, arm in enumerate(others)
    }


def _curve(
    arm: str, rows: Sequence[Mapping[str, Any]], x: str, y: str
) -> tuple[list[float], list[float], list[list[float]]]:
    """Return sorted x and the mean y at each; also the single lines, where all x have equally many y, at least two."""
    points: dict[float, list[float]] = defaultdict(list)
    for row in rows:
        at, value = row.get(x), row.get(y)
        if at is not None and value is not None and math.isfinite(at) and math.isfinite(value):
            points[float(at)].append(float(value))
    if not points:
        known = list(dict.fromkeys(name for row in rows for name in row))
        raise ConfigurationError(
            f"The arm {arm!r} has no row with both {x!r} and {y!r}. It has: {', '.join(known) or 'no rows'}."
        )
    xs = sorted(points)
    counts = {len(points[at]) for at in xs}
    lines = [list(line) for line in zip(*(points[at] for at in xs), strict=True)] if len(counts) == 1 else []
    return xs, [math.fsum(points[at]) / len(points[at]) for at in xs], lines if len(lines) > 1 else []
