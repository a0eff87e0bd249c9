"""Experience outlives its run: the log of a trainer, other trainers that start from it, and what must not be mixed in."""

import asyncio
import functools
import os
import re
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback

from exgrpo.archive import maintenance as upkeep
from exgrpo.archive.parquet import export
from exgrpo.errors import CheckpointError, ConfigurationError, ExperienceLogError, LogInUseError
from exgrpo.experience import ExperienceBuffer
from exgrpo.experience.events import Admitted, Observed, Replayed, Retired
from exgrpo.experience.replayed import fingerprint_of
from exgrpo.log import LogReader, StoredTrajectories, rebuild
from exgrpo.log.rebuild import size_of
from exgrpo.runtime import session as experience
from exgrpo.runtime.questions import columns_read
from tests.support import harness as h


def script(generation: int, prompt: str, member: int) -> str:
    """Questions 0, 4, ... are solved at once; 1, 5, ... half; 2, 6, ... in their first member; 3, 7, ... never."""
    i = int(prompt.split("q")[-1].split("=")[0])
    kind, letter = i % 4, "abcdefgh"[(member + 2 * generation) % 8]
    right = kind == 0 or (kind == 1 and member < 2) or (kind == 2 and member == 0)
    right = right and not (i == 13 and generation > 3)  # forgotten
    return f"{letter}{i}$" if right else "z" * (1 + (member + generation) % 5) + "$"


def make(folder, dataset=None, **options):
    more = {name: options.pop(name) for name in ("reward", "tokenizer", "model", "callbacks") if name in options}
    args = h.config(folder, **{"start_pass_at_1": 0.0, "learning_rate": 1e-2, "max_steps": 4, **options})
    return h.trainer(args, dataset or h.questions(24), script=script, **more)


def reopened(path) -> ExperienceBuffer:
    """The buffer that follows from a log, its questions numbered as there."""
    reader = LogReader(path)
    buffer = ExperienceBuffer(size_of(reader), 4, store=StoredTrajectories(reader, reader.lineage()))
    rebuild(reader, buffer)
    return buffer


def contents(buffer, keys) -> dict:
    """Of each question, by its key: accuracy, whether it is retired, and the trajectories."""
    return {
        key: (
            int(buffer.questions.successes[q]), int(buffer.questions.scorable[q]), bool(buffer.retired[q]),
            [(t.completion_ids.tobytes(), t.behaviour_logps.tobytes()) for t in buffer.get_many(buffer.slots_of(q))],
        )
        for q, key in keys.items() if buffer.questions.scorable[q]
    }  # fmt: skip


# The log of a run -------------------------------------------------------------------------------------------------------


def test_the_log_holds_what_the_trainer_holds(tmp_path):
    trainer = make(tmp_path)
    trainer.train()
    with LogReader(tmp_path / "experience.db") as reader:
        keys = {number: record.key for number, record in reader.questions()}
        (origin,) = reader.origins().values()
    here = contents(trainer.planner.buffer, dict(enumerate(trainer.questions.keys)))
    assert contents(reopened(tmp_path / "experience.db"), keys) == here
    assert sum(len(kept[3]) for kept in here.values()) == len(trainer.planner.buffer) > 8
    assert origin.num_generations == 4
    assert origin.questions == trainer.questions.digest()
    assert '"right_reward"' in origin.rewards


def test_what_was_learned_of_a_replay_is_in_the_log(tmp_path):
    trainer = make(tmp_path, max_steps=6)
    trainer.train()
    with sqlite3.connect(tmp_path / "experience.db") as connection:
        rows = connection.execute("SELECT step, age, log_ratio, ess FROM replays ORDER BY seq").fetchall()
    connection.close()
    assert len(rows) == len(trainer.events.of(Replayed)) > 5
    assert all(age >= 1 and log_ratio is not None and 0 < ess <= 1 for _, age, log_ratio, ess in rows)
    logged = [log["replay/log_ratio_mean"] for log in trainer.state.log_history if "replay/log_ratio_mean" in log]
    lengths = {(r.generation, r.question): r for r in trainer.events.of(Replayed)}
    assert len(lengths) == len(rows)
    assert min(r[2] for r in rows) <= np.mean(logged) <= max(r[2] for r in rows)


