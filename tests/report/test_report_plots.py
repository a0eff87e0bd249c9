"""Plots: a PNG of the promised size, and nothing left open."""

import struct
import sys

import pytest

from exgrpo.errors import ConfigurationError, MissingExtraError
from exgrpo.presets import PRESETS
from exgrpo.report import plot_curves
from exgrpo.report.plots import PRESET_STYLES, arm_styles

RUNS = {
    "exgrpo": [{"step": s, "acc": 0.1 * s + seed, "note": None} for seed in (0.0, 0.1) for s in range(5)],
    "on-policy": [{"step": 0, "acc": 0.1}, {"step": 1, "acc": None}, {"step": 2}, {"step": 3, "acc": float("nan")}],
}


def test_png_of_1200_pixels(tmp_path):
    path = plot_curves(
        RUNS, "step", "acc", tmp_path / "new" / "a.png", title="T", xlabel="optimizer step", ylabel="Pass@1"
    )
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) == (1200, 700)


def test_no_figure_stays_and_no_setting_changes(tmp_path):
    import matplotlib as mpl
    from matplotlib import pyplot

    settings = dict(mpl.rcParams)
    plot_curves(RUNS, "step", "acc", tmp_path / "a.png")
    assert pyplot.get_fignums() == []
    assert dict(mpl.rcParams) == settings


def test_colours_are_fixed_for_presets_and_distinct():
    assert set(PRESET_STYLES) <= set(PRESETS)
    alone, together = arm_styles(["rescue"]), arm_styles(["mine", "exgrpo", "rescue", "other"])
    assert alone["rescue"] == together["rescue"]
    many = arm_styles([*PRESET_STYLES, *(f"sweep {i}" for i in range(12))])
    assert len(set(many.values())) == len(many)


def test_refusals(tmp_path, monkeypatch):
    with pytest.raises(ConfigurationError, match="at least one arm"):
        plot_curves({}, "step", "acc", tmp_path / "a.png")
    with pytest.raises(
        ConfigurationError, match=r"arm 'exgrpo' has no row with both 'step' and 'loss'. It has: step, acc, note"
    ):
        plot_curves(RUNS, "step", "loss", tmp_path / "a.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'exgrpo\[report\]'"):
        plot_curves(RUNS, "step", "acc", tmp_path / "a.png")
