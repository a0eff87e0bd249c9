"""Supported versions of TRL: tested ones, and newer ones that still have all that this trainer overrides or reads.

Private methods of the host change between minor versions. `changes` compares the tables below with an installed host; a test
holds the tables to the code of this room.
"""

import inspect
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from importlib.metadata import version
from typing import Any

from packaging.version import Version

from ..errors import HostVersionError

logger = logging.getLogger(__name__)

TESTED_TRL = (Version("1.15"), Version("1.17"))
SUPPORTED_TRL = (TESTED_TRL[0], Version("2"))
"""Versions from the second of `TESTED_TRL` on are accepted if nothing relevant has changed in them."""
OVERRIDE = "EXGRPO_ALLOW_TRL"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


METHODS: Mapping[str, tuple[str, ...]] = {
    "__init__": ("self", "model", "reward_funcs", "args", "train_dataset"),
    "train": ("self", "resume_from_checkpoint"),
    "log": ("self", "logs", "start_time"),
    "push_to_hub": ("self",),
    "create_model_card": ("self",),
    "_generate_and_score_completions": ("self", "inputs"),
    "_generate": ("self", "prompts"),
    "_generate_single_turn": ("self", "prompt_ids", "images", "multimodal_fields", "num_generations"),
    "_calculate_rewards": ("self", "inputs", "prompts", "completions", "completion_ids_list"),
    "_compute_loss": ("self", "model", "inputs"),
    "_get_per_token_logps_and_entropies": ("self", "model", "input_ids", "attention_mask", "logits_to_keep"),
    "_get_train_sampler": ("self",),
    "_save_checkpoint": ("self", "model", "trial"),
    "_save_rng_state": ("self", "output_dir"),
    "_tokenize_prompts": ("self", "prompts"),
    "_get_output_dir": ("self", "trial"),
    "_load_best_model": ("self",),
    "_log_completion_extra": ("self", "column", "values"),
    "add_callback": ("self", "callback"),
    "is_world_process_zero": ("self",),
}
"""Methods that are overridden or called, and their first parameters; later ones are passed through."""

ATTRIBUTES = _names(
    """
    _buffered_inputs _entropy_bonus_enabled _globalstep_last_logged _last_loaded_step _logs _metrics _name _paper
    _pending_extra_logs _step _tag_names _tokenizer _tr_loss accelerator args async_loop aux_loss_enabled callback_handler
    control current_gradient_accumulation_steps eos_token_ids epsilon_high epsilon_low generation_config
    importance_sampling_level is_fsdp_enabled log_completions loss_type mask_truncated_completions max_completion_length model
    multi_objective_aggregation num_generations num_iterations processing_class ref_model reward_func_names reward_funcs
    reward_weights rollout_func scale_rewards shuffle_dataset state temperature train_dataset
    use_transformers_continuous_batching use_vllm vllm_mode
    """
)
"""Attributes of the host's trainer that are read or set."""

OPTIONS = _names(
    """
    beta bf16 deepspeed disable_dropout disable_tqdm epsilon fsdp generation_batch_size generation_kwargs
    gradient_accumulation_steps gradient_checkpointing_kwargs importance_sampling_level load_best_model_at_end
    log_completions loss_type mask_truncated_completions max_completion_length max_steps multi_objective_aggregation
    num_generations num_iterations num_train_epochs output_dir per_device_train_batch_size push_to_hub
    resume_from_checkpoint save_on_each_node save_strategy scale_rewards seed shuffle_dataset steps_per_generation
    temperature top_entropy_quantile use_vllm vllm_importance_sampling_correction vllm_tensor_parallel_size
    """
)
"""Fields of the host's configuration that are read."""

COLUMNS = frozenset(
    {
        "advantages", "completion_ids", "completion_mask", "num_items_in_batch", "old_per_token_logps", "ref_per_token_logps",
        "sampling_per_token_logps", "importance_sampling_ratio",
    }
)  # fmt: skip
"""Columns of the host's batch that are read or depended on."""

RESULT = "prompt_ids, completion_ids, tool_mask, completions, logprobs"
"""The first elements of the tuple that `_generate` returns."""

