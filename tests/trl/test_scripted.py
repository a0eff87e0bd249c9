"""Scripted completions through `trainer.train()`, then a look at the experience."""

import re

import numpy as np
import pytest
from datasets import Dataset

from exgrpo.experience.events import Admitted, Evicted, Observed, Planned, Replayed, Retired
from tests.support import harness as h


def number(prompt: str) -> int:
    return int(re.search(r"q(\d+)", prompt).group(1))


def mixed(generation: int, prompt: str, member: int) -> str:
    """Question i: all right, all wrong, two different right ones, one right, by i % 4."""
    i = number(prompt)
    right = {0: "abcd", 1: "", 2: "ab", 3: "c"}[i % 4]
    return f"{right[member]}{i}$" if member < len(right) else f"z{member}$"


def text_of(trainer, trajectory) -> str:
    return trainer.processing_class.decode(trajectory.completion_ids, skip_special_tokens=True)


def question_number(trainer, question: int) -> int:
    return number(trainer.questions.row(question)["prompt"])


def replay_off(**options):
    return {"start_step": 10_000, **options}


def test_exactly_the_right_completions_are_stored_under_the_right_questions(tmp_path):
    trainer = h.trainer(h.config(tmp_path, max_steps=5, **replay_off()), h.questions(40), script=mixed)
    trainer.train()
    stored = {}
    for slot in trainer.planner.buffer.live_slots():
        trajectory = trainer.planner.buffer.get(int(slot))
        stored.setdefault(question_number(trainer, trajectory.question), []).append(text_of(trainer, trajectory))
    expected = {i: [f"{c}{i}" for c in {2: "ab", 3: "c"}[i % 4]] for i in range(40) if i % 4 in (2, 3)}
    assert {i: sorted(texts) for i, texts in stored.items()} == expected
    retired = {question_number(trainer, q) for q in np.flatnonzero(trainer.planner.buffer.retired)}
    assert retired == {i for i in range(40) if i % 4 == 0}
    buckets = {
        question_number(trainer, int(q)): bucket
        for bucket in range(5)
        for q in trainer.planner.buffer.questions_in(bucket)
    }
    assert buckets == {i: {2: 2, 3: 1}[i % 4] for i in range(40) if i % 4 in (2, 3)}


def test_stored_ids_are_those_emitted_and_log_probs_those_of_the_policy(tmp_path):
    """Cut, ended, non-canonical: ids as emitted; the end token if and only if emitted [FAULTS 3, 13]."""

    def script(generation, prompt, member):
        return [f"a{number(prompt)}$", f"b{number(prompt)}", "z$", "z$"][member]

    args = h.config(tmp_path, max_steps=1, learning_rate=0.0, **replay_off())
    trainer = h.trainer(args, h.questions(8), script=script, model=h.tiny_model(3))
    trainer.train()
    assert len(trainer.events.of(Admitted)) == 16
    for event in trainer.events.of(Admitted):
        trajectory = event.trajectory
        ids = trajectory.completion_ids.tolist()
        assert (ids[-1] == trainer.processing_class.eos_token_id) == (trajectory.finish_reason == "stop")
        assert trajectory.finish_reason == ("stop" if text_of(trainer, trajectory).startswith("a") else "length")
        logps, entropies = h.score_alone(
            trainer.model, trainer.questions.prompt_ids(trajectory.question), ids, trainer.temperature
        )
        np.testing.assert_allclose(trajectory.behaviour_logps, logps, atol=2e-5)
        assert trajectory.entropy == pytest.approx(float(np.mean(entropies)), abs=2e-5)


def test_a_success_cut_at_the_length_limit_can_be_left_out(tmp_path):
    def script(generation, prompt, member):
        return f"a{number(prompt)}" if member else f"b{number(prompt)}$"

    trainer = h.trainer(
        h.config(tmp_path, max_steps=1, store_truncated=False, retirement="never", **replay_off()),
        h.questions(8), script=script,
    )  # fmt: skip
    trainer.train()
    assert {text_of(trainer, e.trajectory)[0] for e in trainer.events.of(Admitted)} == {"b"}


