"""What is read off curves, against values worked out by hand and a slow plain reference."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.lab.studies.summary import COLLAPSE, START, Run, arm_rows, load_findings

from ..support.tiny import NO_EXPERIENCE, arm_row, findings, point, run_of, start_row, times_row, tiny, write_results

# One run ----------------------------------------------------------------------------------------------------------------


def test_tokens_to_an_accuracy_by_hand():
    run = run_of(0.1, 0.2, 0.6, 0.4, 0.8)  # at 0, 100, 200, 300, 400
    assert run.tokens_to(0.05) == 0.0
    assert run.tokens_to(0.1) == 0.0
    assert run.tokens_to(0.15) == pytest.approx(50)
    assert run.tokens_to(0.2) == pytest.approx(100)
    assert run.tokens_to(0.5) == pytest.approx(175)  # the first time, though it falls again
    assert run.tokens_to(0.7) == pytest.approx(375)
    assert run.tokens_to(0.8) == pytest.approx(400)
    assert run.tokens_to(0.81) is None


def test_a_figure_between_evaluations_by_hand():
    run = run_of(0.1, 0.2, 0.6)
    cpu = (0.0, 10.0, 30.0)
    assert run.at(cpu, -5.0, "pass_at_1") == 0.1
    assert run.at(cpu, 0.0, "pass_at_1") == 0.1
    assert run.at(cpu, 5.0, "pass_at_1") == pytest.approx(0.15)
    assert run.at(cpu, 10.0, "pass_at_1") == pytest.approx(0.2)
    assert run.at(cpu, 25.0, "pass_at_2") == pytest.approx(0.6)  # 0.3 + 15/20 of 0.4
    assert run.at(cpu, 31.0, "pass_at_1") == 0.6


@pytest.mark.parametrize(
    ("heights", "collapsed"),
    [
        ((0.1, 0.6, 0.3), True),  # half of the best: "at most"
        ((0.1, 0.6, 0.301), False),
        ((0.4, 0.6, 0.39), True),  # below its start
        ((0.4, 0.6, 0.4), False),
        ((0.8, 0.5, 0.4), True),  # the start is on the curve: it was the best
        ((0.2, 0.5, 0.5), False),
        ((0.0, 0.0, 0.0), False),  # it never was anywhere
    ],
)
def test_collapse_by_hand(heights, collapsed):
    assert COLLAPSE == 0.5
    assert run_of(*heights).collapsed is collapsed


curves = st.lists(st.integers(0, 20), min_size=2, max_size=7).map(lambda ks: [k / 20 for k in ks])


def slow_at(axis, heights, value, parts=2000):
    """Walk along the axis in small steps; the height of the last place that is not beyond the value."""
    if value <= axis[0]:
        return heights[0]
    if value >= axis[-1]:
        return heights[-1]
    for i in range(1, len(axis)):
        for j in range(parts):
            place = axis[i - 1] + (axis[i] - axis[i - 1]) * (j + 1) / parts
            if place >= value:
                return heights[i - 1] + (heights[i] - heights[i - 1]) * (j + 1) / parts
    raise AssertionError


@given(heights=curves, accuracy=st.integers(1, 20).map(lambda k: k / 20 - 0.01))
def test_tokens_to_is_what_a_walk_along_the_curve_finds(heights, accuracy):
    run = run_of(*heights)
    end = 100 * (len(heights) - 1)
    reached = [x / 10 for x in range(10 * end + 1) if _line(heights, x / 1000) >= accuracy - 1e-12]
    found = run.tokens_to(accuracy)
    if not reached:
        assert found is None
    else:
        assert found == pytest.approx(reached[0], abs=0.1)


def _line(heights, x):
    """Height at `x`, in evaluations."""
    i = min(int(x), len(heights) - 2)
    return heights[i] + (x - i) * (heights[i + 1] - heights[i])


@given(heights=curves, gaps=st.lists(st.floats(0.5, 20), min_size=6, max_size=6), part=st.floats(-0.2, 1.2))
def test_at_is_what_a_walk_along_the_axis_finds(heights, gaps, part):
    axis = [math.fsum(gaps[:i]) for i in range(len(heights))]
    value = part * axis[-1]
    found = run_of(*heights).at(axis, value, "pass_at_1")
    assert found == pytest.approx(slow_at(axis, heights, value), abs=2e-3)


@given(heights=curves)
def test_an_arm_that_ends_at_its_best_above_its_start_has_not_collapsed(heights):
    top = max(heights) + 0.05
    assert not run_of(*heights, top).collapsed
    if max(heights) > 0:
        assert run_of(*heights, max(heights) / 2).collapsed


def test_where_a_figure_is_looked_for():
    curve = (point(0, 0.1), point(100, 0.2, log={"entropy": 1.5, "replay/size": 7.0}))
    run = Run({"experience": NO_EXPERIENCE | {"stored": 9}, "retired": 4, "tokens": 123}, curve, ())
    assert run.figure("pass_at_1") == 0.2
    assert run.figure("retired") == 4
    assert run.figure("stored") == 9
    assert run.figure("stored_valid") is None
    assert run.figure("entropy") == 1.5
    assert run.figure("nowhere") is None


# Several seeds ----------------------------------------------------------------------------------------------------------


def from_curves(by_arm, **changes):
    """Findings from curves, {arm: [Pass@1 at 0, 100, ... of seed 0, ...]}, with processor times where given."""
    found = findings({}, seeds=max(map(len, by_arm.values())), **changes)
    runs = {}
    for arm, seeds in by_arm.items():
        for seed, given_ in enumerate(seeds):
            heights, cpu = given_ if isinstance(given_, tuple) else (given_, ())
            if heights:
                runs["chains", arm, seed] = run_of(*heights, cpu=cpu)
    return type(found)(found.study, runs, found.about)


def test_tokens_to_baseline_by_hand():
    found = from_curves(
        {
            "on-policy": [[0.1, 0.2, 0.3], [0.1, 0.2, 0.4], [0.1, 0.3, 0.2]],
            "exgrpo": [[0.1, 0.3, 0.5], [0.1, 0.25, 0.55], [0.1, 0.1, 0.1]],
        }
    )
    # Of 200 tokens: 100; 100 + (0.4 - 0.25) / 0.30 * 100 = 150; never. Shares 0.5, 0.75, infinity.
    share, reached, of = found.tokens_to_baseline("chains", "exgrpo")
    assert share == pytest.approx(0.75)
    assert (reached, of) == (2, 3)
    assert found.tokens_to_baseline("chains", "on-policy")[0] == pytest.approx(1.0)  # 1, 1, and 0.5 of the third
    share, reached, of = found.tokens_to_baseline("chains", "on-policy", "exgrpo")
    assert (share, reached, of) == (None, 0, 2)  # 0.5 and 0.55 are out of reach; the third learned nothing
    assert found.tokens_to_baseline("chains", "rescue") == (None, 0, 0)


def test_tokens_to_baseline_is_in_the_baseline_s_tokens():
    """An arm with twice the budget that arrives at the end of it needs twice the baseline's tokens."""
    found = from_curves({"on-policy": [[0.1, 0.2, 0.3]], "exgrpo": [[0.1, 0.1, 0.1, 0.1, 0.3]]})
    assert found.tokens_to_baseline("chains", "exgrpo") == (pytest.approx(2.0), 1, 1)