def test_the_questions_of_the_log_say_what_they_are(tmp_path):
    rows = [row | {"problem_type": "sum" if i % 2 else "product"} for i, row in enumerate(h.questions(24).to_list())]
    make(tmp_path, Dataset.from_list(rows)).train()
    with LogReader(tmp_path / "experience.db") as reader:
        for _, record in reader.questions():
            row = rows[record.dataset_row]
            assert record.prompt == row["prompt"]
            assert record.problem_type == row["problem_type"]
            assert row["right"] in record.columns


def test_in_memory_only(tmp_path):
    trainer = make(tmp_path, experience_log="none", save_strategy="steps", save_steps=2)
    trainer.train()
    assert len(trainer.planner.buffer) > 8
    assert not list(tmp_path.glob("experience*"))
    with pytest.raises(ConfigurationError, match="experience_log='none'"):
        make(tmp_path, experience_log="none").train(resume_from_checkpoint=True)
    with pytest.raises(CheckpointError, match="does not say where its experience is"):
        make(tmp_path).train(resume_from_checkpoint=True)


def test_the_log_can_lie_elsewhere(tmp_path):
    make(tmp_path / "out", experience_log=str(tmp_path / "elsewhere" / "bank.db")).train()
    assert len(reopened(tmp_path / "elsewhere" / "bank.db")) > 8
    assert not list((tmp_path / "out").glob("*.db"))


@pytest.mark.slow
def test_training_twice_goes_on_with_the_experience(tmp_path):
    trainer = make(tmp_path)
    trainer.train()
    before = fingerprint_of(trainer.planner.buffer)
    assert reopened(tmp_path / "experience.db").next_serial == trainer.planner.buffer.next_serial
    planner = trainer.planner
    trainer.train()
    assert trainer.planner is planner
    assert fingerprint_of(planner.buffer) != before
    assert max(event.step for event in trainer.events.of(Observed)) == 7
    assert len(reopened(tmp_path / "experience.db")) == len(planner.buffer)


@pytest.mark.slow
def test_a_new_run_in_an_old_folder_starts_empty_and_keeps_the_old_experience(tmp_path, caplog):
    make(tmp_path).train()
    second = make(tmp_path)
    second.train()
    assert "holds the experience of an earlier run" in caplog.text
    assert second.events.of(Observed)[0].generation == 0
    assert second.events.of(Admitted)[0].serial == 0
    with LogReader(tmp_path / "experience.db") as reader:
        assert [branch.parent for branch in reader.branches.values()] == [None, None]
        (count,) = next(reader.rows("SELECT count(*) FROM trajectory"))
        (visible,) = next(reader.rows("SELECT count(*) FROM trajectories"))
    assert count == 2 * visible > 16


@pytest.mark.slow
def test_a_reward_that_raises_leaves_a_log_that_the_run_continues_from(tmp_path):
    calls = []

    def raising(prompts, completions, right, **kwargs):
        calls.append(len(prompts))
        if len(calls) == 4:
            raise RuntimeError("the verifier is gone")
        return h.right_reward(prompts, completions, right)

    whole = make(tmp_path / "whole", save_strategy="steps", save_steps=1)
    whole.train()
    trainer = make(tmp_path / "run", reward=raising, save_strategy="steps", save_steps=1)
    with pytest.raises(RuntimeError, match="the verifier is gone"):
        trainer.train()
    with LogReader(tmp_path / "run" / "experience.db") as reader:
        for table in ("generation", "replay", "eviction", "measurement"):  # nothing of the generation that was given up
            ((last,),) = reader.rows(f"SELECT coalesce(max(step), 0) FROM {table}")
            assert last <= 2
    assert upkeep.verify(tmp_path / "run" / "experience.db") == []
    raising.__name__ = "right_reward"
    again = make(tmp_path / "run", save_strategy="steps", save_steps=1, reward=h.right_reward)
    again.train(resume_from_checkpoint=True)
    # the reward function's name is another, so its successes were scored again; with the same name it is the same run
    assert len(again.planner.buffer) > 8


# A reader, and a second writer, meanwhile ---------------------------------------------------------------------------------


class During(TrainerCallback):
    """Calls something at the end of a step."""

    def __init__(self, step, function):
        self.step, self.function = step, function

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.function()


