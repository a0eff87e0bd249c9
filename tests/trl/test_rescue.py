"""Rescue: a group without success gets a stored one in place of a failure, after scoring and before advantages."""

import re

import numpy as np
import pytest
import torch
from datasets import Dataset

from exgrpo.experience.events import Admitted, Observed, Replayed
from tests.support import harness as h


class Watching(h.ExGRPOTrainer):
    """Keeps what the loss was given, and how often rewards were computed."""

    def __init__(self, *args, **kwargs):
        self.batches, self.reward_calls = [], 0
        super().__init__(*args, **kwargs)

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        if self.model.training:
            self.batches.append((self._iteration, {k: v.clone() for k, v in output.items()}))
        return output


def once_right(generation: int, prompt: str, member: int) -> str:
    """In the first generation one long success for each question; later only short failures."""
    i = re.search(r"q(\d+)", prompt).group(1)
    return (
        f"{'a' if generation == 0 and member == 1 else 'zyxw'[member]}{i if generation == 0 and member == 1 else ''}$"
    )


def counted_reward(calls):
    def right_reward(prompts, completions, right, **kwargs):
        calls.append(len(completions))
        return h.right_reward(prompts, completions, right)

    return right_reward


def run(tmp_path, n=8, script=once_right, steps=3, tokenizer=None, dataset=None, **options):
    calls = []
    args = h.config(
        tmp_path, preset="rescue", max_steps=steps, per_device_train_batch_size=16, gradient_accumulation_steps=2,
        log_completions=True, **options,
    )  # fmt: skip
    trainer = h.trainer(
        args, dataset or h.questions(n), script=script, cls=Watching, reward=counted_reward(calls), tokenizer=tokenizer
    )
    trainer.train()
    return trainer, calls


@pytest.mark.parametrize("chat", [False, True])
def test_replaced_rows_are_consistent(tmp_path, chat, capsys):
    """Ids, text, masks, log-probs, rewards, advantages and logs of a replaced row are the stored trajectory's."""
    dataset = h.questions(8)
    if chat:
        dataset = Dataset.from_list(
            [{"prompt": [{"role": "user", "content": r["prompt"]}], "right": r["right"]} for r in dataset]
        )
    trainer, calls = run(tmp_path, dataset=dataset, tokenizer=h.tiny_tokenizer(chat=chat))
    assert calls == [32, 32, 32]  # one reward call a generation
    rescues = trainer.events.of(Replayed)
    assert [(e.generation, e.stage) for e in rescues] == [(1, "rescue")] * 8 + [(2, "rescue")] * 8
    by_serial = {e.serial: e.trajectory for e in trainer.events.of(Admitted)}
    for generation, output in trainer.batches[1:]:
        assert len(generation.batch.stored) == 8
        for row in range(32):
            ids = output["completion_ids"][row][output["completion_mask"][row].bool()].tolist()
            assert output["replay_mask"][row] == (row in generation.batch.stored)
            if row not in generation.batch.stored:
                assert output["advantages"][row] == pytest.approx(-0.25)
                continue
            trajectory = by_serial[generation.batch.stored[row][0].serial]
            assert row % 4 == 3  # the last failure
            assert generation.batch.question_of(row) == trajectory.question
            assert ids == trajectory.completion_ids.tolist()
            assert len(ids) > 2  # longer than every fresh one
            torch.testing.assert_close(
                output["behaviour_logps"][row, : len(ids)], torch.tensor(trajectory.behaviour_logps.copy())
            )
            assert generation.scored.rewards[row].tolist() == trajectory.rewards.tolist() == [1.0]
            assert output["advantages"][row] == pytest.approx(0.75 * 8)
        assert output["num_items_in_batch"] == sum(map(len, generation.scored.completion_ids)) == 24 * 2 + 8 * 3
    logs = trainer._logs
    labels, texts = list(logs["extra"]["replayed"]), [str(t) for t in logs["completion"]]
    assert labels == ["", "", "", "rescue"] * 8
    assert all(
        ("a" + str(i)) in t.replace("'assistant'", "") for t, i in zip(texts[3::4], _numbers(trainer), strict=True)
    )
    assert list(logs["rewards"]["right_reward"]) == [0.0, 0.0, 0.0, 1.0] * 8
    assert list(logs["advantages"]) == pytest.approx([-0.25, -0.25, -0.25, 6.0] * 8)


