"""Score stored trajectories with the reward functions of a trainer, as the host would call them."""

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from trl import GRPOTrainer

from ..experience.trajectory import FloatArray, Trajectory
from ..runtime.context import Correctness, Rescorer
from ..runtime.questions import QuestionTable
from .reward_answers import rewards_in


def rescorer(trainer: GRPOTrainer, questions: QuestionTable, correctness: Correctness) -> Rescorer:
    """Make a function that scores trajectories, on one process.

    A reward model is not asked here: what needs one gets no reward, and is left out.
    """

    def rescore(trajectories: Sequence[Trajectory]) -> list[FloatArray | None]:
        if any(isinstance(function, nn.Module) for function in trainer.reward_funcs):
            return [None] * len(trajectories)
        rows = questions.rows([t.question for t in trajectories])
        rewards = rewards_of_stored(trainer, rows, [t.completion_ids.tolist() for t in trajectories])
        right = rewards[:, correctness.function] > correctness.threshold
        return [row if ok else None for row, ok in zip(rewards, right, strict=True)]

    return rescore


def rewards_of_stored(trainer: GRPOTrainer, rows: Sequence[dict[str, Any]], ids: list[list[int]]) -> FloatArray:
    """Score completions, (N, F), NaN where a function gives none.

    Args:
        trainer: with functions as rewards, no models.
        rows: of the dataset, one of each completion.
        ids: token ids of the completions.
    """
    texts = trainer.processing_class.batch_decode(ids, skip_special_tokens=True)
    prompts = [row["prompt"] for row in rows]
    given: dict[str, Any] = {
        name: [row[name] for row in rows] for name in rows[0] if name not in ("prompt", "completion", "completion_ids")
    }
    given |= {
        "prompts": prompts,
        "completions": [
            text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
            for text, prompt in zip(texts, prompts, strict=True)
        ],
        "completion_ids": ids,
        "trainer_state": trainer.state,
        "log_extra": lambda column, values: None,
        "log_metric": lambda name, value: None,
    }
    columns = [_call(trainer, function, given) for function in trainer.reward_funcs]
    rewards = np.array([[np.nan if r is None else r for r in column] for column in columns], np.float32).T
    rewards[np.isinf(rewards)] = np.nan
    return rewards


def _call(trainer: GRPOTrainer, function: Any, given: dict[str, Any]) -> list[Any]:
    answer = function(**given)
    if inspect.isawaitable(answer):  # in the host's own loop: this thread may be inside one of its own
        answer = asyncio.run_coroutine_threadsafe(_result(answer), trainer.async_loop).result()
    return rewards_in(getattr(function, "__name__", repr(function)), answer, len(given["prompts"]))


async def _result(awaitable: Any) -> Any:
    return await awaitable
