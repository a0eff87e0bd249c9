"""docs/cost.md says what was measured: every table of it is made again from benchmarks/results/*.json."""

import json
import re
from pathlib import Path

import pytest

from exgrpo import PRESETS
from tests.test_docs import rows_of, section

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
CASES = {
    "tiny": "tiny, the task's rewards",
    "tiny_all": "tiny, all",
    "smollm2_half": "SmolLM2, half",
    "smollm2_all": "SmolLM2, all",
}
OURS = ("plan", "measuring candidates", "observe", "admit", "log")


def result(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def ratio(row):
    return f"{row['ratio']:.2f} ({row['ratio_range'][0]:.2f} to {row['ratio_range'][1]:.2f})"


def steps():
    """Case, arm, seconds, ratio, groups without variance, groups with a stored member, rows that were not computed."""
    rows = []
    for case, text in CASES.items():
        for arm, row in result(f"step_{case}")["arms"].items():
            name = "TRL's `GRPOTrainer`" if arm == "stock" else f"`{arm}`"
            shares = [
                f"{100 * row[what]:.0f} %" if what in row else ""
                for what in ("without_variance", "replayed", "skipped")
            ]
            rows.append([text, name, f"{row['seconds']:.3g} s", "1" if arm == "stock" else ratio(row), *shares])
    return rows


def phases(case):
    """Milliseconds of a step by phase, those of TRL first; and the sum of what replay brings."""
    arms = result(f"step_{case}")["arms"]
    names = [name for name in arms["stock"]["phases"] if name != "reward function"]

    def row(text, of):
        return [text, *(f"{1e3 * of(arm['phases']):,.1f}" for arm in arms.values())]

    return [
        *(row(name, lambda p, name=name: p[name]) for name in sorted(names, key=lambda n: -arms["stock"]["phases"][n])),
        row("replay: " + ", ".join(name for name in OURS if any(name in a["phases"] for a in arms.values())),
            lambda p: sum(p.get(name, 0.0) for name in OURS)),
    ]  # fmt: skip


def memory():
    return [
        [
            text,
            "TRL's `GRPOTrainer`" if arm == "stock" else f"`{arm}`",
            f"{row['peak_mb']:.0f} MB",
            f"{row['peak_over']:.2f}",
        ]
        for name, text in (("step_tiny", "the task's"), ("step_tiny_memory", "all"))
        for arm, row in result(name)["arms"].items()
    ]


def presets():
    arms = result("step_tiny_presets")["arms"]
    return [
        [
            f"`{arm}`",
            ratio(row),
            f"{1e3 * sum(row['phases'].get(name, 0.0) for name in OURS):.1f}",
        ]
        for arm, row in arms.items()
    ]


def buffer():
    names = ("plan_ms", "observe_ms", "admit_ms", "step_ms", "append_us", "resident_bytes")
    return [
        [f"{row['trajectories']:,}", row["choice"].replace("_", " "), *(f"{row[name]:.2g}" for name in names[:-1]),
         f"{row['resident_bytes']:.0f}"]
        for row in result("bench_buffer")["rows"]
    ]  # fmt: skip


def log():
    names = ("append_us", "plan_ms", "observe_admit_ms", "commit_ms", "step_ms")
    return [
        [f"{row['trajectories']:,}", *(f"{row[name]:.2g}" if row[name] < 100 else f"{row[name]:.0f}" for name in names)]
        for row in result("bench_log")["rows"]
    ]


def embedding():
    found = result("embedding")["ms_per_completion"]
    return [[tokens, f"{row['cpu']:.0f} ms"] for tokens, row in found.items()]


def viewer():
    return [
        [name, f"{row['median_ms']:.2g} ms", f"{row['most_ms']:.2g} ms"]
        for name, row in result("viewer")["answers"].items()
    ]


TABLES = {
    "A training step": [steps],
    "Where the time goes": [lambda: phases("smollm2_half")],
    "Memory": [memory],
    "Presets": [presets],
    "The buffer": [buffer],
    "The log": [log],
    "Embeddings": [embedding],
    "The viewer": [viewer],
}


@pytest.mark.parametrize("title", TABLES)
def test_the_tables_are_what_was_measured(title):
    expected = [row for make in TABLES[title] for row in make()]
    assert rows_of(section("cost.md", title)) == expected


def test_the_encoder_is_the_one_that_was_measured():
    assert f"{result('embedding')['parameters']:,} weights" in section("cost.md", "Embeddings")


def test_every_preset_is_there():
    """Measured, or said to be not."""
    measured = {row[0].strip("`") for row in presets()}
    said = re.search(r"not measured yet: (.+?)\.", section("cost.md", "Presets"), re.DOTALL)
    waiting = set(re.findall(r"`([\w-]+)`", said[1])) if said else set()
    assert presets()[0][0] == "`on-policy`"
    assert not measured & waiting
    assert measured | waiting == set(PRESETS)


def test_results_say_how_they_came_about_and_not_where():
    for name in (
        *(f"step_{case}" for case in CASES),
        "step_tiny_half",
        "step_tiny_presets",
        "step_tiny_memory",
        "bench_buffer",
        "bench_buffer_before",
        "bench_log",
    ):
        found = result(name)
        assert found["command"].startswith("exgrpo bench ")
        assert "/" not in found["command"]
        assert found["setting"]["model"] in ("tiny", "a directory") if "setting" in found else True
        assert found["machine"]["versions"]["torch"]
