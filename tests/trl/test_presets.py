"""Each preset trains the tiny policy: finite, without an alarm, the same again with the same seed, and another with another."""

import hashlib
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from exgrpo import PRESETS
from exgrpo.experience.events import Observed, Planned, Replayed, Skipped
from exgrpo.tasks import get_task
from exgrpo.tasks.tiny_policy import warm_policy
from exgrpo.trl import ReplayAlarm
from tests.support import harness as h

TASK = get_task("chains", modulus=5, lengths=(2, 3), shares=(0.5, 0.5))
STEPS = 30
WITH_A_BANK = ("rlep",)
"""What replays the experience of another run alone."""
FEW = ("hard-questions", "rescue", "arpo", "prefix-controlled")
"""What replays only where it is needed."""
SHORTER = {"entropy-guided": {"start_epoch": 1.0, "start_size": 40}}
"""Where the recipe's own start lies beyond thirty steps."""


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A policy that is right one time in five, and its tokenizer."""
    state = torch.random.get_rng_state()
    model, tokenizer = warm_policy(
        TASK, 0, tmp_path_factory.mktemp("policy"), warm_up=replace(TASK.warm_up, batches=300)
    )
    torch.random.set_rng_state(state)
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}, model, tokenizer


def letters(texts):
    """A toy embedder: how often each character of the alphabet occurs."""
    return np.array([[text.count(c) for c in TASK.alphabet] for text in texts], float) + 0.01


def train(tmp_path, start, preset, seed=0, steps=STEPS, **more):
    """8 questions of 48 a step, 4 completions each, generated for real; replay starts at once."""
    options = {"start_pass_at_1": 0.0, "experience_log": "none", **SHORTER.get(preset, {})} | more
    if preset in WITH_A_BANK:
        bank = tmp_path / "bank"
        if not bank.exists():
            train(bank, start, "random-replay", steps=6, experience_log=None)
        options |= {"experience_from": str(bank), "experience_log": None}
    weights, model, tokenizer = start
    model.load_state_dict(weights)
    args = h.config(
        tmp_path, preset=preset, max_steps=steps, seed=seed, max_completion_length=TASK.max_completion_length,
        learning_rate=1e-3, **options,
    )  # fmt: skip
    trainer = h.trainer(
        args, TASK.make("train", 48, 0), model=model, tokenizer=tokenizer, reward=TASK.reward_function, embedder=letters
    )
    trainer.train()
    return trainer


def fingerprint(trainer):
    digest = hashlib.sha256()
    for _, tensor in sorted(trainer.model.state_dict().items()):
        digest.update(tensor.detach().numpy().tobytes())
    return digest.hexdigest()


def logged(trainer):
    """Every value but times, as text, so that NaN equals NaN."""
    return [
        {name: repr(value) for name, value in log.items() if "time" not in name and "_per_second" not in name}
        for log in trainer.state.log_history
    ]


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_trains_the_tiny_policy(tmp_path, start, preset):
    first = train(tmp_path, start, preset)
    assert first.state.global_step == STEPS
    assert all(tensor.isfinite().all() for tensor in first.model.state_dict().values())
    for log in first.state.log_history:
        assert all(math.isfinite(log[name]) for name in ("loss", "grad_norm", "entropy") if name in log)
    alarms = [callback for callback in first.callback_handler.callbacks if isinstance(callback, ReplayAlarm)]
    assert len(alarms) == 1
    assert [alarm for callback in alarms for alarm in callback.raised] == []
    if first.planner is not None:
        assert_replays(first, preset)
    once = fingerprint(first), logged(first)
    again = train(tmp_path, start, preset)
    assert fingerprint(again) == once[0]
    for now, before in zip(logged(again), once[1], strict=True):
        assert now == before
    other = train(tmp_path, start, preset, seed=1, steps=4)
    assert logged(other)[:4] != once[1][:4]


def assert_rehearses(trainer):
    """Two successes a step beside eight fresh questions, none older than 20 steps, none of a question that was all right or
    all wrong when it was last seen."""
    accuracy, last = {}, -1
    for event in trainer.events:
        if isinstance(event, Observed):
            accuracy[event.question] = event.successes / event.scorable
        elif isinstance(event, Replayed):
            assert event.stage == "added"
            assert event.age <= 20
            assert 0.0 < accuracy[event.question] < 1.0
        elif isinstance(event, Planned):
            assert event.replayed <= 2
            last = event.step
    assert last == STEPS - 1
    assert max(event.age for event in trainer.events.of(Replayed)) > 5
    assert not trainer.planner.buffer.num_retired


def assert_replays(trainer, preset):
    """It replayed what it should, more than a little."""
    planned = trainer.events.of(Planned)
    assert len(planned) == STEPS
    if not trainer.planner.config.replays:
        assert trainer.events.of(Skipped)
        return
    if preset == "rehearsal":
        assert_rehearses(trainer)
    if preset == "prompt-replay":
        assert sum(event.replayed for event in planned) > 10
        assert not len(trainer.planner.buffer)
    else:
        assert len(trainer.events.of(Replayed)) > (5 if preset in FEW else 20)
    for event in planned:
        assert event.replayed or event.idle or trainer.planner.config.mixing == "rescue"
