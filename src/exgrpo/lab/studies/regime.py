"""The common part of the arms of a comparison: task, sizes, learning rate, length. Data; imports no host."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from ...errors import ConfigurationError
from ...tasks.base import Family

DEMO_PRESETS = ("on-policy", "exgrpo", "positive-weight", "rescue")


@dataclass(frozen=True)
class Regime:
    """The options of an arm but its preset and its seed.

    Args:
        task: name of a built-in family, and its knobs.
        train_questions, eval_questions: sizes of the two sets; they are disjoint.
        num_generations: completions a question, K.
        questions_per_step: one generation and one optimizer step each.
        learning_rate: constant.
        steps: of an on-policy run; sets the budget of generated tokens that every arm gets.
        num_samples: completions a held-out question, at temperature 1.
        evaluations: held-out evaluations of an arm, evenly spaced over its generated tokens; the last is at the end.
        warm_up_batches: supervised steps of the tiny policy, where not the task's own.
    """

    task: str = "chains"
    knobs: Mapping[str, Any] = field(default_factory=dict)
    train_questions: int = 2048
    eval_questions: int = 512
    num_generations: int = 4
    questions_per_step: int = 64
    learning_rate: float = 8e-4
    steps: int = 150
    num_samples: int = 8
    evaluations: int = 6
    warm_up_batches: int | None = None

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            if not whole and (f.type is int or (f.name == "warm_up_batches" and value is not None)):
                raise ConfigurationError(f"{f.name} must be an integer of at least 1, but is {value!r}.")
        positive_number("learning_rate", self.learning_rate)
        if self.num_generations < 2:
            raise ConfigurationError(
                f"num_generations must be at least 2, a group to compare within, but is {self.num_generations}."
            )
        if self.train_questions < self.questions_per_step:
            raise ConfigurationError(
                f"train_questions ({self.train_questions}) must be at least questions_per_step "
                f"({self.questions_per_step}): one step takes that many distinct questions."
            )

    eval_batch_size: ClassVar[int] = 2048  # a tiny policy is fastest with a thousand or two
    eval_temperature: ClassVar[float] = 1.0
    recipe: ClassVar[Mapping[str, Any]] = MappingProxyType({})  # the whole is made from the fields

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def recipe_of(self, seed: int) -> dict[str, Any]:
        """Return options of `exgrpo train` for a seed: of its questions, its warm-up and its training."""
        from ...tasks import get_task

        task = get_task(self.task, **self.knobs)
        assert isinstance(task, Family)
        return {
            "task": self.task,
            "task_knobs": dict(self.knobs),
            "task_questions": self.train_questions,
            "task_eval_questions": self.eval_questions,
            "task_seed": seed,
            "warm_up_seed": seed,
            "warm_up_batches": self.warm_up_batches,
            "start_pass_at_1": 0.0,
            "num_generations": self.num_generations,
            "per_device_train_batch_size": self.questions_per_step * self.num_generations,
            "max_completion_length": task.max_completion_length,
            "learning_rate": self.learning_rate,
            "lr_scheduler_type": "constant",
            "adam_beta2": 0.95,
            "max_grad_norm": 1.0,
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "dataloader_pin_memory": False,
            "seed": seed,
        }

    def budget(self, seed: int, factor: float = 1.0, tokens: int | None = None) -> "Budget":
        """Return what an arm may generate: `factor` times `tokens`, by default those of the seed's on-policy steps."""
        from ...tasks import get_task

        if tokens is None:
            task = get_task(self.task, **self.knobs)
            assert isinstance(task, Family)
            tokens = tokens_of(task, seed, self)
        return Budget(
            "tokens", round(tokens * factor), tokens / self.evaluations, math.ceil(self.steps * max(factor, 1.0))
        )


@dataclass(frozen=True)
class Budget:
    """The limit of an arm, and when it is evaluated.

    Args:
        kind: what is counted: generated tokens, optimizer steps, or seconds of training.
        size: how much of it.
        spacing: evaluations are this far apart.
        steps: optimizer steps of on-policy training that use it up; None where that is not known.
    """

    kind: Literal["tokens", "steps", "seconds"]
    size: float
    spacing: float
    steps: int | None = None


def positive_number(name: str, value: Any) -> None:
    """Raise ConfigurationError unless the value is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigurationError(f"{name} must be a number above 0, but is {value!r}.")


REGIMES: Mapping[str, Regime] = MappingProxyType(
    {
        "chains": Regime("chains"),
        "free_order": Regime("free_order", train_questions=512, learning_rate=5e-4, steps=120),
    }
)


def tokens_of(task: Family, seed: int, regime: Regime) -> int:
    """Return completion tokens of `regime.steps` on-policy steps, were every completion as long as a right one."""
    completions = regime.steps * regime.questions_per_step * regime.num_generations
    return right_tokens(task, seed, regime.train_questions, completions)


def right_tokens(task: Family, seed: int, questions: int, completions: int) -> int:
    """Return tokens of so many completions, were each as long as a right one of the seed's training questions."""
    drawn = task.draw("train", questions, seed)
    length = sum(len(task.solution(question)) + 1 for question in drawn) / len(drawn)
    return round(completions * length)
