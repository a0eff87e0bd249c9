"""Arguments of `exgrpo train` beside the trainer's and the model's options. Imports no host."""

import json
from dataclasses import dataclass, field, fields
from typing import Any

from ..errors import ConfigurationError
from ..tasks import TASKS


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass
class ScriptArguments:
    """The source of questions and rewards: a dataset, or a built-in task."""

    dataset_name: str | None = _option(
        None, "Training questions: a dataset on the hub, or a local file, folder or pattern (.parquet, or .jsonl, .json, .csv, "
        "also with .gz)."
    )  # fmt: skip
    dataset_config: str | None = _option(None, "Configuration of a hub dataset that has several.")
    train_split: str = _option("train", "Split to train on.")
    eval_dataset: str | None = _option(
        None,
        "Evaluation questions, if not another split of `dataset_name`. Used if `eval_strategy` is set.",
    )
    eval_split: str = _option("test", "Split to evaluate on.")
    question_column: str | None = _option(None, "Column of the question. Default: found by its name.")
    answer_column: str | None = _option(
        None, "Column of the gold answer; `column.key` reads inside a column of mappings, as `reward_model.ground_truth` "
              "in verl's layout. Default: found by its name."
    )  # fmt: skip
    answer_name: str = _option("answer", "Name under which reward functions get the gold answer; `solution` for TRL's.")
    prompt_template: str | None = _option(None, "Text around the question, with `{question}` in its place.")
    system_prompt: str | None = _option(None, "First message; needs `conversational`.")
    conversational: bool = _option(
        False,
        "Make prompts messages, formatted by the tokenizer's chat template; set it for chat models. Questions that "
        "already are messages are taken as they are.",
    )
    keep_columns: list[str] | None = field(
        default=None, metadata={"help": "Further columns of the dataset that a reward function reads."}
    )
    drop_incomplete: bool = _option(False, "Leave out rows without question or answer instead of refusing them.")
    limit: int | None = _option(None, "Take only the first N training questions.")
    eval_limit: int | None = _option(None, "Take only the first N evaluation questions.")
    reward_funcs: list[str] | None = field(
        default=None,
        metadata={
            "help": "Reward functions: `math_reward`, `strict_math_reward`, `numeric_reward`, `choice_reward`, "
            "`code_output_reward`, `format_reward`, `reasoning_gym_reward`; TRL's `accuracy_reward`, "
            "`reasoning_accuracy_reward`, `think_format_reward`; or dotted paths to your own. A built-in task brings its own."
        },
    )
    max_bad_golds: float = _option(
        0.02,
        "Refuse to train if more than this share of gold answers cannot be read by the deciding reward function, or "
        "does not score as right itself. Checked before the model loads, for rewards of this package, on at most "
        "2,000 questions; 1: off.",
    )
    task: str | None = _option(None, f"A built-in task in place of a dataset: {', '.join(TASKS)}.")
    task_knobs: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": 'Knobs of the task: a mapping, as JSON text on the command line. For example \'{"reward": "final"}\'.'
        },
    )
    task_questions: int = _option(2048, "Training questions of the task.")
    task_eval_questions: int = _option(512, "Evaluation questions of the task.")
    task_seed: int = _option(0, "Seed of the task's questions.")
    warm_up_seed: int = _option(
        0,
        "Seed of the warm start of the built-in tiny policy, which a task trains unless `model_name_or_path` is given.",
    )
    warm_up_batches: int | None = _option(None, "Supervised steps of that start. Default: the task's own.")

    def __post_init__(self) -> None:
        if isinstance(self.task_knobs, str):
            self.task_knobs = _mapping(self.task_knobs)
        for name in ("limit", "eval_limit", "task_questions", "task_eval_questions", "warm_up_batches"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"{name} must be a whole number of at least 1, but is {value}.")
        if not 0 <= self.max_bad_golds <= 1:
            raise ConfigurationError(f"max_bad_golds must be a share in [0, 1], but is {self.max_bad_golds}.")
        if self.task is not None and self.dataset_name is not None:
            raise ConfigurationError(
                f"task={self.task!r} and dataset_name={self.dataset_name!r} are both set; a run has one source of questions. "
                "Remove one of them."
            )
        idle = self._idle()
        if idle:
            other = "task" if self.task is None else "dataset_name"
            raise ConfigurationError(
                f"{idle[0]}={getattr(self, idle[0])!r} has no effect without {other}. Remove it, or set {other}."
            )

    def _idle(self) -> list[str]:
        """List given options that belong to the other source of questions."""
        of_task = (
            "task_knobs",
            "task_questions",
            "task_eval_questions",
            "task_seed",
            "warm_up_seed",
            "warm_up_batches",
        )
        of_dataset = (
            "dataset_config", "eval_dataset", "question_column", "answer_column", "answer_name", "prompt_template",
            "system_prompt", "conversational", "keep_columns", "drop_incomplete", "limit", "eval_limit", "max_bad_golds",
        )  # fmt: skip
        defaults = {f.name: f.default for f in fields(self)}
        return [n for n in (of_task if self.task is None else of_dataset) if getattr(self, n) != defaults[n]]


def _mapping(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"task_knobs must be a JSON object, but {text!r} cannot be read: {error}.") from error
    if not isinstance(value, dict):
        raise ConfigurationError(f"task_knobs must be a JSON object, but is {text!r}.")
    return value
