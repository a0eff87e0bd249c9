"""The adapter to reasoning-gym: what is refused without the package, and, where it is installed, what is scored how."""

import sys
import time

import pytest

from exgrpo.errors import ConfigurationError, MissingExtraError
from exgrpo.tasks import get_task, reasoning_gym
from exgrpo.tasks.reasoning_gym import REFUSED, extract_answer, reasoning_gym_reward


@pytest.fixture
def library():
    # the package warns about its own dependencies when it is imported
    return pytest.importorskip("reasoning_gym")


@pytest.fixture(autouse=True)
def _fresh_caches():
    for cache in (reasoning_gym._open, reasoning_gym._entry, reasoning_gym._warn_once):
        cache.cache_clear()


def test_the_answer_is_the_last_element_or_the_whole_text():
    assert extract_answer("<answer>1</answer> no, <answer> 2 </answer>.") == "2"
    assert extract_answer(" 42\n") == "42"
    assert extract_answer("</answer> 1 <answer>") == "</answer> 1 <answer>"
    assert extract_answer("<answer>" * 100_000) == "<answer>" * 100_000


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_unsafe_data_sets_are_refused_by_name_with_the_reason(name):
    with pytest.raises(ConfigurationError, match="refused: it"):
        get_task("reasoning_gym", dataset=name)


def test_a_row_of_a_refused_data_set_is_not_scored_either():
    source = '{"dataset": "countdown", "seed": 0, "size": 4, "config": {}, "index": 0}'
    with pytest.raises((ConfigurationError, MissingExtraError)):
        reasoning_gym_reward(["q"], ["9**9**9**9"], answer=["1"], source=[source])


def test_a_missing_package_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(MissingExtraError, match=r"exgrpo\[reasoning-gym\]"):
        get_task("reasoning_gym").make("train", 1)


def test_there_is_no_checker_of_reasoning():
    with pytest.raises(ConfigurationError, match="no checker"):
        get_task("reasoning_gym").is_valid("q", "a")


@pytest.mark.parametrize("config", [{"seed": 1}, {"size": 3}])
def test_seed_and_size_have_one_place(config):
    with pytest.raises(ConfigurationError, match="make"):
        get_task("reasoning_gym", config=config)


def test_splits_are_disjoint_and_the_reward_is_exact(library):
    task = get_task("reasoning_gym", dataset="chain_sum", config={"max_terms": 3})
    train, held_out = task.make("train", 60, seed=1), task.make("eval", 40, seed=0)
    assert len(set(train["prompt"])) == 60
    assert not set(train["prompt"]) & set(held_out["prompt"])
    assert train.to_list() == task.make("train", 60, seed=1).to_list()
    assert train["prompt"] != task.make("train", 60, seed=2)["prompt"]
    columns = {key: train[key][:4] for key in ("answer", "source")}
    right = columns["answer"]
    texts = [f"so <answer>{right[0]}</answer>", right[1], f"{right[2]} or {right[3]}", f"{right[3]}0"]
    assert reasoning_gym_reward(train["prompt"][:4], texts, **columns) == [1.0, 1.0, 0.0, 0.0]
    messages = [[{"role": "assistant", "content": text}] for text in texts]
    assert reasoning_gym_reward(train["prompt"][:4], messages, **columns) == [1.0, 1.0, 0.0, 0.0]
    assert reasoning_gym_reward(train["prompt"][:1], ["1" * 10**6], answer=right[:1], source=columns["source"][:1]) == [
        0.0
    ]


def test_what_the_library_does_not_have_is_a_configuration_error(library):
    for knobs in ({"dataset": "chain_sums"}, {"config": {"terms": 3}}, {"config": {"min_terms": 9, "max_terms": 2}}):
        with pytest.raises(ConfigurationError, match="cannot make"):
            get_task("reasoning_gym", **knobs).make("train", 2)


def test_too_few_questions_are_refused_with_the_numbers(library):
    config = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    with pytest.raises(ConfigurationError, match="5000 distinct questions"):
        get_task("reasoning_gym", config=config).make("eval", 5000)


def test_a_scorer_that_raises_makes_the_sample_unscorable_and_warns_once(library, monkeypatch):
    task = get_task("reasoning_gym")
    data = task.make("train", 2)
    items, _ = reasoning_gym._entry(data["source"][0])
    monkeypatch.setattr(type(items), "score_answer", lambda self, answer, entry: 1 / 0)
    columns = {key: data[key] for key in ("answer", "source")}
    with pytest.warns(RuntimeWarning, match="ZeroDivisionError") as caught:
        assert reasoning_gym_reward(data["prompt"], ["1", "2"], **columns) == [None, None]
    assert len(caught) == 1


def test_no_scorer_that_is_left_names_an_evaluator(library):
    """The list of refused data sets against the library's own source: a release with a new one fails here."""
    import ast
    import inspect

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


def test_hostile_answers_cost_little(library):
    for name in ("chain_sum", "power_function", "propositional_logic", "bitwise_arithmetic", "products"):
        data = get_task("reasoning_gym", dataset=name).make("train", 1)
        for text in ("9**9**9**9", "1e999999999", "(" * 5000, "[" * 5000):
            start = time.perf_counter()
            (score,) = reasoning_gym_reward(data["prompt"], [text], answer=data["answer"], source=data["source"])
            assert score == 0.0
            assert time.perf_counter() - start < 2
