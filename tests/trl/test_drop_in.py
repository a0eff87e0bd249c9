"""What works with the host works with us: rows of their own, dataset formats, odd rewards, a second call of train()."""

import dataclasses
import datetime
import decimal
import json

import numpy as np
import pytest
import torch
from datasets import Dataset

from exgrpo.errors import ConfigurationError, DatasetError
from exgrpo.experience.events import Admitted, Observed, Replayed
from exgrpo.runtime.questions import question_key
from tests.support import harness as h
from trl import GRPOConfig, GRPOTrainer


def half_right(generation, prompt, member):
    return f"{'abcd'[member]}{prompt[1:].split('=')[0]}$" if member < 2 else "zz$"


@pytest.mark.slow
@pytest.mark.parametrize("chat", [False, True])
def test_a_reward_function_may_change_what_it_is_given(tmp_path, chat):
    """Every row has objects of its own, as the host's dataloader gives them: nothing leaks between members of a group."""
    if chat:
        rows = [{"prompt": [{"role": "user", "content": r["prompt"]}], "right": r["right"]} for r in h.questions(8)]
    else:
        rows = [{**r, "seen": ["x"]} for r in h.questions(8)]

    def scratch(prompts, completions, right, seen=None, **kwargs):
        rewards = []
        for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            pad = prompt if chat else seen[i]
            pad.append(completion)
            rewards.append(float(len(pad) == 2 and i % 4 < 2))
        return rewards

    logs = []
    for cls, kind, extra in ((GRPOConfig, GRPOTrainer, {}), (h.ExGRPOConfig, h.ExGRPOTrainer, {"preset": "rescue"})):
        trainer = h.trainer(
            h.config(tmp_path, cls, max_steps=1, **extra), Dataset.from_list(rows), reward=scratch, cls=kind,
            tokenizer=h.tiny_tokenizer(chat),
        )  # fmt: skip
        trainer.train()
        logs.append({k: trainer.state.log_history[0][k] for k in ("reward", "frac_reward_zero_std")})
    assert logs[0] == logs[1] == {"reward": 0.5, "frac_reward_zero_std": 0.0}


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), 3e38])
@pytest.mark.parametrize("preset", ["exgrpo", "rescue"])
def test_an_infinite_reward_is_unscorable(tmp_path, preset, value, caplog):
    def odd(prompts, completions, right, **kwargs):
        rewards = h.right_reward(prompts, completions, right)
        return [value if i % 4 == 3 else r for i, r in enumerate(rewards)]

    trainer = h.trainer(
        h.config(tmp_path, max_steps=4, preset=preset, start_pass_at_1=0.0),
        h.questions(16),
        reward=odd,
        script=half_right,
    )
    trainer.train()
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())
    assert {e.unscorable for e in trainer.events.of(Observed) if not e.replayed} == {1}
    assert "Infinite or huge rewards of 'odd' count as unscorable" in caplog.text


def test_formats_of_a_dataset_do_not_change_its_questions(tmp_path):
    """Values that print alike (torch and numpy round and elide) are still different questions."""
    rows = [{"prompt": "q=", "right": f"a{i}", "x": 0.12341 + i * 1e-6, "xs": [0] * 2000 + [i]} for i in range(16)]
    plain = Dataset.from_list(rows)
    keys = h.trainer(h.config(tmp_path), plain).questions.keys
    assert len(set(keys)) == 16
    for name in ("torch", "numpy"):
        assert h.trainer(h.config(tmp_path), plain.with_format(name)).questions.keys == keys


@pytest.mark.parametrize("name", [None, "numpy", "torch"])
def test_a_formatted_dataset_trains(tmp_path, name):
    dataset = h.questions(16).add_column("number", list(range(16))).with_format(name)
    trainer = h.trainer(h.config(tmp_path, max_steps=3, start_pass_at_1=0.0), dataset, script=half_right)
    trainer.train()
    assert trainer.events.of(Replayed)


@pytest.mark.slow
def test_chosen_columns_and_transforms(tmp_path):
    dataset = h.questions(16).add_column("junk", list(range(16))).with_format(None, columns=["prompt", "right"])
    h.trainer(h.config(tmp_path, max_steps=2, start_pass_at_1=0.0), dataset, script=half_right).train()
    raw = Dataset.from_list([{"text": r["prompt"], "right": r["right"]} for r in h.questions(16)])
    made = raw.with_transform(lambda b: {"prompt": b["text"], "right": b["right"]})
    trainer = h.trainer(h.config(tmp_path, max_steps=3, start_pass_at_1=0.0), made, script=half_right)
    trainer.train()
    assert len(trainer.questions) == 16
    assert trainer.events.of(Replayed)


def test_what_identifies_a_question():
    a = question_key(
        [1, 2], {"x": [1, None, {"y": 2.5}], "when": datetime.date(2026, 1, 2), "d": decimal.Decimal("1.50")}
    )
    assert a == question_key(
        [1, 2], {"when": datetime.date(2026, 1, 2), "d": decimal.Decimal("1.50"), "x": [1, None, {"y": 2.5}]}
    )
    assert a != question_key(
        [1, 2], {"x": [1, None, {"y": 2.5}], "when": datetime.date(2026, 1, 3), "d": decimal.Decimal("1.50")}
    )
    assert question_key([1], {"x": np.float32(0.1)}) != question_key([1], {"x": np.float64(0.1)})
    assert question_key([1, 23], {}) != question_key([12, 3], {})
    with pytest.raises(DatasetError, match=r"column 'thing' of train_dataset holds a builtins\.object"):
        question_key([1], {"thing": object()})


