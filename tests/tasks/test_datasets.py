"""`load_questions`: local files of every kind, columns by name, and errors that say where."""

import csv
import gzip
import json
import logging
import os

import datasets
import pytest

from exgrpo.errors import ConfigurationError, DatasetError
from exgrpo.tasks.datasets import load_questions

ROWS = [{"question": f"{i}+{i}?", "answer": str(2 * i), "level": i} for i in range(4)]


def write(path, rows=ROWS):
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def prompts(source, **options):
    return load_questions(source, **options)["prompt"][:]


def test_every_kind_of_file_gives_the_same(tmp_path):
    paths = [write(tmp_path / "a.jsonl"), write(tmp_path / "a.jsonl.gz")]
    for name, content in (("list.json", ROWS), ("data.json", {"version": 1, "data": ROWS})):
        paths.append(tmp_path / name)
        paths[-1].write_text("\ufeff" + json.dumps(content), encoding="utf-8")
    paths.append(tmp_path / "a.csv")
    with paths[-1].open("w", newline="") as file:
        writer = csv.DictWriter(file, ["question", "answer", "level"])
        writer.writeheader()
        writer.writerows(ROWS)
    paths.append(tmp_path / "a.parquet")
    datasets.Dataset.from_list(ROWS).to_parquet(paths[-1])
    for path in paths:
        loaded = load_questions(path)
        assert loaded.column_names == ["prompt", "answer"], path
        assert loaded.to_list() == [{"prompt": row["question"], "answer": row["answer"]} for row in ROWS], path


def test_a_changed_file_gives_its_new_content(tmp_path):
    path = write(tmp_path / "a.jsonl")
    stat = path.stat()
    assert prompts(path)[0] == "0+0?"
    write(path, [{**ROWS[0], "question": "1+1?"}, *ROWS[1:]])
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # same name, size and time
    assert prompts(path)[0] == "1+1?"


def test_folders_patterns_and_splits(tmp_path):
    write(tmp_path / "plain" / "one.jsonl", ROWS[:2])
    write(tmp_path / "plain" / "two.jsonl.gz", ROWS[2:])
    (tmp_path / "plain" / "README.md").write_text("not data")
    assert len(load_questions(tmp_path / "plain")) == 4
    assert len(load_questions(str(tmp_path / "plain" / "*.gz"))) == 2
    write(tmp_path / "split" / "train-00.jsonl", ROWS[:3])
    write(tmp_path / "split" / "test.jsonl", ROWS[3:])
    assert len(load_questions(tmp_path / "split")) == 3
    assert len(load_questions(tmp_path / "split", split="test")) == 1
    with pytest.raises(DatasetError, match=r"no file of the split 'validation'.*test, train"):
        load_questions(tmp_path / "split", split="validation")


@pytest.mark.parametrize(
    ("columns", "question", "answer"),
    [
        (["problem", "solution"], "problem", "solution"),
        (["Problem", "Solution", "Answer"], "Problem", "Answer"),
        (["prompt", "ground_truth", "response"], "prompt", "ground_truth"),
        (["query", "answer", "id"], "query", "answer"),
    ],
)
def test_columns_are_found_by_their_names(tmp_path, columns, question, answer):
    path = write(tmp_path / "a.jsonl", [{name: f"<{name}>" for name in columns}])
    assert load_questions(path).to_list() == [{"prompt": f"<{question}>", "answer": f"<{answer}>"}]


def test_columns_that_are_not_found_or_ambiguous(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"q": "1+1?", "a": 2}])
    with pytest.raises(DatasetError, match=r"hold the question; set `question_column`. Columns: q, a"):
        load_questions(path)
    with pytest.raises(DatasetError, match=r"hold the answer; set `answer_column`"):
        load_questions(path, question_column="q")
    with pytest.raises(DatasetError, match=r"`answer_column` is 'b', but there is no such column. Columns: q, a"):
        load_questions(path, question_column="q", answer_column="b")
    assert load_questions(path, question_column="q", answer_column="a").to_list() == [{"prompt": "1+1?", "answer": "2"}]
    path = write(tmp_path / "b.jsonl", [{"question": "1+1?", "problem": "sum", "answer": 2}])
    with pytest.raises(DatasetError, match=r"columns question, problem; set `question_column`"):
        load_questions(path)


