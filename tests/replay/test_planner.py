"""The coordinator: what a batch is made of, what is learned from what came of it, and rescue."""

import math
from collections import Counter

import numpy as np
import pytest

from exgrpo.config import ReplayConfig
from exgrpo.experience import RIGHT, UNSCORABLE, WRONG, Group, Trajectory
from exgrpo.experience.events import Admitted, Evicted, Measured, Observed, Replayed, Retired, one_by_one
from exgrpo.experience.replayed import fingerprint_of
from exgrpo.replay import FreshStream, ReplayPlanner
from exgrpo.replay.preview import preview

K = 8


class Scorer:
    def __init__(self):
        self.calls = []

    def __call__(self, trajectories):
        self.calls.append([t.completion_ids.tolist() for t in trajectories])
        return np.array([float(t.completion_ids[0]) for t in trajectories])


class Lab:
    """A planner with its events, and shorthands for what happens to a question."""

    def __init__(self, questions=20, k=K, seed=0, **options):
        options = {"start_pass_at_1": 0.0, **options}
        self.k = k
        self.events = []
        self.scorer = Scorer()
        stream = FreshStream(lambda p: np.random.default_rng((seed, p)).permutation(questions), questions)
        self.planner = ReplayPlanner(ReplayConfig(**options), stream, k, seed, listener=one_by_one(self.events.append))
        self.buffer = self.planner.buffer
        self.step = 0

    def plan(self, batch_size=4, epoch=0.0):
        self.step += 1
        return self.planner.plan(batch_size, self.step, epoch, self.scorer)

    def store(self, question, *names, successes=4, scorable=K):
        """The question was observed and these completions of it stored."""
        self.buffer.observe(question, successes, scorable)
        return self.planner.admit([self.trajectory(question, name) for name in names])

    def trajectory(self, question, name, entropy=math.nan):
        return Trajectory(question, np.array([name, question]), np.full(2, -1.0), np.array([1.0]), 0, entropy=entropy)

    def observe(self, plan, outcomes):
        """outcomes: question -> its fresh outcomes; others got half of theirs right."""
        groups = []
        for question, choice in zip(plan.questions.tolist(), plan.replays, strict=True):
            m = self.k - len(choice)
            default = [RIGHT] * (m // 2) + [WRONG] * (m - m // 2)
            groups.append(Group(question, np.array(outcomes.get(question, default)), bool(choice)))
        self.planner.observe(plan, groups)

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


def should_admit(lab, question, finish_reason, outcomes=(RIGHT, WRONG), correct=True):
    return lab.planner.should_admit(Group(question, np.array(outcomes)), correct, finish_reason)


def replayed(plan):
    return [q for q, choice in zip(plan.questions.tolist(), plan.replays, strict=True) if choice]


def fresh(plan):
    return [q for q, choice in zip(plan.questions.tolist(), plan.replays, strict=True) if not choice]


# The batch ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.25, 0.29, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("batch_size", [1, 2, 5, 8, 10])
@pytest.mark.parametrize("stored", [0, 1, 3, 12])
def test_n_is_the_smaller_of_the_share_and_what_is_replayable(share, batch_size, stored):
    lab = Lab(replay_share=share)
    for question in range(stored):
        lab.store(question, 1)
    plan = lab.plan(batch_size)
    wanted = int(round(share * 100) * batch_size // 100)
    n = min(wanted, stored)
    if 0 < share * batch_size < 1 and stored and plan.num_replayed:  # by the coin
        n = 1
    assert plan.num_replayed == len(replayed(plan)) == n
    assert plan.questions.shape == (batch_size,)
    assert len(plan.replays) == batch_size
    assert len(set(plan.questions.tolist())) == batch_size
    assert set(replayed(plan)) <= set(range(stored))
    assert (plan.idle is None) == (n > 0)


def test_a_replayed_group_holds_a_trajectory_of_its_own_question():
    lab = Lab(replay_share=0.5)
    for question in range(10):
        lab.store(question, 1, 2)
    plan = lab.plan(8)
    for question, choice in zip(plan.questions.tolist(), plan.replays, strict=True):
        for one in choice:
            assert one.trajectory.question == question
            assert one.trajectory is lab.buffer.get(lab.buffer.find(question, one.serial))


def test_no_question_is_dropped_over_a_pass():
    lab = Lab(questions=24, replay_share=0.5)
    for question in range(6):
        lab.store(question, 1)
    seen = Counter()
    while lab.planner.stream.pass_number < 3:
        plan = lab.plan(6)
        seen.update(fresh(plan))
        assert not set(fresh(plan)) & set(replayed(plan))
    waiting = Counter(lab.planner.stream.deferred)
    order, cursor = lab.planner.stream._order, lab.planner.stream.cursor
    for question in range(24):
        assert seen[question] + waiting[question] == 3 + (question in order[:cursor])


def test_uses_are_counted_and_told():
    lab = Lab(questions=4, replay_share=0.5)
    lab.store(2, 1)
    for turn in (1, 2, 3):
        plan = lab.plan(2)
        (slot,) = lab.buffer.slots_of(2)
        assert lab.buffer.column("uses")[slot] == turn
        last = lab.of(Replayed)[-1]
        assert (last.generation, last.step, last.question, last.serial) == (plan.iteration, plan.step, 2, 0)
        assert last.stage == "plan"
        assert last.age == plan.step - lab.buffer.column("step")[slot]
        np.testing.assert_equal(last.entropy, float(lab.buffer.column("entropy")[slot]))
    assert len(lab.of(Replayed)) == 3


def test_generations_count_and_steps_are_as_given():
    lab = Lab()
    plans = [lab.planner.plan(2, step, 0.0, lab.scorer) for step in (0, 0, 1, 1, 2)]
    assert [p.iteration for p in plans] == [0, 1, 2, 3, 4]
    assert [p.step for p in plans] == [0, 0, 1, 1, 2]


def test_two_generations_of_one_step_draw_differently():
    lab = Lab(questions=60, replay_share=0.5)
    for question in range(40):
        lab.store(question, 1)
    first, second = (lab.planner.plan(8, 5, 0.0, lab.scorer) for _ in range(2))
    assert replayed(first) != replayed(second)


def test_the_lowest_entropy_is_replayed():
    lab = Lab(questions=4, replay_share=0.25, entropy_refresh="exact")
    lab.store(2, 7, 3, 5)
    plan = lab.plan(4)
    (choice,) = plan.choices
    assert choice.trajectory.completion_ids[0] == 3
    assert len(lab.scorer.calls) == 1
    assert {m.serial: m.entropy for m in lab.of(Measured)} == {0: 7.0, 1: 3.0, 2: 5.0}


# Idle, and the gate -------------------------------------------------------------------------------------------------


def test_idle_says_why():
    assert Lab().plan().idle == "no replayable question stored"
    lab = Lab(start_pass_at_1=0.35)
    lab.store(1, 1)
    assert lab.plan().idle == "gate closed: Pass@1 must exceed 0.35 over 256 completions, so far none"
    lab = Lab(capacity=0)
    lab.store(1, 1)
    assert lab.plan().idle == "nothing is stored: capacity=0"


def test_pass_at_1_of_a_step_governs_the_next():
    lab = Lab(questions=2, start_pass_at_1=0.35, start_completions=16, replay_share=0.5)
    lab.store(0, 1)
    lab.store(1, 2)
    plan = lab.plan(2)
    assert plan.num_replayed == 0
    lab.observe(plan, {0: [RIGHT] * 3 + [WRONG] * 5, 1: [RIGHT] * 2 + [WRONG] * 6})  # 5 of 16
    plan = lab.plan(2)
    assert "Pass@1 0.31 over 16 completions, must exceed 0.35" in plan.idle
    lab.observe(plan, {0: [RIGHT] * 4 + [WRONG] * 4, 1: [RIGHT] * 2 + [WRONG] * 6})  # 6 of 16
    plan = lab.plan(2)
    assert plan.num_replayed == 1
    lab.observe(plan, {0: [WRONG] * len_of(plan, 0), 1: [WRONG] * len_of(plan, 1)})
    assert lab.plan(2).num_replayed == 1  # latched


def len_of(plan, question):
    return K - len(plan.replays[plan.questions.tolist().index(question)])


def test_pass_at_1_is_over_fresh_scorable_completions():
    lab = Lab(questions=2, start_pass_at_1=0.35)
    plan = lab.plan(2)
    lab.observe(plan, {0: [RIGHT] + [UNSCORABLE] * 7, 1: [WRONG] * 2 + [UNSCORABLE] * 6})
    assert lab.planner.gate.pass_at_1 == pytest.approx(1 / 3)
    lab.observe(lab.plan(2), {0: [UNSCORABLE] * 8, 1: [UNSCORABLE] * 8})
    assert lab.planner.gate.pass_at_1 == pytest.approx(1 / 3)  # nothing measured, nothing changed


def test_experience_is_collected_and_questions_retire_before_the_gate_opens():
    lab = Lab(start_pass_at_1=0.99)
    plan = lab.plan(2)
    easy, middle = plan.questions.tolist()
    lab.observe(plan, {easy: [RIGHT] * 8})
    assert lab.buffer.retired[easy]
    assert lab.planner.admit([lab.trajectory(middle, 1)]) == 1
    assert lab.buffer.num_replayable == 1
    assert "gate closed" in lab.plan(2).idle


def test_the_other_conditions_reach_the_gate():
    lab = Lab(start_step=3, start_epoch=1.0)
    lab.store(0, 1)
    assert "step 1 < 3" in lab.plan(epoch=5.0).idle
    lab.step = 3
    assert "epoch 0.50 < 1" in lab.plan(epoch=0.5).idle
    assert lab.plan(epoch=1.0).idle is None


# Observation --------------------------------------------------------------------------------------------------------


def test_a_solved_question_retires_for_good():
    lab = Lab(questions=6)
    plan = lab.plan(2)
    question = plan.questions.tolist()[0]
    lab.store(question, 1, 2)
    lab.observe(plan, {question: [RIGHT] * 8})
    assert lab.buffer.retired[question]
    assert lab.buffer.count[question] == 0
    assert not should_admit(lab, question, "stop")
    assert lab.planner.admit([lab.trajectory(question, 5)]) == 0
    assert lab.of(Retired) == [Retired(plan.iteration, plan.step, question)]
    assert {e.serial for e in lab.of(Evicted)} == {0, 1}
    for _ in range(12):
        assert question not in lab.plan(2).questions


def test_seven_right_and_one_unscorable_is_not_solved():
    lab = Lab()
    plan = lab.plan(2)
    question = plan.questions.tolist()[0]
    lab.observe(plan, {question: [RIGHT] * 7 + [UNSCORABLE]})
    assert not lab.buffer.retired[question]
    assert should_admit(lab, question, "stop")
    assert lab.planner.admit([lab.trajectory(question, name) for name in range(7)]) == 7
    assert (lab.buffer.questions.successes[question], lab.buffer.questions.scorable[question]) == (7, 7)
    assert question in lab.buffer.questions_in(8)


def test_a_group_without_a_scorable_completion_says_nothing():
    lab = Lab()
    plan = lab.plan(1)
    (question,) = plan.questions.tolist()
    lab.store(question, 1, successes=2)
    lab.observe(plan, {question: [UNSCORABLE] * 8})
    assert question in lab.buffer.questions_in(2)
    assert lab.of(Observed)[-1].unscorable == 8


def test_none_solved_moves_to_bucket_0_and_keeps_the_trajectories():
    lab = Lab(questions=1, replay_share=1.0)
    lab.store(0, 1, 2)
    plan = lab.plan(1)
    assert plan.num_replayed == 1
    lab.observe(plan, {0: [WRONG] * 7})
    assert lab.buffer.bucket_sizes().tolist() == [1] + [0] * 8
    assert lab.buffer.count[0] == 2
    assert lab.plan(1).num_replayed == 1  # still replayable


def test_a_replayed_question_is_judged_by_its_fresh_completions_only():
    lab = Lab(questions=1, replay_share=1.0)
    lab.store(0, 1)
    lab.observe(lab.plan(1), {0: [RIGHT] * 2 + [WRONG] * 5})
    assert (lab.buffer.questions.successes[0], lab.buffer.questions.scorable[0]) == (2, 7)
    assert 0 in lab.buffer.questions_in(2)
    event = lab.of(Observed)[-1]
    assert (event.successes, event.scorable, event.replayed) == (2, 7, True)
    lab.observe(lab.plan(1), {0: [RIGHT] * 7})
    assert lab.buffer.retired[0]


def test_never_retire():
    lab = Lab(questions=1, retirement="never", replay_share=1.0)
    plan = lab.plan(1)
    lab.observe(plan, {0: [RIGHT] * 8})
    assert not lab.buffer.retired.any()
    assert should_admit(lab, 0, "stop")
    lab.planner.admit([lab.trajectory(0, 1)])
    assert 0 in lab.buffer.questions_in(8)
    assert lab.plan(1).num_replayed == 1


def test_everything_retired_fills_up_and_is_counted():
    lab = Lab(questions=3)
    lab.observe(lab.plan(3), {q: [RIGHT] * 8 for q in range(3)})
    plan = lab.plan(2)
    assert plan.refilled == 2
    assert len(set(plan.questions.tolist())) == 2
    assert plan.idle.startswith("all retired: 3 questions")
    lab.observe(plan, {q: [RIGHT] * 8 for q in range(3)})
    assert len(lab.of(Retired)) == 3  # once each


def test_groups_must_be_those_of_the_plan():
    lab = Lab()
    plan = lab.plan(2)
    groups = [Group(int(q), np.array([WRONG] * 8)) for q in plan.questions]
    with pytest.raises(ValueError, match="where the plan has"):
        lab.planner.observe(plan, groups[::-1])
    with pytest.raises(ValueError, match="zip"):
        lab.planner.observe(plan, groups[:1])


def test_wants():
    lab = Lab()
    assert should_admit(lab, 0, "stop")
    assert should_admit(lab, 0, "length")
    assert not should_admit(Lab(store_truncated=False), 0, "length")
    assert should_admit(Lab(store_truncated=False), 0, "stop")
    assert not should_admit(Lab(capacity=0), 0, "stop")
    assert not should_admit(lab, 0, "stop", correct=False)
    assert not should_admit(Lab(mixing="prompt"), 0, "stop")


def test_admit_counts_what_was_new_and_tells():
    lab = Lab()
    assert lab.store(0, 1, 2, 1) == 2
    assert [(e.serial, e.trajectory.completion_ids.tolist()) for e in lab.of(Admitted)] == [(0, [1, 0]), (1, [2, 0])]


# Rescue -------------------------------------------------------------------------------------------------------------


def rescue_lab(**options):
    return Lab(questions=3, k=4, mixing="rescue", trajectory_choice="newest", **options)


def rescues(lab, outcomes, plan=None):
    """outcomes by question 0, 1, 2; answers with {question: (member, first token)}."""
    plan = plan or lab.plan(3)
    rows = np.array([outcomes[q] for q in plan.questions.tolist()])
    found = lab.planner.rescue(plan, rows, lab.scorer)
    for one in found:
        assert one.choice.trajectory.question == plan.questions[one.group]
    return {int(plan.questions[r.group]): (r.member, int(r.choice.trajectory.completion_ids[0])) for r in found}


def test_rescue_plans_fresh_questions_only():
    lab = rescue_lab(replay_share=0.5)
    lab.store(0, 1)
    plan = lab.plan(3)
    assert plan.num_replayed == 0
    assert plan.idle is None
    assert rescue_lab().plan(3).idle == "no replayable question stored"


def test_only_a_failed_group_with_a_stored_success_is_rescued():
    lab = rescue_lab()
    lab.store(0, 1, 2)
    lab.store(1, 3)
    got = rescues(lab, [[0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]])  # 1 has a success, 2 has nothing stored
    assert got == {0: (3, 2)}


@pytest.mark.parametrize(
    ("outcomes", "member"),
    [
        ([WRONG, WRONG, WRONG, WRONG], 3),
        ([WRONG, WRONG, UNSCORABLE, UNSCORABLE], 1),
        ([UNSCORABLE, UNSCORABLE, WRONG, UNSCORABLE], 2),
        ([UNSCORABLE] * 4, None),
        ([RIGHT, WRONG, WRONG, WRONG], None),
        ([WRONG, UNSCORABLE, UNSCORABLE, RIGHT], None),
        ([RIGHT] * 4, None),
    ],
)
def test_only_a_scorable_failure_is_replaced(outcomes, member):
    lab = rescue_lab()
    lab.store(0, 1)
    got = rescues(lab, [outcomes, [RIGHT] * 4, [RIGHT] * 4])
    assert got == ({} if member is None else {0: (member, 1)})


def test_the_accuracy_of_a_rescued_question_is_that_of_its_fresh_completions():
    lab = rescue_lab()
    lab.store(0, 1, scorable=4, successes=2)
    plan = lab.plan(3)
    outcomes = {0: [WRONG] * 4, 1: [WRONG] * 4, 2: [WRONG] * 4}
    assert rescues(lab, outcomes, plan) == {0: (3, 1)}
    lab.observe(plan, outcomes)
    assert (lab.buffer.questions.successes[0], lab.buffer.questions.scorable[0]) == (0, 4)
    assert lab.buffer.count[0] == 1
    (event,) = lab.of(Replayed)
    assert (event.generation, event.step, event.question, event.serial) == (plan.iteration, plan.step, 0, 0)
    assert event.stage == "rescue"
    assert lab.buffer.column("uses")[lab.buffer.slots_of(0)[0]] == 1


def test_no_rescue_while_the_gate_is_closed_or_with_other_mixing():
    failed = [[WRONG] * 4] * 3
    for lab in (rescue_lab(start_pass_at_1=0.35), Lab(questions=3, k=4), Lab(questions=3, k=4, mixing="none")):
        lab.store(0, 1)
        assert rescues(lab, failed) == {}
        assert lab.of(Replayed) == [] or lab.planner.config.mixing == "share"


def test_a_retired_question_is_not_rescued():
    lab = rescue_lab()
    lab.store(0, 1)
    lab.buffer.retire(0)
    assert rescues(lab, [[WRONG] * 4] * 3) == {}


def test_rescue_chooses_as_configured():
    lab = Lab(questions=3, k=4, mixing="rescue", trajectory_choice="lowest_entropy", entropy_refresh="exact")
    lab.store(0, 7, 2, 5)
    assert rescues(lab, [[WRONG] * 4] * 3) == {0: (3, 2)}
    assert len(lab.scorer.calls) == 1
    picked = Counter()
    for seed in range(90):
        lab = Lab(questions=3, k=4, seed=seed, mixing="rescue", trajectory_choice="random")
        lab.store(0, 1, 2, 3)
        picked[rescues(lab, [[WRONG] * 4] * 3)[0][1]] += 1
    assert all(10 < picked[name] < 50 for name in (1, 2, 3))


# All together -------------------------------------------------------------------------------------------------------


def simulate(seed, generations=60, noise=False, **options):
    """A run with made-up outcomes; answers with all plans and the buffer's fingerprints."""
    lab = Lab(questions=30, seed=seed, **options)
    ability = np.random.default_rng(99).random(30)
    history, outcomes_rng = [], np.random.default_rng((7, seed))
    for _ in range(generations):
        if noise:
            np.random.seed(len(history))  # noqa: NPY002
        plan = lab.plan(6)
        groups, rows = [], []
        for question, choice in zip(plan.questions.tolist(), plan.replays, strict=True):
            m = K - len(choice)
            outcomes = np.where(outcomes_rng.random(K) < ability[question], RIGHT, WRONG)
            outcomes[outcomes_rng.random(K) < 0.05] = UNSCORABLE
            rows.append(outcomes)
            groups.append(Group(question, outcomes[:m], bool(choice)))
        rescued = lab.planner.rescue(plan, np.array(rows), lab.scorer)
        lab.planner.observe(plan, groups)
        new = [
            lab.trajectory(group.question, 1 + lab.step * K + member)
            for group in groups
            if lab.planner.should_admit(group, True, "stop")
            for member in np.flatnonzero(group.outcomes == RIGHT).tolist()
        ]
        assert lab.planner.admit(new) == len(new)
        history.append(
            (plan.questions.tolist(), [[c.serial for c in group] for group in plan.replays], plan.idle, plan.refilled,
             [(r.group, r.member, r.choice.serial) for r in rescued], fingerprint_of(lab.buffer))
        )  # fmt: skip
    return lab, history


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(trajectory_choice="random", question_choice="uniform"),
        dict(mixing="rescue", trajectory_choice="random"),
        dict(capacity=20, eviction="highest_entropy", entropy_refresh="exact"),
        dict(start_pass_at_1=0.35, capacity_per_question=1, question_choice="variance"),
    ],
    ids=str,
)
def test_a_run_depends_on_seed_and_observations_alone(options):
    lab, history = simulate(0, **options)
    _, again = simulate(0, noise=True, **options)
    assert history == again
    assert history != simulate(1, **options)[1]
    assert len(lab.of(Replayed)) > 10
    assert len(lab.buffer) <= lab.planner.config.capacity


