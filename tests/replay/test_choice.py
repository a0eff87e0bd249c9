"""Which stored trajectory of a question is replayed, against a plain reference and a scorer that counts its calls."""

import math
import random
from copy import deepcopy

import numpy as np
import pytest

from exgrpo.config import ReplayConfig
from exgrpo.experience import ExperienceBuffer, Trajectory
from exgrpo.experience.replayed import fingerprint_of
from exgrpo.replay.choice import choose
from tests.reference import buffer as reference


class Scorer:
    """Entropies from a table by the first token; remembers what it was asked."""

    def __init__(self, entropies):
        self.entropies = dict(entropies)
        self.calls = []

    def __call__(self, trajectories):
        names = [int(t.completion_ids[0]) for t in trajectories]
        self.calls.append(names)
        return np.array([self.entropies[name] for name in names])

    @property
    def measured(self):
        return [name for call in self.calls for name in call]


def stored(*entropies, question=0, buffer=None, first=0, steps=None):
    """A buffer with one trajectory per entropy, named first, first + 1, ... by its token, oldest first."""
    buffer = ExperienceBuffer(20, 8) if buffer is None else buffer
    for i, entropy in enumerate(entropies):
        step = 0 if steps is None else steps[i]
        ids = np.array([first + i])
        buffer.admit([Trajectory(question, ids, np.array([-1.0]), np.array([1.0]), step, entropy=entropy)])
    return buffer


def chosen(buffer, config, scorer, questions=(0,), step=0, seed=0):
    slots = choose(buffer, questions, step, config, np.random.default_rng(seed), scorer)
    return [int(buffer.get(slot).completion_ids[0]) for (slot,) in slots]


LAZY, EXACT = ReplayConfig(), ReplayConfig(entropy_refresh="exact")


def test_lazy_measures_nothing_that_is_fresh_enough():
    scorer = Scorer({})
    assert chosen(stored(0.5, 0.2, 0.9), LAZY, scorer, step=10) == [1]
    assert scorer.calls == []


def test_lazy_measures_the_two_best_once_they_are_older_than_the_limit():
    buffer, scorer = stored(0.5, 0.2, 0.9), Scorer({0: 0.1, 1: 0.4})
    assert chosen(buffer, LAZY, scorer, step=11) == [0]
    assert sorted(scorer.measured) == [0, 1]
    assert len(scorer.calls) == 1
    assert chosen(buffer, LAZY, scorer, step=12) == [0]
    assert len(scorer.calls) == 1  # written down with the step at which it was measured
    assert chosen(buffer, LAZY, scorer, step=21) == [0]
    assert len(scorer.calls) == 1
    chosen(buffer, LAZY, scorer, step=22)
    assert len(scorer.calls) == 2


def test_lazy_measures_only_the_stale_one_of_the_two():
    buffer, scorer = stored(0.5, 0.2, 0.9, steps=[0, 8, 0]), Scorer({0: 0.3})
    assert chosen(buffer, LAZY, scorer, step=15) == [1]
    assert scorer.measured == [0]


def test_lazy_measures_an_unmeasured_one_at_once():
    buffer, scorer = stored(0.5, 0.2, math.nan), Scorer({2: 0.3})
    assert chosen(buffer, LAZY, scorer) == [1]
    assert scorer.measured == [2]


def test_more_candidates_by_option():
    buffer, scorer = stored(0.5, 0.2, 0.9, 0.8), Scorer({0: 0.5, 1: 0.6, 3: 0.1})
    assert chosen(buffer, ReplayConfig(entropy_candidates=3), scorer, step=99) == [3]
    assert sorted(scorer.measured) == [0, 1, 3]


def test_exact_measures_all_at_every_draw():
    buffer, scorer = stored(0.5, 0.2, 0.9), Scorer({0: 0.7, 1: 0.6, 2: 0.1})
    assert chosen(buffer, EXACT, scorer) == [2]
    assert chosen(buffer, EXACT, scorer) == [2]
    assert [sorted(call) for call in scorer.calls] == [[0, 1, 2]] * 2


@pytest.mark.parametrize("config", [LAZY, EXACT, ReplayConfig(max_entropy_age=0)])
@pytest.mark.parametrize("entropy", [math.nan, 0.5])
def test_a_single_candidate_is_never_measured(config, entropy):
    scorer = Scorer({})
    assert chosen(stored(entropy), config, scorer, step=1000) == [0]
    assert scorer.calls == []


