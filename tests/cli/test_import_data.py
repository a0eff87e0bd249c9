"""`exgrpo experience import` of completions that others wrote: what they become, what is left out, and runs from them."""

import argparse
import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from exgrpo.cli.experience.import_data import settings_of
from exgrpo.cli.fields import split_off
from exgrpo.cli.main import main
from exgrpo.cli.train import read_recipe
from exgrpo.errors import ConfigurationError
from exgrpo.experience.events import Replayed
from exgrpo.log import LogReader, LogWriter
from exgrpo.log.records import FORWARD, UNKNOWN
from tests.support import harness as h
from tests.support.policies import tiny_model, tiny_tokenizer

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
THINKING = "{% for m in messages %}{{ m['role'][0] }}({{ m['content'] }}){% endfor %}a(<think>"
RUN = ["--reward_funcs", "tests.support.harness.right_reward", "--answer_name", "right", "--num_generations", "4",
       "--max_completion_length", "12"]  # fmt: skip
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def bring(policy, tmp_path, capsys, monkeypatch):
    """Import rows into `tmp_path/bank`; the report as JSON, or what was said where the code is not 0."""
    monkeypatch.chdir(tmp_path)

    def run(rows, *options, into="bank", code=0, model=policy):
        data = tmp_path / "data.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        words = ["experience", "import", into, str(data), "--json", "--model", model, *RUN, *options]
        assert main(words) == code, capsys.readouterr().err
        said = capsys.readouterr()
        return json.loads(said.out) if said.out else said.err

    return run


def row(i, completion, **more):
    return {"question": f"q{i}=", "completion": completion, "answer": "|".join(f"{c}{i}" for c in "abcdefgh"), **more}


def stored(folder):
    """Question, trajectory and origin of all that a log holds."""
    with LogReader(folder / "experience.db") as reader:
        names, origins = dict(reader.questions()), reader.origins()
        rows = reader.rows("SELECT id, origin FROM trajectories ORDER BY id")
        return [
            (names[one.question], one, origins[origin])
            for number, origin in rows
            for one in [reader.trajectory(number)]
        ]


def counts(report):
    return {reason: found["count"] for reason, found in report["left_out"].items()}


# What they become -------------------------------------------------------------------------------------------------------


def test_completions_become_what_the_policy_would_have_written(bring, tmp_path):
    report = bring(
        [
            row(0, "a0"),
            row(1, "b1<eos>"),  # an end token that is there already comes once
            row(2, ["c2", "d2", "wrong"], finish_reason=["stop", "length", "stop"]),
            row(3, [{"role": "assistant", "content": "e3"}]),
            row(0, "a0"),
            row(4, "x" * 20),
            row(5, "A5"),
            row(6, "a<eos>6"),
            row(7, "?"),
        ]
    )
    assert (report["trajectories"], report["questions"], report["cut"], report["longest_left_out"]) == (5, 4, 1, 21)
    assert counts(report) == {
        "longer than max_completion_length=12": 1,
        "with text that the tokenizer does not know": 1,
        "with an end token before the end": 1,
        "wrong by the reward": 1,
        "that the reward function cannot score": 1,
        "twice in the data": 1,
    }
    assert report["left_out"]["wrong by the reward"]["rows"][0].endswith("data.jsonl, row 3")
    tokenizer, model = tiny_tokenizer(), tiny_model()
    found = stored(tmp_path / "bank")
    texts = [h.encode(tokenizer, text) for text in ("a0$", "b1$", "c2$", "d2", "e3$")]
    assert [one.completion_ids.tolist() for _, one, _ in found] == texts
    assert [one.finish_reason for _, one, _ in found] == ["stop", "stop", "stop", "length", "stop"]
    for record, one, origin in found:
        prompt = tokenizer(record.prompt)["input_ids"]
        logps, _ = h.score_alone(model, prompt, one.completion_ids.tolist())
        assert one.behaviour_logps == pytest.approx(np.array(logps), abs=1e-5)
        assert (origin.source, origin.behaviour_logps) == ("data.jsonl", FORWARD)
    assert main(["experience", "verify", "bank"]) == 0


def test_one_column_of_messages_and_thoughts(bring, tmp_path):
    folder = tmp_path / "thinker"
    tokenizer, model = tiny_tokenizer(), tiny_model()
    tokenizer.add_tokens(["<think>", "</think>", "\n"])
    tokenizer.chat_template = THINKING
    model.resize_token_embeddings(len(tokenizer))
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)

    def talk(i, **reply):
        talked = [{"role": "user", "content": f"q{i}="}, {"role": "assistant", **reply}]
        return {"messages": talked, "answer": f"\n\na{i}|\na{i}|a{i}"}

    rows = [
        talk(0, content="a0", reasoning_content="hm"),
        talk(1, content="<think>\nhm</think>a1"),
        talk(2, content="a2"),
    ]
    options = (
        "--conversational",
        "--reward_funcs",
        "tests.cli.test_import_data.after_thinking",
        "--max_completion_length",
        "30",
    )
    report = bring(rows, *options, model=str(folder))
    assert counts(report) == {"without the end of the thought that the chat template begins": 1}
    texts = [tokenizer.decode(one.completion_ids.tolist()) for _, one, _ in stored(tmp_path / "bank")]
    assert texts == ["hm\n</think>\n\na0<eos>", "hm</think>a1<eos>"]


