"""What `Trajectory` and `Group` refuse at birth, and what they keep."""

import numpy as np
import pytest

from exgrpo.errors import TrajectoryError
from exgrpo.experience import RIGHT, UNSCORABLE, WRONG, Group, Trajectory

GOOD = dict(question=3, completion_ids=[5, 6, 2], behaviour_logps=[-1.0, -0.5, 0.0], rewards=[1.0, np.nan], step=4)


def test_it_keeps_what_it_was_given_in_its_own_arrays():
    ids = np.array([5, 6, 2])
    made = Trajectory(**{**GOOD, "completion_ids": ids})
    ids[0] = 9
    assert made.completion_ids.tolist() == [5, 6, 2]
    assert made.completion_ids.dtype == np.int32
    assert made.behaviour_logps.dtype == made.rewards.dtype == np.float32
    assert len(made) == 3
    for array in (made.completion_ids, made.behaviour_logps, made.rewards):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    assert np.isnan(made.entropy)
    assert made.finish_reason == "stop"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(question=-1), ["index"]),
        (dict(completion_ids=[]), ["(0,)", "(3,)"]),
        (dict(completion_ids=[], behaviour_logps=[]), ["non-empty"]),
        (dict(completion_ids=[1, 2]), ["(2,)", "(3,)"]),
        (dict(completion_ids=[[1, 2, 3]], behaviour_logps=[[-1, -1, -1]]), ["(1, 3)"]),
        (dict(completion_ids=[1, -100, 2]), ["-100"]),
        (dict(completion_ids=[1.0, 2.5, 3.0]), ["integers", "2.5"]),
        (dict(completion_ids=np.array([1, 2**32 + 5, 3])), ["integers", "int32"]),
        (dict(completion_ids=[1, 2**70, 3]), ["integers", "int32"]),
        (dict(behaviour_logps=[-1.0, np.nan, -1.0]), ["finite"]),
        (dict(behaviour_logps=[-1.0, -np.inf, -1.0]), ["finite"]),
        (dict(behaviour_logps=[-1.0, 0.5, -1.0]), ["0.5"]),
        (dict(rewards=[]), ["rewards", "(0,)"]),
        (dict(rewards=1.0), ["rewards", "()"]),
        (dict(finish_reason="eos"), ["'eos'", "stop", "length"]),
    ],
    ids=str,
)
def test_it_refuses_what_breaks_its_invariants(change, words):
    values = {**GOOD, **change}
    with pytest.raises(TrajectoryError) as caught:
        Trajectory(**values)
    assert isinstance(caught.value, ValueError)
    for word in (*words, f"question {values['question']}"):
        assert word in str(caught.value)


def test_ids_survive_in_full():
    ids = [0, 151_935, 2**31 - 1]
    assert Trajectory(**{**GOOD, "completion_ids": ids}).completion_ids.tolist() == ids


@pytest.mark.parametrize(
    ("outcomes", "successes", "scorable", "solved"),
    [
        ([RIGHT] * 8, 8, 8, True),
        ([RIGHT] * 7 + [UNSCORABLE], 7, 7, False),
        ([UNSCORABLE] * 3, 0, 0, False),
        ([WRONG] * 3, 0, 3, False),
        ([RIGHT, WRONG, UNSCORABLE], 1, 2, False),
        ([RIGHT], 1, 1, True),
    ],
)
def test_a_group_counts(outcomes, successes, scorable, solved):
    group = Group(0, np.array(outcomes))
    assert (group.successes, group.scorable, group.solved) == (successes, scorable, solved)
    assert group.unscorable == len(outcomes) - scorable


@pytest.mark.parametrize("outcomes", [[], [[1, 0]], [2], [0.7, 1.0], [np.nan], [257], 1], ids=str)
def test_a_group_refuses_what_is_no_outcome(outcomes):
    with pytest.raises(TrajectoryError, match="question 7"):
        Group(7, np.array(outcomes))


@pytest.mark.parametrize(
    "bad", [dict(entropy=-3.0), dict(entropy=float("inf")), dict(step=-(2**31)), dict(entropy_step=2**40)]
)
def test_entropies_and_steps_that_cannot_be(bad):
    given = dict(question=0, completion_ids=np.array([1]), behaviour_logps=np.array([-1.0]), rewards=np.ones(1), step=0)
    with pytest.raises(TrajectoryError, match=r"entropy must be|steps must lie"):
        Trajectory(**{**given, **bad})
