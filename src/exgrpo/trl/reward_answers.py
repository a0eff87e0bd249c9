"""Checks of what reward functions return: messages name the function."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from numbers import Real
from typing import Any

from torch import nn

from ..errors import ConfigurationError


def rewards_in(name: str, answer: Any, completions: int) -> list[Any]:
    """Return a reward function's result as one value a completion, each a number or None.

    Raises:
        ConfigurationError: it is anything else.
    """
    if isinstance(answer, (str, bytes, Mapping, Set)) or not isinstance(answer, Iterable) or _dimensions(answer) == 0:
        raise _refusal(name, completions, f"{type(answer).__name__} {answer!r:.200}")
    values = list(answer)
    if len(values) != completions:
        raise _refusal(name, completions, f"{len(values)} values")
    for place, value in enumerate(values):
        if not _is_reward(value):
            raise _refusal(name, completions, f"{type(value).__name__} {value!r:.200} for completion {place}")
    return values


def checked(functions: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """Wrap reward functions so that their results are checked; leave reward models as they are."""
    return [
        function if isinstance(function, nn.Module) else _checked(function, name)
        for function, name in zip(functions, names, strict=True)
    ]


def _checked(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004

        async def wait(**given: Any) -> list[Any]:
            return rewards_in(name, await function(**given), len(given["prompts"]))

        return wait

    def call(**given: Any) -> list[Any]:
        return rewards_in(name, function(**given), len(given["prompts"]))

    return call


def _is_reward(value: Any) -> bool:
    """Return whether a value is None, or a number of any library that a float can hold."""
    if value is None:
        return True
    if not isinstance(value, (Real, bool)) and not (hasattr(value, "item") and _dimensions(value) == 0):
        return False
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return not isinstance(value, (str, bytes))


def _dimensions(value: Any) -> int | None:
    dimensions = getattr(value, "ndim", None)
    return dimensions if isinstance(dimensions, int) else None


def _refusal(name: str, completions: int, came: str) -> ConfigurationError:
    return ConfigurationError(
        f"reward function {name!r} must return a list with one value for each of the {completions} completions, a number or "
        f"None (not scorable), but returned {came}."
    )