def test_a_reader_during_training_neither_blocks_nor_is_blocked(tmp_path):
    """A transaction that reads stays open over several commits: it sees one moment, the trainer goes on."""
    path, seen = tmp_path / "experience.db", []
    connections = []

    def start_reading():
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("BEGIN")
        seen.append(connection.execute("SELECT count(*) FROM trajectories").fetchone()[0])
        connections.append(connection)

    def read_again():
        seen.append(connections[0].execute("SELECT count(*) FROM trajectories").fetchone()[0])
        with LogReader(path) as reader:
            seen.append(next(reader.rows("SELECT count(*) FROM trajectories"))[0])
        connections[0].close()

    make(tmp_path, max_steps=5, callbacks=[During(2, start_reading), During(4, read_again)]).train()
    assert seen[0] == seen[1] < seen[2]


@pytest.mark.slow
def test_a_second_trainer_is_refused(tmp_path):
    refusals = []

    def second():
        with pytest.raises(LogInUseError) as refused:
            make(tmp_path).train()
        refusals.append(str(refused.value))

    make(tmp_path, callbacks=[During(2, second)]).train()
    assert f"process {os.getpid()} on " in refusals[0]
    make(tmp_path).train()  # now it is free


@pytest.mark.slow
def test_a_second_process_is_refused(tmp_path):
    code = (
        "import sys; from exgrpo.log import LogWriter\n"
        "class None_: keys = ()\n"
        f"LogWriter({str(tmp_path / 'experience.db')!r}, None_())"
    )
    outcomes = []

    def second():
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        outcomes.append((run.returncode, run.stderr))

    make(tmp_path, callbacks=[During(2, second)]).train()
    assert outcomes[0][0] == 1
    assert f"LogInUseError: {tmp_path / 'experience.db'} is being written by process {os.getpid()}" in outcomes[0][1]
    second()
    assert outcomes[1] == (0, "")


# Another run's experience -------------------------------------------------------------------------------------------------


@pytest.fixture
def bank(tmp_path):
    """A finished run and its folder."""
    trainer = make(tmp_path / "bank")
    trainer.train()
    return trainer, tmp_path / "bank"


@pytest.mark.slow
def test_a_run_starts_from_another_s_experience(tmp_path, bank, caplog):
    old, folder = bank
    new = make(tmp_path / "new", model=h.tiny_model(seed=5), experience_from=str(folder))
    new.train()
    stored = {t.completion_ids.tobytes(): t for t in old.planner.buffer.get_many(old.planner.buffer.live_slots())}
    inherited = [event.trajectory for event in new.events.of(Admitted)][: len(stored)]
    assert f"{len(stored)} trajectories of" in caplog.text
    assert {t.completion_ids.tobytes() for t in inherited} == set(stored)
    for t in inherited:
        before = stored[t.completion_ids.tobytes()]
        assert t.behaviour_logps.tobytes() == before.behaviour_logps.tobytes()
        assert t.rewards.tobytes() == before.rewards.tobytes()
        assert t.step == before.step - old.state.global_step < 0
        assert np.isnan(t.entropy)
    replays = [event for event in new.events.of(Replayed) if event.generation == 0]
    assert len(replays) == 4  # from the first generation on
    assert all(event.age > 0 for event in replays)
    assert not any(event.question % 4 == 0 for event in replays)  # what had retired has no trajectories
    accuracies = [event for event in new.events.of(Observed) if event.generation == -1]
    assert {event.question for event in accuracies} == set(
        np.flatnonzero(old.planner.buffer.questions.scorable).tolist()
    )


@pytest.mark.slow
def test_a_run_resumes_after_it_started_from_another_s_experience(tmp_path, bank):
    options = dict(experience_from=str(bank[1]), save_strategy="steps", save_steps=2, model=h.tiny_model(seed=5))
    whole = make(tmp_path / "whole", **options)
    whole.train()
    (tmp_path / "whole").rename(tmp_path / "moved")
    (bank[1] / "experience.db").unlink()  # it was copied
    again = make(tmp_path / "moved", **options | {"model": h.tiny_model(seed=5)})
    again.train(resume_from_checkpoint=str(tmp_path / "moved" / "checkpoint-2"))
    assert fingerprint_of(again.planner.buffer) == fingerprint_of(whole.planner.buffer)
    for a, b in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
