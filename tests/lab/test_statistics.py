"""The intervals cover what they promise; no interval on fewer than five pairs; only common seeds are pairs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.evaluation.paired import MIN_PAIRS, PairedDifference, paired_difference, t_quantile
from exgrpo.lab.studies.pictures import _draw, draw_differences
from exgrpo.lab.studies.summary import arm_rows, difference_rows, interval

from ..support.tiny import findings, run_of

TRIALS = 2000
PAIRS = 8
TRUTH = 0.3


def coverage(draw, resamples=200, pairs=PAIRS, trials=TRIALS):
    """Shares of simulated studies whose t interval and whose bootstrap interval hold the true mean difference.

    Both arms of a seed share the seed's own luck, three times as large as anything else, as questions and start do.
    """
    rng = np.random.default_rng(2026)
    inside = np.zeros(2)
    for trial in range(trials):
        shared = 3 * rng.normal(size=pairs)
        base = shared + 0.1 * rng.normal(size=pairs)
        ours = shared + 0.1 * rng.normal(size=pairs) + TRUTH + draw(rng, pairs)
        found = paired_difference(ours, base, resamples=resamples, seed=trial)
        inside += found.t_low <= TRUTH <= found.t_high, found.bootstrap_low <= TRUTH <= found.bootstrap_high
    return inside / trials


def normal(rng, pairs):
    return rng.normal(size=pairs)


def skewed(rng, pairs):
    """Exponential, moved to mean 0: skewness 2."""
    return rng.exponential(size=pairs) - 1.0


def rare(rng, pairs):
    """One seed in ten far below the others, mean 0: what a collapse looks like."""
    return np.where(rng.random(pairs) < 0.1, -9.0, 1.0) + 0.1 * rng.normal(size=pairs)


ERROR = 3 * np.sqrt(0.95 * 0.05 / TRIALS)  # three standard errors of a share of 95 %: 1.5 %


def test_eight_normal_pairs():
    t, bootstrap = coverage(normal)
    assert abs(t - 0.95) < ERROR
    assert 0.86 < bootstrap < 0.95 - 2 * ERROR  # too narrow with few pairs, as the docstring says


def test_five_normal_pairs_of_the_docstring():
    t, bootstrap = coverage(normal, pairs=5)
    assert abs(t - 0.95) < ERROR
    assert abs(bootstrap - 0.83) < 0.03


def test_eight_skewed_pairs_cover_a_little_less_and_never_more_than_stated():
    """Student's interval is for normal data: with skewness 2 a nominal 95 % holds at least 88 %; the bootstrap less."""
    t, bootstrap = coverage(skewed)
    assert 0.88 < t < 0.95 - ERROR
    assert 0.80 < bootstrap < t


def test_rare_collapses_are_what_few_seeds_cannot_tell():
    """With one collapse in ten seeds, four studies of eight seeds in ten see none: no interval over seeds helps then."""
    t, bootstrap = coverage(rare)
    unseen = 0.9**PAIRS
    assert unseen == pytest.approx(0.43, abs=0.005)
    assert abs(t - (1 - unseen)) < 0.05
    assert bootstrap <= t + 0.02


def test_a_true_difference_of_nothing_is_significant_in_one_study_of_twenty():
    rng = np.random.default_rng(5)
    found = [paired_difference(*rng.normal(size=(2, PAIRS)), resamples=10).significant for _ in range(TRIALS)]
    assert abs(np.mean(found) - 0.05) < ERROR


def test_pairing_takes_the_seeds_luck_away():
    shared = 3 * np.random.default_rng(1).normal(size=PAIRS)
    noise = 0.1 * np.random.default_rng(2).normal(size=PAIRS)
    paired = paired_difference(shared + noise + TRUTH, shared)
    assert paired.significant
    shuffled = paired_difference(np.roll(shared, 1) + noise + TRUTH, shared)
    assert shuffled.mean == pytest.approx(paired.mean)
    assert not shuffled.significant


