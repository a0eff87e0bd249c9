"""How stored experience enters a batch: each mixing, the schedules and the gate, by hand."""

import numpy as np
import pytest

from exgrpo.config import ReplayConfig
from exgrpo.errors import ConfigurationError
from exgrpo.experience import RIGHT, WRONG
from exgrpo.experience.events import Observed, Planned, Replayed
from exgrpo.replay.gate import Gate
from exgrpo.replay.options.schedules import constant, curriculum
from tests.support.lab import NAN, Lab, added, fresh, replayed, trajectory


def filled(questions=20, stored=10, **options):
    lab = Lab(questions, **{"trajectory_choice": "newest", **options})
    for question in range(stored):
        lab.store(question, 1, 2, advantage=0.5)
    return lab


# Coin ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_a_coin_replays_all_or_none(probability):
    lab = filled(replay_probability=probability, mixing="coin")
    counts = [lab.plan(4).num_replayed for _ in range(600)]
    assert set(counts) <= {0, 4}
    heads = sum(n == 4 for n in counts) / 600
    assert abs(heads - probability) < 5 * (probability * (1 - probability) / 600) ** 0.5 + 1e-9


def test_a_coin_depends_on_seed_and_generation_alone():
    options = dict(mixing="coin", replay_probability=0.5)
    first, again, other = (
        [lab.plan(4).num_replayed for _ in range(40)]
        for lab in (filled(**options), filled(stored=15, **options), filled(seed=1, **options))
    )
    assert first == again
    assert first != other


def test_tails_say_so():
    lab = filled(mixing="coin", replay_probability=0.0)
    assert lab.plan(4).idle == "on-policy by the coin: replay_probability is 0"


def test_heads_with_too_few_questions_replay_those_there_are():
    lab = filled(stored=2, mixing="coin", replay_probability=1.0)
    plan = lab.plan(4)
    assert sorted(replayed(plan)) == [0, 1]
    assert len(fresh(plan)) == 2
    assert plan.idle is None


def test_a_coin_of_whole_stored_groups_observes_nothing():
    lab = Lab(12, k=2, mixing="coin", replay_probability=1.0, replays_per_group=100, trajectory_choice="newest")
    for question in range(6):
        lab.store(question, 1, 2, successes=1)
    plan = lab.plan(4)
    assert [len(group) for group in plan.replays] == [2] * 4
    before = lab.planner.gate.pass_at_1
    assert lab.observe(plan) == [None] * 4
    assert lab.of(Observed) == []
    assert lab.planner.gate.pass_at_1 is before


# Added --------------------------------------------------------------------------------------------------------------


def test_added_leaves_the_fresh_batch_intact():
    """Eight fresh questions; beside them half as many trajectories of other questions."""
    lab = filled(questions=30, stored=12, mixing="added", replay_share=0.5)
    for _ in range(20):
        plan = lab.plan(8)
        assert len(set(plan.questions.tolist())) == 8
        assert not plan.replayed.any()
        assert plan.replays == ((),) * 8
        assert plan.num_replayed == len(set(added(plan))) == 4
        assert not set(added(plan)) & set(plan.questions.tolist())
        lab.observe(plan)
    assert {e.replayed for e in lab.of(Observed)} == {False}
    assert {e.stage for e in lab.of(Replayed)} == {"added"}
    assert {e.replayed for e in lab.of(Planned)} == {4}


def test_fresh_questions_that_wait_for_added_ones_come_next():
    """Over whole passes every question is fresh as often as every other."""
    lab = filled(questions=24, stored=8, mixing="added")
    seen = np.zeros(24, int)
    while lab.planner.stream.pass_number < 6:
        plan = lab.plan(6)
        seen[plan.questions] += 1
    stream = lab.planner.stream
    seen[stream._order[: stream.cursor]] -= 1
    seen[stream.deferred] += 1
    assert set(seen.tolist()) == {6}


@pytest.mark.parametrize("questions", [8, 9, 11, 12])
def test_a_small_dataset_keeps_the_fresh_batch_intact(questions):
    """With hardly more questions than a batch takes, no question is fresh twice in one batch."""
    lab = filled(questions=questions, stored=8, mixing="added", retirement="never")
    for _ in range(12):
        plan = lab.plan(8)
        assert len(set(plan.questions.tolist())) == 8
        lab.observe(plan)


