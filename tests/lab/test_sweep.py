"""Arms at several learning rates: what is said of them equals plain loops."""

import statistics

import numpy as np
import pytest

from exgrpo.evaluation.paired import paired_difference
from exgrpo.lab.studies.page import in_words
from exgrpo.lab.studies.summary import Run
from exgrpo.lab.studies.sweep import Sweep, plain_name

from ..support.tiny import findings

RATES = (1e-4, 2e-4, 4e-4)


def sweep_of(values):
    """From final Pass@1 (arms, rates, seeds); Pass@8 is its root; every run starts at 0.5 with 1,000 samples."""

    def run(final):
        start = {"pass_at_1": 0.5, "pass_at_8": 0.7}
        return Run({}, (start, {"pass_at_1": final, "pass_at_8": final**0.5}), (), samples=1000)

    return Sweep(
        "made up",
        {
            f"arm {a}": {r: {s: run(v) for s, v in enumerate(seeds)} for r, seeds in zip(RATES, rates, strict=True)}
            for a, rates in enumerate(values)
        },
    )


@pytest.mark.parametrize("seed", range(5))
def test_each_seed_is_judged_at_the_rate_that_the_others_choose(seed):
    values = np.random.default_rng(seed).random((2, 3, 6))
    sweep = sweep_of(values)
    expected = np.empty((2, 6))
    for arm in range(2):
        for s in range(6):
            means = [statistics.fmean(v for other, v in enumerate(values[arm, r]) if other != s) for r in range(3)]
            expected[arm, s] = values[arm, int(np.argmax(means)), s]
        assert sweep.tuned(f"arm {arm}") == pytest.approx(expected[arm])
        assert sweep.tuned(f"arm {arm}", "pass_at_8") == pytest.approx(expected[arm] ** 0.5)
        assert sweep.untuned(f"arm {arm}") == pytest.approx(values[arm].mean(0))
        means = values[arm].mean(1)
        assert sweep.best(f"arm {arm}") == RATES[int(means.argmax())]
        assert sweep.suits(f"arm {arm}") == (means >= 0.8 * means.max()).sum()
        ended = [run.collapsed for by_seed in sweep.runs[f"arm {arm}"].values() for run in by_seed.values()]
        assert sweep.collapsed(f"arm {arm}") == (sum(ended), 18)
    found, wanted = sweep.difference("arm 1", "arm 0"), paired_difference(expected[1], expected[0])
    assert (found.mean, found.t_low, found.t_high) == pytest.approx((wanted.mean, wanted.t_low, wanted.t_high))


def test_a_rate_that_suits_one_seed_alone_is_not_taken_for_its_gain():
    """Noise alone: at its own best rate an arm would seem to gain, at that of the other seeds it does not."""
    rng, gains = np.random.default_rng(0), []
    for _ in range(200):
        sweep = sweep_of(0.5 + 0.1 * rng.standard_normal((1, 3, 5)))
        gains.append((statistics.fmean(sweep.tuned("arm 0")), sweep.mean("arm 0", sweep.best("arm 0"))))
    honest, flattered = np.mean(gains, axis=0) - 0.5
    error = 0.1 / (200 * 5) ** 0.5
    assert abs(honest) < 4 * error < flattered


def test_one_seed_has_no_other_to_choose_for_it_and_few_have_no_interval():
    sweep = sweep_of([[[0.1], [0.9], [0.2]], [[0.3], [0.2], [0.1]]])
    assert (sweep.tuned("arm 0"), sweep.tuned("arm 1")) == ([0.9], [0.3])
    assert sweep.difference("arm 0", "arm 1") is None
    assert sweep.in_words("arm 1")[0].startswith(
        "made up: arm 0 against arm 1, each at its own rate: +60.0 points, no interval "
        "(the one seed chose both rates, which flatters them)."
    )


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("on-policy learning_rate=1e-05", "on-policy"),
        ("weight, two learning_rate=0.0008, positive_weight=4", "weight, two, positive_weight=4"),
        ("exgrpo positive_weight=4, learning_rate=0.0008", "exgrpo positive_weight=4"),
        ("exgrpo learning_rate=1e-3 replay_share=0.5", "exgrpo replay_share=0.5"),
        ("exgrpo", "exgrpo"),
    ],
)
def test_the_name_of_an_arm_without_its_rate(name, plain):
    assert plain_name(name) == plain


GRID = {name: {"preset": name, "grid": {"learning_rate": [1e-3, 2e-3]}} for name in ("on-policy", "exgrpo")}


def finals(*arms):
    return {
        arm: {seed: 0.3 + 0.1 * place + 0.01 * seed**2 * place for seed in range(5)} for place, arm in enumerate(arms)
    }


def test_a_rate_that_is_not_done_yet_is_left_out():
    """One of two rates is done: there is no sweep, and the pair at that rate is told."""
    found = findings(
        finals("on-policy learning_rate=0.001", "exgrpo learning_rate=0.001"),
        arms=GRID,
        baseline="on-policy learning_rate=0.001",
    )
    assert Sweep.of_arms(found, "chains") is None
    (line,) = in_words(found)
    assert "exgrpo learning_rate=0.001 is " in line
    assert "above on-policy learning_rate=0.001" in line


def test_an_arm_without_rates_is_compared_with_those_that_have_them():
    arms = {"on-policy": {"preset": "on-policy"}, "exgrpo": GRID["exgrpo"]}
    names = ("on-policy", "exgrpo learning_rate=0.001", "exgrpo learning_rate=0.002")
    words = in_words(findings(finals(*names), arms=arms, baseline="on-policy"))
    assert "exgrpo does best at 0.002" in words[0]
    assert [line.split(" is ")[0] for line in words[1:]] == [f"chains: {name}" for name in names[1:]]
