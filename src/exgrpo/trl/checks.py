"""Checks before a model is loaded, and after."""

import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate.utils import gather_object

from ..config import ReplayConfig
from ..errors import ConfigurationError, DatasetError
from ..log import FILE_NAME, PRIVATE_NAME
from ..runtime.checks import correctness_index
from ..runtime.questions import QuestionTable
from ..unused_options import without_effect

if TYPE_CHECKING:  # an unsupported version may lack it
    from trl import GRPOTrainer

logger = logging.getLogger(__name__)

HOST_ARGUMENTS = frozenset(
    {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments"}
)


def check_columns(arguments: dict[str, Any]) -> None:
    """Refuse a dataset that lacks a column that the prompt or a reward function needs, replay or not.

    Not looked at where something else than the dataset may supply them: an environment, a rollout function, a stream.

    Args:
        arguments: what the trainer was constructed with, by name.
    """
    dataset: Any = arguments.get("train_dataset")
    reward_funcs = arguments.get("reward_funcs") or []
    if arguments.get("environment_factory") or not hasattr(dataset, "__len__") or not len(dataset):
        return
    columns = list(dataset[0])  # a transform may add columns to a row
    if "prompt" not in columns:
        raise DatasetError(
            f"train_dataset needs a column 'prompt', but has {sorted(columns)}. Rename one with "
            "dataset.rename_column(name, 'prompt')."
        )
    if arguments.get("rollout_func"):
        return
    for function in reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]:
        missing = [name for name in _needed_columns(function) if name not in columns]
        if missing:
            raise DatasetError(
                f"reward function {getattr(function, '__name__', function)!r} needs a column {missing[0]!r}, but "
                f"train_dataset has {sorted(columns)}. Rename one with dataset.rename_column(name, {missing[0]!r}); on the "
                f"command line set --answer_name {missing[0]}."
            )


def _needed_columns(function: Any) -> list[str]:
    if not callable(function) or not (inspect.isfunction(function) or inspect.ismethod(function)):
        return []
    parameters = inspect.signature(function).parameters.values()
    return [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in HOST_ARGUMENTS
    ]


def check_replayable(arguments: dict[str, Any]) -> None:
    """Refuse by name what a stored trajectory cannot hold, such as images or tools.

    Args:
        arguments: what the trainer was constructed with, by name.
    """
    for name, why in (
        ("tools", "a trajectory with tool results between its tokens cannot be stored"),
        ("environment_factory", "a trajectory with an environment's turns between its tokens cannot be stored"),
        ("rollout_func", "it generates on its own and cannot leave a replayed completion out"),
    ):
        if arguments.get(name):
            raise ConfigurationError(
                f"{name} cannot be combined with replay: {why}. Leave it out, or set preset='on-policy'."
            )
    dataset = arguments.get("train_dataset")
    if dataset is None or not hasattr(dataset, "__len__"):
        raise ConfigurationError(
            f"replay needs a dataset with a length (datasets.Dataset) as train_dataset, not {type(dataset).__name__}: "
            "replayed and retired questions are kept apart by question. Load it without streaming, or set "
            "preset='on-policy'."
        )
    if images := {"image", "images"} & set(dataset.column_names):
        raise ConfigurationError(
            f"train_dataset has a column {images.pop()!r}: trajectories with images cannot be stored. Remove the column, or "
            "set preset='on-policy'."
        )


def check_rows(dataset: Any, questions_per_batch: int) -> None:
    """Refuse a dataset with fewer rows than a batch takes: the host would train 0 steps and report success."""
    if hasattr(dataset, "__len__") and len(dataset) < questions_per_batch:
        raise DatasetError(
            f"train_dataset has {len(dataset)} rows, but one generation takes {questions_per_batch} questions "
            "(per_device_train_batch_size x processes x steps_per_generation / num_generations). Lower "
            f"per_device_train_batch_size or steps_per_generation so that at most {len(dataset)} are taken."
        )


