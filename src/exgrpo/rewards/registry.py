"""Reward functions by name."""

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping

from ..errors import ConfigurationError, MissingExtraError
from ..registry import imported
from ..spelling import did_you_mean, spelled

RewardFunction = Callable[..., list[float | None]]


class _ByName(Mapping[str, RewardFunction]):
    """Functions by name, each imported when it is first asked for."""

    def __init__(self, modules: Mapping[str, str]):
        self._modules = dict(modules)

    def __getitem__(self, name: str) -> RewardFunction:
        function: RewardFunction = getattr(importlib.import_module(f".{self._modules[name]}", __package__), name)
        return function

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)

    def __contains__(self, name: object) -> bool:
        return name in self._modules


REWARDS: Mapping[str, RewardFunction] = _ByName(
    {
        "math_reward": "math.reward",
        "strict_math_reward": "math.reward",
        "numeric_reward": "numeric",
        "choice_reward": "choice",
        "code_output_reward": "output",
        "format_reward": "format",
        "reasoning_gym_reward": "reasoning_gym",
    }
)
TRL_REWARDS = ("accuracy_reward", "reasoning_accuracy_reward", "think_format_reward")


def get_reward(name: str) -> RewardFunction:
    """Return the reward function of a name: of `REWARDS` or `TRL_REWARDS`, or a dotted path to the user's own.

    `numeric` is understood as `numeric_reward`, and so on. The accuracy rewards of TRL read the gold answer from a
    column `solution`. A dotted path, `package.module.function`, is imported from where Python finds it.

    Raises:
        ConfigurationError: if nothing of that name exists, or if it is not callable.
        MissingExtraError: for a reward of TRL, if TRL or what it verifies with is not installed.
    """
    name = spelled(name, (*REWARDS, *TRL_REWARDS, *(n.removesuffix("_reward") for n in (*REWARDS, *TRL_REWARDS))))
    for candidate in (name, f"{name}_reward"):
        if candidate in REWARDS:
            return REWARDS[candidate]
        if candidate in TRL_REWARDS:
            return _from_trl(candidate)
    if "." not in name:
        near = did_you_mean(name, (*REWARDS, *TRL_REWARDS))
        raise ConfigurationError(f"There is no reward function {name!r}.{near} {_choices()}")
    function: RewardFunction = imported(f"The reward function {name!r}", name, otherwise=_choices())
    return function


def _choices() -> str:
    return (
        f"Reward functions: {', '.join(REWARDS)}; of TRL: {', '.join(TRL_REWARDS)}; or a dotted path to your own, such "
        "as 'my_package.rewards.my_reward'."
    )


def _from_trl(name: str) -> RewardFunction:
    try:
        rewards = importlib.import_module("trl.rewards")
    except ModuleNotFoundError as error:
        raise MissingExtraError("trl", "trl", f"The reward function {name!r}") from error
    if name.endswith("accuracy_reward") and not _is_installed("math_verify"):
        raise MissingExtraError("math-verify", "math", f"The reward function {name!r}")
    return getattr(rewards, name)


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
