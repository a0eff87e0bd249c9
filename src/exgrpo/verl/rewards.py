"""Verifiers as verl reward functions, and a reward manager for prompts that begin a thought.

    reward.custom_reward_function.path=pkg://exgrpo.verl.rewards
    reward.custom_reward_function.name=math_reward

What takes long by what it reads runs in the worker processes of the pool, under limits that stop it, also inside verl's reward
workers. A completion that cannot be scored gets 0 there, and `unscorable` tells the trainer.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..rewards import REWARDS
from ..rewards.completion import opens_thinking, thinking_begun
from .data_format import NOT_CONTENT

UNSCORABLE = "unscorable"
"""Key of a reward's extra information: 1 where it could not be told whether a completion is right."""
OF_VERL = (*NOT_CONTENT, "num_turns", "rollout_reward_scores", "turn_scores", "tool_rewards", "reward_extra_info")
"""Keys that verl adds to what a dataset says of a question, or that say where a row stands."""


def adapted(verifier: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reward function of verl that asks a verifier, without blocking the loop of its worker."""

    async def compute_score(
        data_source: Any = None, solution_str: str = "", ground_truth: Any = None, extra_info: Any = None, **kwargs: Any
    ) -> dict[str, float]:
        extra = extra_info if isinstance(extra_info, Mapping) else {}
        given: dict[str, Any] = {name: [value] for name, value in extra.items() if name not in OF_VERL}
        given |= {"prompts": None, "completions": [solution_str], "answer": [ground_truth]}
        if inspect.iscoroutinefunction(verifier):
            rewards = await verifier(**given)
        else:
            rewards = await asyncio.to_thread(verifier, **given)
        known = rewards[0] is not None
        return {"score": float(rewards[0]) if known else 0.0, UNSCORABLE: float(not known)}

    compute_score.__name__ = compute_score.__qualname__ = verifier.__name__
    compute_score.__dict__["version"] = getattr(verifier, "version", "")
    compute_score.__dict__["columns"] = getattr(verifier, "columns", ("answer", "source"))
    return compute_score


def __getattr__(name: str) -> Any:
    if name in REWARDS:
        found = globals()[name] = adapted(REWARDS[name])
        return found
    if name == "ThinkingRewardManager":
        found = globals()[name] = _manager()
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _manager() -> type:
    from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

    class ThinkingRewardManager(NaiveRewardManager):  # type: ignore[misc]  # a class of the host
        """verl's manager, which also tells verifiers whether the chat template began a thought in the prompt.

        reward.reward_manager.source=importlib reward.reward_manager.name=ThinkingRewardManager
        reward.reward_manager.module.path=pkg://exgrpo.verl.rewards
        """

        async def run_single(self, data: Any) -> dict[str, Any]:
            prompt = self.tokenizer.decode(data[-1].batch["prompts"].tolist(), skip_special_tokens=False)
            with thinking_begun([prompt], [opens_thinking(prompt)]):
                return await super().run_single(data)

    return ThinkingRewardManager
