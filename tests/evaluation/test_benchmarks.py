"""Each benchmark is read from rows in the hub's layout and from plain ones, and each gold reads itself as right."""

import gzip
import json
import re

import pytest

from exgrpo.errors import DatasetError
from exgrpo.evaluation import benchmarks
from exgrpo.evaluation.benchmarks import BENCHMARKS, load_benchmark
from exgrpo.rewards import get_reward

WALK = "Every morning Aya goes for a $9$-kilometer-long walk ... Find the number of minutes the walk takes her."
ROWS = {
    "aime24": (
        {"id": 60, "problem": WALK, "solution": "...", "answer": "204", "url": "https://example.org", "year": "2024"},
        WALK, "204",
    ),
    "aime25": (
        {"problem": "Find the sum of all integer bases $b>9$ for which $17_{b}$ is a divisor of $97_{b}$.", "answer": "70",
         "id": "0"},
        "Find the sum of all integer bases", "70",
    ),
    "amc23": (
        {"id": 0, "problem": "$\\frac{m}{n}$ is the Irreducible fraction value of ...", "answer": 142.0, "url": ""},
        "$\\frac{m}{n}$ is", "142",
    ),
    "math500": (
        {"problem": "Convert the point $(0,3)$ in rectangular coordinates to polar coordinates.", "solution": "...",
         "answer": "\\left( 3, \\frac{\\pi}{2} \\right)", "subject": "Precalculus", "level": 2, "unique_id": "test/a.json"},
        "Convert the point", "\\left( 3, \\frac{\\pi}{2} \\right)",
    ),
    "minerva": (
        {"question": "Each of the two Magellan telescopes has a diameter of $6.5 \\mathrm{~m}$. ...", "answer": "1.6"},
        "Each of the two", "1.6",
    ),
    "olympiadbench": (
        {"id": 1606, "question": "Xenia and Sergey play the following game. ...", "solution": ["..."],
         "final_answer": ["2"], "answer_type": "Numerical", "unit": None},
        "Xenia and Sergey", "2",
    ),
    "arc_c": (
        {"id": "Mercury_7175875",
         "question": "An astronomer observes that a planet rotates faster after a meteorite impact. Which is the most likely "
         "effect of this increase in rotation?",
         "choices": {"text": ["Planetary density will decrease.", "Planetary years will become longer.",
                              "Planetary days will become shorter.", "Planetary gravity will become stronger."],
                     "label": ["A", "B", "C", "D"]},
         "answerKey": "C"},
        "C) Planetary days will become shorter.", "C",
    ),
    "gpqa_diamond": (  # made up, in the layout of its file: its authors ask that no question be shown
        {"Question": "What is one more than one?", "Correct Answer": "two\n", "Incorrect Answer 1": "three",
         "Incorrect Answer 2": "four", "Incorrect Answer 3": "eleven", "Subdomain": "none"},
        "What is one more than one?\n\nA) ", None,
    ),
    "mmlu_pro": (
        {"question_id": 70, "question": "Which of these is a prime number?",
         "options": [str(n) for n in (4, 6, 8, 9, 10, 12, 14, 15, 17, 16)], "answer": "I", "answer_index": 8,
         "cot_content": "", "category": "math", "src": "none"},
        "I) 17\nJ) 16", "I",
    ),
}  # fmt: skip
"""A first row in the layout of the hub, what its question must hold, and its gold."""


def right(name, item, gold=None):
    text = f"So \\boxed{{{item.answer if gold is None else gold}}}."
    messages = [[{"role": "assistant", "content": text}]]
    return get_reward(BENCHMARKS[name].reward)(
        prompts=[[{"role": "user", "content": item.question}]], completions=messages, answer=[item.answer]
    )[0]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_row_of_the_hub(name, monkeypatch):
    row, part, gold = ROWS[name]
    asked = []

    def read_rows(source, split, config, limit):
        asked.append((source, split, config))
        return [row], [f"{source}, row 1"]

    monkeypatch.setattr(benchmarks, "read_rows", read_rows)
    [item] = load_benchmark(name)
    assert asked == [(BENCHMARKS[name].hub, BENCHMARKS[name].split, BENCHMARKS[name].config)]
    assert part in item.question
    assert gold is None or item.answer == gold
    assert right(name, item) == 1.0
    if BENCHMARKS[name].reward == "choice_reward":
        assert right(name, item, "B" if item.answer != "B" else "C") == 0.0
        assert re.search(rf"^{item.answer}\) ", item.question, re.MULTILINE)


def test_the_order_of_gpqa_s_options_follows_from_the_question():
    row = ROWS["gpqa_diamond"][0]
    item = benchmarks.gpqa(row)
    assert benchmarks.gpqa(row) == item
    assert f"{item.answer}) two\n" in item.question + "\n"
    letters = {benchmarks.gpqa({**row, "Question": f"{row['Question']} {i}"}).answer for i in range(40)}
    assert letters == set("ABCD")


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_local_file_in_either_layout(name, tmp_path):
    row, _, _ = ROWS[name]
    hub = benchmarks.BENCHMARKS[name].read(row)
    plain = {"question": hub.question, "answer": hub.answer}
    with gzip.open(tmp_path / f"{name}.jsonl.gz", "wt") as file:
        file.write(f"{json.dumps(plain)}\n" * 3)
    assert load_benchmark(name, tmp_path, limit=2) == [hub, hub]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    assert load_benchmark(name, tmp_path / "other") == [hub]


def test_what_is_no_benchmark_is_told(tmp_path):
    with pytest.raises(DatasetError, match="Did you mean 'math500'"):
        load_benchmark("math50")
    with pytest.raises(DatasetError, match=r"has no aime24\.jsonl"):
        load_benchmark("aime24", tmp_path)
    (tmp_path / "aime24.jsonl").write_text('{"query": "1+1"}\n')
    with pytest.raises(DatasetError, match="row 1 is not a row of AIME24: a row needs a question"):
        load_benchmark("aime24", tmp_path)
