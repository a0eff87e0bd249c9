"""What holds for every built-in family: distinct questions, disjoint splits, rewards in TRL's form, checkers."""

import inspect
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.errors import ConfigurationError
from exgrpo.tasks import TASKS, Family, get_task
from exgrpo.tasks.base import completion_text, distinct_indices, quotas, radix, split_of

VARIANTS = [
    ("chains", {}),
    ("chains", {"reward": "final", "modulus": 23}),
    ("chains", {"modulus": 7, "lengths": [2, 5], "shares": [1, 3]}),
    ("free_order", {}),
    ("free_order", {"modulus": 31, "operands": [2, 6], "shares": [1, 1], "largest": 30}),
    ("sums", {}),
    ("sums", {"reward": "final", "digits": [3], "shares": [1], "operands": 5}),
    ("countdown", {}),
    ("countdown", {"numbers": 3, "largest": 25, "largest_target": 100}),
]
families = pytest.mark.parametrize(("name", "knobs"), VARIANTS, ids=[f"{n}-{i}" for i, (n, _) in enumerate(VARIANTS)])


def scores(task, questions, completions):
    """The reward function called as TRL calls it."""
    columns = {key: [q.columns[key] for q in questions] for key in questions[0].columns}
    answers = [q.answer for q in questions]
    prompts = [q.prompt for q in questions]
    return task.reward_function(
        prompts=prompts, completions=completions, answer=answers, completion_ids=None, trainer_state=None, **columns
    )


@families
def test_questions_are_distinct_and_the_splits_disjoint_whatever_the_seeds(name, knobs):
    task = get_task(name, **knobs)
    train = [q.prompt for seed in (0, 1) for q in task.draw("train", 300, seed)]
    held_out = [q.prompt for seed in (0, 7) for q in task.draw("eval", 200, seed)]
    assert len(set(train[:300])) == len(set(train[300:])) == 300
    assert len(set(held_out[:200])) == 200
    assert not set(train) & set(held_out)
    assert set(train[:300]) != set(train[300:])


@families
def test_a_dataset_has_the_columns_and_the_same_rows_again(name, knobs):
    task = get_task(name, **knobs)
    data = task.make("train", 50, seed=3)
    assert {"prompt", "answer"} < set(data.column_names)
    assert all(isinstance(row["prompt"], str) and isinstance(row["answer"], str) for row in data)
    assert data.to_list() == get_task(name, **knobs).make("train", 50, seed=3).to_list()
    questions = task.draw("train", 50, seed=3)
    assert data["prompt"] == [q.prompt for q in questions]
    columns = {key: data[key] for key in data.column_names if key != "prompt"}
    right = [task.solution(q) for q in questions]
    assert task.reward_function(prompts=data["prompt"], completions=right, **columns) == [1.0] * 50


@families
def test_every_solution_earns_the_reward_and_passes_the_checker(name, knobs):
    task, rng = get_task(name, **knobs), random.Random(0)
    questions = task.draw("eval", 200)
    solutions = [task.solution(q, rng) for q in questions]
    assert scores(task, questions, solutions) == [1.0] * 200
    assert all(task.is_valid(q.prompt, text) for q, text in zip(questions, solutions, strict=True))
    assert all(len(text) + 1 <= task.max_completion_length for text in solutions)
    assert all(set(q.prompt + text) <= set(task.alphabet) for q, text in zip(questions, solutions, strict=True))


@families
def test_hostile_and_conversational_completions(name, knobs):
    task = get_task(name, **knobs)
    question = task.draw("eval", 1)[0]
    right = task.solution(question)
    messages = [{"role": "assistant", "content": right}]
    parts = [{"role": "assistant", "content": [{"type": "text", "text": right}]}]
    assert scores(task, [question] * 3, [right, messages, parts]) == [1.0] * 3
    hostile = [
        "",
        " ",
        "<eos>",
        ("8" if question.answer.endswith("9") else "9") * 100_000,
        "(" * 100_000,
        "٣",
        "\x00",
        right[:-1],
        right * 2,
        [],
        [{"role": "assistant"}],
    ]
    for text in hostile[:7] + hostile[9:]:
        assert scores(task, [question], [text]) == [0.0], text[:20]
    for text in hostile:
        assert not task.is_valid(question.prompt, completion_text(text)), text[:20]
    for nonsense in ("", "=", "+=", "1=", "٣+1=", "x"):
        assert task.is_valid(nonsense, right) is False


@families
def test_a_reward_of_another_length_than_the_answers_is_refused(name, knobs):
    task = get_task(name, **knobs)
    with pytest.raises(ValueError, match="zip"):
        scores(task, task.draw("eval", 2), ["1"])


