"""verl's trainer and loop in one process: what a batch holds, what is learned from, what is kept, and what a run ends with."""

import json
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from exgrpo.errors import CheckpointError, ConfigurationError, DatasetError
from exgrpo.experience.events import Admitted, Observed, Planned, Replayed, Retired
from exgrpo.log import LogReader
from exgrpo.runtime.alarms import Alarm, ReplayMonitor
from exgrpo.verl.loss import unmarked
from tests.support.oracle import CASES, STEPS, answer, lines_of
from tests.verl import local
from tests.verl.support import overrides, save_questions

GOLDEN = Path(__file__).parents[1] / "support" / "oracle.json"


def script(generation, prompt, member):
    i = int(prompt[1:].split("=")[0])
    right = (i + generation) % 5
    return f"{'abcdefgh'[(member + generation) % 8]}{i}$" if member < right else f"{'zyxw'[member]}{generation}$"


class Watched(local.LocalTrainer):
    """Keeps what each step was made of: the plan's batch, and the rows with their columns as the loss gets them."""

    def _setup(self):
        self.batches, self.rows = [], []
        super()._setup()

    def _update_actor(self, batch, metrics):
        before = len(self.actor_rollout_wg.seen)
        batch = super()._update_actor(batch, metrics)
        if self.replay is not None:
            self.batches.append(self.replay.step.scored.batch)
            self.rows.append(
                {
                    "layout": dict(self.replay.layout.row_of), "keys": list(batch.keys),
                    "all": {key: dict(self.queue.fields["train"][key]) for key in batch.keys},
                    "learned": [key for keys, _ in self.actor_rollout_wg.seen[before:] for key in keys],
                }
            )  # fmt: skip
        return batch


def trained(monkeypatch, folder, script=script, cls=Watched, **more):
    return local.run(monkeypatch, overrides(folder, **more), script, cls)


MIXINGS = {
    "share": {"exgrpo.preset": "exgrpo"},
    "coin": {
        "exgrpo.preset": "entropy-guided", "exgrpo.start_epoch": 0, "exgrpo.start_size": 0,
        "exgrpo.replay_probability": 0.7, "exgrpo.entropy_percentile": 90, "exgrpo.range_low": 0.0, "exgrpo.range_high": 1.0,
    },
    "added": {"exgrpo.preset": "rehearsal"},
    "prompt": {"exgrpo.preset": "prompt-replay", "exgrpo.cooldown": 1},
    "rescue": {"exgrpo.preset": "rescue"},
}  # fmt: skip


