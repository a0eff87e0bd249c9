"""Arms of `exgrpo bench step`: trainers of each on the same model, questions and rewards."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PrinterCallback
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

from exgrpo.trl import ExGRPOConfig, ExGRPOTrainer
from trl import GRPOConfig, GRPOTrainer

from ...cli.main import UsageError
from ...trl.quiet import quiet_host
from . import STOCK

AT_ONCE = {"start_pass_at_1": 0.0, "start_epoch": 0.0, "start_size": 0}
"""Gates are open from the first step on."""
TINY_QUESTIONS, MODEL_QUESTIONS = 3072, 1024
RIGHT, WRONG = 1.0, 0.0

Reward = Callable[..., list[float | None]]


@dataclass(frozen=True)
class Setting:
    """The setting of a measurement.

    Args:
        model: `tiny`, or the directory of a model.
        arms: `stock` or presets; ratios are to the first.
        questions, generations: of a step; completions of a question.
        new_tokens: at most, of a completion; None: the task's own.
        variance: `own`: the task's rewards. `half`, `all`: by script, so that half of the groups have variance, or all.
        skip_rows: False: rows without gradient are computed too.
        rounds, steps, warm_up: turns of each arm, steps of a turn, steps before.
    """

    model: str
    arms: tuple[str, ...]
    questions: int
    generations: int
    new_tokens: int | None
    variance: str
    skip_rows: bool
    rounds: int
    steps: int
    warm_up: int

    @property
    def tiny(self) -> bool:
        return self.model == "tiny"


class Script:
    """Rewards by place and not by content.

    With `half`, of four groups in turn the first and the third are of right and wrong completions, the second is all wrong,
    the fourth all right. Groups that hold a stored success are in turn all right and mixed, since they cannot be all wrong.
    """

    def __init__(self, variance: str, generations: int):
        self.variance, self.generations = variance, generations
        self.trainer: Any = None
        self._fresh = self._replayed = 0

    def __call__(self, prompts: list[Any], completions: list[Any], **kwargs: Any) -> list[float | None]:
        """Return one reward a row; rows of a group stand side by side."""
        step = getattr(self.trainer, "_iteration", None)
        stored = {row // self.generations for row in (step.batch.stored if step is not None else ())}
        return [
            reward for group in range(len(prompts) // self.generations) for reward in self.rewards_of(group in stored)
        ]

    def rewards_of(self, replayed: bool) -> list[float | None]:
        """Return the rewards of the next group."""
        place = self._replayed if replayed else self._fresh
        self._replayed, self._fresh = self._replayed + replayed, self._fresh + (not replayed)
        if self.variance == "half" and place % 2 != replayed:
            return [RIGHT if replayed or place % 4 == 3 else WRONG] * self.generations
        return [RIGHT if member % 2 == 0 else WRONG for member in range(self.generations)]


def letters(texts: list[str]) -> NDArray[np.float64]:
    """Compute an embedding that costs nothing."""
    return np.array([[1.0, *(text.count(chr(48 + i)) for i in range(10))] for text in texts])


class ArmInputs:
    """A model, questions and rewards, by setting; a model of its own for each arm."""

    def __init__(self, setting: Setting):
        self.setting = setting
        self.reward: Reward | None = None
        if setting.tiny:
            from ...tasks import get_task
            from ...tasks.base import Family

            task = get_task("chains")
            assert isinstance(task, Family)
            self.task = task
            self.dataset: Any = self.task.make("train", TINY_QUESTIONS, 0)
            self.new_tokens = setting.new_tokens or self.task.max_completion_length
            self.reward = self.task.reward_function if setting.variance == "own" else None
            return
        if not (Path(setting.model) / "config.json").is_file():
            raise UsageError(
                f"--model must be tiny or the directory of a model; there is no config.json in {setting.model}."
            )
        if setting.variance == "own":
            raise UsageError("--variance own is for the tiny policy's task; with a model take half or all.")
        self.new_tokens = setting.new_tokens or 24
        self.dataset = self._apples()

    def _apples(self) -> Any:
        from datasets import Dataset
        from transformers import AutoTokenizer

        chat = AutoTokenizer.from_pretrained(self.setting.model).chat_template is not None
        texts = [
            f"A box holds {n} apples. {n // 3} are eaten. How many are left?" for n in range(10, 10 + MODEL_QUESTIONS)
        ]
        return Dataset.from_list([{"prompt": [{"role": "user", "content": t}] if chat else t} for t in texts])

    def policy(self) -> tuple[Any, Any]:
        """Return a model and its tokenizer."""
        if self.setting.tiny:
            from ...tasks.tiny_policy import warm_policy

            return warm_policy(self.task, 0)
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model = AutoModelForCausalLM.from_pretrained(self.setting.model, dtype=torch.float32)
        return model, AutoTokenizer.from_pretrained(self.setting.model)

    def trainer(self, arm: str, directory: str, watch: Callable[[Reward], Reward] = lambda reward: reward) -> Any:
        """Make a trainer of one arm; `watch` wraps the reward function."""
        setting = self.setting
        script = Script(setting.variance, setting.generations)
        given: Reward = self.reward or script

        def reward(**kwargs: Any) -> list[float | None]:
            return given(**kwargs)

        common: dict[str, Any] = dict(
            output_dir=directory, learning_rate=0.0, max_steps=1_000_000, logging_steps=1_000_000, save_strategy="no",
            report_to=[], bf16=False, gradient_checkpointing=False, disable_tqdm=True, dataloader_pin_memory=False, seed=1,
            per_device_train_batch_size=setting.questions * setting.generations, num_generations=setting.generations,
            max_completion_length=self.new_tokens, use_cpu=not torch.cuda.is_available(),
        )  # fmt: skip
        more: dict[str, Any] = {}
        if arm == STOCK:
            config, cls = GRPOConfig(loss_type="dr_grpo", scale_rewards="none", **common), GRPOTrainer
        else:
            config, cls = ExGRPOConfig(preset=arm, **self.options(), **common), ExGRPOTrainer
            more = {"embedder": letters} if config.replay.uses_quality else {}
        model, tokenizer = self.policy()
        trainer = cls(
            model=model,
            reward_funcs=watch(reward),
            args=config,
            train_dataset=self.dataset,
            processing_class=tokenizer,
            **more,
        )
        trainer.remove_callback(PrinterCallback)
        script.trainer = trainer
        return trainer

    def options(self) -> dict[str, Any]:
        """Return the options of ExGRPO's arms.

        With the task's own rewards nothing retires: else the questions that are left, and with them the work of an arm,
        would change from turn to turn.
        """
        more = {"retirement": "never"} if self.setting.variance == "own" else {}
        return {"alarms": "off", "skip_rows": None if self.setting.skip_rows else False, **AT_ONCE, **more}


@contextmanager
def quietly() -> Iterator[None]:
    """Use one thread, and say nothing but results."""
    logger, threads, bars = logging.getLogger("exgrpo"), torch.get_num_threads(), is_progress_bar_enabled()
    level = logger.level
    torch.set_num_threads(1)
    disable_progress_bar()
    logger.setLevel(logging.ERROR)
    try:
        with quiet_host():
            yield
    finally:
        logger.setLevel(level)
        torch.set_num_threads(threads)
        if bars:
            enable_progress_bar()
