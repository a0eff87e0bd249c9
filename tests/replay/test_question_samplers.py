"""Each way to choose questions, against weights and sets worked out by hand."""

import math
from collections import Counter

import numpy as np
import pytest

from exgrpo.config import QUESTION_SAMPLERS, ReplayConfig
from exgrpo.errors import ConfigurationError
from exgrpo.experience import ExperienceBuffer
from exgrpo.experience.difficulty import scaled
from exgrpo.replay import ReplayPlanner
from exgrpo.replay.options.samplers import headroom, quantile
from exgrpo.replay.question_candidates import QuestionCandidates
from exgrpo.replay.rng import generator_for
from exgrpo.replay.sampling import draw_questions
from exgrpo.replay.stream import FreshStream
from exgrpo.replay.validation import weights_of
from tests.support.lab import NAN, Lab, added, replayed, trajectory


def buckets(sizes, **options):
    """Buckets 0..K of the given sizes."""
    k = len(sizes) - 1
    return QuestionCandidates(np.arange(k + 1) / k, np.array(sizes), ReplayConfig(**options), ExperienceBuffer(1, k))


def weights(name, sizes, **options):
    """The weights of whole buckets; None where their questions are never drawn."""
    found = buckets(sizes, question_choice=name, **options)
    log_weights, eligible = weights_of(QUESTION_SAMPLERS[name], found)
    each = zip(np.exp(log_weights) * sizes, eligible, strict=True)
    return [float(weight) if may else None for weight, may in each]


def pool(successes, k=4, types=None, advantage=NAN, **options):
    """A buffer whose question i has `successes[i]` of k right, and one stored trajectory."""
    buffer = ExperienceBuffer(len(successes), k, ReplayConfig(**options), types=types)
    for question, right in enumerate(successes):
        buffer.observe(question, right, k)
        buffer.admit([trajectory(question, 1, advantage=advantage)])
    return buffer


def draws(buffer, n, times=200, **options):
    """How often each question was drawn; every draw is checked to hold n different ones."""
    config, counts = ReplayConfig(**options), Counter()
    for generation in range(times):
        drawn = draw_questions(buffer, n, config, generator_for(0, generation, 0))
        assert len(drawn) == len(set(drawn))
        counts.update(drawn)
    return counts


def assert_near(count, times, chance):
    """Within 5 standard deviations."""
    assert abs(count - times * chance) <= 5 * math.sqrt(times * chance * (1 - chance)) + 1e-9


# Weights ------------------------------------------------------------------------------------------------------------


def test_gaussian_by_hand():
    """exp(-(a - 0.5)^2 / (2 0.25^2)) at 0, 1/4, 1/2, 3/4, 1: exp(-2), exp(-1/2), 1, ...; the size says nothing."""
    got = weights("gaussian", [5, 1, 1, 9, 2], sigma=0.25)
    assert got == pytest.approx([0.1353353, 0.6065307, 1.0, 0.6065307, 0.1353353])
    assert weights("gaussian", [1] * 5, sigma=0.25, mu=1.0)[3:] == pytest.approx([0.6065307, 1.0])


def test_uniform_weighs_by_the_number_of_questions():
    assert weights("uniform", [3, 1, 2]) == pytest.approx([3, 1, 2])


def test_variance_by_hand():
    """size p (1 - p): 2 x 3/16, 1 x 1/4, 3 x 3/16; nothing at 0 and 1."""
    assert weights("variance", [4, 2, 1, 3, 4]) == pytest.approx([0, 0.375, 0.25, 0.5625, 0])


@pytest.mark.parametrize(
    ("mu", "expected"),
    [
        (0.0, [2, 0.75, 0.5, 0.25, 0]),  # falls from the hard to the easy
        (0.5, [0, 0.5, 1, 0.5, 0]),
        (1.0, [0, 0.25, 0.5, 0.75, 1]),
        (0.25, [2 * 2 / 3, 1, 2 / 3, 1 / 3, 0]),  # the farther end is 1, at 0.75 from mu
    ],
)
def test_linear_by_hand(mu, expected):
    assert weights("linear", [2, 1, 1, 1, 1], mu=mu) == pytest.approx(expected)


def test_tiers_by_hand():
    """Two tiers, [0, 1/2) and [1/2, 1], with 3 to 1: 0.75 over the 4 questions below, 0.25 over the 2 above."""
    assert weights("tiers", [3, 1, 1, 0, 1], tier_shares=(3, 1)) == pytest.approx([9 / 4, 3 / 4, 0.5, 0, 0.5])


