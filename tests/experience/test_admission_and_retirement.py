"""What is stored, when a question has been learned, its review, and what leaves where there is no room."""

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from exgrpo.config import ReplayConfig
from exgrpo.experience import RIGHT, UNSCORABLE, WRONG, ExperienceBuffer, Group
from exgrpo.experience.contexts import AdmissionCandidate, RetirementContext
from exgrpo.experience.events import Admitted, Evicted, Retired, Returned
from exgrpo.experience.options.admission import quality
from exgrpo.experience.options.retirement import never, solved, threshold
from tests.support.lab import NAN, Lab, name_of, replayed, trajectory

# Admission ----------------------------------------------------------------------------------------------------------

GROUPS = {
    "none": (WRONG, WRONG, WRONG, WRONG),
    "one": (WRONG, RIGHT, WRONG, WRONG),
    "one scorable": (UNSCORABLE, RIGHT, UNSCORABLE, UNSCORABLE),
    "two": (WRONG, RIGHT, RIGHT, WRONG),
    "all but one": (RIGHT, RIGHT, UNSCORABLE, RIGHT),
}
WANTED = {  # of right and of wrong members
    "correct": {"none": "w", "one": "r", "one scorable": "r", "two": "r", "all but one": "r"},
    "all": {"none": "rw", "one": "rw", "one scorable": "rw", "two": "rw", "all but one": "rw"},
    "single_success": {"none": "", "one": "r", "one scorable": "r", "two": "", "all but one": ""},
}
WANTED["correct"]["none"] = ""


@pytest.mark.parametrize("admission", WANTED)
@pytest.mark.parametrize("name", GROUPS)
def test_who_is_wanted(admission, name):
    lab = Lab(4, k=4, admission=admission)
    group = Group(0, np.array(GROUPS[name]))
    has = {"r": RIGHT in GROUPS[name], "w": WRONG in GROUPS[name]}
    for letter, correct in (("r", True), ("w", False)):
        if has[letter]:
            assert lab.planner.should_admit(group, correct, "stop") == (letter in WANTED[admission][name])


def test_a_group_with_a_stored_member_counts_its_fresh_ones():
    lab = Lab(4, k=4, admission="single_success")
    assert lab.planner.should_admit(Group(0, np.array([RIGHT, WRONG, WRONG]), replayed=True), True, "stop")


@pytest.mark.parametrize(
    ("correct", "value", "min_quality", "weight", "expected"),
    [
        (True, NAN, 0.3, 0.7, True),  # 0.7 to 1.0
        (False, NAN, 0.3, 0.7, False),  # 0 to 0.3: never above 0.3
        (False, NAN, 0.29, 0.7, True),
        (True, 0.7, 0.7, 0.7, False),  # must exceed
        (True, 0.71, 0.7, 0.7, True),
        (False, 0.3, 0.2, 0.7, True),
        (True, NAN, 1.0, 0.7, False),
        (False, NAN, 0.99, 0.0, True),  # diversity alone
    ],
)
def test_quality_admission_by_hand(correct, value, min_quality, weight, expected):
    config = ReplayConfig(admission="quality", min_quality=min_quality, success_weight=weight)
    assert quality(AdmissionCandidate(0, correct, 1, 4, "stop", value, config)) is expected


def embedded(question, name, *vector, correct=True):
    return trajectory(question, name, embedding=np.array(vector, float), correct=correct)


def test_quality_is_success_and_diversity_to_what_is_stored():
    """0.7 + 0.3 x 1; then the same text again: 0.7 + 0; then at a right angle to both: 0.7 + 0.3."""
    lab = Lab(4, k=4, admission="quality", min_quality=0.0)
    lab.know(0, 1)
    group = Group(0, np.array([RIGHT, WRONG, WRONG, WRONG]))
    stored = [embedded(0, 1, 1, 0), embedded(0, 2, 1, 0), embedded(0, 3, 0, 1), embedded(0, 4, 1, 0, correct=False)]
    assert lab.planner.admit(stored, [group]) == 4
    got = [event.trajectory.quality for event in lab.of(Admitted)]
    assert got == pytest.approx([1.0, 0.7, 1.0, 0.3 * (1 - 2 / 3)], abs=1e-6)


