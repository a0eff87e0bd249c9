"""A run that was interrupted and resumed is bit-equal to one that never was."""

import json
import shutil
import sqlite3

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import TrainerCallback

from exgrpo.errors import CheckpointError, DamagedLogError, ExperienceLogError
from exgrpo.experience.events import Admitted, Continued, Observed, Planned, Replayed, Retired, Skipped
from exgrpo.experience.replayed import fingerprint_of
from exgrpo.runtime.checkpoint import CheckpointRecord
from exgrpo.trl import last_checkpoint
from tests.support import harness as h


def lucky(prompts, completions, right, **kwargs):
    """Right by luck, often enough: some questions are solved, some never."""
    return [float(sum(map(ord, text)) % 4 == 0) if len(text) else 0.0 for text in completions]


def letters(texts):
    """An embedding without a model: how often each of 26 letters stands in a text, and a constant."""
    return np.array([[1.0, *(text.count(chr(97 + i)) for i in range(26))] for text in texts])


class Stop(TrainerCallback):
    """An interruption: training ends after a step, the schedule being that of the whole run."""

    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.step


def make(folder, **options):
    defaults = dict(
        save_strategy="steps", save_steps=1, max_steps=8, start_pass_at_1=0.0, learning_rate=1e-2, num_train_epochs=1,
        max_completion_length=5,
    )  # fmt: skip
    questions = options.pop("questions", 24)
    more = {name: options.pop(name) for name in ("eval_dataset", "embedder") if name in options}
    args = h.config(folder, **{**defaults, **options})
    return h.trainer(args, h.questions(questions), reward=lucky, **more)


def outcome(trainer) -> dict:
    """Everything that a run is, as bytes and numbers."""
    found = {
        "parameters": {n: p.detach().numpy().tobytes() for n, p in trainer.model.named_parameters()},
        "optimizer": {
            (i, name): value.numpy().tobytes()
            for i, state in enumerate(trainer.optimizer.state.values())
            for name, value in state.items()
        },
        "tokens": trainer.generated_tokens,
        "rng": torch.random.get_rng_state().numpy().tobytes(),
        "micro_step": trainer._step,
        "input_tokens": trainer.state.num_input_tokens_seen,
    }
    if trainer.planner is not None:
        found |= {
            "buffer": fingerprint_of(trainer.planner.buffer),
            "planner": trainer.planner.state(trainer._optimizer_step, trainer.generated_tokens),
        }
    return found


def told(trainer, after: int) -> list:
    """What happened in generations planned after so many optimizer steps."""
    rows = []
    for event in trainer.events:
        if isinstance(event, Admitted):
            t = event.trajectory
            if t.step > after:
                rows.append(
                    (event.serial, t.question, t.completion_ids.tobytes(), t.behaviour_logps.tobytes(), t.entropy)
                )
        elif isinstance(event, (Planned, Observed, Replayed, Retired, Continued, Skipped)) and event.step > after:
            rows.append(repr(event))
    return rows


def logged(trainer, after: int) -> list[dict]:
    rows = [log for log in trainer.state.log_history if log["step"] > after and "loss" in log]
    timed = ("step_time", "generation_time", "replay/time")
    return [{k: v for k, v in row.items() if not any(t in k for t in timed)} for row in rows]


