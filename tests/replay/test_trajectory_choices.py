"""Each way to choose a stored trajectory, by hand: keys, what is not known, ties, what is measured again."""

import math
from collections import Counter

import numpy as np
import pytest

from exgrpo.config import TRAJECTORY_CHOICES, ReplayConfig
from exgrpo.experience import ExperienceBuffer
from exgrpo.experience.policy_stats import PolicyStats
from exgrpo.replay.choice import choose, eligible_questions
from exgrpo.replay.options.choices import low_entropy
from tests.support.lab import NAN, Lab, Table, added, name_of, replayed, trajectory

HIGHEST_HALF = 65504.0


def filled(*fields, question=0, buffer=None, first=0, **options):
    """A buffer with one trajectory for each mapping, named first, first + 1, ..., oldest first."""
    buffer = ExperienceBuffer(20, 8, ReplayConfig(**options)) if buffer is None else buffer
    for i, given in enumerate(fields):
        assert buffer.admit([trajectory(question, first + i, **given)])[0] is not None
    return buffer


def chosen(buffer, name, *, scorer=None, questions=(0,), step=0, seed=0, stage="plan", count=1, **options):
    """The names chosen, best first, of the first question; or a list for each of several."""
    config = ReplayConfig(trajectory_choice=name, **options)
    slots = choose(buffer, questions, step, config, np.random.default_rng(seed), scorer, stage, count)
    names = [[name_of(buffer.get(slot)) for slot in found] for found in slots]
    return names[0] if len(questions) == 1 else names


def logps(*probabilities):
    return [math.log(p) for p in probabilities]


# Keys ---------------------------------------------------------------------------------------------------------------


def test_entropies():
    buffer = filled(*({"entropy": e} for e in (0.5, 0.2, 0.9)))
    assert chosen(buffer, "lowest_entropy", count=3, entropy_candidates=3) == [1, 0, 2]
    assert chosen(buffer, "highest_entropy", count=3, entropy_candidates=3) == [2, 0, 1]


def test_newest():
    buffer = filled({}, {}, {})
    assert chosen(buffer, "newest", count=2) == [2, 1]


def test_nll_is_the_mean_of_minus_log_pi():
    """Of (0.9, 0.1), (0.4, 0.4), (0.5, 0.5): 1.20, 0.92, 0.69 nats."""
    buffer = filled(*({"logps": logps(*p)} for p in ((0.9, 0.1), (0.4, 0.4), (0.5, 0.5))))
    np.testing.assert_allclose(buffer.column("nll")[:3], [1.2040, 0.9163, 0.6931], rtol=1e-3)
    assert chosen(buffer, "lowest_nll", count=3, entropy_refresh="stored") == [2, 1, 0]


def test_confidence_variance_is_that_of_pi_over_the_tokens():
    """Of (0.9, 0.1), (0.5, 0.3), (0.6, 0.6): 0.16, 0.01, 0."""
    buffer = filled(*({"logps": logps(*p)} for p in ((0.9, 0.1), (0.5, 0.3), (0.6, 0.6))))
    np.testing.assert_allclose(buffer.column("confidence_variance")[:3], [0.16, 0.01, 0.0], rtol=1e-3, atol=1e-6)
    assert chosen(buffer, "lowest_confidence_variance", count=3, entropy_refresh="stored") == [2, 1, 0]


def test_highest_quality_and_one_without_is_last():
    buffer = filled(*({"quality": q} for q in (0.3, NAN, 1.0, 0.3, 0.7)))
    assert chosen(buffer, "highest_quality", count=5) == [2, 4, 0, 3, 1]


def test_headroom_by_hand():
    """1 - 0.9, then 0.6 and 0.4 (negative, positive), 0 for an advantage of 0."""
    given = [(1.0, 0.9), (-1.0, 0.6), (0.5, 0.6), (0.0, 0.5)]
    buffer = filled(*({"advantage": a, "logps": logps(p, p)} for a, p in given))
    candidates = buffer.candidates([0], 0, np.random.default_rng(0))
    np.testing.assert_allclose(candidates.headroom[candidates.valid], [0.1, 0.6, 0.4, 0.0], atol=1e-3)
    assert chosen(buffer, "headroom", count=4, entropy_refresh="stored") == [1, 2, 0, 3]