@given(
    seeds=st.lists(
        st.tuples(st.lists(st.integers(0, 10), min_size=3, max_size=3), st.lists(st.integers(0, 10), min_size=3, max_size=3)),
        min_size=1, max_size=5,
    )
)  # fmt: skip
def test_tokens_to_baseline_against_a_plain_reference(seeds):
    ours, base = [[[k / 10 for k in pair[i]] for pair in seeds] for i in (0, 1)]
    share, reached, of = from_curves({"exgrpo": ours, "on-policy": base}).tokens_to_baseline("chains", "exgrpo")
    expected = []
    for mine, theirs in zip(ours, base, strict=True):
        if theirs[-1] <= theirs[0] or theirs[-1] <= max(theirs) / 2:
            continue  # the baseline learned nothing, or collapsed
        places = [x / 1000 for x in range(2001) if _line(mine, x / 1000) >= theirs[-1] - 1e-9]
        expected.append(places[0] / 2 if places else math.inf)
    expected.sort()
    assert (reached, of) == (sum(map(math.isfinite, expected)), len(expected))
    if not expected:
        assert share is None
        return
    half = len(expected) // 2
    median = expected[half] if len(expected) % 2 else (expected[half - 1] + expected[half]) / 2
    assert share == (pytest.approx(median, abs=2e-3) if math.isfinite(median) else None)