def test_a_tier_with_share_0_is_never_drawn():
    assert weights("tiers", [1, 1, 1, 1, 1], tier_shares=(0, 1))[:2] == [None, None]
    buffer = pool([0, 1, 1, 2, 4])
    assert set(draws(buffer, 4, question_choice="tiers", tier_shares=(0, 1))) == {3, 4}  # 2 where 4 were wanted


def test_tiers_share_as_they_should():
    """One question of four in the tier below, with 0.9; three above, with 0.1 together."""
    counts = draws(pool([1, 2, 3, 4]), 1, 2000, question_choice="tiers", tier_shares=(0.9, 0.1))
    assert_near(counts[0], 2000, 0.9)
    for question in (1, 2, 3):
        assert_near(counts[question], 2000, 0.1 / 3)


def test_the_default_tiers_are_fifths():
    """0, 1/4 | 1/2 | 3/4, 1 lie in the fifths 0, 1, 2, 3, 4: one bucket each."""
    assert weights("tiers", [2, 1, 1, 4, 1]) == pytest.approx([0.2] * 5)


def test_an_empty_tier_leaves_its_share_to_the_others():
    counts = draws(pool([0, 0, 4, 4]), 1, 2000, question_choice="tiers", tier_shares=(1, 8, 3))
    for question, chance in enumerate([1 / 8, 1 / 8, 3 / 8, 3 / 8]):
        assert_near(counts[question], 2000, chance)


# Range --------------------------------------------------------------------------------------------------------------


def test_fixed_bounds_are_exclusive():
    got = weights("range", [1, 2, 3, 4, 5], range_low=0.25, range_high=0.75)
    assert got == [None, None, pytest.approx(3), None, None]
    got = weights("range", [1, 2, 3, 4, 5], range_low=0.0, range_high=1.0)
    assert got == [None, *map(pytest.approx, (2, 3, 4)), None]
    ten = weights("range", [1] * 11)  # 0.3 and 0.7 themselves are outside
    assert [b for b, w in enumerate(ten) if w is not None] == [4, 5, 6]


def test_nothing_outside_the_range_is_drawn_and_inside_all_are_alike():
    buffer = pool([0, 1, 1, 2, 3, 4])
    counts = draws(buffer, 2, 3000, question_choice="range", range_low=0.2, range_high=0.6)
    assert set(counts) == {1, 2, 3}
    for question in (1, 2, 3):
        assert_near(counts[question], 3000, 2 / 3)
    assert sum(draws(buffer, 6, question_choice="range", range_low=0.2, range_high=0.6).values()) == 3 * 200


def test_an_empty_range_says_so():
    lab = Lab(k=4, question_choice="range", range_low=0.3, range_high=0.7)
    lab.store(0, 1, successes=4, scorable=4)
    lab.store(1, 1, successes=1, scorable=4)
    plan = lab.plan(4)
    assert plan.num_replayed == 0
    assert plan.idle == "none of the stored trajectories or their questions is eligible now"


@pytest.mark.parametrize(
    ("q", "expected"),
    [(0.0, 0.0), (0.1, 0.0), (0.2, 0.0), (0.21, 0.25), (0.5, 0.25), (0.6, 0.25), (0.61, 0.75), (1, 1)],
)
def test_quantiles_by_hand(q, expected):
    """Of 0, 0, 1/4, 1/4, 1/4, 1/4, 3/4, 3/4, 3/4, 1: the smallest that a share q lies at or below."""
    assert quantile(np.arange(5) / 4, np.array([2, 4, 0, 3, 1]), q) == expected


def test_quantiles_of_unordered_values_and_of_none():
    assert quantile(np.array([0.9, 0.1, 0.5]), np.array([1, 1, 1]), 0.5) == 0.5
    assert math.isnan(quantile(np.array([0.5]), np.array([0]), 0.5))


def test_bounds_that_adapt_are_quantiles_inclusive():
    """The same ten: the 0.2 quantile is 0, the 0.6 quantile 1/4, both inside."""
    got = weights("range", [2, 4, 0, 3, 1], range_adapts=True, range_low=0.2, range_high=0.6)
    assert [b for b, w in enumerate(got) if w is not None and w > 0] == [0, 1]
    got = weights("range", [2, 4, 0, 3, 1], range_adapts=True, range_low=0.3, range_high=0.7)
    assert [b for b, w in enumerate(got) if w is not None and w > 0] == [1, 3]
    got = weights("range", [2, 4, 0, 3, 1], range_adapts=True, range_low=0.5, range_high=0.5)
    assert [b for b, w in enumerate(got) if w is not None and w > 0] == [1]