@families
def test_demonstrations_are_for_training_questions_and_partly_wrong(name, knobs):
    task = get_task(name, **knobs)
    pairs = task.demonstrations(400, seed=1)
    assert pairs == task.demonstrations(400, seed=1) != task.demonstrations(400, seed=2)
    assert all(split_of(question) == "train" for question, _ in pairs)
    assert all(set(q + text) <= set(task.alphabet) and len(text) < task.max_completion_length for q, text in pairs)
    assert 0 < sum(task.is_valid(*pair) for pair in pairs) < 400


def test_reward_functions_are_found_by_name():
    for name, knobs in VARIANTS:
        function = get_task(name, **knobs).reward_function
        module = inspect.getmodule(function)
        assert getattr(module, function.__name__) is function


def test_shares_are_kept():
    lengths = [len(q.columns["trace"]) for q in get_task("chains").draw("train", 2048)]
    assert [lengths.count(n) for n in (2, 3, 4, 8)] == [164, 164, 164, 1556]
    assert quotas(7, [1, 1, 1]) == [3, 2, 2]
    assert quotas(1, [0.2, 0.8]) == [0, 1]


@given(st.integers(0, 5000), st.lists(st.floats(0.01, 100), min_size=1, max_size=8))
def test_quotas_sum_to_the_size(size, shares):
    counts = quotas(size, shares)
    assert sum(counts) == size
    assert all(abs(count - size * share / sum(shares)) < 1 for count, share in zip(counts, shares, strict=True))


def test_more_questions_than_there_are_are_refused_with_the_numbers():
    task = get_task("chains", modulus=2, lengths=[1], shares=[1])
    everything = 2 * 3 * 2
    there = sum(split_of(task.unrank(0, i).prompt) == "train" for i in range(everything))
    assert len(task.draw("train", there)) == there
    with pytest.raises(ConfigurationError, match=f"{there + 1} of length 1.*has {there} distinct") as caught:
        task.draw("train", there + 1)
    assert isinstance(caught.value, ValueError)


def test_indices_are_distinct_and_complete_also_where_they_are_drawn_by_rejection(monkeypatch):
    monkeypatch.setattr("exgrpo.tasks.base.ENUMERABLE", 10)
    for count in (10, 11, 300):
        assert sorted(distinct_indices(count, random.Random(0))) == list(range(count))
    assert next(distinct_indices(10**60, random.Random(0))) < 10**60
    assert radix(17, [10, 3, 5]) == [7, 1, 0]


@pytest.mark.parametrize(
    ("name", "knobs", "message"),
    [
        ("chain", {}, "no task 'chain'. Did you mean 'chains'\\? Tasks: chains, free_order"),
        ("chains", {"moduls": 5}, "no knob 'moduls'. Did you mean 'modulus'\\? Knobs: modulus, lengths"),
        ("chains", {"modulus": 1}, "modulus"),
        ("chains", {"modulus": "10"}, "modulus"),
        ("chains", {"lengths": [2, 2], "shares": [1, 1]}, "distinct"),
        ("chains", {"lengths": [0], "shares": [1]}, "lengths"),
        ("chains", {"lengths": [2]}, "shares"),
        ("chains", {"reward": "exact"}, "strict, final"),
        ("chains", {"noise": 2}, "noise"),
        ("free_order", {"operands": [9], "shares": [1]}, "operands"),
        ("free_order", {"skip": -1}, "skip"),
        ("sums", {"operands": 10}, "operands"),
        ("sums", {"digits": [13], "shares": [1]}, "digits"),
        ("countdown", {"numbers": 1}, "numbers"),
        ("countdown", {"noise": 1.5}, "noise"),
        ("reasoning_gym", {"dataset": "countdown"}, "Python code"),
    ],
)
def test_what_cannot_work_is_refused(name, knobs, message):
    with pytest.raises(ConfigurationError, match=message):
        get_task(name, **knobs)


def test_a_split_or_size_that_does_not_exist_is_refused():
    for split, size in (("test", 1), ("train", 0)):
        with pytest.raises(ConfigurationError):
            get_task("chains").draw(split, size)


def test_knobs_make_the_same_task_again():
    for name, knobs in VARIANTS:
        task = get_task(name, **knobs)
        assert get_task(name, **task.knobs()) == task
        assert isinstance(task, Family)
    assert set(TASKS) == {"chains", "free_order", "sums", "countdown", "reasoning_gym"}


def test_importing_the_tasks_loads_neither_torch_nor_datasets():
    loaded = "{'torch', 'datasets', 'transformers'} & set(sys.modules)"
    code = f"import sys, exgrpo.tasks, exgrpo.tasks.tiny_policy; print(sorted({loaded}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