CASES = {
    "exgrpo": dict(),
    "exact entropies": dict(entropy_refresh="exact", trajectory_choice="lowest_entropy"),
    "rescue": dict(preset="rescue"),
    "on-policy": dict(preset="on-policy"),
    "positive-weight, groups scaled": dict(preset="positive-weight", scale_rewards="group"),
    "gate closed until late": dict(start_step=5),
    "a gate over several generations, a coin": dict(
        start_pass_at_1=0.01, start_completions=20, per_device_train_batch_size=4, replay_share=0.7
    ),
    "float16": dict(logp_dtype="float16"),
    "evictions": dict(capacity=6, capacity_per_question=2, eviction="highest_entropy"),
    "a mid block: generations over four steps": dict(
        per_device_train_batch_size=8, steps_per_generation=4, gradient_accumulation_steps=1, max_steps=9
    ),
    "a mid block: three passes over each generation": dict(num_iterations=3, max_steps=10),
    "a mid block: rescue, both": dict(
        preset="rescue", per_device_train_batch_size=16, steps_per_generation=2, gradient_accumulation_steps=1,
        num_iterations=2, max_steps=18,
    ),
    "a mid block: on-policy": dict(
        preset="on-policy", per_device_train_batch_size=16, steps_per_generation=2, gradient_accumulation_steps=1,
        num_iterations=2, max_steps=10,
    ),
    "accumulation, two generations a step": dict(
        per_device_train_batch_size=16, steps_per_generation=1, gradient_accumulation_steps=2
    ),
    "epochs": dict(questions=20, max_steps=9),
    "epochs, on-policy": dict(questions=20, preset="on-policy", max_steps=9),
    "epochs end within an accumulation": dict(
        questions=20, per_device_train_batch_size=16, steps_per_generation=2, gradient_accumulation_steps=3, max_steps=8
    ),
    "no shuffle": dict(shuffle_dataset=False, questions=20, max_steps=7),
    "dapo, logged every third step": dict(loss_type="dapo", logging_steps=3),
    "K of 2": dict(num_generations=2, per_device_train_batch_size=16),
    "windows, cooldown, uses": dict(
        difficulty="window", difficulty_window=10, question_choice="linear", cooldown=1, max_uses=2, retirement="never"
    ),
    "a mid block: coin, whole groups": dict(
        mixing="coin", replay_probability=0.8, replays_per_group=4, admission="all", retirement="never",
        trajectory_choice="random", per_device_train_batch_size=16, steps_per_generation=2, gradient_accumulation_steps=1,
        num_iterations=2, max_steps=20,
    ),
    "a mid block: added": dict(
        preset="headroom-drift", max_drift=0.5, per_device_train_batch_size=16, steps_per_generation=2,
        gradient_accumulation_steps=1, max_steps=10,
    ),
    "prompts": dict(preset="prompt-replay", cooldown=1, max_uses=3),
    "a mid block: quality": dict(
        preset="quality-tiers", min_quality=0.1, embedder=letters, capacity_per_question=3,
        per_device_train_batch_size=16, steps_per_generation=2, gradient_accumulation_steps=1, max_steps=10,
    ),
    "a mid block: prefixes": dict(
        mixing="prefix", question_choice="uniform", prefix_length="controlled", admit_prefixed=True, retirement="never",
        per_device_train_batch_size=16, steps_per_generation=2, gradient_accumulation_steps=1, num_iterations=2, max_steps=18,
    ),
    "annealed prefixes": dict(mixing="prefix", prefix_length="annealed", prefix_steps=6, trajectory_choice="random"),
    "questions left out": dict(skip="zero_variance", skip_explore=0.3, retest_passes=2, retirement="never", questions=12),
    "questions left out, on-policy": dict(preset="on-policy", skip="zero_variance", skip_explore=0.3, questions=12),
    "reviews, ages": dict(
        retirement="threshold", retirement_threshold=0.5, review_every=2, review_share=0.5, max_age=3, baseline="fresh",
        question_choice="tiers", trajectory_choice="lowest_nll",
    ),
    "spread, retired ones in the stream": dict(
        difficulty="spread", retired_in_stream=True, trajectory_choice="entropy_percentile", entropy_percentile=50.0
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_resumed_run_is_bit_equal(tmp_path, name):
    """From the checkpoint of any step; the log and the folder also hold what came after it. Where each step is a generation of
    its own, one step in the midst is like the others."""
    options = CASES[name]
    whole = make(tmp_path / "whole", **options)
    whole.train()
    steps = whole.state.global_step
    special = name == "exgrpo" or options.keys() & {"steps_per_generation", "num_iterations", "start_step"}
    places = {1, 2, 3, 5} if special else {3}
    for at in sorted({*places, steps - 1}):
        folder = tmp_path / f"at-{at}"
        shutil.copytree(tmp_path / "whole", folder)
        second = make(folder, **options)
        torch.manual_seed(at)  # whatever a new process's state is
        second.train(resume_from_checkpoint=str(folder / f"checkpoint-{at}"))
        assert second.state.global_step == steps
        assert outcome(second) == outcome(whole), at
        assert told(second, at) == told(whole, at)
        assert logged(second, at) == logged(whole, at)
    if options.get("skip"):
        assert whole.events.of(Skipped)
    if whole.planner is not None and whole.planner.config.replays:
        assert whole.events.of(Replayed) or options.get("preset") == "prompt-replay"
        assert any(row.get("replay/share") for row in whole.state.log_history)


@pytest.mark.slow
@pytest.mark.parametrize("options", [dict(), dict(num_iterations=3)])
def test_a_run_that_was_stopped_goes_on(tmp_path, options):
    whole = make(tmp_path / "whole", **options)
    whole.train()
    first = make(tmp_path / "run", **options)
    first.add_callback(Stop(4))
    first.train()
    second = make(tmp_path / "run", **options)
    second.train(resume_from_checkpoint=True)
    assert outcome(second) == outcome(whole)


@pytest.mark.slow
def test_two_interruptions_and_a_checkpoint_before_the_last(tmp_path):
    whole = make(tmp_path / "whole")
    whole.train()
    folder = tmp_path / "interrupted"
    for stop, resume in ((5, None), (7, "checkpoint-3"), (8, "checkpoint-6"), (8, "checkpoint-2")):
        trainer = make(folder)
        trainer.add_callback(Stop(stop))
        trainer.train(resume_from_checkpoint=str(folder / resume) if resume else None)
        assert trainer.state.global_step == stop
    assert outcome(trainer) == outcome(whole)


@pytest.mark.slow
def test_nothing_is_generated_before_the_resumed_step(tmp_path, monkeypatch):
    """[FAULTS 27]: batches that are skipped are not generated for."""
    folder, steps = tmp_path, []
    first = make(folder, questions=64)
    first.add_callback(Stop(6))
    first.train()
    second = make(folder, questions=64)
    generate = type(second)._generate

    def counting(self, prompts):
        steps.append(self.state.global_step)
        return generate(self, prompts)

    monkeypatch.setattr(type(second), "_generate", counting)
    second.train(resume_from_checkpoint=True)
    assert steps == [6, 7]


@pytest.mark.slow
def test_evaluation_between_changes_nothing(tmp_path):
    whole = make(tmp_path / "whole", max_steps=4)
    whole.train()
    first = make(tmp_path / "run", max_steps=4)
    first.add_callback(Stop(2))
    first.train()
    second = make(tmp_path / "run", max_steps=4)
    state = torch.random.get_rng_state()
    second.evaluate(h.questions(8))
    torch.random.set_rng_state(state)
    second.train(resume_from_checkpoint=True)
    assert outcome(second) == outcome(whole)


@pytest.mark.slow
def test_a_resumed_run_with_other_options_keeps_its_experience(tmp_path):
    first = make(tmp_path, max_steps=4)
    first.train()
    stored = len(first.planner.buffer)
    assert stored > 5
    second = make(tmp_path, max_steps=5, capacity=5, num_generations=2, per_device_train_batch_size=16)
    sizes = []
    begin = second._before_the_first_batch
    second._before_the_first_batch = lambda: (begin(), sizes.append(len(second.planner.buffer)))
    second.train(resume_from_checkpoint=True)
    assert sizes == [5]
    newest = [event.serial for event in first.events.of(Admitted)][-1]
    assert any(event.serial > newest for event in second.events.of(Admitted))


def test_the_checkpoint_s_facts_are_readable_json(tmp_path):
    trainer = make(tmp_path, max_steps=2)
    trainer.train()
    stated = json.loads((tmp_path / "checkpoint-2" / "exgrpo.json").read_text())
    assert stated["generated_tokens"] > 0
    assert stated["log"]["seq"] > 0
    assert last_checkpoint(tmp_path).endswith("checkpoint-2")
    assert np.isfinite([v for values in stated["metrics"].values() for v in values]).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        dict(steps_per_generation=2, per_device_train_batch_size=16, gradient_accumulation_steps=1),
        dict(num_iterations=2),
        dict(preset="on-policy", num_iterations=3),
    ],
)
def test_a_block_that_is_cut_otherwise_is_not_learned_from_on(tmp_path, options, caplog):
    """Stopped within a block, resumed under other options: its successes are stored, the next generation begins."""
    first = make(tmp_path, num_iterations=3)
    first.add_callback(Stop(4))
    first.train()
    second = make(tmp_path, **options)
    second.train(resume_from_checkpoint=True)
    assert second.state.global_step == 8
    if second.planner is not None:
        assert "Its remaining updates are left out" in caplog.text
        assert second.planner.buffer.next_serial >= first.planner.buffer.next_serial