def check_rewards(arguments: dict[str, Any], config: Any) -> None:
    """Check that the deciding reward function exists, is the only one of its name, and can exceed its threshold.

    Args:
        arguments: what the trainer was constructed with, by name.
        config: an `ExGRPOConfig`.
    """
    functions = arguments.get("reward_funcs") or []
    functions = functions if isinstance(functions, list) else [functions]
    names = [str(getattr(function, "__name__", "")) for function in functions]
    if not all(names) or not names or arguments.get("environment_factory"):  # the host names reward models
        return
    decides = functions[correctness_index(names, config.correctness_function)]
    package = (getattr(decides, "__module__", None) or "").partition(".")[0]
    if package in ("exgrpo", "trl") and config.correctness_threshold >= 1:
        raise ConfigurationError(
            f"correctness_threshold={config.correctness_threshold:g}, but {decides.__name__!r} gives at most 1, and a "
            "completion is right only above the threshold: none ever would be. Set correctness_threshold below 1, for example "
            "0.5, or 0.99 for full marks only."
        )


def check_problem_types(config: ReplayConfig, arguments: dict[str, Any]) -> None:
    """Refuse drawing by problem type without the column."""
    columns = getattr(arguments.get("train_dataset"), "column_names", None) or []
    if config.by_problem_type and config.replays_questions and "problem_type" not in columns:
        raise DatasetError(
            f"by_problem_type=True needs a column 'problem_type', but train_dataset has {sorted(columns)}. Rename the one that "
            "holds the type of each question with dataset.rename_column(name, 'problem_type'), or set by_problem_type=False."
        )


GENERATION_DEFAULTS = {
    "min_p": 0.0, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "top_h": 1.0, "suppress_tokens": (),
    "begin_suppress_tokens": (), "bad_words_ids": (), "sequence_bias": (), "min_length": 0, "min_new_tokens": 0,
    "no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 0,
    "forced_bos_token_id": None, "forced_eos_token_id": None, "exponential_decay_length_penalty": None,
    "guidance_scale": 1.0, "watermarking_config": None,
    "num_beams": 1, "num_beam_groups": 1, "penalty_alpha": 0.0, "dola_layers": None, "constraints": (), "force_words_ids": (),
    "stop_strings": (), "max_time": None, "num_return_sequences": 1,
}  # fmt: skip
"""Fields of a model's generation configuration that change the sampling and that the host does not set, with their
neutral values."""


def check_generation_defaults(trainer: "GRPOTrainer") -> None:
    """Compare the model's own generation defaults with the sampling that the trainer asks for.

    Completions must come from the distribution whose log-probs are recorded and trained on. With replay, extra sampling
    settings of the model are refused; without, they are reported.
    """
    if trainer.use_vllm:
        return
    own = getattr(trainer.accelerator.unwrap_model(trainer.model), "generation_config", None)
    found = {}
    for name, neutral in GENERATION_DEFAULTS.items():
        value = getattr(own, name, None)
        if getattr(trainer.generation_config, name, None) is None and value not in (None, neutral, [], {}):
            found[name] = value
    if not found:
        return
    name, value = next(iter(found.items()))
    neutral = GENERATION_DEFAULTS[name]
    other = f", or generation_kwargs={{{name!r}: {neutral!r}}}" if isinstance(neutral, int | float) else ""
    message = (
        f"model.generation_config holds {', '.join(f'{n}={v!r}' for n, v in found.items())}, which the trainer does not "
        "override: completions would be sampled from another distribution than the one that is learned, and that their "
        f"log-probs are of. Set model.generation_config.{name} = None (in the model's generation_config.json){other}."
    )
    if trainer.args.replay.active:
        raise ConfigurationError(message)
    logger.warning("%s", message)


def report_options(trainer: "GRPOTrainer") -> None:
    """Warn once, on the main process, of options that have no effect."""
    args = trainer.args
    if trainer.accelerator.is_main_process and (names := without_effect(args.preset, args.replay, args.objective)):
        logger.warning(
            "Without effect under the other options (mixing=%r): %s.",
            args.mixing,
            ", ".join(f"{name}={getattr(args, name)!r}" for name in names),
        )


