"""Delayed start: what opens the gate, that it stays open, and what it says while it is shut."""

import pytest

from exgrpo.replay.gate import Gate


def test_pass_at_1_must_exceed_the_threshold():
    gate = Gate(0.35)
    assert "not measured yet, must exceed 0.35" in gate.check(None, 0, 0.0)
    assert "Pass@1 0.12, must exceed 0.35" in gate.check(0.12, 1, 0.0)
    assert gate.check(0.35, 2, 0.0) is not None
    assert not gate.open
    assert gate.check(0.3501, 3, 0.0) is None
    assert gate.open


def test_it_latches():
    gate = Gate(0.35, start_step=2)
    assert gate.check(0.9, 2, 0.0) is None
    assert gate.check(0.0, 3, 0.0) is None
    assert gate.check(None, 0, 0.0) is None


def test_zero_opens_at_once():
    assert Gate(0.0).check(None, 0, 0.0) is None
    assert Gate(0.0).check(0.0, 0, 0.0) is None


@pytest.mark.parametrize(
    ("pass_at_1", "step", "epoch", "words"),
    [
        (0.5, 9, 3.0, ["step 9 < 10"]),
        (0.5, 10, 1.5, ["epoch 1.50 < 2"]),
        (0.1, 10, 2.0, ["Pass@1 0.10"]),
        (None, 0, 0.0, ["Pass@1 not measured", "step 0 < 10", "epoch 0.00 < 2"]),
        (0.5, 10, 2.0, []),
    ],
)
def test_conditions_given_together_must_all_hold(pass_at_1, step, epoch, words):
    why = Gate(0.35, 10, 2.0).check(pass_at_1, step, epoch)
    assert (why is None) == (not words)
    for word in words:
        assert word in why
    assert why is None or why.count(";") == len(words) - 1


def test_conditions_need_to_hold_at_once():
    gate = Gate(0.35, start_step=5)
    assert gate.check(0.9, 0, 0.0)
    assert gate.check(0.1, 5, 0.0)
    assert gate.check(0.9, 5, 0.0) is None
