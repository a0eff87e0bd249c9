"""What is too old, used too often, replayed too recently, or too far from the policy: limits by hand."""

import math

import numpy as np
import pytest

from exgrpo.experience import WRONG
from exgrpo.experience.events import Evicted, Measured, Replayed
from tests.support.lab import Lab, Table, added, name_of, replayed, trajectory

NEWEST = {"trajectory_choice": "newest"}


# Age ----------------------------------------------------------------------------------------------------------------


def test_a_trajectory_leaves_once_it_is_older_than_the_limit():
    """Of steps 0, 1 and 2, with an age of 3 at most: at step 4 the first has left, at 5 the second, at 6 all."""
    lab = Lab(max_age=3, replay_share=0.0)
    for step in (0, 1, 2):
        lab.store(step, 1, step=step)
    left = []
    for step in range(7):
        plan = lab.plan(step=step)
        left.append((plan.expired, len(lab.buffer)))
    assert left == [(0, 3)] * 4 + [(1, 2), (1, 1), (1, 0)]
    assert [(e.serial, e.question, e.reason) for e in lab.of(Evicted)] == [(0, 0, "age"), (1, 1, "age"), (2, 2, "age")]


def test_what_is_replayed_is_within_the_age_limit():
    lab = Lab(max_age=5, **NEWEST)
    lab.store(0, 1, step=0)
    lab.store(0, 2, step=3)
    ages = []
    for step in range(10):
        plan = lab.plan(step=step)
        ages += [step - choice.trajectory.step for choice in plan.choices]
    assert ages == [0 - 3, 1 - 3, 2 - 3, 0, 1, 2, 3, 4, 5]  # the newest, while it may


def test_all_over_age_says_so():
    lab = Lab(max_age=2, **NEWEST)
    lab.store(0, 1, 2, step=0)
    assert lab.plan(step=2).idle is None
    assert lab.plan(step=3).idle == "all over age: the last 2 trajectories were older than max_age=2"


def test_no_limit_of_age_by_default():
    lab = Lab()
    lab.store(0, 1)
    assert lab.plan(step=10**6).num_replayed == 1


def test_inherited_trajectories_out_of_order_expire_too():
    """Steps 5, -3, 4: the second leaves alone although it came later."""
    lab = Lab(max_age=4, replay_share=0.0)
    for question, step in enumerate((5, -3, 4)):
        lab.store(question, 1, step=step)
    lab.plan(step=5)
    assert [e.serial for e in lab.of(Evicted)] == [1]
    lab.plan(step=9)
    assert [e.serial for e in lab.of(Evicted)] == [1, 2]


# Uses ---------------------------------------------------------------------------------------------------------------


def test_a_trajectory_leaves_once_it_was_used_so_often():
    lab = Lab(4, max_uses=2, replay_share=0.25, **NEWEST)
    lab.store(3, 1, 2)
    serials = [[choice.serial for choice in lab.plan(4).choices] for _ in range(5)]
    assert serials == [[1], [1], [0], [0], []]
    assert [(e.serial, e.reason) for e in lab.of(Evicted)] == [(1, "uses"), (0, "uses")]
    assert lab.plan(4).idle.startswith("all evicted")


def test_uses_before_this_one_are_told():
    lab = Lab(4, max_uses=3, replay_share=0.25)
    lab.store(3, 1)
    assert [lab.plan(4).choices[0].uses for _ in range(3)] == [0, 1, 2]


def test_what_was_used_up_is_in_its_last_batch_all_the_same():
    lab = Lab(4, max_uses=1, replay_share=0.25)
    lab.store(3, 7)
    (choice,) = lab.plan(4).choices
    assert name_of(choice.trajectory) == 7
    assert len(lab.buffer) == 0


def test_rescues_count_as_uses():
    lab = Lab(2, k=4, mixing="rescue", max_uses=1, **NEWEST)
    lab.store(0, 1, 2)
    names = []
    for _ in range(3):
        found = lab.planner.rescue(lab.plan(2), np.full((2, 4), WRONG), None)
        names.append([name_of(one.choice.trajectory) for one in found])
    assert names == [[2], [1], []]