@pytest.mark.slow
def test_no_question_is_lost_to_replay(tmp_path):
    """Every question that is not retired is fresh once a pass, however many are displaced [FAULTS 9]."""

    def script(generation, prompt, member):
        return f"{'abcd'[member]}{number(prompt)}$" if member < 2 else "z$"

    for shuffle in (True, False):
        args = h.config(tmp_path, max_steps=30, start_pass_at_1=0.0, shuffle_dataset=shuffle)
        trainer = h.trainer(args, h.questions(36), script=script)
        trainer.train()
        fresh = [e.question for e in trainer.events.of(Observed) if not e.replayed]
        counts = np.bincount(fresh, minlength=36)
        assert set(counts) <= {counts.min(), counts.min() + 1}
        for generation in range(30):
            seen = [e.question for e in trainer.events.of(Observed) if e.generation == generation]
            assert len(seen) == len(set(seen)) == 8
        assert sum(e.replayed for e in trainer.events.of(Observed)) == 29 * 4


@pytest.mark.slow
def test_without_replay_or_retirement_the_order_is_the_hosts(tmp_path):
    """Over three passes the trainer's own stream yields what TRL's sampler would."""

    def never(generation, prompt, member):
        return "z$"

    seen = {}
    for preset in ("on-policy", "rescue"):
        seen[preset] = rows = []

        def reward(prompts, completions, right, rows=rows, **kwargs):
            rows.extend(prompts)
            return [0.0] * len(completions)

        trainer = h.trainer(
            h.config(tmp_path, preset=preset, max_steps=13), h.questions(36), script=never, reward=[reward]
        )
        trainer.train()
    in_passes = [seen["on-policy"][i : i + 32 * 4] for i in range(0, 32 * 13, 32 * 4)]
    ours = seen["rescue"]
    # The host drops the last 4 of 36 questions of each pass; the stream carries them over: the first pass agrees.
    assert ours[: 32 * 4] == in_passes[0]
    assert set(ours[: 36 * 4]) == {f"q{i}=" for i in range(36)}


def test_accuracy_comes_from_fresh_completions_only(tmp_path):
    """A question whose fresh completions all fail has accuracy 0 although a stored success is in its group [FAULTS 6]."""

    def script(generation, prompt, member):
        return f"a{number(prompt)}$" if generation == 0 and member == 0 else "z$"

    args = h.config(tmp_path, max_steps=4, start_pass_at_1=0.0, replay_share=1.0)
    trainer = h.trainer(args, h.questions(8), script=script)
    trainer.train()
    replayed = [e for e in trainer.events.of(Observed) if e.replayed]
    assert len(replayed) == 24
    assert {(e.successes, e.scorable) for e in replayed} == {(0, 3)}
    assert trainer.planner.buffer.bucket_sizes().tolist() == [8, 0, 0, 0, 0]
    assert not trainer.events.of(Retired)


def test_a_replayed_question_retires_by_its_fresh_completions(tmp_path):
    def script(generation, prompt, member):
        return f"a{number(prompt)}$" if generation or member == 0 else "z$"

    args = h.config(tmp_path, max_steps=2, start_pass_at_1=0.0, replay_share=1.0)
    trainer = h.trainer(args, h.questions(8), script=script)
    trainer.train()
    retired = trainer.events.of(Retired)
    assert len(retired) == 8
    assert {(e.generation, e.step) for e in retired} == {(1, 1)}
    assert {e.reason for e in trainer.events.of(Evicted)} == {"retired"}
    assert len(trainer.planner.buffer) == 0


def test_retired_questions_fill_up_and_are_counted(tmp_path):
    def script(generation, prompt, member):
        return f"a{number(prompt)}$" if number(prompt) < 12 else "z$"

    trainer = h.trainer(h.config(tmp_path, max_steps=4), h.questions(16), script=script)
    trainer.train()
    refilled = [log.get("fresh/refilled", 0.0) for log in trainer.state.log_history if "fresh/pass_at_1" in log]
    assert refilled == [0.0, 0.0, 4.0, 4.0]
    assert trainer.planner.buffer.num_retired == 12