def test_what_is_not_good_enough_is_neither_stored_nor_remembered():
    """At more than 0.7, a repetition is refused, and does not make the next one of its kind worse."""
    lab = Lab(4, k=4, admission="quality", min_quality=0.71)
    group = Group(0, np.array([RIGHT, WRONG, WRONG, WRONG]))
    stored = [embedded(0, 1, 1, 0), embedded(0, 2, 1, 0), embedded(0, 3, 1, 0), embedded(0, 4, 0.6, 0.8)]
    assert lab.planner.admit(stored, [group]) == 2  # 1.0; 0.7 twice; 0.7 + 0.3 x 0.4
    assert [name_of(e.trajectory) for e in lab.of(Admitted)] == [1, 4]
    assert lab.planner.diversity.seen(0) == 2


def test_a_failure_that_is_like_nothing_stored_is_not_above_the_default_threshold():
    """0.7 x 0 + 0.3 x 1 is 0.3, which does not exceed 0.3, whatever floating point makes of 1 - 0.7."""
    lab = Lab(4, k=4, admission="quality")
    group = Group(0, np.array([RIGHT, WRONG, WRONG, WRONG]))
    assert not lab.planner.should_admit(group, False, "stop")
    assert lab.planner.admit([embedded(0, 1, 1, 0, correct=False)], [group]) == 0


# Retirement ---------------------------------------------------------------------------------------------------------


def standing(successes, completions, accuracy=NAN, **options):
    return RetirementContext(0, successes, completions, accuracy, ReplayConfig(**options))


def test_solved_and_never():
    assert solved(standing(8, 8))
    assert solved(standing(7, 7))
    assert not solved(standing(7, 8))
    assert not never(standing(8, 8))


@pytest.mark.parametrize(
    ("at_least", "k"), [(0.5, 8), (0.75, 8), (0.75, 7), (0.01, 8), (1.0, 8), (0.28, 25), (0.07, 100)]
)
def test_threshold_is_exact_and_inclusive(at_least, k):
    for successes in range(k + 1):
        expected = Fraction(successes, k) >= Fraction(str(at_least))
        assert threshold(standing(successes, k, retirement_threshold=at_least)) == expected


@pytest.mark.slow
def test_threshold_of_any_group_size():
    for k in range(2, 129):
        for percent in range(1, 101):
            n = math.ceil(Fraction(percent, 100) * k)
            assert threshold(standing(n, k, retirement_threshold=percent / 100))
            assert not threshold(standing(n - 1, k, retirement_threshold=percent / 100))


def test_threshold_of_a_window_is_over_the_window():
    options = dict(difficulty="window", retirement_threshold=0.5)
    assert threshold(standing(1, 4, accuracy=0.5, **options))
    assert not threshold(standing(4, 4, accuracy=0.49, **options))


@pytest.mark.parametrize(
    ("options", "right", "retires"),
    [
        (dict(), 3, False),
        (dict(), 4, True),
        (dict(retirement="threshold", retirement_threshold=0.5), 1, False),
        (dict(retirement="threshold", retirement_threshold=0.5), 2, True),
        (dict(retirement="never"), 4, False),
    ],
)
def test_when_a_question_retires(options, right, retires):
    lab = Lab(6, k=4, **options)
    plan = lab.plan(1)
    question = int(plan.questions[0])
    lab.store(question, 1, 2)
    lab.observe(plan, {question: right})
    assert lab.buffer.retired[question] == retires
    assert [e.question for e in lab.of(Retired)] == [question] * retires
    assert {(e.question, e.reason) for e in lab.of(Evicted)} == ({(question, "retired")} if retires else set())
    assert lab.planner.should_admit(Group(question, np.array([RIGHT, WRONG])), True, "stop") != retires


