"""Completions of many prompts from a Hugging Face model, in large batches of similar length."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..rewards.completion import opens_thinking


@dataclass(frozen=True)
class Completion:
    """One completion: its token ids (the end token among them if it was emitted), its text, and whether it ended."""

    ids: list[int]
    text: str
    finished: bool


def prompt_token_ids(tokenizer: Any, prompts: list[Any]) -> list[list[int]]:
    """Tokenise each prompt as TRL's GRPO trainer does: a string, or messages through the chat template."""
    if all(isinstance(prompt, str) for prompt in prompts):
        return tokenizer(text=prompts)["input_ids"]
    encoded = tokenizer.apply_chat_template(prompts, add_generation_prompt=True, tokenize=True, return_dict=True)
    return encoded["input_ids"]


def begins_thought(tokenizer: Any, prompt: Any, ids: list[int]) -> bool:
    """Return whether a prompt ends in a thought that it, or its chat template, began."""
    return opens_thinking(prompt if isinstance(prompt, str) else tokenizer.decode(ids, skip_special_tokens=True))


def generate(
    model: Any,
    tokenizer: Any,
    prompt_ids: list[list[int]],
    *,
    max_new_tokens: int,
    batch_size: int,
    temperature: float | None,
    top_p: float = 1.0,
) -> list[Completion]:
    """Complete each prompt, in order; greedy where `temperature` is None, else from the likeliest `top_p`.

    Prompts are sorted by length, so that a batch of at most `batch_size` rows has prompts of equal length wherever
    possible; the rest is padded on the left.
    """
    import torch

    config, eos = _generation_config(model, tokenizer, max_new_tokens, temperature, top_p)
    completions: list[Completion | None] = [None] * len(prompt_ids)
    for batch in batches_of([len(ids) for ids in prompt_ids], batch_size):
        width = len(prompt_ids[batch[-1]])
        ids = torch.full((len(batch), width), config.pad_token_id, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, index in enumerate(batch):
            ids[row, width - len(prompt_ids[index]) :] = torch.tensor(prompt_ids[index])
            mask[row, width - len(prompt_ids[index]) :] = 1
        with _defaults_aside(model):
            output = model.generate(
                input_ids=ids.to(model.device), attention_mask=mask.to(model.device), generation_config=config
            )
        rows = [_until_end(row, eos) for row in output[:, width:].tolist()]
        texts = tokenizer.batch_decode([row for row, _ in rows], skip_special_tokens=True)
        for index, (tokens, finished), text in zip(batch, rows, texts, strict=True):
            completions[index] = Completion(tokens, text, finished)
    return [completion for completion in completions if completion is not None]


def batches_of(lengths: list[int], batch_size: int) -> list[list[int]]:
    """Cut indices by length into even batches of at most `batch_size`; a batch ends with a longest prompt.

    Where a length has at least half a batch of rows, it gets batches of its own, without padding.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    runs: list[list[int]] = []
    for index in order:
        same = runs and lengths[runs[-1][-1]] == lengths[index]
        if same or (runs and len(runs[-1]) < batch_size // 2):
            runs[-1].append(index)
        else:
            runs.append([index])
    batches = []
    for run in runs:
        size = math.ceil(len(run) / math.ceil(len(run) / batch_size))
        batches += [run[start : start + size] for start in range(0, len(run), size)]
    return batches


def _until_end(ids: list[int], eos: frozenset[int]) -> tuple[list[int], bool]:
    for position, token in enumerate(ids):
        if token in eos:
            return ids[: position + 1], True
    return ids, False


@contextmanager
def _defaults_aside(model: Any) -> Iterator[None]:
    """Replace the model's own generation configuration, from which `generate` takes defaults, by a plain one."""
    from transformers import GenerationConfig

    own = [(module, module.generation_config) for module in model.modules() if "generation_config" in vars(module)]
    for module, _ in own:
        module.generation_config = GenerationConfig()
    try:
        yield
    finally:
        for module, config in own:
            module.generation_config = config


def _generation_config(
    model: Any, tokenizer: Any, max_new_tokens: int, temperature: float | None, top_p: float
) -> tuple[Any, frozenset[int]]:
    from transformers import GenerationConfig

    own = getattr(model, "generation_config", None)
    eos = getattr(own, "eos_token_id", None)
    ends = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
    if tokenizer.eos_token_id is not None and tokenizer.eos_token_id not in ends:
        ends = [tokenizer.eos_token_id, *ends]  # as TRL's trainer does
    pad = tokenizer.pad_token_id
    if pad is None:
        pad = ends[0] if ends else 0
    sampling = {} if temperature is None else {"temperature": temperature, "top_k": 0, "top_p": top_p}
    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=temperature is not None,
        repetition_penalty=1.0,
        num_beams=1,
        pad_token_id=pad,
        eos_token_id=ends or None,
        **sampling,
    )
    return config, frozenset(ends)