def test_only_what_fits_is_taken_over(tmp_path, bank, caplog):
    """Other rows, fewer rows, another order: matched by content."""
    rows = h.questions(24).to_list()
    dataset = Dataset.from_list([*reversed(rows[8:]), {"prompt": "q3=", "right": "another answer"}])
    new = make(tmp_path / "new", dataset, experience_from=str(bank[1] / "experience.db"))
    new.train()
    inherited = [event.trajectory for event in new.events.of(Admitted) if event.trajectory.step < 0]
    for t in inherited:
        prompt = new.questions.row(t.question)["prompt"]
        text = new.processing_class.decode(t.completion_ids, skip_special_tokens=True)
        assert text[1:] == prompt.removeprefix("q").removesuffix("=")
    assert {t.question for t in inherited} <= set(range(16))
    out = len(bank[0].planner.buffer) - len(inherited)
    assert out > 0
    assert f"{out} whose question is not in this dataset" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("how", ["tokenizer", "template"])
def test_another_tokenizer_or_template(tmp_path, how, caplog):
    rows = [
        {"prompt": [{"role": "user", "content": row["prompt"]}], "right": row["right"]}
        for row in h.questions(24).to_list()
    ]
    dataset = Dataset.from_list(rows)
    first = make(tmp_path / "bank", dataset, tokenizer=h.tiny_tokenizer(chat=True))
    first.train()
    assert len(first.planner.buffer) > 8
    other = h.tiny_tokenizer(chat=True)
    if how == "template":
        other.chat_template = other.chat_template.replace("a(", "b(")
        reason = "made with another chat template"
    else:
        vocabulary = other.get_vocab()
        vocabulary["0"], vocabulary["1"] = vocabulary["1"], vocabulary["0"]
        other.backend_tokenizer.model = type(other.backend_tokenizer.model)(vocabulary, unk_token="<unk>")
        reason = "made with another tokenizer"
    caplog.clear()
    second = make(tmp_path / "new", dataset, tokenizer=other, experience_from=str(tmp_path / "bank"), max_steps=1)
    second.train()
    assert f"{len(first.planner.buffer)} left out ({len(first.planner.buffer)} {reason})" in caplog.text
    assert not [event for event in second.events.of(Admitted) if event.trajectory.step < 0]


@pytest.mark.slow
def test_other_reward_functions_score_again(tmp_path, bank, caplog):
    """[ALGORITHM: rewards of replayed rows]: names, versions, weights differ -> recorded completions are scored again."""

    def stricter(prompts, completions, right, **kwargs):
        return [2.0 * value if "e" not in text else 0.0
                for value, text in zip(h.right_reward(prompts, completions, right), completions, strict=True)]  # fmt: skip

    async def length(prompts, completions, **kwargs):
        await asyncio.sleep(0)
        return [None if len(text) > 4 else float(len(text)) for text in completions]

    new = make(tmp_path / "new", experience_from=str(bank[1]), reward=[stricter, length], max_steps=1)
    new.train()
    inherited = [event.trajectory for event in new.events.of(Admitted) if event.trajectory.step < 0]
    texts = [new.processing_class.decode(t.completion_ids, skip_special_tokens=True) for t in inherited]
    assert 0 < len(inherited) < len(bank[0].planner.buffer)
    assert not any("e" in text for text in texts)
    for t, text in zip(inherited, texts, strict=True):
        assert t.rewards.tolist() == [2.0, float(len(text))]
    out = len(bank[0].planner.buffer) - len(inherited)
    assert f"{out} not right under this run's reward functions" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("what", ["dataset", "reward functions"])
def test_resuming_under_other_circumstances_is_said_and_mixes_nothing_in(tmp_path, what, caplog):
    options = dict(save_strategy="steps", save_steps=2)
    first = make(tmp_path, **options)
    first.train()
    caplog.clear()
    if what == "dataset":
        second = make(tmp_path, Dataset.from_list(h.questions(24).to_list()[4:]), **options, max_steps=6)
    else:

        def renamed(prompts, completions, right, **kwargs):
            return [1.0 if "a" in text else 0.0 for text in completions]

        second = make(tmp_path, reward=renamed, **options, max_steps=6)
    second.train(resume_from_checkpoint=True)
    assert f"under another {what}: not bit-equal" in caplog.text
    kept = [event.trajectory for event in second.events.of(Admitted) if event.trajectory.step < 4]
    assert 0 < len(kept) < len(first.planner.buffer)
    for t in kept:
        text = second.processing_class.decode(t.completion_ids, skip_special_tokens=True)
        row = second.questions.row(t.question)
        assert text in row["right"].split("|")
        if what != "dataset":
            assert "a" in text
    assert min(event.generation for event in second.events.of(Observed) if event.generation >= 0) == 4
    third = make(tmp_path, Dataset.from_list(h.questions(24).to_list()[4:]), **options, max_steps=8)
    third.train(resume_from_checkpoint=True)