def test_an_unscorable_completion_counts_against_a_threshold():
    """2 right of 4, of which one could not be scored: a half and not two thirds."""
    for at_least, retires in ((0.5, True), (0.51, False)):
        lab = Lab(4, k=4, retirement="threshold", retirement_threshold=at_least)
        plan = lab.plan(1)
        group = Group(int(plan.questions[0]), np.array([RIGHT, RIGHT, WRONG, UNSCORABLE]))
        lab.planner.observe(plan, [group])
        assert lab.buffer.retired[plan.questions[0]] == retires


def test_a_window_retires_once_enough_of_it_is_right():
    """0 of 4, then 4 of 4 twice: 0, 1/2, 2/3 of the window, at 2/3."""
    lab = Lab(1, k=4, difficulty="window", retirement="threshold", retirement_threshold=0.66)
    retired = []
    for right in (0, 4, 4):
        lab.observe(lab.plan(1), {0: right})
        retired.append(bool(lab.buffer.retired[0]))
    assert retired == [False, False, True]


# Review -------------------------------------------------------------------------------------------------------------


def retired_lab(n=20, **options):
    lab = Lab(40, k=4, **{"review_every": 5, "review_share": 0.25, **options})
    for question in range(n):
        lab.know(question, 4)
        lab.buffer.retire(question)
    return lab


def test_a_share_of_the_retired_returns_every_so_many_steps():
    """A quarter of 20, then of 15, rounded down; at steps 5 and 10, and not between."""
    lab = retired_lab()
    returned = [lab.plan(4, step=step).returned for step in range(1, 12)]
    assert returned == [0, 0, 0, 0, 5, 0, 0, 0, 0, 3, 0]
    assert lab.buffer.num_retired == 12
    assert [e.step for e in lab.of(Returned)] == [5] * 5 + [10] * 3
    assert not lab.buffer.retired[[e.question for e in lab.of(Returned)]].any()


def test_at_least_one_returns():
    lab = retired_lab(2, review_share=0.01)
    assert lab.plan(4, step=5).returned == 1
    assert lab.plan(4, step=10).returned == 1
    assert lab.plan(4, step=15).returned == 0


def test_several_generations_of_a_step_review_once():
    lab = retired_lab()
    assert [lab.plan(4, step=step).returned for step in (5, 5, 5, 9, 10, 10)] == [5, 0, 0, 0, 3, 0]


def test_a_review_that_was_missed_comes_late():
    """Steps go by threes: reviews at 6 and 12."""
    lab = retired_lab()
    assert [lab.plan(4, step=step).returned for step in (3, 6, 9, 12)] == [0, 5, 0, 3]


def test_who_returns_depends_on_seed_and_generation():
    def who(seed):
        lab = retired_lab(seed=seed)
        lab.plan(4, step=5)
        return [e.question for e in lab.of(Returned)]

    assert who(0) == who(0) == sorted(who(0))
    assert len({tuple(who(seed)) for seed in range(6)}) > 3
    counts = Counter(question for seed in range(400) for question in who(seed))
    assert all(60 < counts[question] < 145 for question in range(20))


def test_a_returned_question_is_fresh_again_and_can_be_replayed_and_retire_again():
    lab = Lab(4, k=4, review_every=5, review_share=1.0, replay_share=1.0)
    lab.know(2, 4)
    lab.buffer.retire(2)
    seen = {question for step in range(1, 5) for question in lab.plan(1, step=step).questions.tolist()}
    assert 2 not in seen
    lab.plan(1, step=5)
    seen = {question for _ in range(4) for question in lab.plan(1, step=6).questions.tolist()}
    assert 2 in seen
    lab.know(2, 2)
    lab.planner.admit([trajectory(2, 1)])
    assert replayed(lab.plan(1, step=7)) == [2]
    lab.observe(lab.plan(1, step=8), {2: 3})
    assert lab.buffer.retired[2]