def test_unscorable_completions_count_neither_way(tmp_path):
    """None from the reward function: outside the rate, never stored, never retires [FAULTS 17]."""

    def script(generation, prompt, member):
        return [f"a{number(prompt)}$", f"b{number(prompt)}$", f"c{number(prompt)}$", "?$"][member]

    trainer = h.trainer(h.config(tmp_path, max_steps=2, **replay_off()), h.questions(16), script=script)
    trainer.train()
    assert not trainer.events.of(Retired)
    assert {(e.successes, e.scorable, e.unscorable) for e in trainer.events.of(Observed)} == {(3, 3, 1)}
    assert len(trainer.events.of(Admitted)) == 48
    assert trainer.planner.buffer.bucket_sizes().tolist() == [0, 0, 0, 0, 16]
    logs = [log for log in trainer.state.log_history if "replay/skipped_unscorable" in log]
    assert logs[0]["replay/skipped_unscorable"] == 8.0
    assert logs[0]["fresh/pass_at_1"] == 1.0


def constant(value):
    """A reward function that says the same of every completion."""
    return lambda prompts, completions, **columns: [value] * len(completions)


def by_turns(first, second):
    """One that says the one and the other by turns."""
    return lambda prompts, completions, **columns: [first, second] * (len(completions) // 2)


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["none", "group"])
@pytest.mark.parametrize("preset", ["exgrpo", "on-policy", "positive-weight", "rescue", "rehearsal"])
def test_groups_without_variance_have_advantage_zero(tmp_path, preset, scale):
    """Float noise is no variance: 8 times .95 have another mean, and .05 + .3 is not .35 + 0."""
    for rewards, noisy in (
        ([constant(0.95)], True),
        ([by_turns(0.05, 0.35), by_turns(0.3, 0.0)], True),
        ([by_turns(0.35, 0.350001)], False),
    ):
        args = h.config(
            tmp_path, preset=preset, scale_rewards=scale, max_steps=2, correctness_threshold=2.0, num_generations=8,
            experience_log="none",
        )  # fmt: skip
        trainer = h.trainer(args, h.questions(16), reward=rewards, script=lambda g, p, member: f"z{member}$")
        before = [parameter.clone() for parameter in trainer.model.parameters()]
        trainer.train()
        same = all((a == b).all() for a, b in zip(before, trainer.model.parameters(), strict=True))
        zero = [log["frac_reward_zero_std"] for log in trainer.state.log_history if "loss" in log]
        assert same == noisy
        assert zero == [float(noisy)] * 2


@pytest.mark.slow
def test_a_generation_of_one_question(tmp_path):
    """TRL's own batch: 8 completions in all, of one question. A coin says when it is a replayed one."""
    args = h.config(
        tmp_path, per_device_train_batch_size=8, num_generations=8, max_steps=24, start_pass_at_1=0.0, save_strategy="no",
    )  # fmt: skip
    trainer = h.trainer(
        args, h.questions(8), script=lambda g, p, member: f"{'abcd'[member % 4]}{number(p)}$" * (member < 4) or "z$"
    )
    trainer.train()
    plans = trainer.events.of(Planned)
    assert [plan.questions for plan in plans] == [1] * 24
    assert {plan.replayed for plan in plans} == {0, 1}
    assert {plan.idle for plan in plans[1:] if not plan.replayed} == {
        "on-policy by the coin: replay_share 0.5 of 1 questions is one with probability 0.5"
    }
    assert len(trainer.events.of(Replayed)) == sum(plan.replayed for plan in plans)
    assert {e.scorable for e in trainer.events.of(Observed) if e.replayed} == {7}
    assert {log["replay/share"] for log in trainer.state.log_history if "replay/share" in log} == {0.0, 1.0}


