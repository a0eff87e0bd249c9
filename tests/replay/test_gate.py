"""Delayed start: what opens the gate, that it stays open, and what it says while it is shut."""

import pytest

from exgrpo.replay.gate import Gate


def gate(*conditions, **options):
    """One, and `check(pass_at_1, step, epoch)` after 100 completions of that Pass@1."""
    made = Gate(*conditions, **{"start_completions": 100, **options})

    def check(pass_at_1, step, epoch):
        if pass_at_1 is not None:
            made.observe(round(100 * pass_at_1), 100)
        return made.check(step, epoch)

    return made, check


def test_pass_at_1_must_exceed_the_threshold():
    made, check = gate(0.35)
    assert check(None, 0, 0.0) == "gate closed: Pass@1 must exceed 0.35 over 100 completions, so far none"
    assert check(0.12, 1, 0.0) == "gate closed: Pass@1 0.12 over 100 completions, must exceed 0.35"
    assert check(0.35, 2, 0.0) is not None
    assert not made.open
    assert check(0.36, 3, 0.0) is None
    assert made.open


def test_it_is_judged_over_the_latest_generations_that_hold_enough():
    made = Gate(0.35, start_completions=64)
    for right, scorable in ((20, 32), (0, 0)):  # nothing scorable says nothing
        made.observe(right, scorable)
        assert made.check(9, 0.0) == "gate closed: Pass@1 must exceed 0.35 over 64 completions, so far 0.62 over 32"
    made.observe(0, 31)
    assert "so far 0.32 over 63" in made.check(9, 0.0)
    made.observe(2, 40)
    assert "Pass@1 0.03 over 71 completions" in made.check(9, 0.0)
    made.observe(33, 64)  # as large as that: one generation is enough
    assert list(made.recent) == [(33, 64)]
    assert made.check(9, 0.0) is None


def test_it_latches():
    _, check = gate(0.35, 2)
    assert check(0.9, 2, 0.0) is None
    assert check(0.0, 3, 0.0) is None
    assert check(None, 0, 0.0) is None


def test_zero_opens_at_once():
    assert Gate(0.0, start_completions=256).check(0, 0.0) is None
    made = Gate(0.0, start_completions=256)
    made.observe(0, 8)
    assert made.check(0, 0.0) is None


@pytest.mark.parametrize(
    ("pass_at_1", "step", "epoch", "words"),
    [
        (0.5, 9, 3.0, ["step 9 < 10"]),
        (0.5, 10, 1.5, ["epoch 1.50 < 2"]),
        (0.1, 10, 2.0, ["Pass@1 0.10"]),
        (None, 0, 0.0, ["Pass@1 must exceed", "step 0 < 10", "epoch 0.00 < 2"]),
        (0.5, 10, 2.0, []),
    ],
)
def test_conditions_given_together_must_all_hold(pass_at_1, step, epoch, words):
    why = gate(0.35, 10, 2.0)[1](pass_at_1, step, epoch)
    assert (why is None) == (not words)
    for word in words:
        assert word in why
    assert why is None or why.count(";") == len(words) - 1


def test_conditions_need_to_hold_at_once():
    _, check = gate(0.35, 5)
    assert check(0.9, 0, 0.0)
    assert check(0.1, 5, 0.0)
    assert check(0.9, 5, 0.0) is None
