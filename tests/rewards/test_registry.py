"""Reward functions by name."""

import subprocess
import sys

import pytest

import exgrpo.rewards
from exgrpo.errors import ConfigurationError, MissingExtraError
from exgrpo.rewards import REWARDS, TRL_REWARDS, get_reward, numeric_reward, registry


@pytest.mark.parametrize("name", REWARDS)
def test_own_names(name):
    assert get_reward(name) is get_reward(name.removesuffix("_reward")) is getattr(exgrpo.rewards, name)
    assert get_reward(name).__name__ == name
    assert get_reward(name).__module__.startswith("exgrpo.rewards.")
    assert name in exgrpo.rewards.__all__


def test_own_names_are_a_mapping():
    assert get_reward("numeric") is numeric_reward is dict(REWARDS)["numeric_reward"]
    assert len(REWARDS) == len(list(REWARDS))
    assert "nope" not in REWARDS
    with pytest.raises(KeyError):
        REWARDS["nope"]
    with pytest.raises(AttributeError, match="nope"):
        exgrpo.rewards.nope  # noqa: B018


def test_nothing_is_imported_before_it_is_asked_for():
    code = (
        "import sys, exgrpo.rewards; print(sorted(m for m in sys.modules if m.startswith('exgrpo.rewards.')),"
        "'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["['exgrpo.rewards.registry']", "False"]


@pytest.mark.parametrize("name", TRL_REWARDS)
def test_names_of_trl(name, monkeypatch):
    monkeypatch.setattr(registry, "_is_installed", lambda module: True)  # as if the verifier were installed
    assert get_reward(name).__name__ == name
    assert get_reward(name).__module__.startswith("trl.")


def test_a_missing_verifier_is_said_at_once(monkeypatch):
    """TRL notices only when the reward is first computed, long after the model was loaded."""
    monkeypatch.setattr(registry, "_is_installed", lambda module: False)
    with pytest.raises(MissingExtraError, match=r"pip install 'exgrpo\[math\]'"):
        get_reward("accuracy_reward")


def test_a_dotted_path(tmp_path, monkeypatch):
    (tmp_path / "my_rewards_for_test.py").write_text(
        "LIMIT = 3\ndef length(prompts, completions, **kwargs): return [0.5]\n"
    )
    (tmp_path / "my_broken_rewards.py").write_text("import surely_not_installed\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert get_reward("my_rewards_for_test.length")([], []) == [0.5]
    with pytest.raises(ConfigurationError, match="no such attribute"):
        get_reward("my_rewards_for_test.missing")
    with pytest.raises(ConfigurationError, match="int, not a function"):
        get_reward("my_rewards_for_test.LIMIT")
    with pytest.raises(ModuleNotFoundError, match="surely_not_installed"):
        get_reward("my_broken_rewards.f")


@pytest.mark.parametrize("name", ["nope", "no_package.module.f", "exgrpo.no_module.f", ""])
def test_unknown_names_list_what_exists(name):
    with pytest.raises(ConfigurationError, match=r"numeric_reward.*accuracy_reward.*dotted path"):
        get_reward(name)
