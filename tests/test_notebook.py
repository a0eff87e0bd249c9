"""The notebook runs from its first cell to its last, as a reader runs it, and shows what it says."""

import json
import warnings
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples" / "quickstart.ipynb"
CELLS = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


def test_it_is_stored_without_outputs():
    assert CELLS
    assert not any(cell["outputs"] or cell["execution_count"] for cell in CELLS)


@pytest.mark.slow
def test_it_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    names = {"__name__": "notebook"}
    with warnings.catch_warnings():  # a cell changes the filters
        for cell in CELLS:
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    assert (tmp_path / "notebook-run" / "picture.png").stat().st_size > 1000
    assert len(names["replays"]) > 100
    assert {"log_ratio", "ess", "age"} <= set(names["replays"])
    assert set(names["stored"]["correct"]) == {True}
    passes = [row["fresh/pass_at_1"] for row in names["log"]]
    assert passes[-1] > 2 * passes[0]