@given(
    values=st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=5, max_size=12),
    confidence=st.sampled_from((0.5, 0.9, 0.95)),
)
def test_the_interval_is_the_textbook_s(values, confidence):
    ours, base = ([pair[i] for pair in values] for i in (0, 1))
    found = paired_difference(ours, base, confidence, resamples=50)
    n = len(values)
    mean = sum(a - b for a, b in values) / n
    variance = sum((a - b - mean) ** 2 for a, b in values) / (n - 1)
    half = t_quantile((1 + confidence) / 2, n - 1) * (variance / n) ** 0.5
    assert (found.mean, found.t_low, found.t_high) == pytest.approx((mean, mean - half, mean + half), abs=1e-9)
    assert found.bootstrap_low <= found.mean + 1e-9
    assert found.bootstrap_high >= found.mean - 1e-9
    assert found.pairs == n


# No interval on fewer than five pairs -----------------------------------------------------------------------------------


def finals(count, first=0, base=0.2, gain=0.1):
    """`exgrpo` is better by gain, and a hundredth more with each seed."""
    seeds = range(first, first + count)
    return {"on-policy": {s: base + 0.03 * s for s in seeds}, "exgrpo": {s: base + gain + 0.04 * s for s in seeds}}


def intervals(found):
    """All texts of a table that look like an interval."""
    return [text for row in difference_rows(found, "chains") for text in map(str, row.values()) if "[" in text]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_nothing_on_fewer_than_five(count, tmp_path):
    found = findings(finals(count), seeds=8)
    for figure in ("pass_at_1", "pass_at_2", "greedy_accuracy", "equal_time", "tokens"):
        assert found.difference("chains", "exgrpo", "on-policy", figure) is None
    assert difference_rows(found, "chains") == []
    assert draw_differences(found, tmp_path / "none.png") is None
    assert list(tmp_path.iterdir()) == []
    assert not any("[" in str(value) for row in arm_rows(found, "chains") for value in row.values())


class Panel:
    """What a picture's panel is asked to draw."""

    def __init__(self):
        self.bands, self.lines = [], []

    def fill_between(self, xs, low, high, **style):
        self.bands.append((xs, low, high))

    def plot(self, xs, ys, *style, **more):
        self.lines.append((xs, ys))
        return [self]


@pytest.mark.parametrize("count", [1, 4, 5, 8])
def test_a_curve_has_a_band_from_five_seeds_on(count):
    """Finals 0, 0.1, 0.2, ...: the band at the end is Student's interval of their mean."""
    panel = Panel()
    runs = [run_of(0.1, 0.1, i / 10) for i in range(count)]
    _draw(panel, runs, "pass_at_1", "tokens", "#000000", "-", 1.0, band=True)
    ((xs, ys),) = panel.lines
    assert (xs[0], xs[-1]) == pytest.approx((0.0, 0.2))
    assert ys[-1] == pytest.approx((count - 1) / 20)
    assert len(panel.bands) == (count >= MIN_PAIRS)
    for _, low, high in panel.bands:
        half = t_quantile(0.975, count - 1) * np.std([i / 10 for i in range(count)], ddof=1) / count**0.5
        assert (low[-1], high[-1]) == pytest.approx((ys[-1] - half, ys[-1] + half))
        assert low[0] == high[0] == pytest.approx(0.1)


def test_five_pairs_are_enough():
    found = findings(finals(MIN_PAIRS))
    difference = found.difference("chains", "exgrpo", "on-policy", "pass_at_1")
    assert difference.pairs == MIN_PAIRS == 5
    assert difference.mean == pytest.approx(0.1 + 0.01 * 2)  # 0.10, 0.11, 0.12, 0.13, 0.14
    half = 2.7764451 * np.std([0.10, 0.11, 0.12, 0.13, 0.14], ddof=1) / 5**0.5
    assert difference.t_high - difference.mean == pytest.approx(half, rel=1e-6)
    (row,) = difference_rows(found, "chains")
    assert row["Pass@1"] == "+12.0 [+10.0, +14.0]"
    assert (row["arm"], row["against"], row["pairs"]) == ("exgrpo", "on-policy", 5)
    assert intervals(found)


