"""Questions that the fresh stream leaves out: which, how often, and what is remembered of it."""

from collections import Counter

import numpy as np
import pytest

from exgrpo.config import ReplayConfig
from exgrpo.experience.events import Skipped
from exgrpo.experience.variance import GroupVariance
from exgrpo.replay.options.skip import zero_variance
from tests.support.lab import NAN, Lab


def history(streaks, skips=None) -> GroupVariance:
    """Questions with so many groups in a row without variance: above 0 all right, below 0 not."""
    found = GroupVariance(len(streaks))
    found.streak[:] = streaks
    found.skips[:] = 0 if skips is None else skips
    return found


def test_the_share_left_out_is_one_minus_the_larger_of_floor_and_explore_to_the_z():
    """Chi-square over many passes and questions, a class for each z and side."""
    streaks = np.repeat([0, 1, 2, 3, 9, -1, -2, -9], 500)
    config = ReplayConfig(
        skip="zero_variance", skip_explore=0.6, skip_floor_solved=0.1, skip_floor_hopeless=0.3, retest_passes=10**6
    )
    rule = zero_variance(history(streaks), config, 7)
    out = np.array([rule(np.arange(len(streaks)), number) for number in range(40)])
    total, chi_square = 500 * 40, 0.0
    for z in (1, 2, 3, 9, -1, -2, -9):
        asked = max(0.3 if z < 0 else 0.1, 0.6 ** abs(z))
        found = int((~out[:, streaks == z]).sum())
        chi_square += (found - total * asked) ** 2 / (total * asked * (1 - asked))
    assert not out[:, streaks == 0].any()
    assert chi_square < 24.3  # 7 degrees of freedom, p = .001


def test_a_decision_depends_on_question_and_pass_alone():
    """Not on who else is asked about, or in which order: batches of any cut decide alike."""
    config = ReplayConfig(skip="zero_variance")
    rule = zero_variance(history(np.full(50, 3)), config, 1)
    whole = rule(np.arange(50), 4)
    order = np.random.default_rng(0).permutation(50)
    assert np.array_equal(rule(order, 4), whole[order])
    assert not np.array_equal(rule(np.arange(50), 5), whole)
    assert not np.array_equal(zero_variance(history(np.full(50, 3)), config, 2)(np.arange(50), 4), whole)


@pytest.mark.parametrize(
    ("groups", "streak"),
    [
        ([(8, 8, 0.0)], 1),
        ([(0, 8, 0.0), (0, 8, 0.0)], -2),
        ([(0, 8, 0.0), (8, 8, 0.0)], 2),  # the side is that of the latest
        ([(0, 8, 0.0), (3, 8, 0.4)], 0),
        ([(0, 8, 0.0), (0, 8, 0.1)], 0),  # continuous rewards: none right, and yet a variance
        ([(8, 8, NAN)], 1),  # as an early log tells it: by what was right
        ([(3, 8, NAN)], 0),
        ([(8, 8, 0.0), (1, 1, 0.0)], 1),  # one scorable completion says nothing
        ([(8, 8, 0.0), (0, 0, NAN)], 1),
    ],
)
def test_groups_in_a_row_without_variance(groups, streak):
    found = GroupVariance(3)
    for generation, (successes, scorable, reward_std) in enumerate(groups):
        arrays = (np.array([1]), np.array([successes]), np.array([scorable]), np.array([reward_std]))
        found.observe(*arrays, generation)
    assert found.streak.tolist() == [0, streak, 0]
    assert found.asked_at[1] == len(groups) - 1


def ask(lab, passes, batch=4, right=None):
    """How often each question was asked in so many passes; of question q `right[q]` of 8 are right, else 4."""
    asked = Counter()
    while lab.planner.stream.pass_number < passes:
        plan = lab.plan(batch)
        asked.update(plan.questions.tolist())
        lab.observe(plan, right, reward_std=NAN)
    return asked


