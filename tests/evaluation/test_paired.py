"""Paired differences: the intervals cover what they promise."""

import numpy as np
import pytest
import scipy.stats

from exgrpo.errors import ConfigurationError
from exgrpo.evaluation import paired_difference
from exgrpo.evaluation.paired import t_quantile


def test_quantiles_equal_those_of_scipy():
    for df in (1, 2, 3, 4, 5, 9, 10, 99, 1000):
        for p in (0.5, 0.75, 0.975, 0.995):
            assert t_quantile(p, df) == pytest.approx(scipy.stats.t.ppf(p, df), rel=1e-9, abs=1e-9)


def test_a_known_case():
    a, b = [1.0, 2.0, 3.0, 4.0, 6.0], [0.5, 1.0, 2.5, 3.0, 4.0]
    result = paired_difference(a, b)
    reference = scipy.stats.ttest_rel(a, b).confidence_interval(0.95)
    assert result.mean == pytest.approx(1.0)
    assert (result.t_low, result.t_high) == pytest.approx((reference.low, reference.high))
    assert result.t_low < result.bootstrap_low < result.mean < result.bootstrap_high < result.t_high
    assert result.pairs == 5
    assert result.significant
    assert result == paired_difference(a, b)
    mirrored = paired_difference(b, a)
    assert (mirrored.mean, mirrored.t_low) == pytest.approx((-result.mean, -result.t_high))


def test_equal_arms():
    result = paired_difference([1.0] * 5, [1.0] * 5)
    assert (result.t_low, result.mean, result.bootstrap_high) == (0.0, 0.0, 0.0)
    assert not result.significant


def test_coverage_on_normal_data():
    rng = np.random.default_rng(7)
    covered = {"t": 0, "bootstrap": 0}
    trials = 600
    for trial in range(trials):
        shared = rng.normal(size=20)
        a, b = shared + rng.normal(0.3, 1.0, 20), shared + rng.normal(0.0, 1.0, 20)
        result = paired_difference(a, b, resamples=500, seed=trial)
        covered["t"] += result.t_low <= 0.3 <= result.t_high
        covered["bootstrap"] += result.bootstrap_low <= 0.3 <= result.bootstrap_high
    assert 0.93 <= covered["t"] / trials <= 0.97
    assert 0.89 <= covered["bootstrap"] / trials <= 0.97


@pytest.mark.parametrize(
    ("a", "b", "options"),
    [
        ([1.0] * 4, [2.0] * 4, {}),
        ([1.0] * 5, [2.0] * 6, {}),
        ([[1.0]] * 5, [[2.0]] * 5, {}),
        ([float("nan")] * 5, [2.0] * 5, {}),
        ([1.0] * 5, [2.0] * 5, {"confidence": 95}),
        ([1.0] * 5, [2.0] * 5, {"resamples": 0}),
    ],
)
def test_refusals(a, b, options):
    with pytest.raises(ConfigurationError):
        paired_difference(a, b, **options)


def test_too_few_pairs_says_how_many_are_needed():
    with pytest.raises(ValueError, match="at least 5 pairs, got 3"):
        paired_difference([1, 2, 3], [1, 2, 3])
