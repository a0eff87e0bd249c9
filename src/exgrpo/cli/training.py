"""The work of `exgrpo train` once its arguments are parsed: check, load, train, save."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from transformers import set_seed

from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config

from ..errors import ConfigurationError, DatasetError
from ..registry import resolve_rules
from ..rewards import get_reward
from ..rewards.check import check_golds
from ..spelling import did_you_mean
from ..tasks import Family, Task, get_task
from ..trl import ExGRPOConfig, ExGRPOTrainer, checks
from ..trl.quiet import quiet_host
from .arguments import ScriptArguments
from .main import UsageError
from .parser import Parser as CommandParser
from .parser import underscored
from .recipe import read_values
from .train_output import how_to_go_on, lines, summary

logger = logging.getLogger(__name__)

READ_GOLDS = ("math_reward", "strict_math_reward", "numeric_reward", "choice_reward", "code_output_reward")
GOLDS_CHECKED = 2000
ARGUMENTS = (ScriptArguments, ExGRPOConfig, ModelConfig)


@dataclass
class Settings:
    """A run, parsed and checked."""

    script: ScriptArguments
    args: ExGRPOConfig
    model: ModelConfig


@dataclass
class RunInputs:
    """Questions and rewards of a run; `task` if they are a built-in task's."""

    train: Any
    eval: Any
    rewards: list[Any]
    task: Task | None


@quiet_host()
def train(recipe: Mapping[str, Any], argv: Sequence[str], command: Sequence[str] | None = None) -> ExGRPOTrainer:
    """Run `exgrpo train` with the options of a recipe and those of the command line over them.

    Args:
        recipe: options of a file.
        argv: the command line without the file.
        command: the whole command line, as it can be given again; default: `argv`.

    Raises:
        KeyboardInterrupt: with how to go on.
    """
    settings = parse(recipe, argv)
    args = settings.args
    logging.getLogger("exgrpo").setLevel(args.get_process_log_level())
    with args.main_process_first(desc="loading of the dataset"):
        inputs = load_inputs(settings)
    check_inputs(settings, inputs)
    if args.process_index == 0:
        print(describe(args), flush=True)
    trainer = make_trainer(settings, inputs)
    try:
        with lines(trainer):
            result = trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(how_to_go_on(trainer, argv if command is None else command)) from None
    seconds = result.metrics["train_runtime"]
    if seconds:  # else the run had ended before, and its figures stay
        trainer.save_metrics("train", result.metrics)
        trainer.save_state()
    trainer.save_model(args.output_dir)
    trainer.accelerator.print(summary(trainer, seconds))
    if args.push_to_hub:
        trainer.push_to_hub(dataset_name=settings.script.dataset_name)
    trainer.end()
    return trainer


# Arguments --------------------------------------------------------------------------------------------------------------


class Parser(TrlParser):
    """TRL's parser, with one message per error in place of a page of usage and a traceback."""

    def __init__(self) -> None:
        super().__init__(ARGUMENTS, prog="exgrpo train", allow_abbrev=False)

    _get_value = CommandParser._get_value
    _check_value = CommandParser._check_value

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message.rstrip('.')}. See exgrpo train --help.")


def parse(recipe: Mapping[str, Any], argv: Sequence[str]) -> Settings:
    """Parse settings from a recipe and a command line.

    Raises UsageError for what they do not know, ConfigurationError for what cannot be combined.
    """
    parser = Parser()
    argv = list(map(underscored, argv))
    known = {action.dest for action in parser._actions} - {"help"}
    if unknown := [name for name in recipe if name not in known]:
        raise UsageError(f"the recipe has an unknown option {unknown[0]!r}.{_nearest(unknown[0], known)}")
    parser.set_defaults_with_config(**read_values(recipe, ARGUMENTS))
    _, rest = parser.parse_known_args(argv)
    if rest:
        what = f"unknown option {rest[0]!r}" if rest[0].startswith("--") else f"{rest[0]!r} belongs to no option"
        raise UsageError(f"{what}.{_nearest(rest[0].lstrip('-').partition('=')[0], known)}")
    script, args, model = parser.parse_args_into_dataclasses(argv)
    resolve_rules(args.replay, args.objective)
    return Settings(script, args, model)