def test_headroom_follows_the_probability_that_is_measured():
    """Stored: 0.9 and 0.8 of headroom; now the policy gives them 0.95 and 0.3."""
    buffer = filled(*({"advantage": 1.0, "logps": logps(p, p), "entropy": 0.1} for p in (0.1, 0.2)))
    scorer = Table(entropy={0: 0.1, 1: 0.1}, confidence={0: 0.95, 1: 0.3})
    assert chosen(buffer, "headroom", scorer=scorer, step=5) == [0]  # fresh enough
    assert scorer.calls == []
    assert chosen(buffer, "headroom", scorer=scorer, step=11) == [1]
    np.testing.assert_allclose(buffer.column("confidence")[:2], [0.95, 0.3], rtol=1e-3)


@pytest.mark.parametrize("refresh", ["lazy", "stored", "exact"])
def test_unknown_advantages_do_not_stand_before_headroom_that_is_known(refresh):
    """Measuring cannot make an advantage known, so such a trajectory comes last, however many there are."""
    known = {"advantage": 0.5, "logps": logps(0.1, 0.1), "entropy": 1.0}
    buffer = filled(*[{"entropy": 1.0}] * 3, known)
    scorer = Table(entropy=dict.fromkeys(range(4), 1.0), confidence=dict.fromkeys(range(4), 0.1))
    assert chosen(buffer, "headroom", scorer=scorer, entropy_refresh=refresh) == [3]


def test_without_a_known_advantage_there_is_no_headroom():
    assert chosen(filled({}, {}), "headroom", entropy_refresh="stored") == []
    lab = Lab(8, trajectory_choice="headroom", question_choice="uniform", replay_share=1.0)
    lab.store(0, 1)
    assert "eligible" in lab.plan(4).idle
    lab.store(1, 1, advantage=0.5)
    assert replayed(lab.plan(4)) == [1]


DRAWING = ("random", "entropy_percentile", "quality_tiers")


@pytest.mark.parametrize("name", [name for name in TRAJECTORY_CHOICES.builtin if name not in DRAWING])
@pytest.mark.parametrize("refresh", ["lazy", "stored"])
def test_of_equals_the_older_is_chosen(name, refresh):
    buffer = filled(*[{"entropy": 0.5, "quality": 0.5, "advantage": 0.5}] * 3)
    assert chosen(buffer, name, entropy_refresh=refresh) == [2 if name == "newest" else 0]