def report_names(trainer: "GRPOTrainer") -> None:
    """Warn, on the main process, of reward functions with the same name."""
    names = trainer.reward_func_names
    if trainer.accelerator.is_main_process and (twice := sorted({name for name in names if names.count(name) > 1})):
        logger.warning(
            "Several reward functions are called %s: their figures are logged as one. Give each a name of its own "
            "(function.__name__ = ...).",
            ", ".join(map(repr, twice)),
        )


def report_sharding(trainer: "GRPOTrainer") -> None:
    """Warn when FSDP was requested but is not active: accelerate silently falls back to DDP, for one on CPUs."""
    if trainer.accelerator.is_main_process and trainer.args.fsdp and not trainer.is_fsdp_enabled:
        logger.warning(
            "fsdp=%r is set, but the model is not sharded: accelerate trains as %s here. FSDP needs several processes with an "
            "accelerator each; start them with `accelerate launch` or `torchrun`.",
            trainer.args.fsdp,
            trainer.accelerator.distributed_type.value,
        )


def report_start(trainer: "GRPOTrainer", questions: QuestionTable) -> None:
    """Log what a user should know before the first step, once, on the main process."""
    args = trainer.args
    if questions.num_duplicates:
        logger.warning(
            "%d of %d rows of train_dataset repeat another (same prompt, same columns) and count as one question.",
            questions.num_duplicates,
            len(questions.question_of_row),
        )
    if args.save_strategy != "no" and not args.keeps_log:
        logger.warning(
            "experience_log='none': the checkpoints of this run hold no experience and cannot be resumed from."
        )
    if args.push_to_hub and args.keeps_log:
        logger.warning(
            "push_to_hub uploads %s, with all prompts and completions, since experience_log=%r asks for it."
            if args.uploads_log
            else "push_to_hub does not upload %s (prompts and completions; experience_log=%r). Set experience_log="
            "'experience.db' to upload them.",
            args.experience_path,
            args.experience_log,
        )
    if len(trainer.reward_funcs) > 1 and args.correctness_function is None:
        logger.warning(
            "Several reward functions, and correctness_function is not set: a completion counts as right if the first, "
            "%r, is above %g.",
            trainer.reward_func_names[0],
            args.correctness_threshold,
        )


def check_upload(config: Any) -> None:
    """Refuse to upload prompts and completions to the hub unless the user allows it.

    Raises:
        ConfigurationError: a log of an earlier run lies where a push takes it.
    """
    other = Path(config.output_dir or ".").expanduser() / FILE_NAME
    if config.push_to_hub and config.experience_log is None and other.is_file():
        raise ConfigurationError(
            f"push_to_hub uploads output_dir, and {other} lies there: the prompts and completions of an earlier run. Rename it "
            f"to {PRIVATE_NAME} (a resumed run continues from it), move it away, or set experience_log={FILE_NAME!r} to "
            "upload it."
        )


def check_saving(config: Any) -> None:
    """Refuse checkpoints of several nodes that would have several writers for one file.

    Raises:
        ConfigurationError: each node would write its own; on every process.
    """
    if not config.save_on_each_node or config.world_size == 1:
        return
    nodes = gather_object([config.local_process_index]).count(0)
    if nodes > 1:
        raise ConfigurationError(
            f"save_on_each_node=True with {nodes} nodes: on a shared output_dir they would overwrite each other's files, and "
            "on separate ones a run could not resume, since a checkpoint's parts would lie on different disks. Set "
            "save_on_each_node=False, and output_dir to a file system that all nodes share."
        )


def check_push(config: Any) -> None:
    """Check like `check_upload`, for a push that `push_to_hub` did not announce.

    Raises:
        ConfigurationError: the push would take the experience of this run with it, unasked.
    """
    if config.experience_log is None and config.uploads_log and config.experience_path.is_file():
        raise ConfigurationError(
            f"push_to_hub() uploads output_dir, and with it {config.experience_path}: all prompts and completions. Set "
            f"push_to_hub=True in the configuration, which keeps them out, or experience_log={FILE_NAME!r} to upload them. "
            "After a run: trainer.model.push_to_hub(REPO) uploads the model alone."
        )


def bound_arguments(init: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a host's constructor by name, however they were passed."""
    return dict(inspect.signature(init).bind(*args, **kwargs).arguments)
