"""Refuse what no host can replay: before a model is loaded, and after."""

import logging
from collections.abc import Sequence
from typing import Any

from torch import nn

from ..errors import ConfigurationError, DatasetError
from ..experience.quality import Embedder
from ..experience.trajectory import IntArray
from .encoder import TextEncoder

logger = logging.getLogger(__name__)

FUNCTIONAL_DROPOUT = ("attention_dropout", "attn_dropout", "attention_probs_dropout_prob", "dropout_prob")
"""Attributes under which attention layers keep a dropout that is no module of its own."""


def check_trainable(model: nn.Module) -> None:
    """Refuse a model in which nothing can be learned."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigurationError(
            "no parameter of the model is trainable (requires_grad). Load an adapter with "
            "PeftModel.from_pretrained(..., is_trainable=True), or unfreeze the model."
        )


def check_lengths(lengths: IntArray, rows: IntArray, positions: int | None, completion: int, hard: bool) -> None:
    """Refuse prompts that, together with completions, exceed the model's positions.

    Args:
        lengths: of the prompt of each question, in tokens, (Q,).
        rows: of the dataset, one of each question, (Q,).
        positions: of the model; None where they have no end.
        completion: tokens that a completion may have.
        hard: whether positions are absolute: there is nothing beyond the last.
    """
    if positions is None:
        return
    question = int(lengths.argmax())
    longest, row = int(lengths[question]), int(rows[question])
    if longest >= positions:
        raise DatasetError(
            f"the prompt of row {row} of train_dataset has {longest} tokens, but the model has {positions} positions for "
            f"prompt and completion ({int((lengths >= positions).sum())} prompts leave no room). Remove such rows with "
            "dataset.filter, or use a model with a longer context."
        )
    if longest + completion > positions:
        text = (
            f"the prompt of row {row} of train_dataset has {longest} tokens: with max_completion_length={completion} that is "
            f"more than the {positions} positions of the model. Set max_completion_length to at most {positions - longest}, or "
            "leave the longest prompts out with dataset.filter."
        )
        if hard:
            raise ConfigurationError(text)
        logger.warning("Beyond the context length of the model: %s", text)


def check_prefix_room(lengths: IntArray, positions: int | None, completion: int) -> None:
    """Refuse prefixes where the tokens generated after them, before they are cut, can exceed the positions.

    Args:
        lengths: of the prompt of each question, in tokens, (Q,).
        positions: of a model with none beyond the last; None where they have no end.
        completion: tokens that a completion may have, what it begins with among them.
    """
    needed = int(lengths.max()) + 2 * completion - 1
    if positions is not None and needed > positions:
        raise ConfigurationError(
            f"mixing='prefix' generates up to max_completion_length={completion} tokens after the prompt and the "
            f"prefix, and then cuts the completion: up to {needed} positions, but the model has {positions} and none "
            f"beyond. Set max_completion_length to at most {(positions - int(lengths.max()) + 1) // 2}, or use a model with "
            "rotary positions."
        )


def check_prompts(prompt_ids: Sequence[Sequence[int]], positions: int | None) -> None:
    """Refuse prompts of a generation that do not fit, where no table of all questions was made."""
    longest = max(map(len, prompt_ids), default=0)
    if positions is not None and longest >= positions:
        raise DatasetError(
            f"a prompt has {longest} tokens, but the model has {positions} positions for prompt and completion. Leave such "
            "rows out with dataset.filter, or use a model with a longer context."
        )


def embedder_of(config: Any, given: Embedder | None) -> Embedder | None:
    """Return what embeds completions: the one given, or the encoder that `embedding_model` names; None without use."""
    replay = config.replay
    if not replay.uses_quality:
        if given is not None or config.embedding_model is not None:
            logger.warning(
                "%s has no effect: no option looks at the quality of completions. Set admission='quality', a trajectory_choice "
                "or an eviction that does, or preset='quality-tiers'.",
                "embedding_model" if given is None else "embedder",
            )
        return None
    if given is not None:
        return given
    if config.embedding_model is None:
        raise ConfigurationError(
            f"admission={replay.admission!r}, trajectory_choice={replay.trajectory_choice!r} or eviction={replay.eviction!r} "
            f"(preset={config.preset!r}) needs the quality of completions, and quality an encoder. Set embedding_model to one, "
            "such as 'sentence-transformers/all-MiniLM-L6-v2' or a folder; or pass embedder=, a function from texts to (n, D)."
        )
    return TextEncoder(config.embedding_model, config.embedding_device)


def check_same_questions(digests: Sequence[str]) -> None:
    """Refuse processes that hold other questions, or another order."""
    if len(set(digests)) > 1:
        raise DatasetError(
            "the processes hold different train_datasets (other rows, or another order): every process plans the same "
            "batch from its own copy. Load or shuffle it with the same seed on every process."
        )


def check_no_dropout(model: Any) -> None:
    """Refuse dropout: log-probs of a forward with it are not those of the policy that generated."""
    modules = dict(model.named_modules())
    active = [name for name, module in modules.items() if isinstance(module, nn.Dropout) and module.p > 0]
    if active:
        raise ConfigurationError(
            f"the model has active dropout ({active[0]}, {len(active)} modules in all): log-probs under dropout are not "
            "the behaviour policy's, and importance ratios of replayed tokens would be noise. Set disable_dropout=True."
        )
    for name, module in modules.items():
        for attribute in FUNCTIONAL_DROPOUT:
            value = getattr(module, attribute, None)
            if isinstance(value, float) and value > 0:
                raise ConfigurationError(
                    f"{name} has {attribute}={value}, which disable_dropout does not reach: log-probs under dropout are "
                    f"not the behaviour policy's. Load the model with {attribute}=0.0 in its config (on the trainer: "
                    f"model_init_kwargs={{'{attribute}': 0.0}})."
                )


def correctness_index(names: Sequence[str], chosen: str | None) -> int:
    """Return which reward function decides whether a completion is right: the named one, or the first."""
    if chosen is None:
        return 0
    if list(names).count(chosen) > 1:
        raise ConfigurationError(
            f"correctness_function={chosen!r} is the name of {list(names).count(chosen)} reward functions. Give each a name of "
            "its own (function.__name__ = ...)."
        )
    if chosen not in names:
        raise ConfigurationError(f"correctness_function={chosen!r} is not one of the reward functions: {list(names)}.")
    return list(names).index(chosen)
