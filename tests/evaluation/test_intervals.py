"""Intervals of rates and differences: against scipy where they are exact, against simulated truth where they are not."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from exgrpo.errors import ConfigurationError
from exgrpo.evaluation.intervals import (
    beta_cdf,
    beta_quantile,
    clopper_pearson,
    of_difference,
    of_mean,
    within_variance,
)

COVERAGE = Path(__file__).parents[2] / "benchmarks" / "results" / "intervals.json"


@pytest.mark.parametrize("a", [0.3, 1.0, 7.5, 400.0])
@pytest.mark.parametrize("b", [0.5, 2.0, 33.0])
def test_the_beta_distribution_is_scipy_s(a, b):
    for p in (0.025, 0.4, 0.975):
        assert beta_quantile(p, a, b) == pytest.approx(stats.beta.ppf(p, a, b), abs=1e-9)
        assert beta_cdf(p, a, b) == pytest.approx(stats.beta.cdf(p, a, b), abs=1e-10)


@pytest.mark.parametrize(("right", "n"), [(0, 5), (5, 5), (1, 8), (7, 30), (250, 500)])
def test_one_sample_a_question_is_the_exact_interval(right, n):
    exact = stats.binomtest(right, n).proportion_ci(method="exact")
    found = of_mean([1.0] * right + [0.0] * (n - right), n)
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high), abs=1e-9)
    assert clopper_pearson(right, n) == pytest.approx((exact.low, exact.high), abs=1e-9)


def test_more_samples_of_a_question_narrow_it_only_as_far_as_questions_agree():
    alike, unlike = [0.5, 0.5, 0.6, 0.4, 0.5], [1.0, 0.0, 1.0, 0.0, 0.5]
    width = {name: of_mean(x, 5 * 32) for name, x in (("alike", alike), ("unlike", unlike))}
    assert width["alike"].high - width["alike"].low < 0.5 * (width["unlike"].high - width["unlike"].low)
    assert width["unlike"].high - width["unlike"].low > 0.8
    assert width["unlike"].error == pytest.approx(np.std(unlike, ddof=1) / np.sqrt(5))


def test_ties_are_no_certainty_and_a_clear_difference_is_told_apart():
    tie = of_difference([1.0] * 8, [1.0] * 8)
    assert tie.mean == 0
    assert tie.low < -0.2 < 0.2 < tie.high
    assert (tie.questions_needed, tie.told_apart) == (None, False)
    clear = of_difference([0.9] * 30, [0.4] * 30)
    assert clear.told_apart
    rng = np.random.default_rng(0)
    a, b = rng.binomial(4, 0.55, 40) / 4, rng.binomial(4, 0.45, 40) / 4
    unclear = of_difference(a, b, within_variance([0.55] * 40, [4] * 40))
    if not unclear.told_apart:
        assert unclear.questions_needed > 40
    assert 0 < unclear.samples_help <= 1


def test_the_needed_questions_would_tell_apart():
    """With that many questions as these the interval is just clear of 0."""
    d = np.array([0.0, 0.0, 0.25, -0.25, 0.25, 0.25, 0.0, 0.25])
    needed = of_difference(0.5 + d, np.full(8, 0.5)).questions_needed
    assert not of_difference(0.5 + d, np.full(8, 0.5)).told_apart
    assert of_difference(np.tile(0.5 + d, needed // 4), np.full(8 * (needed // 4), 0.5)).told_apart
    assert not of_difference(np.tile(0.5 + d, needed // 20), np.full(8 * (needed // 20), 0.5)).told_apart


def test_the_samples_part_of_the_variance():
    """Two questions of four samples: p (1 - p) / (n - 1) is the unbiased variance of a question's accuracy."""
    assert within_variance([0.5, 1.0], [4, 4]) == pytest.approx((0.25 / 3 + 0) / 2)
    assert within_variance([1.0], [1]) is None
    rng = np.random.default_rng(1)
    x = rng.binomial(4, 0.3, 200_000) / 4
    assert np.mean(x * (1 - x) / 3) == pytest.approx(x.var(), rel=0.02)


@pytest.mark.parametrize("values", [[], [0.5, 1.5], [[0.5]], [float("nan")]])
def test_what_is_no_accuracy_is_refused(values):
    with pytest.raises(ConfigurationError, match="each in"):
        of_mean(values, 10)


def test_every_interval_holds_the_truth_as_often_as_it_says():
    """The stored simulation: nowhere below 95 % by more than its Monte Carlo error, taken over all its cases."""
    found = json.loads(COVERAGE.read_text())
    rows = found["rows"]
    assert {row["n"] for row in rows} == {5, 8, 30, 500}
    assert {row["interval"] for row in rows} == {"rate", "difference", "pairs of seeds"}
    limit = stats.norm.ppf(1 - 0.01 / len(rows))  # so that of all cases one is below by chance once in a hundred
    low = [row for row in rows if row["coverage"] < found["nominal"] - limit * row["standard_error"]]
    assert low == []


@pytest.mark.parametrize(("n", "a", "b"), [(5, 1.0, 1.0), (8, 20.0, 0.4)])
def test_a_small_simulation_agrees(n, a, b):
    rng = np.random.default_rng(3)
    truth, held, draws = a / (a + b), 0, 300
    for _ in range(draws):
        x = rng.binomial(4, rng.beta(a, b, n)) / 4
        found = of_mean(x, 4 * n)
        held += found.low <= truth <= found.high
    assert held / draws > 0.95 - 3 * np.sqrt(0.95 * 0.05 / draws)