def test_added_trajectories_have_an_advantage():
    lab = filled(stored=0, mixing="added")
    lab.store(3, 1)
    assert lab.plan(4).idle == "none of the stored trajectories or their questions is eligible now"
    lab.store(4, 1, advantage=0.25)
    assert added(lab.plan(4)) == [4]


# Prompt -------------------------------------------------------------------------------------------------------------


def prompts(successes=(0, 2, 4, 6, 8), **options):
    lab = Lab(20, mixing="prompt", **options)
    for question, right in enumerate(successes):
        lab.know(question, right)
    return lab


def test_prompt_replay_stores_nothing_and_replays_questions():
    lab = prompts()
    plan = lab.plan(4)
    assert plan.num_replayed == 2
    assert plan.replays == ((),) * 4
    assert set(replayed(plan)) <= {0, 1, 2, 3, 4}
    assert plan.choices == ()
    groups = lab.observe(plan)
    assert [group.outcomes.size for group in groups] == [8] * 4  # K fresh completions of each
    assert not lab.planner.should_admit(groups[0], True, "stop")
    assert lab.of(Replayed) == []
    assert sum(e.replayed for e in lab.of(Observed)) == 2


def test_prompt_replay_takes_the_middle():
    lab = prompts(sigma=0.01)
    assert replayed(lab.plan(2)) == [2]
    lab = prompts(question_choice="range")
    assert {q for _ in range(10) for q in replayed(lab.plan(8))} == {2}


def test_a_question_never_seen_is_not_replayed():
    assert prompts(successes=()).plan(4).idle == "no replayable question stored"


def test_prompt_replay_rests_and_wears_out():
    """One question, cooldown 2, twice at most: replayed at steps 1 and 4, then never."""
    lab = Lab(4, mixing="prompt", cooldown=2, max_uses=2, replay_share=0.25, retirement="never")
    lab.know(0)
    replays = []
    for _ in range(8):
        plan = lab.plan(4)
        replays.append(replayed(plan) == [0])
        lab.observe(plan, {1: 0, 2: 0, 3: 0})
        for other in (1, 2, 3):  # only the one can be replayed
            lab.buffer.retire(other) if not lab.buffer.retired[other] else None
    assert replays == [True, False, False, True, False, False, False, False]
    assert lab.buffer.questions.replays[0] == 2


def test_worn_out_prompts_say_so():
    lab = Lab(2, mixing="prompt", max_uses=1, replay_share=1.0, retirement="never")
    for question in (0, 1):
        lab.know(question)
    lab.observe(lab.plan(2))
    idle = lab.plan(2).idle
    assert "max_uses" in idle, idle


def test_a_replayed_prompt_is_judged_by_all_its_completions():
    lab = prompts(successes=(4,), replay_share=1.0)
    plan = lab.plan(1)
    assert replayed(plan) == [0]
    lab.observe(plan, {0: 8})
    assert lab.buffer.retired[0]


# Rescue -------------------------------------------------------------------------------------------------------------


def rescue(lab, plan, right=()):
    """Rescued questions, where all completions of all but `right` questions failed."""
    outcomes = np.full((len(plan.questions), lab.k), WRONG)
    for place, question in enumerate(plan.questions.tolist()):
        outcomes[place, 0] = RIGHT if question in right else WRONG
    return [int(plan.questions[r.group]) for r in lab.planner.rescue(plan, outcomes, lab.scorer)]


@pytest.mark.parametrize("option", [{"max_uses": 1}, {"cooldown": 3}])
def test_a_question_that_stands_twice_in_a_batch_is_rescued_once(option):
    """Fewer questions than places; one success that may be used once, or a question that rests from now on."""
    lab = Lab(2, k=4, mixing="rescue", trajectory_choice="newest", **option)
    lab.store(0, 1)
    plan = lab.plan(4)
    assert plan.questions.tolist().count(0) == 2
    assert rescue(lab, plan) == [0]


def test_a_rescue_takes_a_right_one_where_wrong_ones_are_stored_too():
    lab = Lab(2, k=4, mixing="rescue", trajectory_choice="newest", admission="all")
    lab.store(0, 1, correct=True)
    lab.store(0, 2, correct=False)
    lab.store(1, 1, correct=False)
    assert rescue(lab, lab.plan(2)) == [0]
    assert lab.of(Replayed)[0].serial == 0


