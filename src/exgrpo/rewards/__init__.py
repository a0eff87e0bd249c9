"""Verifiers: `numeric_reward`, `choice_reward`, and `get_reward` that finds them, TRL's or the user's own by name.

A reward function has TRL's signature, `(prompts, completions, **columns) -> list of float or None`; None means that a
row cannot be scored. Nothing here imports torch; TRL is imported only when one of its functions is asked for.
"""

from .choice import choice_reward
from .numeric import numeric_reward
from .registry import REWARDS, TRL_REWARDS, get_reward

__all__ = ["REWARDS", "TRL_REWARDS", "choice_reward", "get_reward", "numeric_reward"]
