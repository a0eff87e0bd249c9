"""What the log says of a question is read with the others of its batch, and is the same as alone."""

import pytest
from datasets import Dataset

from exgrpo.runtime.questions import QuestionTable

DATASET = Dataset.from_list([{"prompt": f"What is {n}?", "answer": str(n), "problem_type": "sum"} for n in range(30)])


def tokenize(prompts):
    return [[ord(letter) for letter in prompt] for prompt in prompts]


@pytest.mark.parametrize(
    "dataset",
    [DATASET, DATASET.with_format("numpy"), DATASET.with_transform(lambda columns: columns)],
    ids=["plain", "formatted", "transformed"],
)
def test_facts_of_a_batch_are_those_of_each(dataset):
    table, alone = QuestionTable(dataset, tokenize), QuestionTable(dataset, tokenize)
    table.rows([3, 7, 7, 9])
    assert [table.record(question) for question in (7, 3, 9, 20)] == [
        alone.record(question) for question in (7, 3, 9, 20)
    ]
    table.row(5)  # one alone is no batch
    assert table.record(9) == alone.record(9)
    assert table.record(7).prompt == "What is 7?"