def after_thinking(prompts, completions, right, **kwargs):
    texts = [completion[-1]["content"].rpartition("</think>")[2] for completion in completions]
    return [float(text in answers.split("|")) for text, answers in zip(texts, right, strict=True)]


def test_without_an_end_token_all_count_as_cut(bring, tmp_path):
    assert bring([row(0, "a0"), row(1, "a1<eos>")], "--no_end_token")["cut"] == 1
    assert [one.finish_reason for _, one, _ in stored(tmp_path / "bank")] == ["length", "stop"]
    assert counts(bring([row(0, "a0", finish_reason="length"), row(1, "a1")], "--store_truncated", "false")) == {
        "cut, with store_truncated=False": 1
    }


def test_an_accuracy_takes_right_and_wrong_rows(bring, tmp_path):
    rows = [row(0, "a0"), row(0, "z"), row(0, "b0"), row(0, "?"), row(1, "a1"), row(1, "b1"), row(2, "z")]
    assert bring(rows, "--no_accuracy", into="unknown")["with_accuracy"] == 0
    assert bring(rows)["with_accuracy"] == 1

    def known(folder):
        with sqlite3.connect(tmp_path / folder / "experience.db") as log:
            return log.execute("SELECT successes, scorable FROM observation").fetchall()

    assert (known("bank"), known("unknown")) == ([(2, 3)], [])
    advantages = {one.question: one.advantage for _, one, _ in stored(tmp_path / "bank")}
    assert sorted(advantages.values(), key=np.isnan) == pytest.approx([1 / 3, np.nan], nan_ok=True, abs=1e-3)


def test_failures_are_kept_where_the_run_would_keep_them(bring, tmp_path):
    report = bring([row(0, "a0"), row(0, "z"), row(1, "y")], "--preset", "headroom-drift")
    assert (report["trajectories"], report["failures"], report["left_out"]) == (3, 2, {})
    assert sorted(one.correct for _, one, _ in stored(tmp_path / "bank")) == [False, False, True]


def test_the_run_s_questions_are_found_by_their_prompts(bring, tmp_path):
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps({"problem": f"q{i}", "right": f"a{i}|b{i}"}) + "\n" for i in range(8)))
    of_run = ["--dataset_name", str(questions), "--question_column", "problem", "--answer_column", "right",
              "--prompt_template", "{question}="]  # fmt: skip
    rows = [
        {"problem": "q5", "completion": "a5"},
        {"problem": "q1=", "completion": "b1"},
        {"problem": "q9", "completion": "a9"},
    ]
    report = bring(rows, *of_run)
    assert counts(report) == {"whose question the run does not have": 1}
    assert [(record.prompt, json.loads(record.columns)) for record, *_ in stored(tmp_path / "bank")] == [
        ("q5=", {"right": "a5|b5"}), ("q1=", {"right": "a1|b1"}),
    ]  # fmt: skip
    assert "none of its 1 questions is one of the run's" in bring(rows[2:], *of_run, code=2)


# What is refused ---------------------------------------------------------------------------------------------------------


