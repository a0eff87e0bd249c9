"""Quality, diversity and tiers against numbers worked out by hand and against plain pairwise cosines."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.errors import ConfigurationError, TrajectoryError
from exgrpo.experience.quality import Diversity, embed, eviction_place, quality_of, tier_of_each
from exgrpo.experience.trajectory import Trajectory

coordinates = st.one_of(st.just(0.0), st.floats(-1, 1, width=16), st.sampled_from([1e-7, 1e-5, 200.0, -200.0]))
vectors = st.integers(1, 9).flatmap(
    lambda d: st.lists(st.lists(coordinates, min_size=d, max_size=d), min_size=1, max_size=12)
)


def plain_diversity(embedding, previous) -> float:
    """Pairwise cosines in float64."""

    def cosine(a, b):
        a, b = np.float16(a).astype(np.float64), np.float16(b).astype(np.float64)
        lengths = np.linalg.norm(a) * np.linalg.norm(b)
        return float(a @ b / lengths) if lengths else 0.0

    if not previous:
        return 1.0
    mean = sum(cosine(embedding, other) for other in previous) / len(previous)
    return min(max(1 - mean, 0.0), 1.0)


# Quality ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("success", "diversity", "weight", "quality"),
    [(1, 1, 0.7, 1.0), (1, 0, 0.7, 0.7), (0, 1, 0.7, 0.3), (0, 0, 0.7, 0.0), (1, 0.5, 0.7, 0.85), (0, 0.25, 0.5, 0.125),
     (1, 0.3, 1.0, 1.0), (1, 0.3, 0.0, 0.3)],
)  # fmt: skip
def test_quality(success, diversity, weight, quality):
    assert quality_of(success, diversity, weight) == pytest.approx(quality, abs=1e-15)


def test_the_default_weight_is_the_recipe_s():
    assert quality_of(1, 0.5) == pytest.approx(0.7 + 0.15)


def test_what_was_not_scored_has_no_quality():
    assert math.isnan(quality_of(math.nan, 0.5))
    assert math.isnan(quality_of(1.0, math.nan))


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_quality_is_one_that_a_trajectory_takes(success, diversity, weight):
    """Also where rounding could lift it above 1."""
    quality = quality_of(success, diversity, weight)
    assert min(success, diversity) - 1e-9 <= quality <= 1
    Trajectory(0, [1], [0.0], [1.0], 0, quality=quality)


@pytest.mark.parametrize("weight", [-0.1, 1.01, math.nan])
def test_a_weight_outside_0_1_is_refused(weight):
    with pytest.raises(ConfigurationError, match="success_weight"):
        quality_of(1, 1, weight)


@pytest.mark.parametrize(("success", "diversity", "name"), [(2, 0, "success is 2"), (1, -0.5, "diversity is -0.5")])
def test_values_outside_0_1_are_refused(success, diversity, name):
    with pytest.raises(TrajectoryError, match=name):
        quality_of(success, diversity)


# Diversity --------------------------------------------------------------------------------------------------------------


def test_diversity_by_hand():
    """Cosines to (1, 0): of (3, 4) 0.6, of (0, 2) 0, of (-1, 0) -1."""
    diversity = Diversity()
    assert diversity.of(7, [1, 0]) == 1.0
    diversity.add(7, [3, 4])
    assert diversity.of(7, [1, 0]) == pytest.approx(0.4, abs=1e-6)
    diversity.add(7, [0, 2])
    assert diversity.of(7, [1, 0]) == pytest.approx(1 - 0.6 / 2, abs=1e-6)
    assert diversity.of(7, [3, 4]) == pytest.approx(1 - (1 + 0.8) / 2, abs=1e-6)
    assert diversity.seen(7) == 2


def test_a_mean_below_zero_is_a_diversity_of_1():
    diversity = Diversity()
    diversity.add(0, [-1, 0])
    assert diversity.of(0, [1, 0]) == 1.0
    diversity.add(0, [1, 0])
    diversity.add(0, [1, 0])
    assert diversity.of(0, [1, 0]) == pytest.approx(1 - (-1 + 1 + 1) / 3, abs=1e-6)


def test_a_repeated_embedding_has_no_diversity():
    diversity = Diversity()
    for _ in range(50):
        diversity.add(0, [0.1, 0.2, 0.3])
    assert 0 <= diversity.of(0, [0.1, 0.2, 0.3]) < 1e-6


def test_questions_are_apart_and_asking_adds_nothing():
    diversity = Diversity()
    diversity.add(1, [1, 0])
    assert diversity.of(2, [1, 0]) == 1.0
    assert diversity.of(1, [1, 0]) == diversity.of(1, [1, 0]) == 0.0
    assert (diversity.seen(1), diversity.seen(2)) == (1, 0)


@given(vectors)
def test_equal_to_pairwise_cosines(rows):
    diversity = Diversity()
    for place, row in enumerate(rows):
        assert diversity.of(3, row) == pytest.approx(plain_diversity(row, rows[:place]), abs=1e-5)
        diversity.add(3, row)
    assert diversity.seen(3) == len(rows)


def test_equal_to_pairwise_cosines_at_the_size_of_a_real_encoder():
    """300 rollouts of one question, alike as rollouts are."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=384) + 0.5 * rng.normal(size=(300, 384))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)
    diversity = Diversity()
    for row in rows[:-1]:
        diversity.add(0, row)
    assert diversity.of(0, rows[-1]) == pytest.approx(plain_diversity(rows[-1], list(rows[:-1])), abs=1e-5)