def test_a_question_is_asked_after_so_many_passes_at_the_latest():
    """Floors of 0 and explore of 0: after its first group a question without variance is left out whenever it may be."""
    options = dict(
        mixing="none", skip="zero_variance", skip_explore=0.0, skip_floor_solved=0.0, skip_floor_hopeless=0.0
    )
    lab = Lab(questions=24, retest_passes=3, **options)
    asked = ask(lab, 13, right={0: 8, 1: 0})
    assert asked[0] in (4, 5)  # passes 0, 4, 8, 12
    assert asked[1] in (4, 5)
    assert all(asked[question] >= 12 for question in range(2, 24))
    skipped = Counter(event.question for event in lab.of(Skipped))
    assert set(skipped) == {0, 1}
    assert not lab.planner.stream.deferred  # it owes no turn


@pytest.mark.parametrize(
    ("floor", "expected"), [({"skip_floor_solved": 1.0}, {1}), ({"skip_floor_hopeless": 1.0}, {0})]
)
def test_a_floor_of_one_spares_a_side(floor, expected):
    options = {"skip_floor_solved": 0.0, "skip_floor_hopeless": 0.0, **floor}
    lab = Lab(questions=24, mixing="none", skip="zero_variance", skip_explore=0.0, **options)
    ask(lab, 6, right={0: 8, 1: 0})
    assert {event.question for event in lab.of(Skipped)} == expected


def test_where_too_few_are_left_those_come_first_that_were_asked_longest_ago():
    lab = Lab(
        questions=8, mixing="none", skip="zero_variance", skip_explore=0.0, skip_floor_solved=0.0, skip_floor_hopeless=0.0,
        retest_passes=10**6,
    )  # fmt: skip
    everything = dict.fromkeys(range(8), 8)
    first, second = lab.plan(4), None
    lab.observe(first, everything)
    second = lab.plan(4)
    lab.observe(second, everything)
    assert {*first.questions.tolist(), *second.questions.tolist()} == set(range(8))
    third = lab.plan(4)
    assert sorted(third.questions.tolist()) == sorted(first.questions.tolist())
    assert third.skipped == 4
    assert len(third.questions) == 4


def test_it_works_beside_replay_and_retires_nothing_by_itself():
    lab = Lab(
        questions=30,
        mixing="share",
        retirement="never",
        skip="zero_variance",
        skip_explore=0.2,
        question_choice="uniform",
    )
    for question in range(0, 30, 3):
        lab.store(question, 100 + question, successes=4)
    ask(lab, 6, batch=6, right=dict.fromkeys(range(1, 30, 3), 8))
    assert lab.of(Skipped)
    assert {event.question for event in lab.of(Skipped)} <= set(range(1, 30, 3))
    assert not lab.buffer.num_retired


def test_without_replay_nothing_is_stored_and_no_reason_is_given():
    lab = Lab(questions=12, mixing="none", skip="zero_variance", start_pass_at_1=0.9)
    plan = lab.plan(4)
    assert plan.idle is None
    (group, *_) = lab.observe(plan, dict.fromkeys(range(12), 8))
    assert not lab.planner.should_admit(group, True, "stop")
    assert not lab.buffer.num_retired  # retirement="solved" is a rule of replay


@pytest.mark.parametrize("seed", range(5))
def test_in_every_pass_a_question_is_asked_or_left_out_or_waits(seed):
    """Nothing is lost to replay, nothing is asked twice, whatever is left out."""
    lab = Lab(
        questions=60, seed=seed, mixing="share", replay_share=0.4, retirement="never", question_choice="uniform",
        trajectory_choice="random", skip="zero_variance", skip_explore=0.3, retest_passes=3,
    )  # fmt: skip
    for question in range(0, 60, 4):
        lab.store(question, 100 + question, successes=4)
    right, asked = {question: 8 * (question % 2) for question in range(1, 60, 3)}, Counter()
    for _ in range(60):
        plan = lab.plan(7)
        asked.update(plan.questions[~plan.replayed].tolist())
        lab.observe(plan, right)
        skipped = Counter(event.question for event in lab.of(Skipped))
        stream = lab.planner.stream
        order = np.random.default_rng((seed, stream.pass_number)).permutation(60)[: stream.cursor]
        for question in range(60):
            met = stream.pass_number + (question in order)
            assert asked[question] + skipped[question] + stream.deferred.count(question) == met
    assert sum(skipped.values()) > 30