@pytest.mark.parametrize("config", [LAZY, EXACT])
def test_ties_go_to_the_older(config):
    scorer = Scorer({0: 0.5, 1: 0.5, 2: 0.5})
    assert chosen(stored(0.5, 0.5, 0.5), config, scorer) == [0]
    assert chosen(stored(math.nan, math.nan, math.nan), config, scorer) == [0]


def test_all_questions_are_measured_in_one_call():
    buffer = stored(0.5, 0.6)
    stored(0.7, 0.1, question=3, buffer=buffer, first=10)
    stored(0.7, question=4, buffer=buffer, first=20)
    scorer = Scorer({0: 0.5, 1: 0.6, 10: 0.7, 11: 0.1})
    assert chosen(buffer, EXACT, scorer, questions=(3, 4, 0)) == [11, 20, 0]
    assert len(scorer.calls) == 1
    assert chosen(buffer, EXACT, scorer, questions=()) == []


@pytest.mark.parametrize("mode", ["lazy", "exact"])
@pytest.mark.parametrize("seed", range(5))
def test_a_long_history_equals_the_plain_choice(mode, seed):
    """Entropies drift; what is chosen and what is measured agree with the reference at every step."""
    rng = random.Random(seed)
    config = ReplayConfig(entropy_refresh=mode, max_entropy_age=rng.randrange(6), entropy_candidates=2)
    buffer = ExperienceBuffer(3, 8, ReplayConfig(capacity_per_question=5))
    plain = reference.PlainBuffer(8, 100_000, 5, "oldest")
    truth: dict[int, float] = {}
    for step in range(60):
        name = len(truth)
        truth[name] = float(np.float32(rng.random()))
        entropy, question = rng.choice([math.nan, truth[name]]), rng.randrange(3)
        stored(entropy, question=question, buffer=buffer, first=name, steps=[step])
        plain.admit(question, (name,), step, entropy)
        for key in truth:
            truth[key] = float(np.float32(max(0.0, truth[key] + rng.gauss(0, 0.1))))
        questions = [q for q in range(3) if plain.of(q)]
        scorer, asked = Scorer(truth), []

        def measure(one, asked=asked):
            asked.append(one.ids[0])
            return truth[one.ids[0]]

        expected = [
            reference.lowest_entropy(plain.of(q), step, mode, 2, config.max_entropy_age, measure) for q in questions
        ]
        slots = choose(buffer, questions, step, config, np.random.default_rng(0), scorer)
        assert buffer.column("serial")[np.ravel(slots)].tolist() == expected
        assert sorted(scorer.measured) == sorted(asked)
        for one in plain.everything():
            slot = buffer.find(one.question, one.serial)
            assert buffer.column("entropy_step")[slot] == one.entropy_step
            np.testing.assert_equal(float(buffer.column("entropy")[slot]), float(np.float32(one.entropy)))


def test_lazy_never_chooses_worse_than_what_it_knows():
    """With nothing stale and all measured, lazy is the plain minimum."""
    rng = random.Random(1)
    for _ in range(20):
        entropies = [rng.random() for _ in range(rng.randrange(1, 8))]
        got = chosen(stored(*entropies), LAZY, Scorer({}))
        assert got == [min(range(len(entropies)), key=entropies.__getitem__)]


def test_newest_and_random():
    buffer, scorer = stored(0.1, 0.5, 0.9), Scorer({})
    assert chosen(buffer, ReplayConfig(trajectory_choice="newest"), scorer) == [2]
    config = ReplayConfig(trajectory_choice="random")
    drawn = [chosen(buffer, config, scorer, seed=seed)[0] for seed in range(300)]
    assert all(60 < drawn.count(name) < 140 for name in range(3))
    assert drawn == [chosen(buffer, config, scorer, seed=seed)[0] for seed in range(300)]
    assert scorer.calls == []


def test_choosing_leaves_the_buffer_alone_but_for_what_was_measured():
    buffer = stored(0.1, 0.5, 0.9)
    before = fingerprint_of(buffer)
    for name in ("lowest_entropy", "random", "newest"):
        chosen(buffer, ReplayConfig(trajectory_choice=name), Scorer({}))
    assert fingerprint_of(buffer) == before
    other = deepcopy(buffer)
    chosen(other, EXACT, Scorer({0: 0.1, 1: 0.2, 2: 0.9}))
    assert fingerprint_of(other) != before
