"""Verifiers: `math_reward`, `numeric_reward`, `choice_reward`, `code_output_reward`, `reasoning_gym_reward`, `format_reward`.

`get_reward` finds them by name, and TRL's, and the user's own. A reward function has TRL's signature, `(prompts,
completions, **columns) -> list of float or None`; None means that a row cannot be scored. Those that could be made to
take long by what they read do it in the worker processes of `pool`, under limits that really stop. Nothing here imports
torch; TRL is imported only when one of its functions is asked for.
"""

from typing import TYPE_CHECKING, Any

from .registry import REWARDS, TRL_REWARDS, get_reward

if TYPE_CHECKING:
    from .choice import choice_reward
    from .format import format_reward
    from .math.reward import math_reward, strict_math_reward
    from .numeric import numeric_reward
    from .output import code_output_reward
    from .reasoning_gym import reasoning_gym_reward

__all__ = [
    "REWARDS", "TRL_REWARDS", "choice_reward", "code_output_reward", "format_reward", "get_reward", "math_reward",
    "numeric_reward", "reasoning_gym_reward", "strict_math_reward",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in REWARDS:
        return REWARDS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
