"""The drawing of questions against its exact law, and the arithmetic around it."""

import warnings
from collections import Counter
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import chisquare

from exgrpo.config import ReplayConfig
from exgrpo.errors import ConfigurationError
from exgrpo.experience import ExperienceBuffer, Trajectory, bucket_of, tier_of
from exgrpo.replay import replay_count
from exgrpo.replay.members import draw_members
from exgrpo.replay.plan import spaced
from exgrpo.replay.question_candidates import QuestionCandidates
from exgrpo.replay.rng import generator_for
from exgrpo.replay.sampling import bucket_probabilities, draw_counts, draw_questions, gaussian
from tests.reference import sampler as reference

CHOICES = ("gaussian", "variance", "uniform")


def pool(sizes) -> ExperienceBuffer:
    """A buffer whose bucket b holds sizes[b] questions; questions are numbered bucket by bucket."""
    k = len(sizes) - 1
    buffer = ExperienceBuffer(sum(sizes) + 1, k)
    question = 0
    for bucket, size in enumerate(sizes):
        for _ in range(size):
            buffer.observe(question, bucket, k)
            buffer.admit([Trajectory(question, np.array([1]), np.array([-1.0]), np.array([1.0]), 0)])
            question += 1
    assert buffer.bucket_sizes().tolist() == list(sizes)
    return buffer


def law(choice, n, sizes, **gaussian):
    if choice == "uniform":
        return reference.uniform_law_of_counts(n, sizes)
    return reference.law_of_counts(n, reference.weights(choice, len(sizes) - 1, sizes, **gaussian), sizes)


def assert_law(observed: Counter, expected: dict, draws: int):
    """Chi-square at one in a million, cells of fewer than five expected together; nothing outside the support."""
    assert set(observed) <= {key for key, chance in expected.items() if chance > 0}
    assert sum(expected.values()) == pytest.approx(1.0)
    large = [key for key, chance in expected.items() if chance * draws >= 5]
    got = [observed[key] for key in large]
    want = [expected[key] * draws for key in large]
    if (rest := draws - sum(want)) > 1e-6 * draws:
        got.append(draws - sum(got))
        want.append(rest)
    if len(got) > 1:
        assert chisquare(got, np.array(want) * sum(got) / sum(want)).pvalue > 1e-6


POOLS = [
    (3, (0, 2, 2, 1, 0)),  # overflow of the middle
    (4, (1, 1, 1, 1, 1)),
    (2, (5, 0, 1, 0, 5)),
    (3, (4, 0, 0, 0, 4)),  # extremes only
    (2, (0, 3, 0, 0, 0)),
    (3, (2, 0, 0, 3, 2)),
]


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize(
    ("n", "sizes"), [POOLS[0], *(pytest.param(*pool, marks=pytest.mark.slow) for pool in POOLS[1:])]
)
def test_counts_follow_the_exact_law(choice, n, sizes):
    draws, buffer, config = 4000, pool(sizes), ReplayConfig(question_choice=choice, sigma=0.3)
    bucket_of_question = np.repeat(np.arange(len(sizes)), sizes)
    counts, questions = Counter(), Counter()
    for i in range(draws):
        drawn = draw_questions(buffer, n, config, generator_for(1, i, 0))
        counts[tuple(np.bincount(bucket_of_question[drawn], minlength=len(sizes)).tolist())] += 1
        questions.update(drawn)
    expected = law(choice, n, sizes, sigma=0.3)
    assert_law(counts, expected, draws)
    inclusion = reference.inclusion(expected, sizes)
    for question, bucket in enumerate(bucket_of_question):  # uniform inside the bucket
        p = inclusion[bucket]
        assert abs(questions[question] / draws - p) < 5.5 * (p * (1 - p) / draws) ** 0.5 + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.125, 1.0])