def test_no_review_by_default():
    lab = retired_lab(review_every=0)
    assert sum(lab.plan(4, step=step).returned for step in range(200)) == 0


# Eviction -----------------------------------------------------------------------------------------------------------


def left(names, fields, **options):
    """Which of these completions of one question are kept, oldest first."""
    buffer = ExperienceBuffer(4, 4, ReplayConfig(**options))
    for name, given in zip(names, fields, strict=True):
        buffer.admit([trajectory(0, name, **given)])
    return [name_of(buffer.get(slot)) for slot in buffer.slots_of(0)[::-1]]


@pytest.mark.parametrize(
    ("eviction", "column", "values", "kept"),
    [
        ("oldest", "entropy", (0.1, 0.9, 0.5, 0.3), [2, 3, 4]),
        ("highest_entropy", "entropy", (0.1, 0.9, 0.5, 0.3), [1, 3, 4]),
        ("highest_entropy", "entropy", (0.1, 0.9, NAN, 0.3), [1, 2, 4]),  # never measured counts as highest
        ("highest_entropy", "entropy", (0.5, 0.5, 0.5, 0.1), [2, 3, 4]),  # of equals the oldest
        ("highest_entropy", "entropy", (0.1, 0.2, 0.3, 0.9), [1, 2, 4]),  # the new one is not in question
        ("lowest_quality", "quality", (0.5, 0.1, 0.3, 0.0), [1, 3, 4]),
        ("lowest_quality", "quality", (0.5, 0.1, NAN, 0.9), [1, 2, 4]),
        ("lowest_quality", "quality", (0.5, 0.5, 0.5, 0.9), [2, 3, 4]),
        ("quality_tiers", "quality", (0.9, 0.1, 0.5, 0.7), [1, 3, 4]),  # of three, one a tier: the lowest
        ("quality_tiers", "quality", (0.9, 0.5, NAN, 0.7), [1, 2, 4]),
    ],
)
def test_who_leaves_a_full_question(eviction, column, values, kept):
    fields = [{column: value} for value in values]
    assert left((1, 2, 3, 4), fields, eviction=eviction, capacity_per_question=3) == kept


@pytest.mark.parametrize(
    ("eviction", "fields", "gone"),
    [
        ("oldest", [{}] * 4, (0, 0)),
        ("highest_entropy", [{"entropy": e} for e in (0.1, 0.2, 0.9, 0.3)], (2, 2)),
        ("lowest_quality", [{"quality": q} for q in (0.9, 0.2, 0.5, 0.0)], (1, 1)),
        ("quality_tiers", [{"quality": q} for q in (0.1, 0.2, 0.5, 0.0)], (0, 0)),
    ],
)
def test_who_leaves_a_full_buffer(eviction, fields, gone):
    """One trajectory of each of three questions, and a fourth comes: all compete, or those of the oldest's question."""
    lab = Lab(6, eviction=eviction, capacity=3)
    for question, given in enumerate(fields):
        lab.store(question, 1, **given)
    assert [(e.serial, e.question, e.reason) for e in lab.of(Evicted)] == [(*gone, "capacity")]


def test_the_oldest_of_the_lowest_tier_of_the_question_that_holds_the_oldest():
    """Question 0 holds the oldest of all, with 0.9, and one with 0.1: the latter leaves a buffer of three."""
    lab = Lab(6, eviction="quality_tiers", capacity=3)
    lab.store(0, 1, quality=0.9)
    lab.store(1, 1, quality=0.0)
    lab.store(0, 2, quality=0.1)
    lab.store(2, 1, quality=0.5)
    assert [(e.serial, e.question) for e in lab.of(Evicted)] == [(2, 0)]