def _numbers(trainer):
    generation = trainer.batches[-1][0]
    return [
        re.search(r"q(\d+)", str(trainer.questions.row(int(q))["prompt"])).group(1)
        for q in generation.batch.plan.questions
    ]


def test_accuracy_stays_that_of_the_fresh_completions(tmp_path):
    trainer, _ = run(tmp_path)
    later = [e for e in trainer.events.of(Observed) if e.generation]
    assert {(e.successes, e.scorable, e.replayed) for e in later} == {(0, 4, False)}
    logs = [log for log in trainer.state.log_history if "fresh/pass_at_1" in log]
    assert [log["fresh/pass_at_1"] for log in logs] == [0.25, 0.0, 0.0]
    assert [log["replay/share"] for log in logs] == [0.0, 1.0, 1.0]
    assert logs[-1]["fresh/generated_tokens"] == sum(log["completions/mean_length"] * 32 for log in logs)
    assert logs[1]["completions/max_length"] == 2.0  # lengths stay those of the fresh rows


def test_only_scored_failures_are_replaced(tmp_path):
    """An unscorable completion is never replaced; a group without a scored failure is left alone."""

    def script(generation, prompt, member):
        i = int(re.search(r"q(\d+)", prompt).group(1))
        if generation == 0:
            return f"a{i}$" if member == 0 else "z$"
        return "?$" if i % 2 or member != 1 else "z$"

    trainer, _ = run(tmp_path, script=script, steps=2)
    generation, output = trainer.batches[1]
    for row in generation.batch.stored:
        assert row % 4 == 1
    questions = {
        int(re.search(r"q(\d+)", trainer.questions.row(generation.batch.question_of(r))["prompt"]).group(1))
        for r in generation.batch.stored
    }
    assert questions == {0, 2, 4, 6}
    unscorable = torch.isnan(generation.scored.rewards[:, 0])
    assert int(unscorable.sum()) == 16 + 12
    assert (output["advantages"] == 0).all()  # one scored member in a group: no variance


def test_a_group_with_a_success_is_left_alone(tmp_path):
    trainer, _ = run(tmp_path, script=lambda g, p, m: f"{'ab'[g % 2]}{p[1:-1]}$" if m == 0 else "z$")
    assert not trainer.events.of(Replayed)
    assert len(trainer.events.of(Admitted)) == 16  # `a` and `b` of each


def test_rescue_by_lowest_entropy_measures_under_the_current_policy(tmp_path):
    def script(generation, prompt, member):
        return f"{'abcd'[member]}{prompt[1:-1]}$" if generation == 0 and member < 3 else "zz$"

    trainer, _ = run(tmp_path, script=script, steps=2, trajectory_choice="lowest_entropy", entropy_refresh="exact")
    chosen = {e.question: e.serial for e in trainer.events.of(Replayed)}
    assert len(chosen) == 8
    entropies = {}
    for event in trainer.events:
        if type(event).__name__ == "Measured" and event.step == 1:
            entropies.setdefault(event.serial, event.entropy)
    by_question = {}
    for event in trainer.events.of(Admitted):
        by_question.setdefault(event.trajectory.question, []).append(event.serial)
    for question, serial in chosen.items():
        assert serial == min(by_question[question], key=lambda s: entropies[s])


def test_extra_columns_of_reward_functions_do_not_describe_the_replaced_text(tmp_path):
    def right_reward(prompts, completions, right, log_extra, **kwargs):
        log_extra("seen", list(completions))
        return h.right_reward(prompts, completions, right)

    args = h.config(tmp_path, preset="rescue", max_steps=2, log_completions=True)
    trainer = h.trainer(args, h.questions(8), script=once_right, reward=right_reward)
    trainer.train()
    extra = trainer._logs["extra"]
    assert [seen is None for seen in extra["seen"]] == [label == "rescue" for label in extra["replayed"]]
    assert np.mean([label == "rescue" for label in extra["replayed"]]) == 0.25
