"""Scoring by the scorers of reasoning-gym: exactly 1 or wrong, hostile text harmless."""

import ast
import asyncio
import inspect
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.errors import ConfigurationError, MissingExtraError
from exgrpo.rewards import pool
from exgrpo.rewards.reasoning_gym import REFUSED, async_reasoning_gym_reward, extract_answer, reasoning_gym_reward
from exgrpo.tasks import get_task


@pytest.fixture
def library():
    return pytest.importorskip("reasoning_gym")


@pytest.fixture(autouse=True, scope="module")
def _limits():
    pool.configure(enabled=True, workers=2, time_limit=20, memory_mb=512)
    yield
    pool.close()


def source(dataset, **more):
    return json.dumps({"dataset": dataset, "seed": 1, "size": 4, "config": {}, "index": 0, **more})


def reward(texts, dataset):
    return reasoning_gym_reward(
        [""] * len(texts), texts, answer=[""] * len(texts), source=[source(dataset)] * len(texts)
    )


def test_the_answer_is_the_one_element_or_the_whole_text():
    assert extract_answer("<answer>1</answer>, that is <answer> 1 </answer>.") == "1"
    assert extract_answer("</answer> so <answer>\n2\n</answer>") == "2"
    assert extract_answer(" 42\n") == "42"


@pytest.mark.parametrize("text", ["<answer>1</answer> no, <answer>2</answer>", "<answer>1", "<answer>" * 100_000])
def test_several_answers_and_cut_ones_are_none(text):
    assert extract_answer(text) is None


@given(st.lists(st.sampled_from(["<answer>", "</answer>", "1", "2", " ", "\n"]), max_size=12).map("".join))
def test_what_is_extracted_is_the_content_of_an_element(text):
    found = extract_answer(text)
    if found is not None and found != text.strip():
        assert f"<answer>{found}</answer>" in text.replace(" ", "").replace("\n", "") or " " in found or "\n" in found


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_no_row_of_a_refused_data_set_is_scored(name):
    with pytest.raises(ConfigurationError, match=f"{name}' is refused: it"):
        reward(["9**9**9**9"], name)


@pytest.mark.parametrize("text", ["math", "{}", "[1]", None])
def test_a_source_from_elsewhere_is_refused(text):
    with pytest.raises(ConfigurationError, match="column `source`"):
        reasoning_gym_reward([""], ["1"], answer=["1"], source=[text])


def test_without_the_package_its_install_command_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(MissingExtraError, match=r"exgrpo\[reasoning-gym\]"):
        reward(["1"], "chain_sum")


def test_only_a_score_of_one_counts_in_both_formats(library):
    gold = library.create_dataset("chain_sum", seed=1, size=4)[0]["answer"]
    texts = [f"<think>1 or 2</think>so <answer>{gold}</answer>", gold, f"{gold} or 7", f"{gold}0", "9" * 10**6, ""]
    assert reward(texts, "chain_sum") == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    messages = [[{"role": "assistant", "content": text}] for text in texts]
    assert reward(messages, "chain_sum") == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]


def test_what_the_completion_breaks_is_wrong_and_what_is_broken_anyway_is_unscorable(library):
    """prime_factorization accepts its own answer and raises on text; boxnet has none to accept and raises on a number."""
    gold = library.create_dataset("prime_factorization", seed=1, size=4)[0]["answer"]
    assert reward([gold, "two times three"], "prime_factorization") == [1.0, 0.0]
    assert reward(["7", "{}"], "boxnet") == [None, 0.0]
    rows = [source("boxnet"), source("prime_factorization"), source("prime_factorization")]
    given_ = {"answer": [""] * 3, "source": rows}
    assert asyncio.run(async_reasoning_gym_reward([""] * 3, ["7", "7 x", gold], **given_)) == [None, 0.0, 1.0]


def test_an_item_that_cannot_be_made_is_unscorable(library):
    assert reward(["1", "2"], "no_such_data_set") == [None, None]


def test_hostile_answers_are_wrong(library):
    texts = ["9**9**9**9", "1e999999999", "(" * 5000, "[" * 5000, "\u202e1\x00", "\ud800", "__import__('os')._exit(1)"]
    for name in ("chain_sum", "power_function", "propositional_logic", "bitwise_arithmetic", "products", "sudoku"):
        assert reward(texts, name) == [0.0] * len(texts), name


def test_the_task_s_rows_are_scored(library):
    task = get_task("reasoning_gym", dataset="gcd")
    rows = task.make("train", 20)
    assert (
        task.reward_function(rows["prompt"], rows["answer"], answer=rows["answer"], source=rows["source"]) == [1.0] * 20
    )


def test_no_scorer_that_is_left_names_an_evaluator(library):
    """The list of refused data sets against the library's own source: a release with a new one fails here."""
    from reasoning_gym.factory import DATASETS

    evaluators = {"eval", "exec", "compile", "parse_expr", "sympify", "S", "Fraction", "literal_eval"}
    for name, (cls, _) in DATASETS.items():
        if name in REFUSED:
            continue
        tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(cls.score_answer)))
        for call in [node for node in ast.walk(tree) if isinstance(node, ast.Call)]:
            called = ast.unparse(call.func).rpartition(".")[2]
            model_text = any("answer" in ast.unparse(arg) and "entry" not in ast.unparse(arg) for arg in call.args)
            assert not (called in evaluators and model_text), f"{name}: {ast.unparse(call)}"


@pytest.mark.parametrize("answer", ["nan", "NaN", "nan+nanj", "nanj", "inf", "-Infinity", "infj"])
def test_no_number_is_near_to_what_is_none(library, answer):
    assert reward([f"<answer>{answer}</answer>"] * 4, "complex_arithmetic") == [0.0] * 4