def test_four_common_seeds_of_seven_and_six_are_four_pairs():
    """`exgrpo` has seeds 0 to 5, the baseline 2 to 8: common are 2 to 5."""
    by_arm = {"on-policy": finals(7, first=2)["on-policy"], "exgrpo": finals(6)["exgrpo"]}
    found = findings(by_arm, seeds=9)
    assert found.seeds("chains", "exgrpo", "on-policy") == [2, 3, 4, 5]
    assert found.difference("chains", "exgrpo", "on-policy", "pass_at_1") is None
    assert difference_rows(found, "chains") == []
    assert [row["seeds"] for row in arm_rows(found, "chains") if row["arm"] != "(start)"] == [7, 6]


def test_seeds_of_one_arm_alone_are_left_out_of_pairs():
    """Seed 9, which only `exgrpo` has, would turn the difference around."""
    by_arm = finals(6)
    by_arm["exgrpo"][9] = -50.0
    found = findings(by_arm, seeds=10)
    whole = findings(finals(6), seeds=10)
    assert found.difference("chains", "exgrpo", "on-policy", "pass_at_1") == whole.difference(
        "chains", "exgrpo", "on-policy", "pass_at_1"
    )
    assert found.mean("chains", "exgrpo", "pass_at_1") < 0  # but means are over all that an arm has


def test_pairs_are_of_the_same_seed_whatever_the_order():
    found = findings(finals(6), seeds={"first": 0, "count": 6})
    backwards = findings(finals(6), seeds=[5, 4, 3, 2, 1, 0])
    one, other = (f.difference("chains", "exgrpo", "on-policy", "pass_at_1") for f in (found, backwards))
    assert (one.mean, one.t_low, one.t_high) == pytest.approx((other.mean, other.t_low, other.t_high))


def test_a_figure_that_a_run_lacks_is_not_compared():
    found = findings(finals(6), seeds=6)
    assert found.difference("chains", "exgrpo", "on-policy", "retired") is None  # on-policy retires nothing: None
    runs = {**found.runs, ("chains", "exgrpo", 3): run_of(0.1, 0.2, 0.3)}  # no times of one run
    without = type(found)(found.study, runs, found.about)
    assert without.difference("chains", "exgrpo", "on-policy", "equal_time") is None
    assert without.difference("chains", "exgrpo", "on-policy", "pass_at_1") is not None
    (row,) = difference_rows(without, "chains")
    assert "Pass@1 at equal time" not in row


def test_contrasts_and_given_pairs():
    by_arm = finals(5) | {"rescue": dict.fromkeys(range(5), 0.5)}
    found = findings(by_arm, contrasts=[["rescue", "exgrpo"]])
    pairs = [(row["arm"], row["against"]) for row in difference_rows(found, "chains")]
    assert pairs == [("exgrpo", "on-policy"), ("rescue", "on-policy"), ("rescue", "exgrpo")]
    rows = difference_rows(found, "chains", figures=("greedy_accuracy",), pairs=[("rescue", "exgrpo")])
    assert [set(row) for row in rows] == [{"arm", "against", "pairs", "greedy accuracy", "tried"}]


def test_numbers_in_an_interval_are_points_with_a_sign():
    def written(mean, low, high):
        return interval(PairedDifference(mean, 0.0, 0.0, low, high, 5, 0.95))

    assert written(0.0441, -0.015, 0.9994) == "+4.4 [-1.5, +99.9]"
    assert written(0.0, -1.0, 1.0) == "+0.0 [-100.0, +100.0]"
    assert written(-0.0001, -0.1, 0.0) == "+0.0 [-10.0, +0.0]"