@given(vectors)
def test_the_same_in_the_same_order_gives_the_same_bits(rows):
    """Whether they come as computed, or in float16 as a trajectory keeps them; whatever lies between, and in memory."""
    one, other = Diversity(), Diversity()
    for row in rows:
        one.add(0, row)
        kept = Trajectory(0, [1], [0.0], [1.0], 0, embedding=np.float32(row)).embedding
        other.add(5, np.ones(len(row)))
        other.add(0, np.repeat(kept, 2)[::2])
    assert one.of(0, rows[0]) == other.of(0, rows[0])
    assert one._sums[0].tobytes() == other._sums[0].tobytes()
    assert one._sums[0].dtype == np.float32


def test_a_zero_vector_is_like_nothing():
    diversity = Diversity()
    diversity.add(0, [0, 0])
    assert diversity.of(0, [1, 0]) == 1.0
    assert diversity.of(0, [0, 0]) == 1.0
    diversity.add(0, [1, 0])
    assert diversity.of(0, [1, 0]) == pytest.approx(0.5)


def test_what_float16_makes_zero_counts_as_zero():
    """Rounded before any use: 1e-9 is nothing in float16, so a resumed run, which has only that, sees the same."""
    diversity = Diversity()
    diversity.add(0, [1e-9, 0])
    assert diversity.of(0, [1, 0]) == 1.0


def test_another_dimension_is_refused_and_both_are_named():
    diversity = Diversity()
    diversity.add(4, np.ones(3))
    for ask in (diversity.of, diversity.add):
        with pytest.raises(TrajectoryError, match=r"question 9 has D = 2.*have D = 3.*embedding_model"):
            ask(9, np.ones(2))
    assert diversity.seen(9) == 0


@pytest.mark.parametrize("bad", [[], [[1.0]], 1.0, [math.nan, 1], [math.inf, 1], [1e6, 1]], ids=str)
def test_what_is_no_finite_vector_is_refused(bad):
    diversity = Diversity()
    for ask in (diversity.of, diversity.add):
        with pytest.raises(TrajectoryError, match="question 2"):
            ask(2, bad)
    assert diversity.seen(2) == 0


def test_forgetting():
    diversity = Diversity()
    diversity.add(0, [1, 0])
    diversity.forget()
    assert (diversity.of(0, [1, 0]), diversity.seen(0)) == (1.0, 0)
    diversity.add(0, [1, 0, 0])


# Embedders --------------------------------------------------------------------------------------------------------------


def test_an_embedder_s_answer_is_float16():
    got = embed(lambda texts: [[len(text), 1] for text in texts], ["a", "bcd"])
    assert got.dtype == np.float16
    assert got.tolist() == [[1, 1], [3, 1]]


def test_no_texts_need_no_embedder():
    assert embed(pytest.fail, []).shape == (0, 0)


