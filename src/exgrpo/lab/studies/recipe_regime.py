"""The common part of the arms of a comparison on a recipe of `exgrpo train`. Data; imports no host."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ...errors import ConfigurationError
from .regime import Budget, positive_number, right_tokens

TINY_BATCH, BATCH = 2048, 256
BUDGETS = ("tokens", "right_answers", "steps", "hours")
SHORT = {"eval_questions": 8, "num_samples": 2, "evaluations": 2}
OF_THE_STUDY = (
    "preset", "seed", "task_seed", "task_eval_questions", "max_generated_tokens", "output_dir", "eval_strategy",
    "eval_steps", "eval_on_start", "per_device_eval_batch_size", "eval_limit", "save_strategy", "save_steps",
    "save_total_limit", "experience_log", "logging_steps", "logging_strategy", "report_to", "disable_tqdm",
    "resume_from_checkpoint", "push_to_hub", "num_train_epochs", "load_best_model_at_end",
)  # fmt: skip
"""Options that a recipe may have and a study decides: arms are not saved, and are evaluated by their budget."""


@dataclass(frozen=True)
class RecipeRegime:
    """A recipe, its budget, and how often and on what an arm is evaluated.

    Args:
        recipe: options of `exgrpo train`; those that a study decides are left out.
        budget_of: one of `tokens: N` (generated ones), `right_answers: N` (the tokens of N on-policy steps, were every
            completion as long as a right one; built-in tasks only), `steps: N` (optimizer steps), `hours: H` (of training).
        most_steps: on-policy optimizer steps that use the budget up, where that is known.
        eval_questions: held-out questions, at most; the same for all seeds of a data set.
        num_samples: completions of each, at `eval_temperature`.
        evaluations: of an arm, evenly spaced over its budget; the last is at the end.
        eval_batch: completions generated at once; default: 2,048 of the tiny policy, 256 of others.
    """

    recipe: Mapping[str, Any]
    budget_of: Mapping[str, float]
    most_steps: int | None = None
    eval_questions: int = 256
    num_samples: int = 4
    evaluations: int = 6
    eval_temperature: float = 1.0
    eval_batch: int | None = None

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if value is None and f.type == int | None:
                continue
            if f.type in (int, int | None) and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigurationError(f"{f.name} must be a whole number of at least 1, but is {value!r}.")
        positive_number("eval_temperature", self.eval_temperature)
        if not isinstance(self.recipe, Mapping):
            raise ConfigurationError(f"`recipe` is a path or a mapping of options, but is {self.recipe!r}.")
        if (
            not isinstance(self.budget_of, Mapping)
            or len(self.budget_of) != 1
            or not set(self.budget_of) <= set(BUDGETS)
        ):
            raise ConfigurationError(
                f"`budget` is one of {', '.join(BUDGETS)} with a number, but is {self.budget_of!r}."
            )
        [(kind, size)] = self.budget_of.items()
        positive_number(f"`budget`, {kind},", size)
        if kind == "right_answers" and not self.is_tiny:
            raise ConfigurationError(
                "`budget: {right_answers: N}` needs a built-in task and its tiny policy, whose right answers have a known "
                "length. Give tokens, steps or hours."
            )
        self._check_schedule(kind)

    def _check_schedule(self, kind: str) -> None:
        schedule = str(self.recipe.get("lr_scheduler_type", "linear"))
        if kind != "steps" and not schedule.startswith("constant"):
            raise ConfigurationError(
                f"The recipe's lr_scheduler_type is {schedule!r}, which falls with the number of steps, and arms of equal "
                f"{kind.replace('_', ' ')} differ in that. Set lr_scheduler_type: constant, or compare at equal steps."
            )

    @property
    def eval_batch_size(self) -> int:
        """Completions of an evaluation that are generated at once."""
        return self.eval_batch or (TINY_BATCH if self.is_tiny else BATCH)

    @property
    def is_tiny(self) -> bool:
        """True if the policy is the built-in one: a seed is then of questions, warm-up and training together."""
        return self.recipe.get("task") is not None and self.recipe.get("model_name_or_path") is None

    def as_dict(self) -> dict[str, Any]:
        """Return what decides the results."""
        return {**asdict(self), "recipe": {k: v for k, v in self.recipe.items() if k not in (*OF_THE_STUDY, "env")}}

    def recipe_of(self, seed: int) -> dict[str, Any]:
        """Return options of `exgrpo train` for a seed."""
        own = {name: value for name, value in self.recipe.items() if name not in (*OF_THE_STUDY, "env")}
        if self.recipe.get("task") is not None:
            own["task_eval_questions"] = self.eval_questions
        if self.is_tiny:
            own |= {"task_seed": seed, "warm_up_seed": seed}
        return {**own, "seed": seed}

    def shortened(self) -> "RecipeRegime":
        """Return a regime of a few steps, questions and samples."""
        [(kind, size)] = self.budget_of.items()
        few = {kind: min(size, 8)} if kind in ("steps", "right_answers") else {"steps": 4}
        sizes = {name: min(getattr(self, name), most) for name, most in SHORT.items()}
        return replace(self, budget_of=few, most_steps=None, **sizes)

    def budget(self, seed: int, factor: float = 1.0, tokens: int | None = None) -> Budget:
        """Return what an arm of the seed may use; `tokens` replaces the study's own."""
        [(kind, size)] = {"tokens": tokens}.items() if tokens is not None else self.budget_of.items()
        assert size is not None
        steps = None if self.most_steps is None else math.ceil(self.most_steps * max(factor, 1.0))
        if kind == "hours":
            return Budget("seconds", 3600 * size * factor, 3600 * size / self.evaluations)
        if kind == "right_answers":
            steps, size = math.ceil(size * max(factor, 1.0)), self._right_tokens(seed, int(size))
        if kind == "steps":
            return Budget("steps", round(size * factor), size / self.evaluations, round(size * factor))
        return Budget("tokens", round(size * factor), size / self.evaluations, steps)

    def _right_tokens(self, seed: int, steps: int) -> int:
        from ...tasks import Family, get_task

        task = get_task(self.recipe["task"], **self.recipe.get("task_knobs") or {})
        assert isinstance(task, Family)
        a_step = self.recipe.get("per_device_train_batch_size", 8) * self.recipe.get("gradient_accumulation_steps", 1)
        return right_tokens(task, seed, self.recipe.get("task_questions", 2048), steps * a_step)