def test_a_pool_of_easy_questions_has_a_middle_too():
    """A fixed range finds nothing where every accuracy is 3/4 or 1; one that adapts does."""
    buffer = pool([3, 3, 4, 4, 4, 4])
    options = dict(question_choice="range", range_low=0.3, range_high=0.7)
    assert not draws(buffer, 2, **options)
    assert set(draws(buffer, 6, range_adapts=True, **options)) == {0, 1, 2, 3, 4, 5}  # 0.3 is at 3/4, 0.7 at 1
    assert set(draws(buffer, 6, range_adapts=True, **{**options, "range_low": 0.4})) == {2, 3, 4, 5}


# Headroom -----------------------------------------------------------------------------------------------------------


def with_headroom(*stored, k=4, **options):
    """Question i holds trajectories of (advantage, probability of its tokens)."""
    buffer = ExperienceBuffer(len(stored), k, ReplayConfig(**options))
    for question, trajectories in enumerate(stored):
        buffer.observe(question, 2, k)
        for name, (advantage, probability) in enumerate(trajectories):
            logps = [math.log(probability)] * 2
            buffer.admit([trajectory(question, name, logps=logps, advantage=advantage)])
    return buffer


def test_headroom_ranks_questions_by_their_best_trajectory():
    """1 - pi where A > 0, pi where A < 0, 0 at A = 0: 0.1 and 0.6, 0.7, 0, 0.5."""
    buffer = with_headroom([(0.5, 0.9), (-0.5, 0.6)], [(0.5, 0.3)], [(0.0, 0.5)], [(-0.2, 0.5)])
    config = ReplayConfig(question_choice="headroom")
    for n, expected in ((1, {1}), (2, {1, 0}), (3, {1, 0, 3}), (4, {0, 1, 2, 3})):
        for seed in range(20):
            assert set(draw_questions(buffer, n, config, generator_for(seed, 0, 0))) == expected


def test_headroom_weights_are_so_steep_that_they_rank():
    buffer = with_headroom([(1.0, 0.25)], [(-1.0, 0.5)], [])
    got = headroom(QuestionCandidates(np.zeros(3), np.ones(3, int), ReplayConfig(), buffer, np.arange(3), 0))
    np.testing.assert_allclose(got, [0.75e9, 0.5e9, -1e9], rtol=1e-3)


def test_ties_of_headroom_are_broken_at_random():
    buffer = with_headroom(*[[(1.0, 0.5)]] * 4)
    counts = draws(buffer, 1, 2000, question_choice="headroom")
    for question in range(4):
        assert_near(counts[question], 2000, 0.25)


def test_a_trajectory_whose_advantage_is_not_known_has_no_headroom():
    buffer = with_headroom([(NAN, 0.1)], [(1.0, 0.99)])
    assert set(draws(buffer, 1, question_choice="headroom")) == {1}
    assert set(draws(buffer, 2, question_choice="headroom")) == {0, 1}


# What the accuracy is of -----------------------------------------------------------------------------------------------


def test_scaled_spreads_span_0_to_1():
    np.testing.assert_allclose(scaled(np.array([0.1, 0.5, 0.3, 0.2])), [0, 1, 0.5, 0.25])
    np.testing.assert_array_equal(scaled(np.array([0.1, NAN, 0.2])), [0, NAN, 1])
    np.testing.assert_array_equal(scaled(np.array([0.3, 0.3])), [0.5, 0.5])
    np.testing.assert_array_equal(scaled(np.array([NAN, NAN])), [NAN, NAN])


def test_spread_difficulty_draws_by_the_scaled_spread():
    """Spreads 0.1, 0.2, 0.3 and one unknown: scaled 0, 1/2, 1. A range around 1/2 holds the second alone."""
    lab = Lab(6, k=4, difficulty="spread", question_choice="range")
    for question, reward_std in enumerate((0.1, 0.2, 0.3, NAN)):
        lab.store(question, 1, reward_std=reward_std)
    for _ in range(20):
        assert replayed(lab.plan(2)) == [1]
    lab = Lab(6, k=4, difficulty="spread", question_choice="uniform", replay_share=1.0)
    for question, reward_std in enumerate((0.1, 0.2, 0.3, NAN)):
        lab.store(question, 1, reward_std=reward_std)
    assert {q for _ in range(20) for q in replayed(lab.plan(4))} == {0, 1, 2}