def test_template_is_literal_and_messages_are_made(tmp_path):
    question = "Let {x} be {question} and {0}, 5 % of $\\frac{1}{2}$"
    path = write(tmp_path / "a.jsonl", [{"question": question, "answer": 1}])
    template = 'Solve {question} in \\boxed{}. {"a": 1}'
    assert prompts(path, prompt_template=template) == [f'Solve {question} in \\boxed{{}}. {{"a": 1}}']
    assert prompts(path, prompt_template="Q: {question}", system_prompt="Be {brief}.", conversational=True) == [
        [{"role": "system", "content": "Be {brief}."}, {"role": "user", "content": f"Q: {question}"}]
    ]
    assert prompts(path, conversational=True) == [[{"role": "user", "content": question}]]


def test_a_prompt_that_is_one_message_already(tmp_path):
    one = [{"role": "user", "content": "1+1?"}]
    assert prompts(write(tmp_path / "a.jsonl", [{"prompt": one, "answer": "2"}])) == ["1+1?"]


def test_answers_become_text(tmp_path):
    answers = [2, 142.0, "x", ["3"], 10**30]
    path = write(tmp_path / "a.jsonl", [{"question": "?", "answer": answer} for answer in answers])
    assert load_questions(path)["answer"][:] == ["2", "142.0", "x", "3", str(10**30)]
    for wrong in (True, [["1"], "2"], {"value": 1}):
        with pytest.raises(DatasetError, match="row 2: column 'answer' must hold an answer as text or a number"):
            load_questions(write(tmp_path / "b.jsonl", [ROWS[0], {"question": "?", "answer": wrong}]))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": None, "answer": "1"}, "row 3: a question is missing"),
        ({"question": " \n", "answer": "1"}, "row 3: a question is missing"),
        ({"answer": "1"}, "row 3: a question is missing"),
        ({"question": "?", "answer": None}, "row 3: an answer is missing"),
        ({"question": "?", "answer": ""}, "row 3: an answer is missing"),
        ({"question": "?", "answer": []}, "row 3: an answer is missing"),
        ({"question": "?", "answer": float("nan")}, "row 3: an answer is missing"),
    ],
)
def test_missing_values_are_refused_or_dropped_when_asked(tmp_path, row, message, caplog):
    path = write(tmp_path / "a.jsonl", [*ROWS[:2], row, ROWS[3]])
    with pytest.raises(DatasetError, match=message):
        load_questions(path)
    assert len(load_questions(path, limit=2)) == 2
    with caplog.at_level(logging.WARNING):
        assert prompts(path, drop_incomplete=True) == [ROWS[0]["question"], ROWS[1]["question"], ROWS[3]["question"]]
    assert "1 of 4 rows" in caplog.text
    with pytest.raises(DatasetError, match="no row has both"):
        load_questions(write(tmp_path / "b.jsonl", [{"question": None, "answer": None}]), drop_incomplete=True)


def test_limit_and_kept_columns(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"problem": "?", "solution": "1", "level": 3}] * 5)
    loaded = load_questions(path, limit=2, keep_columns=["level", "solution"])
    assert loaded.to_list() == [{"prompt": "?", "answer": "1", "level": 3, "solution": "1"}] * 2
    assert len(load_questions(path, limit=100)) == 5
    with pytest.raises(
        DatasetError, match=r"names 'subject', but there is no such column. Columns: problem, solution, level"
    ):
        load_questions(path, keep_columns=["subject"])
    path = write(tmp_path / "b.jsonl", [{"question": "?", "prompt": "p", "answer": "1"}])
    with pytest.raises(DatasetError, match="'prompt', but the name is taken"):
        load_questions(path, question_column="question", keep_columns=["prompt"])
    path = write(tmp_path / "c.jsonl", [{"question": "?", "answer": "1", "k": k} for k in (1, "a")])
    with pytest.raises(DatasetError, match="several types"):
        load_questions(path, keep_columns=["k"])


@pytest.mark.parametrize(
    "options",
    [{"prompt_template": "no place"}, {"system_prompt": "s"}, {"limit": 0}, {"limit": True}, {"keep_columns": "level"}],
)
def test_options_that_cannot_work(tmp_path, options):
    with pytest.raises(ConfigurationError):
        load_questions(write(tmp_path / "a.jsonl"), **options)