def test_a_source_that_is_none(tmp_path):
    with pytest.raises(ExperienceLogError, match=r"there is no experience log .*nowhere"):
        make(tmp_path / "new", experience_from=str(tmp_path / "nowhere")).train()
    with pytest.raises(ConfigurationError, match="experience_from='x' has no effect where nothing is replayed"):
        make(tmp_path / "new", experience_from="x", preset="on-policy")


@pytest.mark.slow
def test_retired_questions_of_a_bank_are_fresh_again(tmp_path, bank):
    assert bank[0].planner.buffer.num_retired > 0
    new = make(tmp_path / "new", experience_from=str(bank[1]), max_steps=1)
    new.train()
    assert {event.question for event in new.events.of(Retired)} <= set(range(0, 24, 4))
    assert new.planner.buffer.num_retired < bank[0].planner.buffer.num_retired


@pytest.mark.slow
@pytest.mark.parametrize("source", ["run", "export"])
def test_retired_questions_of_a_bank_stay_so_where_that_is_asked_for(tmp_path, bank, source, caplog):
    place = bank[1]
    if source == "export":
        place = tmp_path / "export"
        with LogReader(bank[1] / "experience.db") as reader:
            export(reader, place)
    fresh = make(tmp_path / "fresh", experience_from=str(place), max_steps=1)
    fresh.train()
    retired = set(np.flatnonzero(bank[0].planner.buffer.retired).tolist())
    assert f"{len(retired)} questions that had retired are fresh here" in caplog.text
    new = make(tmp_path / "new", experience_from=str(place), keep_retired=True, max_steps=1)
    new.train()
    assert f"{len(retired)} questions stay retired" in caplog.text
    assert {event.question for event in new.events.of(Retired) if event.generation < 0} == retired
    assert not retired & {event.question for event in new.events.of(Observed) if event.generation >= 0}
    assert upkeep.verify(tmp_path / "new" / "experience.db") == []
    with pytest.raises(ConfigurationError, match="keep_retired=True has no effect without experience_from"):
        make(tmp_path / "new", keep_retired=True)


def numbered(edited=(), **columns):
    """24 questions with columns that no reward function reads; `edited` ones have another answer."""
    rows = h.questions(24).to_list()
    rows = [row | {name: value(i) for name, value in columns.items()} for i, row in enumerate(rows)]
    return Dataset.from_list([row | {"right": f"h{i}"} if i in edited else row for i, row in enumerate(rows)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        (lambda: numbered(id=lambda i: i + 100), "column 'id' is another, which no reward function reads"),
        (lambda: numbered(number=int), "column 'id' and column 'number' is another"),
        (lambda: numbered(id=int, level=lambda i: "easy"), "column 'level' is another"),
        (lambda: numbered(edited=(5,), id=int), "whose question has another column 'right' in this dataset"),
    ],
    ids=["renumbered", "renamed", "added", "edited"],
)
def test_a_resumed_run_keeps_what_its_changed_data_still_holds(tmp_path, dataset, said, caplog):
    first = make(tmp_path, numbered(id=int), save_strategy="steps", save_steps=2, reward=reads_right)
    first.train()
    second = make(tmp_path, dataset(), save_strategy="steps", save_steps=2, max_steps=5, reward=reads_right)
    second.train(resume_from_checkpoint=True)
    assert said in caplog.text
    retired = {event.question for event in first.events.of(Retired)}
    assert retired
    assert retired == {event.question for event in second.events.of(Retired) if event.generation < 0}
    assert f"{len(retired)} questions stay retired" in caplog.text
    was, now = (contents(t.planner.buffer, dict(enumerate(t.questions.keys))) for t in (first, second))
    lost = sum(len(row[3]) for row in was.values()) - sum(t.step < 4 for t in stored_in(second))
    assert (lost > 0) == ("edited" in said or "right" in said)
    assert len(now) >= len(was) - 1
    assert upkeep.verify(tmp_path / "experience.db") == []