def test_invariants_of_a_run():
    lab, history = simulate(3)
    for questions, serials, idle, refilled, _, _ in history:
        assert len(set(questions)) == 6
        n = sum(map(bool, serials))
        assert n <= 3
        assert (idle is None) == (n > 0)
        assert refilled == 0 or lab.buffer.num_retired > 20
    retired = {event.question for event in lab.of(Retired)}
    assert retired == set(np.flatnonzero(lab.buffer.retired).tolist())
    gone = set()
    for event in lab.events:  # nothing of a question that retired is ever replayed or stored again
        if isinstance(event, Retired):
            gone.add(event.question)
        if isinstance(event, Replayed):
            assert event.question not in gone
        if isinstance(event, Admitted):
            assert event.trajectory.question not in gone


@pytest.mark.parametrize("k", [2, 3, 64, 128])
def test_other_group_sizes(k):
    lab = Lab(questions=5, k=k, replay_share=1.0)
    for question, successes in enumerate((0, 1, k - 1, k)):
        lab.store(question, 1, successes=successes, scorable=k)
    plan = lab.plan(4)
    assert plan.num_replayed == 4
    lab.observe(plan, {0: [RIGHT] * (k - 1)})
    assert lab.buffer.retired[0]


def test_a_preview_leaves_everything_as_it_was():
    """Buffer, gate, stream, counter and listener; and it plans what the planner would."""
    told = []
    lab = Lab(20, entropy_refresh="exact", replay_share=0.5, trajectory_choice="lowest_entropy", max_uses=1)
    for question in range(6):
        lab.store(question, 1, 2)
    lab.plan(4)
    planner, n = lab.planner, lab.planner.stream.num_questions
    planner.listener = told.append
    before = fingerprint_of(lab.buffer), planner.state(lab.step)
    with preview(planner, FreshStream(lambda number: np.arange(n), n)):
        tried = planner.plan(4, lab.step, 0.0, lambda ts: [9.0] * len(ts))
        assert (lab.buffer.column("entropy") == 9.0).any()
    assert (fingerprint_of(lab.buffer), planner.state(lab.step)) == before
    assert not told
    plan = planner.plan(4, lab.step, 0.0, lambda ts: [9.0] * len(ts))
    assert [c.serial for c in tried.choices] == [c.serial for c in plan.choices]
    assert told
