"""The reward function of a run under verl: its name and version, and scoring stored trajectories with it."""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from verl.trainer.ppo.reward import get_custom_reward_fn
from verl.utils.import_utils import load_extern_object
from verl.utils.reward_score import get_default_compute_score

from ..experience.trajectory import FloatArray, Trajectory
from ..runtime.context import Correctness, Rescorer
from ..runtime.questions import QuestionTable
from .checks import finite
from .columns import UNSCORABLE


class VerlReward:
    """The reward that decides whether a completion is right.

    Args:
        config: of verl.
        tokenizer: of the model.

    Attributes:
        functions, names: the reward function, alone in its list: verl has one.
        questions, rows: the run's, and verl's of the same numbers; set once they are read.
    """

    questions: QuestionTable
    rows: Any

    def __init__(self, config: Any, tokenizer: Any):
        given = config.reward.get("custom_reward_function") or {}
        self._tokenizer = tokenizer
        self._is_model = bool(config.reward.reward_model.enable) and not given.get("path")
        manager = config.reward.reward_manager.name
        if given.get("path"):
            function = load_extern_object(given["path"], given["name"])
            self._call: Callable[..., Any] = get_custom_reward_fn(config)
            name = str(getattr(function, "__name__", given["name"]))
        else:
            function = self._call = get_default_compute_score(manager)
            name = "reward_model" if self._is_model else function.__name__
        self.functions, self.names = [function], [name]

    def rescorer(self, correctness: Correctness) -> Rescorer:
        """Make a function that scores trajectories on the driver. A reward model is not asked: what needs one is left out."""

        def rescore(trajectories: Sequence[Trajectory]) -> list[FloatArray | None]:
            if self._is_model:
                return [None] * len(trajectories)
            rewards = [self._reward(trajectory) for trajectory in trajectories]
            return [np.array([r], np.float32) if r > correctness.threshold else None for r in rewards]

        return rescore

    def _reward(self, trajectory: Trajectory) -> float:
        row = self.rows[int(self.questions.row_of_question[trajectory.question])]
        answer = self._call(
            data_source=row.get("data_source"),
            solution_str=self._tokenizer.decode(trajectory.completion_ids.tolist(), skip_special_tokens=True),
            ground_truth=(row.get("reward_model") or {}).get("ground_truth"),
            extra_info=dict(row.get("extra_info") or {}),
        )
        if inspect.isawaitable(answer):
            answer = asyncio.run(_result(answer))
        if isinstance(answer, Mapping):
            answer = np.nan if answer.get(UNSCORABLE) else answer["score"]
        return finite(answer)


async def _result(awaitable: Any) -> Any:
    return await awaitable