@pytest.mark.slow
def test_a_threshold_or_a_named_function_decides(tmp_path):
    """Shaped and weighted rewards enter; a format reward does not count as correctness [FAULTS 7]."""

    def shaped(prompts, completions, right, **kwargs):
        return [0.9 * r for r in h.right_reward(prompts, completions, right)]

    def form(prompts, completions, **kwargs):
        return [1.0] * len(completions)

    for rewards, name in (([shaped, form], None), ([form, shaped], "shaped")):
        args = h.config(tmp_path, max_steps=1, correctness_function=name, reward_weights=[0.1, 0.2], **replay_off())
        trainer = h.trainer(args, h.questions(8), reward=rewards, script=mixed)
        trainer.train()
        assert len(trainer.events.of(Admitted)) == 6
        assert len(trainer.events.of(Retired)) == 2


@pytest.mark.parametrize("k", [2, 3, 8, 64, 128])
def test_group_sizes(tmp_path, k):
    def script(generation, prompt, member):
        return f"{'abcdefgh'[member]}{number(prompt)}$" if member < max(1, min(k // 2, 8)) else "z$"

    args = h.config(tmp_path, max_steps=3, num_generations=k, per_device_train_batch_size=4 * k, start_pass_at_1=0.0)
    trainer = h.trainer(args, h.questions(12), script=script)
    trainer.train()
    assert len(trainer.events.of(Replayed)) == 4
    assert [e.scorable for e in trainer.events.of(Observed) if e.replayed] == [k - 1] * 4


@pytest.mark.parametrize("capacity", [0, 1, 3])
def test_small_capacities_fall_back_to_on_policy(tmp_path, capacity):
    """Nothing usable, ties, less stored than asked: never an exception [FAULTS 4]."""
    args = h.config(tmp_path, max_steps=4, capacity=capacity, start_pass_at_1=0.0)
    trainer = h.trainer(args, h.questions(40), script=mixed)
    trainer.train()
    assert len(trainer.planner.buffer) <= capacity
    per_step = [sum(e.generation == g for e in trainer.events.of(Replayed)) for g in range(4)]
    assert all(n <= min(4, capacity) for n in per_step)
    if capacity == 0:
        assert trainer.idle_reason == "nothing is stored: capacity=0"


@pytest.mark.parametrize("outcome", ["a", "z"])
def test_a_first_batch_without_variance(tmp_path, outcome):
    def script(generation, prompt, member):
        return f"{outcome}{number(prompt)}$" if generation == 0 else mixed(generation, prompt, member)

    h.trainer(h.config(tmp_path, max_steps=4, start_pass_at_1=0.0), h.questions(40), script=script).train()


def test_gate_opens_one_step_after_pass_at_1_exceeds_it_and_stays_open(tmp_path):
    rates = [0, 1, 2, 0, 0, 0]  # right completions of 4 in generation g

    def script(generation, prompt, member):
        return f"{'abcd'[member]}{number(prompt)}$" if member < rates[generation] else "z$"

    args = h.config(tmp_path, max_steps=6, start_pass_at_1=0.25)
    trainer = h.trainer(args, h.questions(80), script=script)
    trainer.train()
    assert [sum(e.generation == g for e in trainer.events.of(Replayed)) for g in range(6)] == [0, 0, 0, 4, 4, 4]
    assert trainer.idle_reason is None


def test_the_gate_is_judged_over_several_generations(tmp_path):
    """One lucky batch does not open it, and no batch does before there are as many completions."""
    rates = [3, 1, 0, 1, 2, 2, 0]

    def script(generation, prompt, member):
        return f"{'abcd'[member]}{number(prompt)}$" if member < rates[generation] else "z$"

    args = h.config(tmp_path, max_steps=7, start_pass_at_1=0.35, start_completions=90)
    trainer = h.trainer(args, h.questions(80), script=script)
    trainer.train()
    said = [plan.idle for plan in trainer.events.of(Planned)]
    assert [text and text.removeprefix("gate closed: Pass@1 ") for text in said] == [
        "must exceed 0.35 over 90 completions, so far none",
        "must exceed 0.35 over 90 completions, so far 0.75 over 32",
        "must exceed 0.35 over 90 completions, so far 0.50 over 64",
        "0.33 over 96 completions, must exceed 0.35",
        "0.17 over 96 completions, must exceed 0.35",
        "0.25 over 96 completions, must exceed 0.35",
        None,  # 5 of 12
    ]


@pytest.mark.slow
def test_idle_replay_says_why(tmp_path, caplog):
    trainer = h.trainer(h.config(tmp_path, max_steps=3), h.questions(16), script=lambda g, p, m: "z$")
    trainer.train()
    assert trainer.idle_reason == "gate closed: Pass@1 0.00 over 32 completions, must exceed 0.35"
    said = [record.getMessage() for record in caplog.records if "idle" in record.getMessage()]
    assert said == [
        "Replay is idle at step 0: gate closed: Pass@1 must exceed 0.35 over 1 completions, so far none."
    ]  # once a kind
    trainer = h.trainer(h.config(tmp_path, max_steps=3, start_pass_at_1=0.0), h.questions(16), script=mixed)
    trainer.train()
    assert "Replay is idle at step 0: no replayable question stored." in caplog.text
    assert "Replay is on from step 1." in caplog.text


def test_states_are_logged_as_they_are_and_not_averaged(tmp_path):
    trainer = h.trainer(h.config(tmp_path, max_steps=4, logging_steps=4), h.questions(40), script=mixed)
    trainer.train()
    [log] = [log for log in trainer.state.log_history if "replay/size" in log]
    assert log["fresh/generated_tokens"] == trainer.generated_tokens
    assert log["replay/size"] == len(trainer.planner.buffer)
    assert log["replay/retired"] == trainer.planner.buffer.num_retired


def test_the_control_logs_the_same_of_its_fresh_completions(tmp_path):
    trainer = h.trainer(h.config(tmp_path, max_steps=1, preset="on-policy"), h.questions(40), script=mixed)
    trainer.train()
    log = trainer.state.log_history[0]
    assert log["fresh/entropy"] == log["entropy"]
    assert {"fresh/pass_at_1", "fresh/generated_tokens", "fresh/groups_unsolved"} <= set(log)


def test_metrics_of_fresh_rows_exclude_replayed_ones(tmp_path):
    def script(generation, prompt, member):
        return f"a{number(prompt)}$" if generation == 0 and member == 0 else "z$"

    args = h.config(tmp_path, max_steps=2, start_pass_at_1=0.0, replay_share=1.0, skip_rows=False)
    trainer = h.trainer(args, h.questions(8), script=script)
    trainer.train()
    log = trainer.state.log_history[1]
    assert log["fresh/pass_at_1"] == 0.0
    fresh = ("reward", "reward_std", "rewards/right_reward/mean", "rewards/right_reward/std")
    assert [log[name] for name in fresh] == [0.0] * 4  # of what was generated: no word of what was replayed
    assert log["replay/reward_mixed"] == 0.25  # every group holds one stored success
    lengths = ("mean_length", "min_length", "max_length", "max_terminated_length")
    assert [log[f"completions/{name}"] for name in lengths] == [2.0] * 4  # the stored ones have 3 tokens
    assert log["entropy"] == pytest.approx(log["fresh/entropy"])
    assert log["replay/share"] == 1.0
    assert log["fresh/generated_tokens"] - trainer.state.log_history[0]["fresh/generated_tokens"] == 8 * 3 * 2


def test_questions_are_known_by_content(tmp_path):
    """The same prompt with another answer is another question; a repeated row is not [FAULTS 10]."""
    rows = h.questions(8).to_list()
    other = {"prompt": rows[0]["prompt"], "right": "different"}
    trainer = h.trainer(h.config(tmp_path), Dataset.from_list([*rows, rows[3], other]))
    assert len(trainer.questions) == 9
    assert trainer.questions.num_duplicates == 1
    shuffled = h.trainer(h.config(tmp_path), Dataset.from_list([*rows, rows[3], other]).shuffle(seed=1))
    assert set(shuffled.questions.keys) == set(trainer.questions.keys)


def test_token_budget_stops_the_run_after_the_step_that_reached_it(tmp_path):
    args = h.config(tmp_path, max_steps=50, max_generated_tokens=150, preset="rescue")
    trainer = h.trainer(args, h.questions(80), script=lambda g, p, m: "zz$")
    trainer.train()
    assert trainer.generated_tokens == 2 * 96
    assert trainer.state.global_step == 2
