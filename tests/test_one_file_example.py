"""The method in one file is the library's method: its loss, its advantages, its buckets and their weights; and it runs."""

import random
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.config import ObjectiveConfig, ReplayConfig
from exgrpo.experience.difficulty import bucket_of
from exgrpo.objective import group_advantages, mixed_loss

FILE = Path(__file__).parents[1] / "examples" / "exgrpo_in_one_file.py"
EXAMPLE = SimpleNamespace(**runpy.run_path(str(FILE)))


@pytest.mark.slow
def test_it_runs_and_replays(capsys):
    torch.manual_seed(0)
    rng = random.Random(0)
    policy, data = EXAMPLE.Policy(), sorted({EXAMPLE.make_question(rng) for _ in range(40)})
    EXAMPLE.warm_up(policy, rng, steps=80)
    EXAMPLE.train(policy, data, steps=8, b=8, k=4, replay_share=0.5, start_pass_at_1=0.0, seed=0)
    last = capsys.readouterr().out.splitlines()[-1]
    assert "stored   " in last
    assert "replayed  0" not in last, last


@given(st.integers(0, 10_000))
def test_its_loss_is_the_library_s(seed):
    generator = torch.Generator().manual_seed(seed)
    n, t, beta = 6, 5, 0.1
    logps, behaviour = (-3 * torch.rand(n, t, generator=generator, dtype=torch.float64) for _ in range(2))
    lengths = torch.randint(1, t + 1, (n, 1), generator=generator)
    mask = torch.arange(t) < lengths
    replayed = torch.rand(n, generator=generator) < 0.5
    behaviour = torch.where(replayed[:, None], behaviour, logps)  # fresh: the policy is that of today
    credit = torch.randn(n, generator=generator, dtype=torch.float64)
    ours, theirs = logps.clone().requires_grad_(), logps.clone().requires_grad_()
    loss = mixed_loss(ours, behaviour, behaviour, credit, mask, replayed, ObjectiveConfig(shaping_beta=beta), t)
    other = -EXAMPLE.objective(theirs, behaviour, credit, mask, replayed, beta)
    loss.backward()
    other.backward()
    torch.testing.assert_close(other, loss)
    torch.testing.assert_close(theirs.grad, ours.grad)


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=4, max_size=4), min_size=1, max_size=5))
def test_its_advantages_are_the_library_s(rewards):
    torch.testing.assert_close(EXAMPLE.advantages(torch.tensor(rewards)), group_advantages(torch.tensor(rewards)))


class Recorder(random.Random):
    """Draws as it does, and keeps the weights that it was given."""

    def choices(self, population, weights):
        self.seen = dict(zip(population, weights, strict=True))
        return super().choices(population, weights)


@pytest.mark.parametrize("k", [4, 8])
def test_its_buckets_and_their_weights_are_the_library_s(k):
    """Accuracies over K and over K - 1 fall into the library's buckets, and a bucket weighs as in the library [Eq. 3]."""
    experience, rng = EXAMPLE.Experience(k), Recorder(0)
    buckets = {}
    for question, (right, of) in enumerate([(r, n) for n in (k, k - 1) for r in range(n)]):
        experience.observe(question, [True] * right + [False] * (of - right))
        experience.stored[question].append(None)
        buckets[question] = bucket_of(right, of, k)
    assert sorted(experience.draw(10**6, rng)) == sorted(buckets)  # every question once
    experience.draw(1, rng)
    weights = rng.seen
    assert set(weights) == set(buckets.values())
    config = ReplayConfig()
    expected = {b: np.exp(-((b / k - config.mu) ** 2) / (2 * config.sigma**2)) for b in weights}
    assert weights == pytest.approx(expected)


def test_a_question_that_is_solved_retires_with_its_trajectories():
    experience = EXAMPLE.Experience(4)
    experience.stored[0].append(None)
    experience.observe(0, [True] * 4)
    assert experience.retired == {0}
    assert not experience.draw(1, random.Random(0))