NAMES: Mapping[str, tuple[str, ...]] = {
    "trl.models.utils": ("disable_gradient_checkpointing",),
    "transformers.trainer_utils": ("PREFIX_CHECKPOINT_DIR", "TrainOutput"),
}


def changes(trainer: type, config: type) -> list[str]:
    """List the entries of the tables that do not hold of a host.

    Args:
        trainer: its class `GRPOTrainer`.
        config: its class `GRPOConfig`.
    """
    found = [change for name, expected in METHODS.items() if (change := _method_change(trainer, name, expected))]
    sources = "\n".join(inspect.getsource(base) for base in trainer.__mro__ if base.__module__ != "builtins")
    known = {*dir(trainer), *re.findall(r"\bself\.(\w+)", sources)}
    found += [f"GRPOTrainer has no attribute {name!r}" for name in sorted(ATTRIBUTES - known)]
    options = {f.name for f in fields(config)}
    found += [f"GRPOConfig has no option {name!r}" for name in sorted(OPTIONS - options)]
    found += [f"no column {name!r} in a batch" for name in sorted(COLUMNS) if f'"{name}"' not in sources]
    if not hasattr(trainer, "_generate") or f"return {RESULT}" not in inspect.getsource(trainer._generate):
        found.append(f"GRPOTrainer._generate returns something else than {RESULT}, ...")
    found += [
        f"{module} has no {name}" for module, names in NAMES.items() for name in names if not _has(module, name)
    ]  # fmt: skip
    return found


def _method_change(trainer: type, name: str, expected: tuple[str, ...]) -> str | None:
    method = getattr(trainer, name, None)
    if method is None:
        return f"GRPOTrainer has no method {name}"
    signature = inspect.signature(method).parameters
    takes = tuple(signature)[: len(expected)]
    if takes == expected:
        return None
    return f"GRPOTrainer.{name} takes ({', '.join(takes)}), not ({', '.join(expected)})"


def _has(module: str, name: str) -> bool:
    try:
        return hasattr(import_module(module), name)
    except ImportError:
        return False


def check_host_version(installed: str | None = None, host: tuple[type, type] | None = None) -> None:
    """Accept a tested version of TRL, or, with a warning, a newer minor one that meets the contract.

    Args:
        installed: its version; that of the installed one by default.
        host: its classes `GRPOTrainer` and `GRPOConfig`; the installed ones by default.

    Raises:
        HostVersionError: another one, unless EXGRPO_ALLOW_TRL=1 is set; it says what has changed.
    """
    installed = installed or version("trl")
    found, (low, high) = Version(installed), TESTED_TRL
    if low <= found < high:
        _check_kernels(found)
        return
    changed: list[str] = []
    if high <= found < SUPPORTED_TRL[1]:
        changed = changes(*(host or _host()))
        if not changed:
            _say(installed, "has all that this trainer extends; it was not tested with it")
            return
    if os.environ.get(OVERRIDE) == "1":
        _say(installed, f"is used since {OVERRIDE}=1" + (f"; changed: {'; '.join(changed)}" if changed else ""))
        return
    why = f" It has changed what is extended: {'; '.join(changed)}." if changed else ""
    raise HostVersionError(
        f"exgrpo supports trl>={low},<{high}, but trl {installed} is installed. Run: pip install 'trl>={low},<{high}', or set "
        f"{OVERRIDE}=1 to try this version.{why}"
    )


def _host() -> tuple[type, type]:
    trl: Any = import_module("trl")
    return trl.GRPOTrainer, trl.GRPOConfig


def _check_kernels(installed: Version) -> None:
    """Refuse TRL 1.15 without Triton, which it alone needs for log-probs, from the first forward on."""
    if installed >= Version("1.16") or _has("triton", "jit"):
        return
    if getattr(import_module("trl.trainer.utils"), "_ChunkedLogProbFunction", None) is None:
        raise HostVersionError(
            f"trl {installed} computes log-probs by Triton, which is not installed (there is no Triton for CPUs). "
            "Run: pip install 'trl>=1.16,<1.17', which does not need it, or pip install triton on a machine with a GPU."
        )


def _say(installed: str, what: str) -> None:
    low, high = TESTED_TRL
    logger.warning("trl %s %s (tested: trl>=%s,<%s).", installed, what, low, high)