@pytest.mark.slow
def test_a_block_of_an_older_version_is_refused_by_name(tmp_path):
    """What 0.2.0 wrote in the middle of a generation; its checkpoints between two generations go on."""
    first = make(tmp_path, num_iterations=3)
    first.add_callback(Stop(4))
    first.train()
    path = tmp_path / "checkpoint-4" / "exgrpo-rank-0.safetensors"
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["exgrpo"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    assert about.pop("format") == 2
    save_file(tensors, path, metadata={"exgrpo": json.dumps(about)})
    with pytest.raises(
        CheckpointError, match=r"holds a batch in format 1, and .* reads format 2: .* between two generations"
    ):
        make(tmp_path, num_iterations=3).train(resume_from_checkpoint=True)
    second = make(tmp_path, num_iterations=3)
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert second.state.global_step == 8


@pytest.mark.slow
def test_last_begins_anew_where_there_is_none(tmp_path):
    for stop in (3, 8):
        trainer = make(tmp_path)
        trainer.add_callback(Stop(stop))
        trainer.train(resume_from_checkpoint="last")
        assert trainer.state.global_step == stop
    assert trainer.state.log_history[0]["step"] == 1


@pytest.mark.slow
def test_a_torn_checkpoint_is_left_out(tmp_path, caplog):
    first = make(tmp_path, max_steps=4)
    first.train()
    state = tmp_path / "checkpoint-4" / "trainer_state.json"
    state.write_text(state.read_text()[:50])
    assert last_checkpoint(tmp_path).endswith("checkpoint-3")
    with pytest.raises(
        CheckpointError, match=r"checkpoint-4 was not written to its end\. The last complete one is .*-3"
    ):
        make(tmp_path, max_steps=4).train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    second = make(tmp_path, max_steps=4)
    second.train(resume_from_checkpoint=True)
    assert "checkpoint-4 is incomplete and is skipped" in caplog.text
    assert outcome(second) == outcome(first)


@pytest.mark.slow
def test_the_log_of_a_checkpoint_is_missing(tmp_path):
    make(tmp_path, max_steps=2).train()
    (tmp_path / "experience.db").unlink()
    with pytest.raises(CheckpointError, match="belongs to an experience log, but there is none at"):
        make(tmp_path, max_steps=3).train(resume_from_checkpoint=True)
    assert not (tmp_path / "experience.db").exists()
    make(tmp_path / "other", max_steps=2).train()
    shutil.copy(tmp_path / "other" / "experience.db", tmp_path / "experience.db")
    with pytest.raises(ExperienceLogError, match="is not the log that was asked for"):
        make(tmp_path, max_steps=3).train(resume_from_checkpoint=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (dict(max_steps=4), "step 4 of max_steps=4"),
        (dict(max_steps=-1, num_train_epochs=2, questions=16), "epoch 2 of num_train_epochs=2"),
        (dict(max_steps=50, max_generated_tokens=500), "of max_generated_tokens=500"),
        (dict(max_steps=4, preset="on-policy"), "step 4 of max_steps=4"),
    ],
)
def test_a_finished_run_is_not_trained_on(tmp_path, options, reason, caplog):
    """The host would train one step more."""
    first = make(tmp_path, **options)
    first.train()
    found = outcome(first)
    steps = first.state.global_step
    second = make(tmp_path, **options)
    for p in second.model.parameters():
        p.data.zero_()
    second.train(resume_from_checkpoint="last")
    assert reason in caplog.text
    assert second.state.global_step == steps
    assert {name: p.detach().numpy().tobytes() for name, p in second.model.named_parameters()} == found["parameters"]
    assert second.generated_tokens == first.generated_tokens
    if second.planner is not None:
        assert fingerprint_of(second.planner.buffer) == fingerprint_of(first.planner.buffer)
    third = make(tmp_path, **options | dict(max_steps=steps + 2, max_generated_tokens=None))
    third.train(resume_from_checkpoint="last")
    assert third.state.global_step == steps + 2


