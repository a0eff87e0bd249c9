"""`exgrpo data to-verl`, through the command."""

import json

import pytest
from datasets import load_dataset

from exgrpo.cli.main import main
from exgrpo.tasks.datasets import load_questions

ROWS = [
    {"question": "How much is 1 + 1?", "answer": "2", "level": 1},
    {"question": "How much is 2 + 3?", "answer": "5", "level": 2},
]


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    return path


def test_questions_are_written_as_verl_reads_them_and_read_back(tmp_path, source, capsys):
    output = tmp_path / "verl" / "train.parquet"
    words = ["data", "to-verl", "--dataset_name", str(source), "--output", str(output), "--keep_columns", "level"]
    assert main([*words, "--system_prompt", "Be brief.", "--data_source", "sums"]) == 0
    assert f"2 questions in {output}" in capsys.readouterr().out
    rows = list(load_dataset("parquet", data_files=str(output), cache_dir=str(tmp_path / "cache"))["train"])
    assert rows[1] == {
        "data_source": "sums",
        "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How much is 2 + 3?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "5"},
        "extra_info": {"split": "train", "index": 1, "level": 2},
    }
    back = load_questions(output, conversational=True)
    assert [row["answer"] for row in back] == ["2", "5"]
    assert back[0]["prompt"] == rows[0]["prompt"]


def test_another_file_than_parquet_is_refused(tmp_path, source, capsys):
    assert main(["data", "to-verl", "--dataset_name", str(source), "--output", str(tmp_path / "x.csv")]) == 2
    assert "must be a .parquet file, which is what verl reads" in capsys.readouterr().err