# Cooldown -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cooldown", [0, 1, 2, 5])
@pytest.mark.parametrize("mixing", ["share", "coin", "added", "prompt"])
def test_a_question_replayed_at_s_is_replayed_again_only_after_the_cooldown(cooldown, mixing):
    lab = Lab(
        6, mixing=mixing, cooldown=cooldown, replay_share=0.25, replay_probability=1.0, retirement="never", **NEWEST
    )
    if mixing == "prompt":
        lab.know(3)
    else:
        lab.store(3, 1, advantage=0.5)
    steps = []
    for step in range(1, 14):
        plan = lab.plan(4, step=step)
        if 3 in (added(plan) if mixing == "added" else replayed(plan)):
            steps.append(step)
        if mixing == "prompt":  # another question than this one never becomes replayable
            others = dict.fromkeys(range(6), 0)
            lab.observe(plan, others)
            for question in set(range(6)) - {3}:
                lab.buffer.retire(question) if not lab.buffer.retired[question] else None
    assert steps == list(range(1, 14, cooldown + 1))


def test_two_generations_of_one_step_do_not_replay_a_question_twice():
    lab = Lab(6, cooldown=1, replay_share=0.25, **NEWEST)
    lab.store(3, 1)
    assert [lab.plan(4, step=step).num_replayed for step in (1, 1, 2, 3, 3)] == [1, 0, 0, 1, 0]


def test_resting_says_so():
    lab = Lab(8, cooldown=2, replay_share=0.5)
    for question in range(2):
        lab.store(question, 1)
    assert lab.plan(4).num_replayed == 2
    assert lab.plan(4).idle == "all replayable questions rest: 2 within cooldown=2"


def test_a_resting_question_is_not_rescued():
    lab = Lab(2, k=4, mixing="rescue", cooldown=2, **NEWEST)
    lab.store(0, 1)
    rescued = [bool(lab.planner.rescue(lab.plan(2), np.full((2, 4), WRONG), None)) for _ in range(7)]
    assert rescued == [True, False, False, True, False, False, True]


def test_a_question_that_is_observed_while_it_rests_stays_at_rest():
    lab = Lab(4, cooldown=3, replay_share=0.25, **NEWEST)
    lab.store(3, 1)
    assert lab.plan(4).num_replayed == 1
    lab.know(3, 2)
    lab.planner.admit([trajectory(3, 2)])
    assert lab.plan(4).num_replayed == 0
    assert lab.buffer.num_replayable == 0
    assert lab.plan(4, step=5).num_replayed == 1


# Drift --------------------------------------------------------------------------------------------------------------


def drift_lab(drift, stored, **options):
    """Questions that hold the named trajectories; `drift` by name is what the scorer says."""
    scorer = Table(entropy=dict.fromkeys(drift, 0.5), drift=drift)
    lab = Lab(12, scorer=scorer, max_drift=0.1, **{**NEWEST, "question_choice": "uniform", **options})
    for question, names in stored.items():
        lab.store(question, *names, entropy=0.5)
    return lab


def test_fresh_enough_means_no_drift_and_no_measuring():
    lab = drift_lab({}, {0: [1]})
    assert lab.plan(4, step=10).num_replayed == 1
    assert lab.scorer.calls == []


def test_what_has_drifted_is_refused_and_another_question_taken():
    """Once it is too old to be known, a drift is measured. One of two is beyond 0.1."""
    for seed in range(10):
        lab = drift_lab({1: 0.2, 2: 0.05}, {0: [1], 1: [2]}, replay_share=0.25, seed=seed)
        plan = lab.plan(4, step=11)
        assert replayed(plan) == [1]
        assert plan.refused == ([1] in lab.scorer.calls)
        assert plan.refused <= 1
        plan = lab.plan(4, step=12)  # known by now, or measured now
        assert replayed(plan) == [1]


def test_a_refusal_is_counted_and_the_drift_written_down():
    lab = drift_lab({1: 0.2}, {0: [1]})
    plan = lab.plan(4, step=11)
    assert (plan.num_replayed, plan.refused) == (0, 1)
    assert plan.idle == "none of the stored trajectories or their questions is eligible now"
    (event,) = lab.of(Measured)
    assert (event.step, event.drift) == (11, 0.2)
    plan = lab.plan(4, step=12)  # known: not even drawn
    assert (plan.num_replayed, plan.refused) == (0, 0)
    assert len(lab.scorer.calls) == 1