@pytest.mark.parametrize("mixing", MIXINGS)
def test_every_group_has_k_rows_and_stored_ones_are_what_was_stored(tmp_path, monkeypatch, mixing):
    trainer = trained(monkeypatch, tmp_path / "run", trainer__total_training_steps=8, **MIXINGS[mixing])
    k, stored_in_all, retired = 4, 0, {}
    for event in trainer.events:
        if isinstance(event, Retired):
            retired[int(event.question)] = event.step
    for step, (batch, rows) in enumerate(zip(trainer.batches, trainer.rows, strict=True)):
        count = Counter(row // k for row in rows["layout"].values())
        groups = range(len(batch.plan.questions))
        assert [count[group] for group in groups] == [k] * 8
        assert sum(count.values()) == 8 * k + len(batch.added)
        for question in batch.plan.questions.tolist():
            assert question not in retired or retired[question] >= step or batch.plan.refilled
        for key in rows["keys"]:
            row = rows["layout"].get(key)
            if row is None:  # fills up
                assert not rows["all"][key]["response_mask"].any()
                continue
            columns, choice = rows["all"][key], batch.stored_at(row)
            prompt = trainer.replay.questions.prompt_ids(batch.question_of(row))
            assert tuple(columns["prompts"].tolist()) == prompt
            assert columns["input_ids"].tolist() == [*prompt, *columns["responses"].tolist()]
            if choice is not None:
                stored_in_all += 1
                assert columns["responses"].tolist() == choice.trajectory.completion_ids.tolist()
                assert columns["old_log_probs"].tolist() == choice.trajectory.behaviour_logps.tolist()
                assert float(columns["rm_scores"].sum()) == choice.trajectory.rewards[0]
        for key in rows["learned"]:
            columns, row = rows["all"][key], rows["layout"].get(key)
            _, marked = unmarked(columns["rollout_is_weights"][None], columns["rollout_is_weights"][None])
            assert bool(marked) == (row is not None and batch.stored_at(row) is not None)
    assert stored_in_all > 2 or mixing == "prompt"
    assert mixing != "prompt" or any(batch.plan.num_replayed for batch in trainer.batches)


@pytest.mark.parametrize("mixing", ["share", "added", "rescue"])
def test_a_row_without_gradient_is_left_out_and_the_update_is_the_same(tmp_path, monkeypatch, mixing):
    ends = []
    for skip in (True, False):
        trainer = trained(monkeypatch, tmp_path / f"skip-{skip}", exgrpo__skip_rows=skip, **MIXINGS[mixing])
        ends.append({n: p.detach().clone() for n, p in trainer.actor_rollout_wg.model.named_parameters()})
        learned = sum(len(rows["learned"]) for rows in trainer.rows)
        everything = sum(len(rows["keys"]) for rows in trainer.rows)
        assert (learned < everything) is skip
    for name, value in ends[0].items():
        torch.testing.assert_close(value, ends[1][name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mixing", ["share", "added", "rescue"])
@pytest.mark.parametrize("updates", [1, 2])
def test_a_token_has_the_weight_that_it_has_in_a_batch_of_fresh_rows_alone(tmp_path, monkeypatch, mixing, updates):
    """verl divides by the size of a mini-batch as it is told; rows beside the groups and rows that are left out change it."""
    size = {"actor_rollout_ref__actor__ppo_mini_batch_size": 8 // updates}
    trainer = trained(monkeypatch, tmp_path / "run", **size, **MIXINGS[mixing])
    workers, sizes = trainer.actor_rollout_wg, set()
    assert len(workers.seen) == 4 * updates
    for (keys, data), divisor in zip(workers.seen, workers.divisors, strict=True):
        sizes.add(len(keys))
        weights = data["rollout_is_weights"].values().abs() / divisor
        torch.testing.assert_close(weights, torch.full_like(weights, updates / 32))
    assert len(sizes) > 1 or (mixing, updates) in (("share", 2), ("rescue", 2)), "batches of other sizes were seen"


class Stock(local.LocalTrainer):
    """verl's own trainer on the same parts: no method of ours is left but those that stand for what carries them."""

    def __init__(self, config):
        self.replay, self._stops, self._saved_at = None, False, -1
        PPOTrainerSync.__init__(self, config)

    for _name in (
        "_init_tokenizer", "_init_dataloader", "on_init_end", "on_step_end", "fit", "_fetch_one_gen_batch", "_balance_batch",
        "_get_required_batch_multiple", "_compute_old_log_prob", "_compute_advantage", "_update_actor", "_step_once",
        "_save_checkpoint", "_load_checkpoint",
    ):  # fmt: skip
        locals()[_name] = getattr(PPOTrainerSync, _name)


@pytest.mark.parametrize("updates", [1, 2])
def test_without_replay_the_parameters_are_those_of_the_host_to_the_bit(tmp_path, monkeypatch, updates):
    size = {"actor_rollout_ref__actor__ppo_mini_batch_size": 8 // updates, "trainer__total_training_steps": 3}
    stock = trained(monkeypatch, tmp_path / "stock", cls=Stock, exgrpo__preset=None, **size)
    ours = trained(monkeypatch, tmp_path / "ours", exgrpo__preset="on-policy", exgrpo__start_pass_at_1=None, **size)
    for (name, theirs), mine in zip(
        stock.actor_rollout_wg.model.named_parameters(), ours.actor_rollout_wg.model.parameters(), strict=True
    ):
        assert torch.equal(theirs, mine), name


def test_positive_advantages_are_weighted_without_replay_too(tmp_path, monkeypatch):
    trainer = trained(monkeypatch, tmp_path / "run", exgrpo__preset="positive-weight")
    plain = trained(monkeypatch, tmp_path / "plain", exgrpo__preset="on-policy")
    for (_, weighted), (_, stock) in zip(
        trainer.actor_rollout_wg.seen[:1], plain.actor_rollout_wg.seen[:1], strict=True
    ):
        ours, theirs = weighted["advantages"].values(), stock["advantages"].values()
        assert torch.equal(ours, torch.where(theirs > 0, theirs * 8, theirs))
        assert (theirs > 0).any()


def test_at_learning_rate_0_nothing_drifts(tmp_path, monkeypatch):
    trainer = trained(
        monkeypatch, tmp_path / "run", actor_rollout_ref__actor__optim__lr=0.0, trainer__total_training_steps=6
    )
    replayed = [row for row in trainer.logs if row.get("replay/injected")]
    assert len(replayed) > 3
    for row in replayed:
        assert row["replay/ratio_mean"] == pytest.approx(1.0, abs=1e-6)
        assert row["replay/ess"] == pytest.approx(1.0, abs=1e-6)
        assert row.get("replay/log_ratio_mean", 0.0) == pytest.approx(0.0, abs=1e-6)


# The oracle: two hosts, the same plans and events -----------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_the_plans_and_events_are_those_of_the_run_on_trl(tmp_path, monkeypatch, case):
    """The file holds what TRL's trainer does with the same questions, options and completions; tests/trl/test_oracle.py holds
    it against TRL."""
    save_questions(tmp_path / "questions.parquet", 24)
    options = {f"exgrpo__{name}": value for name, value in CASES[case].items()}
    trainer = trained(
        monkeypatch, tmp_path / "run", answer, actor_rollout_ref__actor__optim__lr=0.0,
        trainer__total_training_steps=STEPS, **{"exgrpo__start_pass_at_1": None, **options},
    )  # fmt: skip
    golden = json.loads(GOLDEN.read_text())
    assert list(trainer.replay.questions.keys) == golden["keys"]
    assert lines_of(trainer.events) == golden[case]


def test_the_log_is_the_one_that_a_run_on_trl_writes(tmp_path, monkeypatch):
    """Experience moves between hosts by content: questions, tokenizer and rewards agree."""
    save_questions(tmp_path / "questions.parquet", 24)
    trained(monkeypatch, tmp_path / "run", answer)
    golden = json.loads(GOLDEN.read_text())
    with LogReader(tmp_path / "run" / "experience.db") as reader:
        position = reader.position()
        origin = reader.origin_of(position.branch)
        records = dict(reader.questions())
    assert (origin.tokenizer, json.loads(origin.rewards)[1]) == (golden["tokenizer"], golden["decides"])
    assert {one.key for one in records.values()} <= set(golden["keys"])
    assert {one.columns for one in records.values()} <= set(golden["question_columns"])


# Checkpoints and the log ------------------------------------------------------------------------------------------------


def kept(folder):
    with LogReader(folder / "experience.db") as reader:
        return list(reader.rows("SELECT key, step, length, rewards FROM experience ORDER BY id"))


def seen_by_alarms(trainer):
    """What the alarms of a trainer have seen, but for what took how long."""
    state = (ReplayMonitor() if trainer is None else trainer._monitor).state()
    return state | {"known": {k: v for k, v in state["known"].items() if not k.startswith("replay/time/")}}


@pytest.mark.parametrize("mixing", ["share", "rescue", "added"])
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(tmp_path, monkeypatch, mixing):
    more = {**MIXINGS[mixing], "trainer__save_freq": 2}
    whole = trained(monkeypatch, tmp_path / "whole", trainer__total_training_steps=6, **more)
    trained(monkeypatch, tmp_path / "part", trainer__total_training_steps=4, **more)
    # events beyond the checkpoint, as of a run that was killed later
    again = trained(monkeypatch, tmp_path / "part", trainer__total_training_steps=6, **more)
    assert [row["training/global_step"] for row in again.logs] == [5, 6]
    tail = [event for event in whole.events if getattr(event, "step", 0) >= 4]
    assert [repr(event) for event in again.events if getattr(event, "step", 0) >= 4] == [repr(event) for event in tail]
    assert kept(tmp_path / "part") == kept(tmp_path / "whole")
    assert seen_by_alarms(again) == seen_by_alarms(whole) != seen_by_alarms(None)
    for ours, theirs in zip(
        again.actor_rollout_wg.model.parameters(), whole.actor_rollout_wg.model.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_a_run_that_dies_between_checkpoints_goes_on_from_the_last(tmp_path, monkeypatch):
    class Dies(Watched):
        def _update_actor(self, batch, metrics):
            if self.global_steps == 4:
                raise KeyboardInterrupt
            return super()._update_actor(batch, metrics)

    more = {"trainer__save_freq": 2, "trainer__total_training_steps": 6}
    trained(monkeypatch, tmp_path / "whole", **more)
    with pytest.raises(KeyboardInterrupt):
        trained(monkeypatch, tmp_path / "part", cls=Dies, **more)
    again = trained(monkeypatch, tmp_path / "part", **more)
    assert [row["training/global_step"] for row in again.logs] == [3, 4, 5, 6]
    assert kept(tmp_path / "part") == kept(tmp_path / "whole")


def test_a_checkpoint_without_experience_is_refused(tmp_path, monkeypatch):
    more = {"trainer__save_freq": 2}
    trained(monkeypatch, tmp_path / "run", trainer__total_training_steps=2, exgrpo__preset="on-policy", **more)
    with pytest.raises(CheckpointError, match="does not say where its experience is"):
        trained(monkeypatch, tmp_path / "run", trainer__total_training_steps=4, **more)


def test_experience_of_another_run_is_taken_over_by_content(tmp_path, monkeypatch):
    first = trained(monkeypatch, tmp_path / "first")
    more = {"exgrpo__experience_from": str(tmp_path / "first"), "trainer__total_training_steps": 1}
    second = trained(monkeypatch, tmp_path / "second", **more)
    admitted = [event for event in second.events if isinstance(event, Admitted) and event.trajectory.step < 0]
    assert second.batches[0].stored, "the first step replays what was taken over"
    assert len(first.replay.planner.buffer) >= len(second.batches[0].stored)
    assert admitted or second.replay.planner.buffer


# What is logged, and when a run ends ------------------------------------------------------------------------------------


def test_basic_metrics_are_shown_and_all_are_by_option(tmp_path, monkeypatch):
    shown = trained(monkeypatch, tmp_path / "basic", exgrpo__replay_metrics="basic")
    full = trained(monkeypatch, tmp_path / "all")
    names = [{name for row in t.logs for name in row if name.startswith(("replay/", "fresh/"))} for t in (shown, full)]
    assert names[0] < names[1]
    assert {"replay/size", "fresh/pass_at_1", "fresh/entropy", "replay/ess"} <= names[0]
    assert "replay/first_use_share" in names[1] - names[0]
    last = full.logs[-1]
    fresh = [e for e in full.events if isinstance(e, Observed) and e.step == 3]
    right = sum(int(np.sum(e.successes)) for e in fresh) / sum(int(np.sum(e.scorable)) for e in fresh)
    assert last["reward"] == pytest.approx(right)
    assert last["replay/reward_mixed"] > last["reward"]


def test_a_budget_of_tokens_ends_the_run_with_a_checkpoint(tmp_path, monkeypatch):
    trainer = trained(
        monkeypatch, tmp_path / "run", exgrpo__max_generated_tokens=150, trainer__total_training_steps=9,
        trainer__save_freq=5,
    )  # fmt: skip
    assert len(trainer.logs) == 2
    assert trainer.replay.generated_tokens >= 150
    assert (tmp_path / "run" / "global_step_2" / "exgrpo.json").is_file()


def test_an_alarm_ends_the_run_where_that_is_asked_for(tmp_path, monkeypatch, caplog):
    def update(monitor, metrics, step, why=None):
        assert "fresh/entropy" in metrics
        assert "replay/gate_open" in metrics
        return [Alarm("collapse", step, "it has collapsed")] if step == 2 else []

    monkeypatch.setattr("exgrpo.verl.trainer.ReplayMonitor.update", update)
    for action, steps in (("warn", 4), ("stop", 2), ("off", 4)):
        trainer = trained(monkeypatch, tmp_path / action, exgrpo__alarms=action, exgrpo__replay_metrics="basic")
        assert len(trainer.logs) == steps, action
    assert caplog.text.count("it has collapsed") == 2


def test_failed_rollouts_count_for_nothing(tmp_path, monkeypatch):
    class Fails(local.Rollouts):
        def generate_sequences(self, batch):
            super().generate_sequences(batch)
            fields = self.trainer.queue.fields["train"]
            for key in [key for key in fields if key.endswith(("_0_0", "_1_0"))][:5]:
                self.trainer.queue.kv_clear(key, "train")

    monkeypatch.setattr(local, "Rollouts", Fails)
    trainer = trained(monkeypatch, tmp_path / "run")
    assert len(trainer.logs) == 4
    seen = defaultdict(int)
    for event in trainer.events:
        if isinstance(event, Observed):
            seen[event.step] += int(event.scorable)
    replayed = defaultdict(int)
    for event in trainer.events:
        if isinstance(event, Replayed):
            replayed[event.step] += 1
    assert all(seen[step] == 32 - 5 - replayed[step] for step in range(4))


def test_a_reward_that_cannot_be_told_is_neither_right_nor_wrong(tmp_path, monkeypatch):
    trainer = trained(
        monkeypatch,
        tmp_path / "run",
        lambda step, prompt, member: "?$" if member == 0 else script(step, prompt, member),
    )
    assert trainer.logs[0]["replay/skipped_unscorable"] == 8
    assert all(int(event.scorable) <= 3 for event in trainer.events if isinstance(event, Observed))


# Refused ----------------------------------------------------------------------------------------------------------------


def test_fewer_questions_than_a_step_takes_are_refused(tmp_path, monkeypatch):
    save_questions(tmp_path / "questions.parquet", 6)
    with pytest.raises(DatasetError, match="have 6 rows, but one step takes 8 questions"):
        trained(monkeypatch, tmp_path / "run")


def test_tokens_that_the_policy_did_not_write_are_refused(tmp_path, monkeypatch):
    class Tools(local.Rollouts):
        def _sample(self, row, session):
            sample = super()._sample(row, session)
            sample["response_mask"][0] = 0
            return sample

    monkeypatch.setattr(local, "Rollouts", Tools)
    with pytest.raises(ConfigurationError, match="tokens that the policy did not write"):
        trained(monkeypatch, tmp_path / "run")


def test_a_prompt_that_is_not_that_of_the_question_is_refused(tmp_path, monkeypatch):
    class System(local.Rollouts):
        def _sample(self, row, session):
            sample = super()._sample(row, session)
            sample["prompts"] = torch.cat([torch.tensor([5]), sample["prompts"]])
            return sample

    monkeypatch.setattr(local, "Rollouts", System)
    with pytest.raises(ConfigurationError, match="has another prompt"):
        trained(monkeypatch, tmp_path / "run")


def test_asynchronous_modes_are_refused_by_name():
    from types import SimpleNamespace

    from verl.trainer.ppo.v1.trainer_base import get_trainer_cls

    config = SimpleNamespace(trainer=SimpleNamespace(v1=SimpleNamespace(trainer_mode="exgrpo_separate_async")))
    with pytest.raises(ConfigurationError, match=r"Set trainer.v1.trainer_mode=exgrpo\."):
        get_trainer_cls("exgrpo_separate_async")(config)


def test_planned_batches_are_never_shorter_than_the_host_s(tmp_path, monkeypatch):
    trainer = trained(monkeypatch, tmp_path / "run", data__gen_batch_size=2)
    assert [int(e.questions) for e in trainer.events if isinstance(e, Planned)] == [8] * 4