@pytest.mark.slow
@pytest.mark.parametrize("change", ["dataset", "seed"])
def test_within_a_block_under_other_circumstances(tmp_path, change, caplog):
    first = make(tmp_path, num_iterations=3)
    first.add_callback(Stop(4))
    first.train()
    second = make(tmp_path, num_iterations=3, max_steps=10, **({"seed": 9} if change == "seed" else {"questions": 22}))
    second.train(resume_from_checkpoint=True)
    assert second.state.global_step == 10
    wanted = (
        "The seed or the shuffling changed" if change == "seed" else "the rest of the generation under way is left out"
    )
    assert wanted in caplog.text
    if change == "seed":  # what was under way is learned from on
        assert [event.generation for event in second.events.of(Planned)] == [2, 3]
    else:
        assert [event.generation for event in second.events.of(Planned)] == [2, 3]
        assert second._step % 3 == 0


@pytest.mark.slow
def test_what_fails_to_resume_says_why_and_leaves_the_log_free(tmp_path):
    trainer = make(tmp_path, max_steps=2)
    trainer.train()
    with sqlite3.connect(tmp_path / "experience.db") as connection:
        connection.execute("UPDATE state SET generation = 7 WHERE checkpoint")
    connection.close()
    trainer.args.max_steps = 3
    with pytest.raises(DamagedLogError, match="of state is not what was written"):
        trainer.train(resume_from_checkpoint=True)
    with pytest.raises(DamagedLogError, match="of state is not what was written"):
        make(tmp_path, max_steps=3).train(resume_from_checkpoint=True)


