"""The adapter to reasoning-gym: what is refused without the package, and, where it is installed, which questions it makes."""

import sys

import pytest

from exgrpo.errors import ConfigurationError, MissingExtraError
from exgrpo.rewards import reasoning_gym
from exgrpo.rewards.reasoning_gym import REFUSED, reasoning_gym_reward
from exgrpo.tasks import get_task


@pytest.fixture
def library():
    # the package warns about its own dependencies when it is imported
    return pytest.importorskip("reasoning_gym")


@pytest.fixture(autouse=True)
def _fresh_caches():
    for cache in (reasoning_gym.open_dataset, reasoning_gym._entry):
        cache.cache_clear()


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_unsafe_data_sets_are_refused_by_name_with_the_reason(name):
    with pytest.raises(ConfigurationError, match="refused: it"):
        get_task("reasoning_gym", dataset=name)


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


@pytest.mark.slow
def test_too_few_questions_are_refused_with_the_numbers(library):
    config = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    with pytest.raises(ConfigurationError, match="5000 distinct questions"):
        get_task("reasoning_gym", config=config).make("eval", 5000)