def test_the_method_s_own_law_at_eight_completions(sigma):
    """One draw from full buckets: the Gaussian itself, 0.125 by default; at sigma 1 nearly uniform."""
    sizes, draws, config = (3,) * 9, 8_000, ReplayConfig(sigma=sigma)
    buffer = pool(sizes)
    got = Counter(draw_questions(buffer, 1, config, generator_for(3, i, 0))[0] // 3 for i in range(draws))
    weights = reference.weights("gaussian", 8, sizes, sigma=sigma)
    assert_law(got, {b: w / sum(weights) for b, w in enumerate(weights)}, draws)


def test_sigma_of_the_paper_s_text_is_nearly_uniform():
    config = ReplayConfig(sigma=1.0)
    p = bucket_probabilities(
        gaussian(QuestionCandidates(np.arange(1, 8) / 8, np.ones(7, int), config, ExperienceBuffer(1, 8))),
        np.ones(7, int),
    )
    assert [round(100 * float(x), 1) for x in (p.min(), p.max())] == [13.7, 14.7]


@pytest.mark.slow
def test_pairs_are_uniform_inside_a_bucket_and_order_is_random():
    buffer, draws = pool((0, 0, 4, 0, 0)), 6000
    pairs = Counter(tuple(draw_questions(buffer, 2, ReplayConfig(), generator_for(5, i, 0))) for i in range(draws))
    assert_law(pairs, {(a, b): 1 / 12 for a in range(4) for b in range(4) if a != b}, draws)


@pytest.mark.parametrize("choice", CHOICES)
def test_sets_of_questions_are_uniform_where_they_should_be(choice):
    """All in one bucket, every choice is uniform over the sets of n."""
    buffer, draws, config = pool((0, 0, 5, 0, 0)), 5000, ReplayConfig(question_choice=choice)
    sets = Counter(frozenset(draw_questions(buffer, 3, config, generator_for(9, i, 0))) for i in range(draws))
    assert len(sets) == 10
    assert chisquare(list(sets.values())).pvalue > 1e-6


@st.composite
def pools(draw):
    k = draw(st.sampled_from([2, 3, 7, 8, 64, 128]))
    filled = draw(st.dictionaries(st.integers(0, k), st.integers(1, 4), min_size=1, max_size=6))
    sizes = tuple(filled.get(b, 0) for b in range(k + 1))
    return sizes, draw(st.integers(0, sum(sizes)))


@given(pools(), st.sampled_from(CHOICES), st.sampled_from([1e-300, 1e-160, 1e-3, 0.125, 1.0, 1e300]),
       st.sampled_from([0.0, 0.3, 0.5, 1.0]), st.integers(0, 5))  # fmt: skip
@example(((3,) + (0,) * 127 + (3,), 6), "gaussian", 1e-3, 0.5, 0)
@example(((3,) + (0,) * 127 + (3,), 4), "variance", 0.125, 0.5, 0)
@example(((1, 0, 0), 1), "gaussian", 0.125, 0.5, 0)
@example(((0, 0, 1), 1), "variance", 0.125, 0.5, 0)
def test_any_pool_gives_n_different_replayable_questions(drawn, choice, sigma, mu, seed):
    """No underflow and no exception, whatever the pool: extremes only, one element, all of it."""
    sizes, n = drawn
    buffer, config = pool(sizes), ReplayConfig(question_choice=choice, sigma=sigma, mu=mu)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        questions = draw_questions(buffer, n, config, generator_for(seed, 0, 0))
    assert len(questions) == len(set(questions)) == n
    assert set(questions) <= set(range(sum(sizes)))
    assert questions == draw_questions(buffer, n, config, generator_for(seed, 0, 0))
    assert all(isinstance(q, int) for q in questions)


def test_variance_takes_extremes_only_when_nothing_else_is_left():
    buffer, config = pool((3, 0, 2, 0, 3)), ReplayConfig(question_choice="variance")
    for seed in range(50):
        assert set(draw_questions(buffer, 2, config, generator_for(seed, 0, 0))) == {3, 4}
        assert {3, 4} <= set(draw_questions(buffer, 3, config, generator_for(seed, 0, 0)))


@pytest.mark.parametrize(("questions", "size"), [(2400, 20), (2400, 4), (60, 20)])
def test_every_set_of_a_bucket_is_drawn_alike(questions, size):
    """By guesses where few do, and by a list where many are needed."""
    ready = np.full(questions, -1, np.int8)
    members = np.arange(questions)[:: questions // size][:size]
    ready[members], ready[members + 1] = 3, 2
    rng, draws, n = np.random.default_rng(0), 6000, 2
    counts = Counter(question for _ in range(draws) for question in draw_members(ready, 3, size, n, rng))
    assert set(counts) <= set(members.tolist())
    assert sum(counts.values()) == n * draws
    assert chisquare([counts[question] for question in members.tolist()]).pvalue > 1e-6
    pairs = Counter(frozenset(draw_members(ready, 3, size, n, rng)) for _ in range(draws))
    number = size * (size - 1) // 2
    assert {len(pair) for pair in pairs} == {n}
    assert chisquare([*pairs.values(), *[0] * (number - len(pairs))]).pvalue > 1e-6


def test_draws_depend_on_seed_and_generation_alone():
    buffer, config = pool((0, 5, 5, 5, 0)), ReplayConfig()
    first = [draw_questions(buffer, 4, config, generator_for(s, g, 0)) for s in range(3) for g in range(3)]
    np.random.seed(0)  # noqa: NPY002  whatever a global generator did meanwhile
    np.random.random(100)  # noqa: NPY002
    again = [draw_questions(buffer, 4, config, generator_for(s, g, 0)) for s in range(3) for g in range(3)]
    assert first == again
    assert len(set(map(tuple, first))) == 9


def test_purposes_draw_independently():
    draws = [generator_for(1, 2, purpose).random() for purpose in range(5)]
    assert len(set(draws)) == 5


@pytest.mark.parametrize("sizes", [(0, 1, 0), (1, 0, 0, 1), (2,) * 9])
def test_counts_sum_to_n_and_keep_inside_the_sizes(sizes):
    sizes = np.array(sizes)
    for n in range(sizes.sum() + 1):
        counts = draw_counts(n, np.zeros(len(sizes)), sizes, np.random.default_rng(n))
        assert counts.sum() == n
        assert (counts <= sizes).all()


def test_the_buffer_s_observation_is_what_is_drawn_by():
    """A question that moved from one bucket to another is drawn with its new weight; a retired one never."""
    buffer, config = pool((0, 0, 0, 0, 6, 0, 0, 0, 0)), ReplayConfig(sigma=0.05)
    buffer.observe(0, 0, 8)
    buffer.retire(1)
    drawn = {q for i in range(200) for q in draw_questions(buffer, 4, config, generator_for(0, i, 0))}
    assert drawn == {2, 3, 4, 5}
    assert set(draw_questions(buffer, 5, config, generator_for(0, 0, 0))) == {0, 2, 3, 4, 5}


# Arithmetic ---------------------------------------------------------------------------------------------------------


def test_buckets_are_fractions_rounded_half_up():
    for k in (*range(1, 18), 31, 32, 63, 64, 127, 128):
        for n in range(1, k + 1):
            for s in range(n + 1):
                assert bucket_of(s, n, k) == reference.bucket(s, n, k)
    assert [bucket_of(s, 8, 8) for s in range(9)] == list(range(9))
    assert [bucket_of(s, 7, 8) for s in range(8)] == [0, 1, 2, 3, 5, 6, 7, 8]
    assert bucket_of(1, 2, 3) == 2  # 1.5, half up


@pytest.mark.parametrize(("successes", "scorable"), [(1, 0), (0, 0), (-1, 3), (4, 3)])
def test_no_bucket_for_what_is_no_accuracy(successes, scorable):
    with pytest.raises(ValueError, match=f"{successes}/{scorable}"):
        bucket_of(successes, scorable, 8)


def test_tiers():
    assert [tier_of(b, 8) for b in range(8)] == ["unsolved", "hard", "hard", *["medium"] * 3, "easy", "easy"]
    for k in (2, 3, 4, 16, 128):
        for b in range(1, k):
            accuracy = Fraction(b, k)
            expected = "hard" if accuracy <= Fraction(1, 4) else "medium" if accuracy < Fraction(3, 4) else "easy"
            assert tier_of(b, k) == expected


@given(st.integers(0, 4096), st.decimals(0, 1, places=4))
@example(100, Decimal("0.29"))
@example(100, Decimal("0.57"))
@example(100, Decimal("0.58"))
@example(10, Decimal("0.7"))
def test_share_is_exact_in_decimals(batch_size, rho):
    assert replay_count(batch_size, float(rho)) == reference.share(batch_size, str(rho))


def test_share_of_a_float_that_falls_short():
    assert int(0.29 * 100) == 28
    assert replay_count(100, 0.29) == 29
    assert replay_count(8, 1) == replay_count(8, 1.0) == 8
    assert replay_count(8, 0) == 0
    assert replay_count(3, 0.5) == 1
    assert replay_count(128, np.float64(0.29)) == 37
    for wrong in (-0.1, float("inf"), float("nan")):
        with pytest.raises(ConfigurationError, match="replay_share"):
            replay_count(8, wrong)


@given(st.integers(1, 300).flatmap(lambda b: st.tuples(st.integers(0, b), st.just(b))))
def test_replayed_groups_are_spread_evenly(drawn):
    n, batch_size = drawn
    places = spaced(n, batch_size).tolist()
    assert len(set(places)) == len(places) == n
    assert all(0 <= place < batch_size for place in places)
    for ranks in (2, 4, 8):
        if batch_size % ranks == 0:
            per_rank = [sum(place * ranks // batch_size == rank for place in places) for rank in range(ranks)]
            assert max(per_rank) - min(per_rank) <= 1