def reads_right(prompts, completions, **others):
    return h.right_reward(prompts, completions, others["right"])


def stored_in(trainer):
    buffer = trainer.planner.buffer
    return buffer.get_many(buffer.live_slots().tolist())


def hands_on(completions, **others):
    return reads_right(None, completions, **others)


class Callable_:
    def __call__(self, completions, right, **others):
        return [others.get("level"), others.pop("number", 1)]


@pytest.mark.parametrize(
    ("function", "read"),
    [
        (h.right_reward, {"right"}),
        (reads_right, {"right"}),
        (hands_on, None),
        (Callable_(), {"right", "level", "number"}),
        (functools.partial(h.right_reward), {"right"}),
        (torch.nn.Linear(1, 1), set()),
        (len, None),
    ],
)
def test_which_columns_a_reward_function_reads(function, read):
    assert columns_read([function], ["prompt", "right", "level", "number", "id"]) == read


def test_a_function_may_say_which_columns_it_reads():
    def function(completions, **others):
        return hands_on(completions, **others)

    function.columns = ("right",)
    assert columns_read([function, h.right_reward], ["prompt", "right", "id"]) == {"right"}


@pytest.mark.slow
def test_training_goes_on_after_a_generation_was_given_up(tmp_path):
    """In the same process: what memory holds of it is forgotten as well."""
    calls = []

    def raising(prompts, completions, right, **kwargs):
        calls.append(len(prompts))
        if len(calls) == 3:
            raise RuntimeError("the verifier is gone")
        return h.right_reward(prompts, completions, right)

    trainer = make(tmp_path, reward=raising, max_steps=3, max_uses=2, max_age=2)
    with pytest.raises(RuntimeError, match="the verifier is gone"):
        trainer.train()
    given_up = [event for event in trainer.events if isinstance(event, Replayed) and event.generation == 2]
    assert given_up
    trainer.train()
    again = [event for event in trainer.events if isinstance(event, Replayed) and event.generation == 2]
    assert len(again) == 2 * len(given_up)  # the same ones, replayed once
    with LogReader(tmp_path / "experience.db") as reader:
        ((replays,),) = reader.rows("SELECT count(*) FROM replays WHERE generation = 2")
        assert replays == len(given_up)
    assert upkeep.verify(tmp_path / "experience.db") == []
    keys = dict(enumerate(trainer.questions.keys))
    buffer = reopened(tmp_path / "experience.db")
    with LogReader(tmp_path / "experience.db") as reader:
        there = {number: record.key for number, record in reader.questions()}
    assert contents(buffer, there) == contents(trainer.planner.buffer, keys)


@pytest.mark.slow
def test_a_log_on_a_local_disk_goes_with_the_checkpoints_of_a_shared_one(tmp_path, monkeypatch, caplog):
    """Another node has `output_dir`, but not the disk of the log; or an older state of it."""
    shared, local = tmp_path / "shared", tmp_path / "local" / "experience.db"
    monkeypatch.setattr(experience, "is_shared", lambda path: path.is_relative_to(shared))
    options = dict(save_strategy="steps", save_steps=2, experience_log=str(local))
    whole = make(tmp_path / "whole", max_steps=6, save_strategy="steps", save_steps=2)
    whole.train()
    make(shared, **options).train()
    assert (shared / "checkpoint-4" / "experience.db").is_file()
    older = local.read_bytes()
    local.unlink()
    second = make(shared, **options, max_steps=6)
    second.train(resume_from_checkpoint=True)
    assert "is taken from the checkpoint's copy" in caplog.text
    assert fingerprint_of(second.planner.buffer) == fingerprint_of(whole.planner.buffer)
    local.write_bytes(older)  # the first node again
    third = make(shared, **options, max_steps=7)
    third.train(resume_from_checkpoint=True)
    assert local.with_name("experience.db.left-behind").read_bytes() == older
    assert third.state.global_step == 7
    assert upkeep.verify(local) == []


def test_the_log_is_written_by_one_thread_s_connection_from_any_thread(tmp_path):
    """A host may save checkpoints from a thread of its own."""
    trainer = make(tmp_path)
    errors = []

    def train():
        try:
            trainer.train()
        except Exception as error:  # noqa: BLE001 - looked at below
            errors.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert not errors
    assert len(trainer.planner.buffer.get_many(trainer.planner.buffer.live_slots())) > 8