def test_a_changed_byte_of_the_facts_is_refused(tmp_path):
    make(tmp_path, max_steps=1).train()
    path = tmp_path / "checkpoint-1" / "exgrpo.json"
    whole, stated = path.read_bytes(), CheckpointRecord.read(path.parent)
    assert stated.log["seq"] > 0
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        said = None
        try:
            assert CheckpointRecord.read(path.parent) == stated  # white space
        except CheckpointError as error:
            said = str(error)
        assert said is None or "cannot be read" in said or "reads formats up to" in said


@pytest.mark.slow
def test_another_number_of_generations_is_rebuilt_alike_with_and_without_snapshots(tmp_path):
    """Resumed with another K, then that run from each of its checkpoints."""
    first = make(tmp_path, max_steps=12)
    first.add_callback(Stop(4))
    first.train()
    other = dict(max_steps=12, num_generations=2, per_device_train_batch_size=16)
    whole = make(tmp_path, **other)
    whole.train(resume_from_checkpoint=True)
    found = outcome(whole)
    for at in (5, 8, 11):
        again = make(tmp_path, **other)
        again.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{at}"))
        assert outcome(again) == found, at


@pytest.mark.slow
def test_a_checkpoint_by_another_name(tmp_path):
    whole = make(tmp_path / "run", max_steps=4)
    whole.train()
    shutil.copytree(tmp_path / "run" / "checkpoint-2", tmp_path / "kept")
    (tmp_path / "run" / "latest").symlink_to(tmp_path / "run" / "checkpoint-3")
    for name in (tmp_path / "kept", tmp_path / "run" / "latest"):
        again = make(tmp_path / "run", max_steps=4)
        again.train(resume_from_checkpoint=str(name))
        assert outcome(again) == outcome(whole)


@pytest.mark.slow
def test_a_finished_run_keeps_its_best_model(tmp_path):
    options = dict(
        max_steps=4, eval_strategy="steps", eval_steps=1, load_best_model_at_end=True, metric_for_best_model="eval_reward",
    )  # fmt: skip
    options["eval_dataset"] = h.questions(8)
    first = make(tmp_path, **options)
    first.train()
    second = make(tmp_path, **options)
    output = second.train(resume_from_checkpoint="last")
    assert output.metrics["train_runtime"] == 0
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "steps"), [("last", [4]), (True, [4]), ("checkpoint-1", [2, 3, 4]), (None, [1, 2, 3, 4])]
)
def test_the_configuration_says_what_to_resume_from(tmp_path, said, steps):
    make(tmp_path, max_steps=3).train()
    said = str(tmp_path / said) if said == "checkpoint-1" else said
    second = make(tmp_path, max_steps=4, resume_from_checkpoint=said)
    second.train()
    assert [event.step + 1 for event in second.events.of(Planned)] == steps
    second.args.max_steps = 1  # another call goes on, as without the option
    second.train()
    assert second.events.of(Planned)[-1].step == 4


@pytest.mark.slow
def test_the_call_says_it_before_the_configuration(tmp_path):
    make(tmp_path, max_steps=2).train()
    second = make(tmp_path, max_steps=2, resume_from_checkpoint="last")
    second.train(resume_from_checkpoint=False)
    assert [event.step for event in second.events.of(Planned)] == [0, 1]


@pytest.mark.slow
def test_what_the_host_cannot_resume_exactly_is_said(tmp_path, caplog):
    make(tmp_path, max_steps=2).train()
    make(tmp_path, max_steps=3, ignore_data_skip=True).train(resume_from_checkpoint=True)
    assert "ignore_data_skip=True: the resumed run is not bit-equal" in caplog.text


@pytest.mark.slow
def test_older_checkpoints_in_the_folder_are_told_of(tmp_path, caplog):
    make(tmp_path, max_steps=2).train()
    assert "from an earlier run: resuming" not in caplog.text
    make(tmp_path, max_steps=2, seed=8).train()
    assert "checkpoint-2 is from an earlier run: resuming the 'last' checkpoint would continue that run" in caplog.text