def test_equal_time_by_hand():
    """The quicker arm ends at 10 s: the slower's curve is read there, at a quarter of its way from 8 to 16 s."""
    curves_of = {
        "exgrpo": [([0.1, 0.3, 0.5], (0.0, 8.0, 16.0)), *[([0.1, 0.3, 0.5], (0.0, 4.0, 10.0))] * 4],
        "on-policy": [([0.1, 0.2, 0.3], (0.0, 5.0, 10.0)), *[([0.1, 0.2, 0.3], (0.0, 4.0, 10.0))] * 4],
    }
    found = from_curves(curves_of).difference("chains", "exgrpo", "on-policy", "equal_time")
    # seed 0: 0.3 + 0.25 x 0.2 = 0.35 against 0.3; the others 0.5 against 0.3
    assert found.mean == pytest.approx((0.05 + 4 * 0.2) / 5)
    # And the other way round, when the baseline is the slower: 0.25 against 0.5.
    swapped = from_curves({"exgrpo": curves_of["on-policy"], "on-policy": curves_of["exgrpo"]})
    assert swapped.difference("chains", "exgrpo", "on-policy", "equal_time").mean == pytest.approx(-found.mean)


@given(st.data())
def test_equal_time_against_a_plain_reference(data):
    times = st.lists(st.floats(0.5, 9), min_size=2, max_size=2).map(lambda gaps: (0.0, gaps[0], gaps[0] + gaps[1]))
    heights = st.lists(st.integers(0, 10).map(lambda k: k / 10), min_size=3, max_size=3)
    arms = {
        arm: data.draw(st.lists(st.tuples(heights, times), min_size=5, max_size=5)) for arm in ("exgrpo", "on-policy")
    }
    found = from_curves(arms).difference("chains", "exgrpo", "on-policy", "equal_time")
    expected = 0.0
    for (mine, my_times), (theirs, their_times) in zip(*arms.values(), strict=True):
        end = min(my_times[-1], their_times[-1])
        expected += slow_at(my_times, mine, end) - slow_at(their_times, theirs, end)
    assert found.mean == pytest.approx(expected / 5, abs=2e-3)


@pytest.mark.parametrize(
    ("heights", "samples", "collapsed"),
    [
        ((0.004, 0.012, 0.002), 2048, False),  # a start near 0: what a few samples do
        ((0.20, 0.22, 0.19), 2048, False),  # below its start by less than noise
        ((0.20, 0.60, 0.25), 2048, True),
        ((0.30, 0.35, 0.16), 2048, True),
        ((0.30, 0.35, 0.16), 96, False),  # of few samples that may be noise
    ],
)
def test_noise_is_no_collapse(heights, samples, collapsed):
    assert replace(run_of(*heights), samples=samples).collapsed is collapsed


def test_a_baseline_that_collapsed_gives_no_tokens_to_it():
    found = from_curves({"on-policy": [[0.3, 0.6, 0.2]], "exgrpo": [[0.3, 0.6, 0.6]]})
    assert found.tokens_to_baseline("chains", "exgrpo") == (None, 0, 0)
    (row,) = (row for row in arm_rows(found, "chains") if row["arm"] == "exgrpo")
    assert row["tokens to baseline"] is None