@pytest.mark.slow
def test_a_second_call_of_train_goes_on(tmp_path):
    """Staleness counts optimizer steps over all calls; the host's counter starts again."""
    trainer = h.trainer(h.config(tmp_path, max_steps=5, start_pass_at_1=0.0), h.questions(16), script=half_right)
    trainer.train()
    trainer.train()
    steps = [e.step for e in trainer.events.of(Observed)]
    assert sorted(set(steps)) == list(range(10))
    ages = [log["replay/age_mean"] for log in trainer.state.log_history if "replay/age_mean" in log]
    assert min(ages) >= 0
    assert max(e.trajectory.step for e in trainer.events.of(Admitted)) <= 9


@pytest.mark.slow
def test_a_generation_that_fails_loses_no_question(tmp_path):
    calls = []

    def fails_once(prompts, completions, right, **kwargs):
        calls.append(None)
        if len(calls) == 2:
            raise RuntimeError("the verifier is down")
        return h.right_reward(prompts, completions, right)

    args = h.config(tmp_path, max_steps=3, retirement="never", start_step=100)
    trainer = h.trainer(args, h.questions(24), reward=fails_once, script=half_right)
    with pytest.raises(RuntimeError, match="verifier is down"):
        trainer.train()
    trainer.args.max_steps = 2
    trainer.train()
    assert sorted(e.question for e in trainer.events.of(Observed)) == list(range(24))
    assert trainer.planner.stream.pass_number == 0


def test_a_copy_with_another_preset_is_that_preset(tmp_path):
    """Or the control arm of an experiment would run replay under the label `on-policy`."""
    args = h.config(tmp_path, sigma=0.3, start_completions=256)
    for preset in ("rescue", "on-policy", "positive-weight"):
        copy = dataclasses.replace(args, preset=preset)
        assert (copy.replay, copy.objective) == (
            h.config(tmp_path, preset=preset, sigma=0.3).replay, h.config(tmp_path, preset=preset).objective,
        )  # fmt: skip
    for values in (args.to_dict(), json.loads(json.dumps(args.to_dict()))):
        again = h.ExGRPOConfig(**values)
        assert (again.replay, again.objective, again.sigma) == (args.replay, args.objective, 0.3)
        assert again.generation_batch_size == args.generation_batch_size
        assert (
            h.ExGRPOConfig(**{**values, "preset": "rescue"}).replay
            == h.config(tmp_path, preset="rescue", sigma=0.3).replay
        )
    larger = dataclasses.replace(args, per_device_train_batch_size=64)
    assert larger.generation_batch_size == 2 * args.generation_batch_size


@pytest.mark.parametrize("value", [float("nan"), "x", None, True])
def test_the_threshold_is_checked(tmp_path, value):
    with pytest.raises(ConfigurationError, match="correctness_threshold must be a finite number"):
        h.config(tmp_path, correctness_threshold=value)


def test_a_gate_that_never_opens_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"start_pass_at_1 must be a number in \[0, 1\), but is 1\.0"):
        h.config(tmp_path, start_pass_at_1=1.0)


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
def test_the_control_takes_a_rollout_function(tmp_path):
    """Its extra fields feed reward functions, and its tokens count against the budget."""

    def rollout(prompts, trainer):
        n = len(prompts)
        return {
            "prompt_ids": [[5, 6]] * n, "completion_ids": [[7, 8, 2]] * n, "logprobs": [[-1.0] * 3] * n, "result": [1.0] * n,
        }  # fmt: skip

    def from_rollout(prompts, completions, result, **kwargs):
        return list(result)

    args = h.config(tmp_path, preset="on-policy", max_steps=5, max_generated_tokens=150)
    trainer = h.trainer(args, h.questions(80), reward=from_rollout, rollout_func=rollout)
    trainer.train()
    assert trainer.generated_tokens == 2 * 96
    assert trainer.state.global_step == 2


def test_tokens_are_gathered_once_a_generation_whatever_the_turns(tmp_path, monkeypatch):
    """A host that generates a second turn (tools) on some processes only must not meet a collective of ours there."""
    args = h.config(tmp_path, preset="on-policy", max_steps=2)
    trainer = h.trainer(args, h.questions(24), script=half_right)
    gathers, inside = [], []
    gather = trainer.accelerator.gather
    monkeypatch.setattr(trainer.accelerator, "gather", lambda t: (gathers.append(bool(inside)), gather(t))[1])
    single = trainer._generate_single_turn

    def two_turns(prompt_ids, *a, **k):
        inside.append(1)
        single(prompt_ids[:3], *a, **k)
        answer = single(prompt_ids, *a, **k)
        inside.pop()
        return answer

    trainer._generate_single_turn = two_turns
    monkeypatch.setattr(h, "encode", lambda tokenizer, text, encode=h.encode: encode(tokenizer, "zz$"))
    trainer.train()
    assert not any(gathers)
    assert trainer.generated_tokens == 2 * (32 + 3) * 3