def _nearest(name: str, known: set[str]) -> str:
    return did_you_mean(name, sorted(known)) or " See exgrpo train --help all."


def describe(args: ExGRPOConfig) -> str:
    """Describe the resolved preset in two lines: what differs from it, and the composition of a generation."""
    over = [f"{name}={value} (preset: {of_preset})" for name, (value, of_preset) in args.changed_options.items()]
    assert args.generation_batch_size is not None and args.num_generations is not None
    an_update = args.per_device_train_batch_size * args.world_size * args.gradient_accumulation_steps
    updates = max(1, args.generation_batch_size // an_update) * args.num_iterations
    questions = args.generation_batch_size // args.num_generations
    default = ExGRPOConfig.__dataclass_fields__["preset"].default
    advice = "; the default: exgrpo presets --advise says which preset suits a run" if args.preset == default else ""
    return (
        f"preset {args.preset}, {'with ' + ', '.join(over) if over else 'unchanged'}{advice}\n"
        f"{questions} question{'s' * (questions > 1)} x {args.num_generations} completions a generation, "
        f"{updates} optimizer step{'s' * (updates > 1)} on each"
    )


# Before the model is loaded ---------------------------------------------------------------------------------------------


def load_inputs(settings: Settings, held_out: bool | None = None) -> RunInputs:
    """Load questions and reward functions, from the task or the dataset that the settings name.

    Args:
        settings: of the run.
        held_out: whether evaluation questions are loaded; default: if the run evaluates.
    """
    script = settings.script
    if script.task is None and script.dataset_name is None:
        raise UsageError("there are no questions: set dataset_name (a hub name or a local path), or task.")
    rewards = [get_reward(name) for name in script.reward_funcs or ()]
    evaluates = settings.args.eval_strategy != "no" if held_out is None else held_out
    return _of_task(script, rewards, evaluates) if script.task else _of_dataset(script, rewards, evaluates)


def _of_task(script: ScriptArguments, rewards: list[Any], evaluates: bool) -> RunInputs:
    assert script.task is not None
    knobs = script.task_knobs or {}
    assert isinstance(knobs, dict)
    task = get_task(script.task, **knobs)
    held_out = task.make("eval", script.task_eval_questions, script.task_seed) if evaluates else None
    questions = task.make("train", script.task_questions, script.task_seed)
    return RunInputs(questions, held_out, rewards or [task.reward_function], task)


def _of_dataset(script: ScriptArguments, rewards: list[Any], evaluates: bool) -> RunInputs:
    if not rewards:
        raise UsageError("there is no reward function: set reward_funcs, for example numeric_reward.")
    assert script.dataset_name is not None
    held_out = None
    if evaluates:
        source = script.eval_dataset or script.dataset_name
        if source == script.dataset_name and Path(source).expanduser().is_file():
            raise UsageError(
                f"eval_strategy is set, but {source!r} is one file and has no other split. Set eval_dataset, or "
                "eval_strategy to no."
            )
        held_out = _questions(script, source, script.eval_split, script.eval_limit)
    return RunInputs(_questions(script, script.dataset_name, script.train_split, script.limit), held_out, rewards, None)


def _questions(script: ScriptArguments, source: str, split: str, limit: int | None) -> Any:
    from ..tasks.datasets import load_questions

    dataset = load_questions(
        source,
        split=split,
        config_name=script.dataset_config if source == script.dataset_name else None,
        question_column=script.question_column,
        answer_column=script.answer_column,
        prompt_template=script.prompt_template,
        system_prompt=script.system_prompt,
        conversational=script.conversational,
        limit=limit,
        keep_columns=script.keep_columns or (),
        drop_incomplete=script.drop_incomplete,
    )
    if script.answer_name == "answer":
        return dataset
    if script.answer_name in dataset.column_names:
        raise DatasetError(
            f"answer_name={script.answer_name!r} is already a column of the dataset: {dataset.column_names}. Remove it from "
            "keep_columns, or leave answer_name out."
        )
    return dataset.rename_column("answer", script.answer_name)


def check_gold_answers(settings: Settings, inputs: RunInputs) -> None:
    """Refuse gold answers that the verifier misreads.

    They make wrong answers right, and replay would train on them again and again.
    """
    script, args = settings.script, settings.args
    names = [getattr(f, "__name__", "") for f in inputs.rewards]
    reward = inputs.rewards[checks.correctness_index(names, args.correctness_function)]
    if script.max_bad_golds >= 1 or getattr(reward, "__name__", "") not in READ_GOLDS:
        return
    dataset = inputs.train
    if len(dataset) > GOLDS_CHECKED:  # evenly spaced
        dataset = dataset.select([i * len(dataset) // GOLDS_CHECKED for i in range(GOLDS_CHECKED)])
    report = check_golds(reward, dataset, answer_name=script.answer_name)
    bad = (report.unscorable + report.not_boxed) / report.rows
    if bad > script.max_bad_golds:
        raise DatasetError(
            f"{report}. That is {bad:.1%} of the gold answers, more than max_bad_golds={script.max_bad_golds:g}. Choose "
            "another reward function (`exgrpo rewards check` compares them), or raise max_bad_golds."
        )
    if report.found:
        logger.warning("%s.", report)


def check_inputs(settings: Settings, inputs: RunInputs) -> None:
    """Check all that can be known to fail before weights are read."""
    args, model = settings.args, settings.model.model_name_or_path
    for dataset in (inputs.train, inputs.eval):
        checks.check_columns({"train_dataset": dataset, "reward_funcs": inputs.rewards})
    checks.check_rewards({"reward_funcs": inputs.rewards}, args)
    if args.replay.active:
        checks.check_replayable({"train_dataset": inputs.train})
    assert args.generation_batch_size is not None and args.num_generations is not None
    checks.check_rows(inputs.train, args.generation_batch_size // args.num_generations)
    if args.reward_weights is not None and len(args.reward_weights) != len(inputs.rewards):
        raise ConfigurationError(
            f"reward_weights has {len(args.reward_weights)} values, but there are {len(inputs.rewards)} reward functions. "
            "Give one weight for each."
        )
    if args.process_index == 0 and inputs.task is None:
        check_gold_answers(settings, inputs)
    if model is None and not isinstance(inputs.task, Family):
        raise UsageError("there is no model: set model_name_or_path (a hub name or a local directory).")
    if model is not None and model.startswith((".", "~", "/")) and not Path(model).expanduser().is_dir():
        raise ConfigurationError(f"model_name_or_path={model!r}: there is no such directory.")


# The trainer ------------------------------------------------------------------------------------------------------------


def make_trainer(settings: Settings, inputs: RunInputs) -> ExGRPOTrainer:
    """Make the trainer, with the model of the settings or the task's tiny policy."""
    args, model = settings.args, settings.model
    common = dict(
        args=args, reward_funcs=inputs.rewards, train_dataset=inputs.train, eval_dataset=inputs.eval,
        peft_config=get_peft_config(model),
    )  # fmt: skip
    if model.model_name_or_path is None:
        policy, tokenizer = _tiny_policy(settings, inputs.task)
        return ExGRPOTrainer(model=policy, processing_class=tokenizer, **common)
    given = args.model_init_kwargs or {}
    assert isinstance(given, dict)
    args.model_init_kwargs = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        "trust_remote_code": args.trust_remote_code,
        **given,
    }
    path = os.path.expanduser(model.model_name_or_path)
    return ExGRPOTrainer(model=path, quantization_config=get_quantization_config(model), **common)


def _tiny_policy(settings: Settings, task: Task | None) -> tuple[Any, Any]:
    """Return the built-in policy, warmed up once for all processes."""
    from ..tasks.tiny_policy import tiny_policy

    assert isinstance(task, Family)
    with settings.args.main_process_first(desc="warm-up of the tiny policy"):
        policy = tiny_policy(task, settings.script.warm_up_seed, settings.script.warm_up_batches)
    set_seed(settings.args.seed)
    return policy