def test_collapsed_seeds_are_counted():
    found = from_curves({"exgrpo": [[0.1, 0.6, 0.3], [0.1, 0.6, 0.6], [0.4, 0.5, 0.2], []]})
    assert found.collapsed("chains", "exgrpo") == (2, 3)
    assert found.collapsed("chains", "rescue") == (0, 0)


# Tables -----------------------------------------------------------------------------------------------------------------


def test_tried_is_beside_every_arm():
    found = findings({arm: {0: 0.3, 1: 0.4} for arm in ("on-policy", "exgrpo", "rescue")}, seeds=2)
    rows = {row["arm"]: row for row in arm_rows(found, "chains")}
    assert {arm: row.get("tried") for arm, row in rows.items()} == {
        START: None,
        "on-policy": 1,
        "exgrpo": 3,
        "rescue": 1,
    }
    assert rows["exgrpo"]["Pass@1"] == pytest.approx(0.35)
    assert rows["exgrpo"]["seeds"] == 2


def test_an_arm_without_a_run_has_no_row_and_one_without_its_baseline_no_tokens():
    """That the baseline has no run yet does not mean that an arm never gets there."""
    found = findings({"exgrpo": {0: 0.3}}, seeds=2)
    rows = {row["arm"]: row for row in arm_rows(found, "chains")}
    assert set(rows) == {START, "exgrpo"}
    assert rows["exgrpo"]["tokens to baseline"] is None


def test_never_is_said_where_no_seed_arrives():
    found = findings({"exgrpo": {0: 0.3}, "on-policy": {0: 0.4}}, seeds=2)
    rows = {row["arm"]: row for row in arm_rows(found, "chains")}
    assert rows["exgrpo"]["tokens to baseline"].startswith("never")
    assert rows["on-policy"]["tokens to baseline"] == "1.00 (1/1)"


# From files -------------------------------------------------------------------------------------------------------------


def by_hand(folder, seeds=(0, 1), **about):
    study = tiny()
    cells = [cell for cell in study.cells() if cell.seed in seeds]
    rows = [
        start_row(c, 0.1 + c.seed / 10) if c.arm is None else arm_row(c, [point(192, 0.2), point(384, 0.5)])
        for c in cells
    ]
    times = [times_row(c, 1.0, 3.0) for c in cells if c.arm is not None]
    write_results(folder, cells, rows, times, **about)
    return cells


def test_findings_are_read_back(tmp_path):
    by_hand(tmp_path)
    found = load_findings(tmp_path)
    assert found.study == tiny()
    run = found.runs["chains", "exgrpo", 1]
    assert [p["pass_at_1"] for p in run.curve] == [0.2, 0.2, 0.5]  # the start comes first
    assert run.cpu == (0.0, 1.0, 3.0)
    assert found.mean("chains", "exgrpo", "pass_at_1") == 0.5
    assert not found.short


def test_a_run_without_its_start_is_not_there_yet(tmp_path):
    cells = by_hand(tmp_path)
    path = tmp_path / "results.jsonl"
    path.write_text("".join(line + "\n" for line in path.read_text().splitlines() if "(start)/1" not in line))
    found = load_findings(tmp_path)
    assert {seed for _, _, seed in found.runs} == {0}
    assert len(cells) == 8


def test_rows_made_with_other_options_are_not_this_study_s(tmp_path):
    """study.json says another learning rate than the rows were made with."""
    by_hand(tmp_path)
    text = (tmp_path / "results.jsonl").read_text()
    old = next(c for c in tiny().cells() if c.key == "chains/rescue/1").fingerprint
    (tmp_path / "results.jsonl").write_text(text.replace(old, "0" * 16))
    found = load_findings(tmp_path)
    assert ("chains", "rescue", 1) not in found.runs
    assert ("chains", "rescue", 0) in found.runs