# Schedules ----------------------------------------------------------------------------------------------------------


def test_a_curriculum_explores_first():
    """On-policy weight 0.7, 0.6, 0.5, 0.4, 0.3, 0.3: a share of 0.3, 0.4, 0.5, 0.6, 0.7, 0.7, exactly."""
    config = ReplayConfig(schedule="curriculum")
    for epoch, share in enumerate((0.3, 0.4, 0.5, 0.6, 0.7, 0.7, 0.7)):
        for part in (0.0, 0.5, 0.999):
            assert curriculum(0.123, epoch + part, config) == share
    assert constant(0.123, 9.0, config) == 0.123


def test_a_curriculum_of_one_s_own():
    config = ReplayConfig(schedule="curriculum", on_policy_start=1.0, on_policy_step=0.25, on_policy_floor=0.5)
    assert [curriculum(0.5, epoch, config) for epoch in (0, 1, 2, 3)] == [0.0, 0.25, 0.5, 0.5]


@pytest.mark.parametrize(("epoch", "n"), [(0.0, 3), (0.9, 3), (1.0, 4), (2.5, 5), (3.0, 6), (4.0, 7), (9.0, 7)])
@pytest.mark.parametrize("mixing", ["share", "prompt", "added"])
def test_the_replayed_share_follows_the_curriculum(mixing, epoch, n):
    lab = filled(questions=40, stored=20, mixing=mixing, schedule="curriculum", question_choice="uniform")
    assert lab.plan(10, epoch=epoch).num_replayed == n


def test_the_coin_follows_the_curriculum():
    lab = filled(mixing="coin", schedule="curriculum")
    late = sum(lab.plan(4, epoch=9.0).num_replayed > 0 for _ in range(400))
    early = sum(lab.plan(4, epoch=0.0).num_replayed > 0 for _ in range(400))
    assert abs(early / 400 - 0.3) < 0.12
    assert abs(late / 400 - 0.7) < 0.12
    assert "replay_probability is 0.3" in next(e.idle for e in lab.of(Planned)[::-1] if e.idle)


def test_a_share_of_none_says_so():
    lab = filled(schedule="curriculum", on_policy_start=1.0)
    assert lab.plan(4).idle == "replay_share is 0"
    assert lab.plan(10, epoch=1.0).num_replayed == 1


@pytest.mark.slow
@pytest.mark.parametrize("mixing", ["share", "added", "prompt"])
def test_less_than_one_question_is_a_coin(mixing):
    """[ALGORITHM: n = floor(rho B)] would be 0 for good; rho B is then how often one question is replayed."""
    plans = [filled(mixing=mixing, replay_share=0.3, seed=seed).plan(1) for seed in range(400)]
    assert {plan.num_replayed for plan in plans} == {0, 1}
    assert abs(sum(plan.num_replayed for plan in plans) / 400 - 0.3) < 0.1
    assert {plan.idle for plan in plans} == {
        None, "on-policy by the coin: replay_share 0.3 of 1 questions is one with probability 0.3"
    }  # fmt: skip
    lab = filled(mixing=mixing, replay_share=0.3)
    assert {lab.plan(3).num_replayed for _ in range(50)} == {0, 1}  # with probability 0.9
    assert {lab.plan(4).num_replayed for _ in range(50)} == {1}  # floor(1.2)
    again = filled(mixing=mixing, replay_share=0.3), filled(mixing=mixing, replay_share=0.3)
    assert [again[0].plan(1).num_replayed for _ in range(30)] == [again[1].plan(1).num_replayed for _ in range(30)]


# Gate ---------------------------------------------------------------------------------------------------------------


def test_the_gate_opens_by_size_and_stays_open():
    gate = Gate(0.0, start_size=3)
    assert gate.check(0, 0.0, 3) == "gate closed: 3 trajectories stored, must be more than 3"
    assert gate.check(0, 0.0, 4) is None
    assert gate.check(0, 0.0, 0) is None