def test_spreads_are_scaled_over_what_can_be_replayed():
    """The greatest spread belongs to a question that retires: then that of the second is 1."""
    lab = Lab(6, k=4, difficulty="spread", question_choice="range", range_low=0.9, range_high=1.0, range_adapts=False)
    for question, reward_std in enumerate((0.1, 0.2, 0.3)):
        lab.store(question, 1, reward_std=reward_std)
    assert lab.plan(2).num_replayed == 0  # 0, 1/2, 1: none inside (0.9, 1)
    lab = Lab(6, k=4, difficulty="spread", question_choice="gaussian", mu=1.0, sigma=0.01)
    for question, reward_std in enumerate((0.1, 0.2, 0.3)):
        lab.store(question, 1, reward_std=reward_std)
    assert replayed(lab.plan(2)) == [2]
    lab.buffer.retire(2)
    assert replayed(lab.plan(2)) == [1]


def test_a_spread_that_is_unknown_everywhere_says_so():
    lab = Lab(6, difficulty="spread")
    lab.store(0, 1)
    assert lab.plan(2).idle == "none of the stored trajectories or their questions is eligible now"


# Problem types ---------------------------------------------------------------------------------------------------------


def test_types_are_drawn_in_proportion_to_what_can_be_replayed():
    """Six questions of one type and two of another; the accuracies of the two lie far from the middle."""
    types = np.array([0] * 6 + [1] * 2)
    successes = [2] * 6 + [0, 4]
    times = 3000
    apart = draws(pool(successes, types=types, by_problem_type=True), 1, times, sigma=0.05)
    assert_near(apart[6] + apart[7], times, 0.25)
    together = draws(pool(successes), 1, times, sigma=0.05)
    assert together[6] + together[7] == 0


def test_a_full_share_of_types_draws_each_whole():
    types = np.array([0, 1, 2, 0, 1, 2])
    assert draws(pool([2] * 6, types=types, by_problem_type=True), 6, 20) == dict.fromkeys(range(6), 20)


def test_bounds_adapt_for_each_type():
    """Type 0 at 0, 1/4, 1/2 and type 1 at 1/2, 3/4, 1: the median of each is inside."""
    types = np.array([0, 0, 0, 1, 1, 1])
    options = dict(question_choice="range", range_adapts=True, range_low=0.5, range_high=0.5)
    buffer = pool([0, 1, 2, 2, 3, 4], types=types, by_problem_type=True)
    assert set(draws(buffer, 2, **options)) == {1, 4}
    assert set(draws(pool([0, 1, 2, 2, 3, 4]), 2, **options)) == {2, 3}  # the common median is 1/2


def test_spreads_are_scaled_for_each_type():
    types = np.array([0, 0, 1, 1])
    lab = Lab(4, k=4, types=types, by_problem_type=True, difficulty="spread", mu=1.0, sigma=0.01, replay_share=1.0)
    for question, reward_std in enumerate((0.1, 0.2, 0.5, 0.9)):
        lab.store(question, 1, reward_std=reward_std)
    assert {q for _ in range(30) for q in replayed(lab.plan(1))} == {1, 3}


def test_types_must_be_given():
    with pytest.raises(ConfigurationError, match="by_problem_type=True needs the problem type"):
        ReplayPlanner(ReplayConfig(by_problem_type=True), FreshStream(np.arange, 2), 4, 0)


# Eligible questions alone ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["gaussian", "uniform", "range", "variance", "linear", "tiers", "headroom"])
def test_only_eligible_questions_are_drawn(choice):
    """Whatever the sampler; and where all are eligible, the law is the same as without a rule."""
    buffer = pool([1, 2, 2, 2, 3, 3], advantage=0.5)
    config = ReplayConfig(question_choice=choice, range_low=0.1, range_high=0.9)

    def odd(questions):
        return questions % 2 == 1

    for seed in range(40):
        rng = generator_for(seed, 0, 0)
        assert set(draw_questions(buffer, 2, config, rng, eligible=odd)) <= {1, 3, 5}
        assert set(draw_questions(buffer, 6, config, rng, eligible=odd)) == {1, 3, 5}
        assert draw_questions(buffer, 6, config, rng, eligible=lambda q: q < 0) == []


def test_quantiles_are_over_eligible_questions():
    buffer = pool([0, 0, 0, 4, 2])
    config = ReplayConfig(question_choice="range", range_adapts=True, range_low=1.0, range_high=1.0)
    for seed in range(10):
        assert draw_questions(buffer, 5, config, generator_for(seed, 0, 0)) == [3]
        assert draw_questions(buffer, 5, config, generator_for(seed, 0, 0), eligible=lambda q: q != 3) == [4]


def test_added_questions_need_a_known_advantage():
    lab = Lab(20, mixing="added", question_choice="uniform", trajectory_choice="newest")
    for question in range(4):
        lab.store(question, 1, advantage=0.5 if question == 2 else NAN)
    for _ in range(10):
        assert added(lab.plan(4)) == [2]