def test_one_that_had_drifted_is_measured_again_when_that_is_too_old():
    """The policy may have come back."""
    drift = {1: 0.2}
    lab = drift_lab(drift, {0: [1]})
    assert lab.plan(4, step=11).num_replayed == 0
    drift[1] = 0.0
    assert lab.plan(4, step=21).num_replayed == 0
    assert lab.plan(4, step=22).num_replayed == 1


def test_exactly_the_limit_may_be_replayed():
    lab = drift_lab({1: 0.125, 2: 0.126}, {0: [1], 1: [2]}, max_entropy_age=0)
    lab.config.__dict__["max_drift"] = 0.125  # a limit that float16 holds exactly
    assert replayed(lab.plan(8, step=11)) == [0]


def test_of_a_question_the_next_best_that_has_not_drifted_is_taken():
    lab = drift_lab({1: 0.05, 2: 0.2}, {0: [1, 2]})
    (choice,) = lab.plan(4, step=11).choices
    assert name_of(choice.trajectory) == 1
    assert lab.scorer.calls == [[1, 2]]


def test_exact_measures_at_every_draw():
    lab = drift_lab({1: 0.0, 2: 0.2}, {0: [1, 2]}, entropy_refresh="exact")
    for step in (1, 2):
        (choice,) = lab.plan(4, step=step).choices
        assert name_of(choice.trajectory) == 1
    assert lab.scorer.calls == [[1, 2]] * 2


def test_stored_takes_the_drift_as_it_was_last_known():
    lab = drift_lab({}, {0: [1], 1: [2]}, entropy_refresh="stored")
    lab.buffer.update_stats(lab.buffer.slots_of(0), Table(entropy={1: 0.5}, drift={1: 0.2})([trajectory(0, 1)]), 3)
    assert replayed(lab.plan(8, step=10_000)) == [1]
    assert lab.scorer.calls == []


def test_many_refusals_end_after_four_rounds():
    """Each round draws again for what was refused; the batch is fresh where nothing is left."""
    names = {question: [question] for question in range(10)}
    lab = drift_lab(dict.fromkeys(range(10), 1.0), names, replay_share=0.25)
    plan = lab.plan(4, step=11)
    assert (plan.num_replayed, plan.refused, len(lab.scorer.calls)) == (0, 4, 4)
    assert len(set(plan.questions.tolist())) == 4
    assert plan.idle is not None
    assert lab.of(Replayed) == []


def test_no_question_is_drawn_twice_by_redrawing():
    drift = {question: 1.0 if question % 2 else 0.0 for question in range(10)}
    for seed in range(10):
        lab = drift_lab(drift, {question: [question] for question in range(10)}, seed=seed)
        plan = lab.plan(8, step=11)
        assert len(set(replayed(plan))) == len(replayed(plan)) == 4
        assert all(question % 2 == 0 for question in replayed(plan))
        assert len(set(plan.questions.tolist())) == 8
        assert plan.refused == len({name for call in lab.scorer.calls for name in call if name % 2})


def test_drift_by_hand_is_what_the_scorer_measures():
    """(log 2)^2 / 2 = 0.24 over two tokens of which one doubled."""
    from exgrpo.experience.policy_stats import PolicyStats

    got = PolicyStats.of_tokens(np.log([0.5, 0.25]), np.log([0.25, 0.25])).drift
    assert got == pytest.approx(math.log(2) ** 2 / 2)


def test_a_question_that_holds_nothing_does_not_rest():
    """Used up, or retired, while it rests: then rest is not what keeps it back."""
    lab = Lab(4, max_uses=1, cooldown=5, replay_share=0.25)
    lab.store(3, 1)
    assert lab.plan(4).num_replayed == 1
    assert lab.plan(4).idle.startswith("all evicted")
    lab = Lab(4, cooldown=5, replay_share=0.25)
    lab.store(3, 1)
    assert lab.plan(4).num_replayed == 1
    lab.buffer.retire(3)
    assert lab.plan(4).idle.startswith("all retired")