@pytest.mark.parametrize(
    ("answer", "match"),
    [([[1.0]], r"\(1, 1\)"), ([1.0, 2.0], r"\(2,\)"), (np.ones((2, 0)), r"\(2, 0\)"), ([["a"], ["b"]], "of shape"),
     ([[1.0], [math.nan]], "1 of 2 texts, the first of them text 1"), ([[1e6], [0.0]], "text 0")],
)  # fmt: skip
def test_what_no_embedder_answers(answer, match):
    def my_embedder(texts):
        return answer

    with pytest.raises(ConfigurationError, match=match) as raised:
        embed(my_embedder, ["a", "b"])
    assert "my_embedder" in str(raised.value)
    assert "embedding_model" in str(raised.value)


# Tiers ------------------------------------------------------------------------------------------------------------------

WORST_FIRST = {  # of n trajectories whose quality rises with their age: the tier of each, oldest first, and who leaves
    1: ([0], 0),
    2: ([0, 2], 1),
    3: ([0, 1, 2], 2),
    4: ([0, 1, 2, 3], 3),
    5: ([0, 0, 1, 2, 3], 0),  # only the first tier can spare one
    6: ([0, 0, 1, 2, 2, 3], 3),
    7: ([0, 0, 1, 1, 2, 2, 3], 4),
    8: ([0, 0, 1, 1, 2, 2, 3, 3], 6),
    9: ([0, 0, 0, 1, 1, 2, 2, 3, 3], 7),
}


@pytest.mark.parametrize("n", WORST_FIRST)
def test_tiers_and_who_leaves_by_hand(n):
    tiers, place = WORST_FIRST[n]
    falling = [1 - 0.1 * i for i in range(n)]
    assert tier_of_each(falling).tolist() == tiers
    assert eviction_place(falling) == place
    rising = falling[::-1]
    assert tier_of_each(rising).tolist() == tiers[::-1]
    assert eviction_place(rising) == tiers[::-1].index(tiers[place])


@pytest.mark.parametrize("n", WORST_FIRST)
def test_of_equals_the_older_ranks_higher(n):
    assert tier_of_each([0.5] * n).tolist() == WORST_FIRST[n][0]
    assert eviction_place([0.5] * n) == WORST_FIRST[n][1]


def test_tiers_of_a_mixed_order():
    """Ranks 1 4 0 7 2 5 3 6 of eight."""
    qualities = [0.9, 0.4, 1.0, 0.1, 0.7, 0.3, 0.7, 0.3]
    assert tier_of_each(qualities).tolist() == [0, 2, 0, 3, 1, 2, 1, 3]
    assert eviction_place(qualities) == 3


def test_what_was_not_scored_ranks_last():
    assert tier_of_each([math.nan, 0.0, math.nan, 1.0]).tolist() == [2, 1, 3, 0]
    assert eviction_place([math.nan, 0.0, 0.9, 1.0, 0.5, 0.6, 0.7, 0.8]) == 0


def test_no_trajectories():
    assert tier_of_each([]).shape == (0,)
    with pytest.raises(TrajectoryError, match="there are none"):
        eviction_place([])


def test_a_higher_floor_lets_a_tier_keep_its_last():
    """Of five, in tiers of 2, 1, 1 and 1: where two must be kept, none can spare one, and the lowest has to."""
    qualities = [0.5, 0.4, 0.3, 0.2, 0.1]
    assert eviction_place(qualities, floor=0.0) == 4
    assert eviction_place(qualities, floor=0.05) == 0
    assert eviction_place(qualities, floor=0.4) == 4
    with pytest.raises(ConfigurationError, match=r"1\.0"):
        eviction_place(qualities, floor=1.0)


@given(st.lists(st.one_of(st.just(math.nan), st.floats(0, 1), st.sampled_from([0.3, 0.7])), min_size=1, max_size=60))
def test_tiers_hold_a_quarter_each_and_keep_their_floor(qualities):
    tiers, n = tier_of_each(qualities), len(qualities)
    sizes = np.bincount(tiers, minlength=4)
    assert sizes.max() <= math.ceil(n / 4)
    assert sizes.min() >= n // 4
    known = np.nan_to_num(qualities, nan=-1)
    for low in range(1, 4):
        if (tiers == low).any() and (tiers < low).any():
            assert known[tiers < low].min() >= known[tiers == low].max()
    place = eviction_place(qualities)
    assert place == tiers.tolist().index(tiers[place]), "the oldest of its tier"
    if n >= 8:
        assert tiers[place] == 3