# The page -----------------------------------------------------------------------------------------------------------------


PAGE = (Path(__file__).parents[2] / "docs" / "experience.md").read_text(encoding="utf-8")
QUERIES = re.findall(r"^```sql\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def rich_log(tmp_path_factory):
    """A run with replays, rescues of nothing, retirements, evictions, and a question that was solved and is not any more."""
    rows = [row | {"problem_type": "ab"[i % 2]} for i, row in enumerate(h.questions(24).to_list())]
    folder = tmp_path_factory.mktemp("log")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(h.GRPOTrainer, "_generate_single_turn", h.scripted_generation)
        make(folder, Dataset.from_list(rows), max_steps=10, capacity=20, capacity_per_question=2).train()
    return folder / "experience.db"


def test_the_page_has_enough_queries():
    assert len(QUERIES) >= 10


@pytest.mark.parametrize("query", QUERIES, ids=lambda q: q.split("\n")[0][:40])
def test_the_sql_of_the_page(rich_log, query):
    connection = sqlite3.connect(rich_log)
    rows = connection.execute(query).fetchall()
    connection.close()
    assert rows
    assert all(len(row) >= 2 for row in rows)
    assert any(value is not None for row in rows for value in row)


# Mishaps ------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_start_that_failed_can_be_tried_again(tmp_path, bank):
    trainer = make(tmp_path / "new", experience_from=str(tmp_path / "nowhere"))
    with pytest.raises(ExperienceLogError, match="there is no experience log"):
        trainer.train()
    trainer.args.experience_from = str(bank[1])
    trainer.train()
    assert trainer.events.of(Replayed)
    assert len(reopened(tmp_path / "new" / "experience.db")) == len(trainer.planner.buffer)


@pytest.mark.slow
def test_a_write_ahead_log_that_was_left_is_not_taken_for_that_of_a_new_log(tmp_path):
    path = tmp_path / "experience.db"
    make(tmp_path).train()
    held = sqlite3.connect(path)  # keeps the write-ahead log from being folded in
    held.execute("BEGIN")
    held.execute("SELECT * FROM state").fetchone()
    make(tmp_path).train()
    copy = (tmp_path / "experience.db-wal").read_bytes()
    held.close()
    for suffix in ("", "-wal", "-shm"):
        (tmp_path / f"experience.db{suffix}").unlink(missing_ok=True)
    (tmp_path / "experience.db-wal").write_bytes(copy)
    assert len(copy) > 1000
    trainer = make(tmp_path)
    trainer.train()
    assert len(reopened(path)) == len(trainer.planner.buffer)
    assert not upkeep.verify(path)
    assert (tmp_path / "experience.db.left-behind-wal").read_bytes() == copy


@pytest.mark.slow
def test_a_second_trainer_by_another_name_of_the_file_is_refused(tmp_path):
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "experience.db").symlink_to(tmp_path / "real" / "experience.db")
    refusals = []

    def second():
        with pytest.raises(LogInUseError, match="is being written by process"):
            make(tmp_path / "link").train()
        refusals.append(1)

    make(tmp_path / "real", callbacks=[During(2, second)]).train()
    assert refusals == [1]
    make(tmp_path / "link").train()
    assert (tmp_path / "link" / "experience.db").is_symlink()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: replace(t, completion_ids=t.completion_ids + 500), "with token ids beyond the model's vocabulary"),
        (lambda t: replace(t, rewards=np.ones(2)), "with another number of rewards than functions"),
    ],
)
def test_trajectories_that_do_not_fit_the_model_or_the_rewards(tmp_path, bank, monkeypatch, caplog, change, reason):
    source_of = experience.source_of

    def changed(reader, *args):
        source = source_of(reader, *args)
        return replace(source, trajectories=[replace(k, trajectory=change(k.trajectory)) for k in source.trajectories])

    monkeypatch.setattr(experience, "source_of", changed)
    trainer = make(tmp_path / "new", experience_from=str(bank[1]))
    trainer.train()
    assert f"{len(bank[0].planner.buffer)} {reason}" in caplog.text
    assert trainer.state.global_step == 4