def test_every_bad_row_is_named_before_the_model_is_loaded(bring, tmp_path):
    rows = [row(0, "a0"), row(1, " "), row(2, 7), {**row(3, "a3"), "answer": None}, {**row(4, "a4"), "question": ""},
            row(5, ["a5", "b5"], finish_reason=["stop"])]  # fmt: skip
    said = bring(rows, code=2, model=str(tmp_path / "nowhere"))
    assert "5 of 6 rows are invalid" in said
    for number, what in ((2, "is missing"), (3, "came as int: 7"), (4, "an answer is missing"), (5, "a question is missing"),
                         (6, "2 completions, but 1 values")):  # fmt: skip
        assert any(f"row {number}:" in line and what in line for line in said.splitlines()), (number, said)
    report = bring(rows, "--drop_incomplete")
    assert (report["trajectories"], counts(report)) == (1, {"not as they must be": 5})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--preset", "on-policy"], "preset='on-policy' replays nothing"),
        (["--completion_column", "text"], "there is no such column"),
        (["--model_name_or_path", "."], "are the same option"),
        (["--wings"], "unknown option '--wings'"),
        (["--prompt_template", "none"], "must contain {question}"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_work_is_refused(bring, options, text, tmp_path):
    assert text in bring([row(0, "a0")], *options, code=2)
    assert not (tmp_path / "bank").exists()


def test_the_run_comes_first(capsys):
    assert main(["experience", "import", "data.jsonl", "bank"]) == 2
    assert "the run comes first: exgrpo experience import bank data.jsonl" in capsys.readouterr().err


def test_a_log_of_another_reward_is_refused(bring, tmp_path):
    bring([row(0, "a0")])
    said = bring(
        [row(1, "a1")], "--reward_funcs", "tests.support.harness.right_reward", "--correctness_threshold", "0.7", code=2
    )
    assert "was written with another reward functions" in said
    bring([row(1, "a1")])
    assert [record.prompt for record, *_ in stored(tmp_path / "bank")] == ["q0=", "q1="]
    assert bring([row(1, "a1")])["log"]["sources"][0]["left_out"] == {"already stored": 1}


def test_a_dry_run_and_a_kill_leave_everything_as_it_was(bring, tmp_path, monkeypatch):
    dry = bring([row(0, "a0")], "--dry_run")
    assert (dry["trajectories"], dry["log"]) == (1, None)
    assert not (tmp_path / "bank").exists()

    class Killed(BaseException):
        pass

    def killed(self, commit):
        with self._transaction("committing"):
            commit.write(self._connection, self._logp_dtype)
            raise Killed

    write = LogWriter._write
    for before in ([], [row(0, "a0")]):
        monkeypatch.setattr(LogWriter, "_write", write)
        if before:
            bring(before)
        monkeypatch.setattr(LogWriter, "_write", killed)
        with pytest.raises(Killed):
            bring([row(1, "a1"), row(2, "a2")])
        assert [record.prompt for record, *_ in stored(tmp_path / "bank")] == ["q0="] if before else True
        assert (tmp_path / "bank" / "experience.db").exists() == bool(before)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_of_any_run_can_be_imported_with(path, tmp_path):
    """Also one for many GPUs, with vLLM, or that starts from a bank."""
    args = argparse.Namespace(config=str(path), model=None, of_train=[])
    settings, rows = settings_of(args, str(tmp_path))
    recipe = read_recipe(str(path))
    assert rows == recipe["per_device_train_batch_size"]
    assert settings.args.max_completion_length == recipe["max_completion_length"]
    assert (settings.args.experience_from, settings.args.use_vllm, settings.args.output_dir) == (
        None,
        False,
        str(tmp_path),
    )


def test_options_of_train_are_told_apart_from_the_rest():
    words = ["--conversational", "DATA", "--bf16", "no", "--sigma=0.2", "--reward-funcs", "a", "b", "--json", "x"]
    assert split_off(words) == (
        ["DATA", "--json", "x"],
        ["--conversational", "--bf16", "no", "--sigma=0.2", "--reward_funcs", "a", "b"],
    )


# Runs from them ----------------------------------------------------------------------------------------------------------


def never_right(generation, prompt, member):
    return "z" * (1 + member) + "$"


def from_bank(tmp_path, bank="bank", **options):
    args = h.config(tmp_path / "run", experience_from=str(tmp_path / bank), max_steps=2, **options)
    return h.trainer(args, h.questions(8), script=never_right)


def test_a_run_starts_from_them(bring, tmp_path, caplog):
    bring([row(i, f"a{i}") for i in range(8)] + [row(20, "a20")])
    trainer = from_bank(tmp_path, preset="rescue")
    trainer.train()
    assert sum(event.stage == "rescue" for event in trainer.events.of(Replayed)) == 16
    assert {origin.source for _, _, origin in stored(tmp_path / "run")} == {"data.jsonl"}
    assert "8 trajectories are of questions whose accuracy is not known yet" in caplog.text


def test_without_behaviour_log_probs_options_that_need_them_are_refused_by_name(bring, tmp_path):
    bring([row(i, f"a{i}") for i in range(8)], "--log_probs", "none")
    ((_, one, origin), *_) = stored(tmp_path / "bank")
    assert (one.behaviour_logps == 0).all()
    assert origin.behaviour_logps == UNKNOWN
    assert main(["experience", "export", "bank", "exported"]) == 0
    assert "data.jsonl (no behaviour log-probs)" in (tmp_path / "exported" / "README.md").read_text()
    for bank in ("bank", "exported"):
        for refused in (
            {"correction": "truncated"},
            {"correction": "clip"},
            {"max_drift": 0.1},
            {"trajectory_choice": "lowest_nll"},
        ):
            ((option, value),) = refused.items()
            with pytest.raises(ConfigurationError, match=f"from data.jsonl.*{option}={value!r}"):
                from_bank(tmp_path, bank, **{"preset": "rescue", "correction": "none", **refused})
    for correction in ("none", "likelihood", "shaped"):
        trainer = from_bank(tmp_path, preset="rescue", correction=correction)
        trainer.train()
        assert trainer.events.of(Replayed)
