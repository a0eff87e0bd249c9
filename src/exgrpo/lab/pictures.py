"""The demo's pictures: learning curves, and what the buffer holds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..report import plot_curves

TIERS = (  # key of the log, label, colour from dark (hard) to light (easy)
    ("replay/unsolved", "unsolved now", "#7A0403"),
    ("replay/hard", "hard", "#D9480F"),
    ("replay/medium", "medium", "#F2A93B"),
    ("replay/easy", "easy", "#8CC56B"),
    ("replay/retired", "retired", "#B7C4D6"),
)


def draw(results: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw the pictures of a comparison, the second only where something was replayed; return their paths."""
    paths = [
        plot_curves(
            {preset: _curve(results, preset) for preset in results["presets"]},
            x="thousand_tokens",
            y="pass_at_1",
            path=folder / "learning-curve.png",
            title=f"{results['regime']['task']}: held-out Pass@1 over generated tokens",
            xlabel="thousand completion tokens generated in training",
            ylabel="held-out Pass@1",
        )
    ]
    first = results["seeds"][0]
    replaying = [arm for arm in results["arms"] if arm["seed"] == first and arm["replay_share"] is not None]
    if any(arm["history"] for arm in replaying):
        paths.append(draw_buffer(replaying, folder / "replay.png"))
    return paths


def _curve(results: Mapping[str, Any], preset: str) -> list[Mapping[str, Any]]:
    arms = [arm for arm in results["arms"] if arm["preset"] == preset]
    points = [*results["starts"], *(point for arm in arms for point in arm["curve"])]
    return [{**point, "thousand_tokens": point["at"] / 1000} for point in points]


def draw_buffer(arms: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Draw a panel for each arm: questions with a stored success by difficulty, and the share of replayed groups."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context({"font.size": 11, "axes.spines.top": False, "axes.titlelocation": "left"}):
        figure = Figure(figsize=(8, 4.67), dpi=150, layout="constrained")
        canvas = FigureCanvasAgg(figure)
        panels = figure.subplots(1, len(arms), squeeze=False, sharey=True)[0]
        handles: list[Any] = []
        for panel, arm in zip(panels, arms, strict=True):
            handles = _draw_arm(panel, arm, last=panel is panels[-1])
        panels[0].set_ylabel("questions stored or retired")
        figure.legend(handles=handles[::-1], loc="outside lower center", ncols=3, frameon=False)
        canvas.print_png(path)
    return path


def _draw_arm(panel: Any, arm: Mapping[str, Any], last: bool) -> list[Any]:
    steps = [row["step"] for row in arm["history"]]
    heights = [[row.get(key) or 0.0 for row in arm["history"]] for key, _, _ in TIERS]
    areas = panel.stackplot(steps, heights, colors=[c for *_, c in TIERS], labels=[label for _, label, _ in TIERS])
    share = panel.twinx()
    values = [row.get("replay/share") or 0.0 for row in arm["history"]]
    (line,) = share.plot(
        steps, values, color="black", linewidth=1.0, label="share of groups with a stored completion (right)"
    )
    share.set_ylim(0, 1)
    share.tick_params(labelright=last, right=last)
    share.set_ylabel("share of groups" if last else "")
    panel.set_title(arm["preset"])
    panel.set_xlabel("step")
    panel.margins(x=0)
    return [*areas, line]