def test_sources_that_cannot_be_read(tmp_path):
    (tmp_path / "empty").mkdir()
    for source, message in (
        (tmp_path / "none.jsonl", "no file or folder"),
        (tmp_path / "empty", "holds no file"),
        (str(tmp_path / "*.parquet"), "No file matches"),
    ):
        with pytest.raises(DatasetError, match=message):
            load_questions(source)
    for name, content, message in (
        ("a.txt", b"hi", "this kind of file"),
        ("a.jsonl", b'{"question": 1}\n{oops\n', r"a.jsonl, line 2: this is not JSON"),
        ("b.jsonl", b"[1, 2]\n", "row 1: a row must be an object"),
        ("c.jsonl", b"\n", "there are no rows"),
        ("d.jsonl", b'{"question": "\xff"}', "cannot be read"),
        ("a.jsonl.gz", b"not gzip", "cannot be read"),
        ("a.json", b'{"question": "?"}', "one list of objects"),
        ("b.json", b"{oops", "cannot be read"),
        ("a.csv", b"question,answer\n1,2,3\n", "row 1: there are more fields"),
        ("a.parquet", b"not parquet", "cannot be read"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DatasetError, match=message):
            load_questions(tmp_path / name)


def test_the_hub(monkeypatch):
    calls = []

    def fake(name, config, split):
        calls.append((name, config, split))
        if name == "org/missing":
            raise datasets.exceptions.DatasetNotFoundError("Dataset 'org/missing' doesn't exist")
        return datasets.Dataset.from_list([*ROWS, {"question": "?", "answer": None, "level": 1}])

    monkeypatch.setattr(datasets, "load_dataset", fake)
    assert len(load_questions("org/name", config_name="main", split="test", limit=2)) == 2
    assert calls == [("org/name", "main", "test")]
    with pytest.raises(DatasetError, match=r"org/name \(train\), row 5: an answer is missing"):
        load_questions("org/name")
    with pytest.raises(DatasetError, match=r"neither a local file.*doesn't exist"):
        load_questions("org/missing")


VERL = {
    "prompt": [{"role": "user", "content": "1+1?"}],
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "data_source": "math",
}
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]


@pytest.mark.parametrize("column", [None, "reward_model.ground_truth"])
@pytest.mark.parametrize("conversational", [True, False])
def test_verl_s_layout(tmp_path, column, conversational):
    (row,) = load_questions(write(tmp_path / "a.jsonl", [VERL]), answer_column=column, conversational=conversational)
    assert row == {"prompt": VERL["prompt"] if conversational else "1+1?", "answer": "2"}


def test_messages_before_the_question_are_taken_as_they_are(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"prompt": ASKED, "answer": "2"}])
    assert prompts(path, conversational=True) == [ASKED]
    templated = prompts(path, conversational=True, prompt_template="Q: {question}")
    assert templated == [[ASKED[0], {"role": "user", "content": "Q: 1+1?"}]]
    with pytest.raises(DatasetError, match=r"row 1: column 'prompt' holds 2 messages. Set `conversational`"):
        load_questions(path)
    with pytest.raises(DatasetError, match="Remove `system_prompt`"):
        load_questions(path, conversational=True, system_prompt="Be brief.")


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        (VERL, {"answer_column": "reward_model"}, "style, ground_truth. Set `answer_column` to .*reward_model.ground_truth"),
        (VERL, {"answer_column": "reward_model.truth"}, "no row has a value 'reward_model.truth'. 'reward_model' has: style,"),
        (VERL, {"answer_column": "reward_modl"}, "Did you mean 'reward_model'?"),
        ({"question": "x^2=1?", "answer": ["1", "-1"]}, {}, r"holds 2 answers, \['1', '-1'\].*join them to '1, -1'.*keep one"),
        ({"prompt": ASKED[::-1], "answer": "2"}, {"conversational": True}, "the last of the user"),
        ({"prompt": [{"role": "user", "content": " "}], "answer": "2"}, {}, "a list of messages"),
    ],
)  # fmt: skip
def test_shapes_that_cannot_be_read_say_how_to_go_on(tmp_path, row, options, message):
    with pytest.raises(DatasetError, match=message):
        load_questions(write(tmp_path / "a.jsonl", [row]), **options)