@pytest.mark.parametrize("name", [name for name in TRAJECTORY_CHOICES.builtin if name != "headroom"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_nothing_known_at_all_still_chooses(name, count):
    """No entropy and no quality; up to `count` different ones, all of them where there are fewer."""
    buffer = filled({}, {}, {})
    filled({}, question=1, buffer=buffer, first=10)
    found = chosen(buffer, name, questions=(0, 1), count=count, entropy_refresh="stored")
    assert [len(set(names)) for names in found] == [min(count, 3), 1]
    assert set(found[0]) <= {0, 1, 2}
    assert found[1] == [10]


def test_random_is_uniform_and_sets_are_too():
    buffer = filled(*[{}] * 4)
    one = Counter(chosen(buffer, "random", seed=seed)[0] for seed in range(1200))
    assert all(220 < one[name] < 380 for name in range(4))
    pairs = Counter(frozenset(chosen(buffer, "random", seed=seed, count=2)) for seed in range(1200))
    assert len(pairs) == 6
    assert all(130 < n < 275 for n in pairs.values())


# Entropy percentile -------------------------------------------------------------------------------------------------


LOW = {"trajectory_choice": "entropy_percentile"}


def with_entropies(percentile=25.0):
    """Entropies 1..8 over three questions: 1 8 | 2 3 4 | 5 6 7."""
    buffer = filled({"entropy": 1.0}, {"entropy": 8.0}, entropy_percentile=percentile, **LOW)
    filled(*({"entropy": float(e)} for e in (2, 3, 4)), question=1, buffer=buffer, first=10)
    filled(*({"entropy": float(e)} for e in (5, 6, 7)), question=2, buffer=buffer, first=20)
    return buffer


@pytest.mark.parametrize(("percentile", "highest"), [(1, 1), (12.5, 1), (13, 2), (25, 2), (50, 4), (62.5, 5), (100, 8)])
def test_the_percentile_is_over_the_whole_buffer(percentile, highest):
    """The lowest quarter of eight is two of them, wherever they are stored."""
    candidates = with_entropies(percentile).candidates([0, 1, 2], 0, np.random.default_rng(0))
    inside = candidates.entropy[low_entropy(candidates) & candidates.valid]
    assert sorted(inside.tolist()) == list(range(1, highest + 1))


def test_one_that_was_never_measured_is_outside_and_where_all_are_all_are_inside():
    buffer = filled({"entropy": 1.0}, {}, {"entropy": 3.0}, entropy_percentile=100.0, **LOW)
    assert {chosen(buffer, "entropy_percentile", seed=s, entropy_percentile=100.0)[0] for s in range(60)} == {0, 2}
    assert {chosen(filled({}, {}, **LOW), "entropy_percentile", seed=s)[0] for s in range(60)} == {0, 1}


def test_inside_the_percentile_all_are_alike():
    buffer = with_entropies(50.0)
    got = Counter(
        chosen(buffer, "entropy_percentile", questions=(1,), seed=s, entropy_percentile=50.0)[0] for s in range(900)
    )
    assert set(got) == {10, 11, 12}
    assert all(220 < n < 380 for n in got.values())
    assert chosen(with_entropies(), "entropy_percentile", questions=(0, 1, 2), count=5) == [[0], [10], []]


def test_a_question_without_an_eligible_trajectory_is_not_drawn():
    """Entropies 1 | 2 | 3 | 4: the lowest half are the questions 0 and 1."""
    lab = Lab(8, trajectory_choice="entropy_percentile", entropy_percentile=50.0, replay_share=1.0)
    for question in range(4):
        lab.store(question, 1, entropy=question + 1.0)
    plan = lab.plan(4)
    assert set(replayed(plan)) == {0, 1}
    assert plan.refused == 0  # they are known beforehand


def test_the_percentile_goes_with_the_buffer():
    """Once the low ones have left, others are the lowest."""
    buffer = with_entropies()
    rule = eligible_questions(buffer, buffer.config, 0, "plan")
    assert rule(np.array([0, 1, 2])).tolist() == [True, True, False]
    buffer.retire(0)
    buffer.retire(1)
    assert rule(np.array([2])).tolist() == [True]  # 5 of 5, 6, 7


# Quality tiers ------------------------------------------------------------------------------------------------------


def shares_of(qualities, times=2000, **options):
    buffer = filled(*({"quality": q} for q in qualities))
    got = Counter(chosen(buffer, "quality_tiers", seed=s, **options)[0] for s in range(times))
    return [got[name] / times for name in range(len(qualities))]


def near(times=2000):
    return 5 * math.sqrt(0.25 / times)


def test_tiers_are_drawn_with_their_shares():
    """Of eight, two a tier: 0.5, 0.3, 0.15, 0.05, halved inside the tier."""
    got = shares_of([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
    np.testing.assert_allclose(got, [0.025, 0.025, 0.075, 0.075, 0.15, 0.15, 0.25, 0.25], atol=near())


def test_empty_tiers_leave_their_share_to_the_others():
    """Of two, the better is in tier 0 and the other in tier 2: 0.5 to 0.15."""
    np.testing.assert_allclose(shares_of([0.9, 0.1]), [0.5 / 0.65, 0.15 / 0.65], atol=near())
    np.testing.assert_allclose(shares_of([0.9]), [1.0])


def test_a_tier_with_share_0_gives_none_until_nothing_else_is_left():
    qualities = [0.4, 0.3, 0.2, 0.1]
    np.testing.assert_allclose(shares_of(qualities, quality_tier_shares=(0, 1, 0, 1)), [0, 0.5, 0, 0.5], atol=near())
    got = shares_of([0.9, 0.1], quality_tier_shares=(0, 1, 0, 1))  # tiers 0 and 2 alone: all alike
    np.testing.assert_allclose(got, [0.5, 0.5], atol=near())


def test_fewer_shares_than_tiers_leave_the_lowest_out():
    np.testing.assert_allclose(shares_of([0.4, 0.3, 0.2, 0.1], quality_tier_shares=(1,)), [1, 0, 0, 0])


def test_one_without_quality_is_in_the_last_tier():
    got = shares_of([NAN, 0.3, 0.2, 0.1])
    np.testing.assert_allclose(got, [0.05, 0.5, 0.3, 0.15], atol=near())


def test_several_begin_in_the_tier_that_was_drawn():
    buffer = filled(*({"quality": q} for q in (0.4, 0.3, 0.2, 0.1)))
    for seed in range(50):
        names = chosen(buffer, "quality_tiers", seed=seed, count=3, quality_tier_shares=(0, 0, 1))
        assert names[0] == 2
        assert len(set(names)) == 3


# When it is measured again ------------------------------------------------------------------------------------------

MEASURED = {
    "lowest_entropy": dict(entropy={0: 3.0, 1: 2.0, 2: 1.0}),
    "highest_entropy": dict(entropy={0: 1.0, 1: 2.0, 2: 3.0}),
    "lowest_nll": dict(nll={0: 3.0, 1: 2.0, 2: 1.0}),
    "lowest_confidence_variance": dict(confidence_variance={0: 0.3, 1: 0.2, 2: 0.1}),
    "headroom": dict(confidence={0: 0.9, 1: 0.5, 2: 0.1}),
}
"""What the policy of now gives to each, by which the third is the best; as stored, all are alike and the oldest is."""


def measurable():
    return filled(*[{"entropy": 0.5, "advantage": 1.0}] * 3)


@pytest.mark.parametrize("name", MEASURED)
def test_exact_measures_all_and_the_policy_of_now_decides(name):
    scorer = Table(**{"entropy": dict.fromkeys(range(3), 0.5), **MEASURED[name]})
    buffer = measurable()
    for call in (1, 2):
        assert chosen(buffer, name, scorer=scorer, entropy_refresh="exact") == [2]
        assert len(scorer.calls) == call
        assert sorted(scorer.calls[-1]) == [0, 1, 2]


@pytest.mark.parametrize("name", MEASURED)
def test_stored_never_measures(name):
    assert chosen(measurable(), name, scorer=None, step=10_000, entropy_refresh="stored") == [0]


@pytest.mark.parametrize("name", MEASURED)
def test_lazy_measures_the_best_few_once_they_are_old(name):
    scorer = Table(**{"entropy": dict.fromkeys(range(3), 0.5), **MEASURED[name]})
    buffer = measurable()
    assert chosen(buffer, name, scorer=scorer, step=10) == [0]
    assert scorer.calls == []
    assert chosen(buffer, name, scorer=scorer, step=11) == [1]  # of the two that compete the better
    assert scorer.calls == [[0, 1]]
    assert buffer.column("entropy_step")[:3].tolist() == [11, 11, 0]


def test_several_wanted_raise_the_number_that_compete():
    """Two of four wanted: 2 + 2 - 1 = 3 compete."""
    buffer = filled(*({"entropy": e} for e in (0.1, 0.2, 0.3, 0.4)))
    scorer = Table(entropy={0: 0.9, 1: 0.8, 2: 0.7})
    assert chosen(buffer, "lowest_entropy", scorer=scorer, step=11, count=2) == [2, 1]
    assert scorer.calls == [[0, 1, 2]]


def test_no_more_than_are_wanted_need_no_measuring():
    buffer = filled({"entropy": 0.1}, {"entropy": NAN})
    for refresh in ("lazy", "exact"):
        found = chosen(buffer, "lowest_entropy", scorer=None, step=99, count=2, entropy_refresh=refresh)
        assert set(found) == {0, 1}


@pytest.mark.parametrize("name", ["random", "newest", "highest_quality", "quality_tiers", "entropy_percentile"])
@pytest.mark.parametrize("refresh", ["lazy", "exact", "stored"])
def test_choices_by_what_cannot_change_measure_nothing(name, refresh):
    assert len(chosen(measurable(), name, scorer=None, step=10_000, entropy_refresh=refresh)) == 1


def test_a_scorer_may_answer_with_entropies_alone():
    """Then the rest stays as it was known."""
    buffer = filled({"entropy": 0.5}, {"entropy": 0.6})
    got = chosen(buffer, "lowest_entropy", scorer=lambda ts: np.array([0.9, 0.1]), step=99)
    assert got == [1]
    np.testing.assert_allclose(buffer.column("nll")[:2], [1.0, 1.0])
    np.testing.assert_allclose(buffer.column("entropy")[:2], [0.9, 0.1], rtol=1e-6)


def test_what_is_measured_beyond_float16_is_its_bound():
    buffer = filled({"entropy": 0.5}, {"entropy": 0.6})
    scorer = Table(entropy={0: 0.5, 1: 0.6}, drift={0: 1e9, 1: 1.0}, nll={0: 7e4, 1: 1.0})
    chosen(buffer, "lowest_entropy", scorer=scorer, step=99)
    assert buffer.column("drift")[:2].tolist() == [HIGHEST_HALF, 1.0]
    assert buffer.column("nll")[0] == HIGHEST_HALF


# Moments ------------------------------------------------------------------------------------------------------------


def test_a_rescue_takes_right_ones_only():
    buffer = filled({"correct": False}, {"correct": True}, {"correct": False})
    assert chosen(buffer, "newest", stage="rescue") == [1]
    assert chosen(buffer, "newest", stage="plan") == [2]
    assert chosen(filled({"correct": False}), "newest", stage="rescue") == []


def test_what_is_added_has_an_advantage():
    buffer = filled({"advantage": 0.5}, {"advantage": 0.0}, {})
    assert chosen(buffer, "newest", stage="added") == [1]
    assert chosen(filled({}), "newest", stage="added") == []


# Several in a group -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wanted", "stored", "expected"), [(1, 3, 1), (2, 3, 2), (3, 2, 2), (100, 6, 4), (4, 4, 4)])
def test_a_group_holds_up_to_so_many_stored_members(wanted, stored, expected):
    """Of K = 4; never more than are stored, each once."""
    lab = Lab(4, k=4, replays_per_group=wanted, trajectory_choice="newest", replay_share=0.5)
    lab.store(2, *range(stored), successes=2)
    plan = lab.plan(2)
    (group,) = [group for group in plan.replays if group]
    assert [name_of(choice.trajectory) for choice in group] == list(range(stored))[::-1][:expected]
    assert lab.buffer.column("uses")[lab.buffer.slots_of(2)].tolist() == [1] * expected + [0] * (stored - expected)
    groups = lab.observe(plan)
    (place,) = [i for i, group in enumerate(plan.replays) if group]
    if expected == 4:
        assert groups[place] is None  # nothing fresh: nothing observed
    else:
        assert groups[place].outcomes.size == 4 - expected


def test_added_trajectories_are_one_a_question():
    lab = Lab(12, k=4, mixing="added", replays_per_group=3, trajectory_choice="newest")
    for question in range(6):
        lab.store(question, 1, 2, 3, advantage=0.5)
    assert len(set(added(lab.plan(4)))) == len(added(lab.plan(4))) == 2


def test_scores_of_tokens_by_hand():
    """pi = 1/2, 1/4 now and 1/4, 1/4 then: nll 1.04, mean 0.375, variance 1/64, drift log(2)^2 / 2."""
    got = PolicyStats.of_tokens(np.log([0.5, 0.25]), np.log([0.25, 0.25]))
    assert got.nll == pytest.approx(1.5 * math.log(2))
    assert got.confidence == pytest.approx(0.375)
    assert got.confidence_variance == pytest.approx(1 / 64)
    assert got.drift == pytest.approx(math.log(2) ** 2 / 2)
    assert math.isnan(got.entropy)


# Advantage and age ----------------------------------------------------------------------------------------------------


def test_the_largest_advantage_of_either_sign():
    buffer = filled(*({"advantage": a} for a in (0.25, -0.75, 0.5, math.nan)))
    assert chosen(buffer, "advantage", count=4) == [1, 2, 0, 3]


@pytest.mark.parametrize(
    ("name", "field", "values"),
    [
        ("advantage", "advantage", (1.0, 0.5)),
        ("lowest_entropy", "entropy", (0.1, 0.2)),
        ("highest_entropy", "entropy", (0.2, 0.1)),
    ],
)
def test_a_priority_fades_with_age(name, field, values):
    """Twice the priority, and ln 2 times tau older: a little less age and the older one wins, a little more and it loses."""
    tau = 100.0
    for age, winner in ((69, 0), (70, 1)):  # 100 ln 2 = 69.3
        buffer = filled({field: values[0], "step": 1000 - age}, {field: values[1], "step": 1000})
        options = dict(step=1000, age_decay=tau, entropy_refresh="stored")
        assert chosen(buffer, name, **options) == [winner]
    assert chosen(buffer, name, step=1000, entropy_refresh="stored") == [0]


def test_random_choices_are_drawn_in_proportion_to_what_is_left_of_their_age():
    """Chi-square: exp(-age/tau) over three trajectories."""
    ages, tau, n = np.array([0, 10, 30]), 20.0, 20_000
    buffer = filled(*({"step": 100 - int(age)} for age in ages), capacity_per_question=8)
    config, rng = ReplayConfig(trajectory_choice="random", age_decay=tau), np.random.default_rng(3)
    slots = choose(buffer, [0] * n, 100, config, rng, None)
    found = np.bincount([name_of(buffer.get(slot)) for (slot,) in slots], minlength=3)
    expected = np.exp(-ages / tau) / np.exp(-ages / tau).sum() * n
    assert ((found - expected) ** 2 / expected).sum() < 13.8  # 2 degrees of freedom, p = .001
