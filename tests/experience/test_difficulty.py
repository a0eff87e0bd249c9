"""What the accuracy of a question is: the latest group, a window of groups, or the spread of rewards."""

import numpy as np
import pytest

from exgrpo.config import ReplayConfig
from exgrpo.experience import ExperienceBuffer
from exgrpo.experience.difficulty import Windows, resolution_of
from exgrpo.experience.events import Observed
from exgrpo.experience.replayed import fingerprint_of, restore, snapshot_of
from tests.support.lab import NAN, Lab, trajectory


def test_a_window_holds_whole_groups_at_most_so_many_and_at_least_the_latest():
    """Of ten completions at most: groups of 4, 4 and 4 make 12, so the first leaves; a group of 16 stands alone."""
    windows = Windows(10)
    assert windows.add(0, 4, 4) == (4, 4)
    assert windows.add(0, 2, 4) == (6, 8)
    assert windows.add(0, 0, 4) == (2, 8)
    assert windows.add(0, 1, 2) == (3, 10)
    assert windows.add(0, 9, 16) == (9, 16)
    assert windows.add(0, 1, 1) == (1, 1)  # 17 would be too many, and the latest stays
    assert windows.add(7, 1, 3) == (1, 3)  # of another question


def test_rows_restore_a_window():
    windows, other = Windows(10), Windows(10)
    for group in ((0, 1, 4), (5, 3, 4), (0, 2, 4)):
        windows.add(*group)
    rows = windows.snapshot()
    assert rows["window_question"].tolist() == [0, 0, 5]
    assert rows["window_groups"].tolist() == [[1, 4], [2, 4], [3, 4]]
    other.restore(rows)
    assert other.add(0, 0, 4) == windows.add(0, 0, 4) == (2, 8)


def test_resolution():
    """K for the latest group; for a window its length, if that is more."""
    assert resolution_of(ReplayConfig(), 8) == 8
    assert resolution_of(ReplayConfig(difficulty="window"), 8) == 100
    assert resolution_of(ReplayConfig(difficulty="window", difficulty_window=4), 8) == 8
    assert resolution_of(ReplayConfig(difficulty="spread"), 8) == 8


def test_a_window_moves_the_accuracy_more_slowly():
    """1 of 4, then 3 of 4, then 4 of 4: by the latest 3/4 of it, by a window of 8 a half, then 7/8."""
    latest, window = Lab(2, k=4), Lab(2, k=4, difficulty="window", difficulty_window=8, retirement="never")
    expected = ((1, [1 / 4, 1 / 4]), (3, [3 / 4, 1 / 2]), (4, [1.0, 7 / 8]))
    for right, accuracies in expected:
        for lab, accuracy in zip((latest, window), accuracies, strict=True):
            lab.know(0, right)
            assert lab.buffer.questions.accuracy(np.array([0])) == accuracy


def test_a_window_has_buckets_for_its_own_accuracies():
    """50 of 100 and 51 of 100 are not in one bucket; 13 of 26 is with the first."""
    buffer = ExperienceBuffer(3, 4, ReplayConfig(difficulty="window"))
    for question, (right, of) in enumerate(((50, 100), (51, 100), (13, 26))):
        buffer.observe(question, right, of)
        buffer.admit([trajectory(question, 1)])
    assert sorted(buffer.questions_in(50).tolist()) == [0, 2]
    assert buffer.questions_in(51).tolist() == [1]
    assert len(buffer.bucket_sizes()) == 101


def test_a_group_without_a_scorable_completion_is_no_part_of_a_window():
    lab = Lab(2, k=4, difficulty="window")
    lab.know(0, 1)
    lab.know(0, 0, 0)
    lab.know(0, 2, 2)
    assert (lab.buffer.questions.successes[0], lab.buffer.questions.scorable[0]) == (3, 6)


def test_a_spread_is_that_of_the_latest_group_and_is_told():
    lab = Lab(4, k=4, difficulty="spread")
    plan = lab.plan(2)
    lab.observe(plan, reward_std=0.25)
    assert [e.reward_std for e in lab.of(Observed)] == [0.25, 0.25]
    assert lab.buffer.questions.reward_std[plan.questions].tolist() == [0.25, 0.25]
    first = int(plan.questions[0])
    lab.know(first, 2, reward_std=0.5)
    assert lab.buffer.questions.reward_std[first] == 0.5
    lab.know(first, 0, 0, reward_std=0.75)  # nothing could be scored: nothing is said
    assert lab.buffer.questions.reward_std[first] == 0.5


def test_a_question_never_observed_has_no_accuracy_and_no_spread():
    lab = Lab(2)
    assert np.isnan(lab.buffer.questions.accuracy(np.array([0]))).all()
    assert np.isnan(lab.buffer.questions.reward_std).all()
    lab.planner.admit([trajectory(0, 1)])
    assert lab.buffer.num_replayable == 0


@pytest.mark.parametrize("difficulty", ["latest", "window", "spread"])
def test_a_snapshot_goes_on_alike(difficulty):
    options = dict(difficulty=difficulty, difficulty_window=10, retirement="never")
    lab, other = Lab(6, k=4, **options), Lab(6, k=4, **options)
    rng = np.random.default_rng(0)
    for _ in range(30):
        lab.know(int(rng.integers(6)), int(rng.integers(5)), reward_std=float(rng.random()))
    restore(other.buffer, snapshot_of(lab.buffer))
    for _ in range(30):
        seen = int(rng.integers(6)), int(rng.integers(5))
        for each in (lab, other):
            each.know(*seen, reward_std=NAN)
        assert fingerprint_of(lab.buffer) == fingerprint_of(other.buffer)