def test_all_conditions_of_the_gate_are_named():
    gate = Gate(0.35, 10, 2.0, 100)
    gate.observe(2, 10)
    why = gate.check(3, 0.5, 7)
    assert why == (
        "gate closed: Pass@1 0.20 over 10 completions, must exceed 0.35; step 3 < 10; epoch 0.50 < 2; "
        "7 trajectories stored, must be more than 100"
    )


def test_a_planner_counts_what_is_stored():
    lab = filled(stored=2, start_size=5)
    assert "4 trajectories stored, must be more than 5" in lab.plan(4).idle
    lab.planner.admit([trajectory(5, 1), trajectory(5, 2)])
    lab.know(5)
    assert lab.plan(4).idle is None
    for question in (0, 1, 5):
        lab.buffer.retire(question)
    assert lab.plan(4).idle.startswith("all retired: 3 questions")  # open all the same


# What does not go together ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(mixing="none", schedule="curriculum"), "schedule must be 'constant' with mixing='none'"),
        (dict(mixing="rescue", schedule="curriculum"), "schedule must be 'constant' with mixing='rescue'"),
        (dict(mixing="prompt", start_size=1), "start_size must be 0 with mixing='prompt'"),
        (dict(range_low=0.8), "range_low must be below range_high"),
        (dict(on_policy_start=0.2), "on_policy_floor must be at most on_policy_start"),
    ],
)
def test_refused_together(options, message):
    with pytest.raises(ConfigurationError, match=message):
        ReplayConfig(**options)


@pytest.fixture(scope="module")
def flat(tmp_path_factory):
    trl = pytest.importorskip("exgrpo.trl")
    folder = str(tmp_path_factory.mktemp("run"))

    def make(**options):
        return trl.ExGRPOConfig(
            output_dir=folder, report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False, **options
        )

    return make


@pytest.mark.parametrize(
    "options",
    [
        dict(mixing="share"),
        dict(mixing="coin"),
        dict(preset="rescue"),
        dict(preset="rescue", replays_per_group=2),  # a rescue replaces one, whatever this says
    ],
    ids=str,
)
def test_a_single_stored_member_cannot_be_centred_by_itself(flat, options):
    with pytest.raises(ConfigurationError, match="baseline='split' with a single stored completion"):
        flat(baseline="split", **options)


@pytest.mark.parametrize(
    "options",
    [
        dict(mixing="share", replays_per_group=2),
        dict(mixing="coin", replays_per_group=4),
        dict(mixing="prompt"),
        dict(mixing="added"),
        dict(preset="on-policy"),
    ],
    ids=str,
)
def test_a_split_baseline_is_taken_where_it_means_something(flat, options):
    assert flat(baseline="split", **options).objective.baseline == "split"


def test_added_cannot_have_a_reference_model(flat):
    with pytest.raises(ConfigurationError, match=r"beta=0\.1 with mixing='added'"):
        flat(mixing="added", beta=0.1)


def test_what_is_added_has_the_advantage_of_birth_or_of_now():
    """Now: 1 minus the accuracy for a success, minus it for a failure, whatever is known of its birth."""
    for option, expected in (("birth", {0: 0.5, 1: -0.25}), ("current", {0: 0.25, 1: -0.75, 2: 0.75})):
        lab = Lab(
            mixing="added", advantage=option, question_choice="uniform", trajectory_choice="random", replay_share=1.0
        )
        lab.store(0, 10, successes=6, advantage=0.5)
        lab.store(1, 11, successes=6, advantage=-0.25, correct=False)
        lab.store(2, 12, successes=2, advantage=NAN)
        plan = lab.plan(4)
        assert {one.trajectory.question: one.advantage for one in plan.added} == expected


def test_more_may_be_added_than_a_batch_has_questions():
    lab = Lab(questions=20, mixing="added", question_choice="uniform", trajectory_choice="random", replay_share=2.2)
    for question in range(15):
        lab.store(question, 100 + question, advantage=0.5)
    plan = lab.plan(5)
    assert len(plan.added) == 11
    assert len(plan.questions) == 5
    assert len(lab.plan(8).added) == 15  # as many as there are


def test_a_frozen_bank_takes_nothing_of_the_run():
    lab = Lab(admission="none", question_choice="uniform")
    lab.store(0, 1)
    (group, *_) = lab.observe(lab.plan(4), {0: 8})
    assert not lab.planner.should_admit(group, True, "stop")
