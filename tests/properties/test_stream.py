"""The fresh stream: against a plain one, and that nothing is ever lost."""

import random
from collections import Counter
from itertools import chain, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.replay import FreshStream
from tests.reference.stream import PlainStream


def permutation(q: int, seed: int = 0):
    """Pass number -> order; by pass, so that the plain stream may ask as often as it likes."""
    return lambda number: np.random.default_rng((seed, number)).permutation(q)


class Run:
    """Both streams side by side, every batch compared."""

    def __init__(self, q: int, seed: int = 0):
        self.q = q
        self.orders = permutation(q, seed)
        self.fast = FreshStream(self.orders, q)
        self.plain = PlainStream(lambda number: self.orders(number).tolist(), q)
        self.retired = np.zeros(q, bool)
        self.served = Counter()

    def retire(self, *questions: int) -> None:
        self.retired[list(questions)] = True

    def take(self, n: int, replayed=()) -> tuple[list[int], int]:
        got = self.fast.take(n, replayed, self.retired, int(self.retired.sum()))
        expected = self.plain.take(n, replayed, set(np.flatnonzero(self.retired).tolist()))
        assert got == expected
        assert self.fast.deferred == self.plain.deferred
        assert self.fast.pass_number * self.q + self.fast.cursor == self.plain.position
        self.served.update(got[0])
        self.check(n, set(replayed), *got)
        return got

    def check(self, n, replayed, taken, refilled) -> None:
        assert len(taken) == n
        assert all(type(question) is int for question in taken)
        if n <= self.q - len(replayed):
            assert len(set(taken)) == n  # no question twice
            assert not set(taken) & replayed
            assert refilled == sum(self.retired[taken])
            free = self.q - len(replayed | set(np.flatnonzero(self.retired).tolist()))
            assert refilled == max(0, n - free)  # a retired one only where nothing else is left
        for question in np.flatnonzero(~self.retired).tolist():  # what was met was served or waits
            met = self.fast.pass_number + (question in self.fast._order[: self.fast.cursor])
            assert self.served[question] + self.fast.deferred.count(question) == met


@st.composite
def histories(draw):
    q = draw(st.integers(1, 14))
    questions = st.integers(0, q - 1)
    step = st.tuples(
        st.integers(0, q + 6),
        st.one_of(st.just(set()), st.sets(questions, max_size=q)),
        st.one_of(st.just(set()), st.sets(questions, max_size=3)),
    )
    return q, draw(st.lists(step, min_size=1, max_size=25))


@given(histories())
def test_any_history_equals_the_plain_stream_and_loses_nothing(history):
    """With batches of any size, replayed questions, and retirement between."""
    q, steps = history
    run = Run(q)
    for n, replayed, retire in steps:
        run.take(n, sorted(question for question in replayed if not run.retired[question]))
        run.retire(*retire)


@pytest.mark.parametrize("seed", range(3))
def test_a_long_run_as_training_does_it(seed):
    """Batches of B - n with n replayed, and now and then one retires: over each pass, every question once."""
    rng = random.Random(seed)
    run, b = Run(600, seed), 16  # more than one chunk
    for _ in range(300):
        alive = np.flatnonzero(~run.retired).tolist()
        n = min(rng.randrange(9), len(alive))
        run.take(b - n, rng.sample(alive, n))
        if rng.random() < 0.3:
            run.retire(rng.choice(alive))
    counts = {run.served[question] for question in np.flatnonzero(~run.retired).tolist()}
    assert max(counts) - min(counts) <= 2
    assert run.fast.pass_number >= 3


@pytest.mark.parametrize(("q", "n"), [(12, 3), (12, 12), (512, 8), (300, 300), (1, 1), (257, 1)])
def test_without_replay_and_retirement_it_is_the_permutations_one_after_the_other(q, n):
    run = Run(q)
    steps = 3 * q // n if q < 300 else q // n + 2
    got = [question for _ in range(steps) for question in run.take(n)[0]]
    expected = list(chain.from_iterable(run.orders(number).tolist() for number in range(4)))
    assert got == expected[: len(got)]
    assert run.fast.deferred == []


def test_the_tail_of_a_pass_is_carried_into_the_next_and_the_seam_repeats_nothing():
    run = Run(7)
    first = [run.take(3)[0] for _ in range(2)]
    seam = run.take(3)[0]
    order = run.orders(0).tolist()
    assert first == [order[:3], order[3:6]]
    assert seam[0] == order[6]
    assert len(set(seam)) == 3
    after = run.orders(1).tolist()
    assert seam[1:] == [question for question in after if question != order[6]][:2]


def test_a_displaced_question_comes_first_in_the_next_batch():
    orders = {0: [0, 1, 2, 3, 4, 5], 1: [5, 4, 3, 2, 1, 0]}
    stream = FreshStream(lambda number: np.array(orders[number]), 6)
    none = np.zeros(6, bool)
    assert stream.take(2, [1], none, 0) == ([0, 2], 0)
    assert stream.deferred == [1]
    assert stream.take(2, [], none, 0) == ([1, 3], 0)
    assert stream.take(2, [4, 5], none, 0)[0] == [3, 2]  # the rest of pass 0 waits, pass 1 begins
    assert stream.deferred == [4, 5, 5, 4]  # owed twice: once by each pass
    assert stream.take(2, [4], none, 0)[0] == [5, 1]


def test_a_displaced_question_that_retires_is_owed_no_more():
    run = Run(5)
    order = run.orders(0).tolist()
    run.take(2, [order[0]])
    run.retire(order[0])
    assert order[0] not in run.take(4)[0]
    assert run.fast.deferred == [] or order[0] not in run.fast.deferred


def test_retired_ones_fill_up_in_stream_order_and_are_counted():
    stream = FreshStream(lambda number: np.arange(6), 6)
    retired = np.array([True, False, True, True, False, True])
    assert stream.take(4, [], retired, 4) == ([1, 4, 5, 0], 2)
    assert stream.take(4, [4], retired, 4) == ([1, 2, 3, 5], 3)


def test_a_question_that_repeats_is_not_counted_as_a_retired_one():
    """Fewer distinct questions than places, none retired."""
    run = Run(3)
    taken, refilled = run.take(8)
    assert refilled == 0
    assert sorted(Counter(taken).values()) == [2, 3, 3]
    run.retire(0)
    taken, refilled = run.take(8)
    assert Counter(taken)[0] == refilled > 0


@pytest.mark.parametrize("q", [1, 2, 5])
def test_it_always_ends(q):
    """With none, all but one, and all of the questions retired, and replayed."""
    for n, retired, replayed in product([0, 1, 2, 5, 13], [0, q - 1, q], [0, q - 1, q]):
        run = Run(q)
        run.retire(*range(retired))
        free = [question for question in range(q - replayed, q) if not run.retired[question]]
        for _ in range(6):
            run.take(n, free)
        run.take(n)


def test_what_waits_stays_bounded_when_nearly_all_is_replayed_again_and_again():
    """A question owes at most one turn a pass, and is served at every turn it is free."""
    run = Run(10)
    for turn in range(200):
        run.take(5, [turn % 10, (turn + 3) % 10, (turn + 5) % 10])
    assert len(run.fast.deferred) <= 20
    for _ in range(10):
        run.take(10)
    assert len(run.fast.deferred) <= 10


def test_permutations_are_asked_for_in_order_and_once():
    asked = []

    def orders(number):
        asked.append(number)
        return np.arange(4)

    stream = FreshStream(orders, 4)
    for _ in range(9):
        stream.take(3, [0], np.zeros(4, bool), 0)
    assert asked == list(range(len(asked)))
    assert len(asked) > 3
