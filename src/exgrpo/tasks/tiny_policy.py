"""The built-in tiny policy: a two-layer Llama of about 100,000 weights over characters, warmed up on a task.

`warm_policy(task, seed)` trains it for some seconds with TRL's SFTTrainer on the task's noisy demonstrations, and keeps
it on disk under a hash of everything that went in. The same seed gives the same weights, bit by bit, whatever the
caller's random state and number of threads; a warm-up that turned out badly is kept like any other.
"""

import hashlib
import json
import os
import random
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .base import Family, WarmUp, check

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

PAD, BOS, EOS, UNKNOWN = "<pad>", "<bos>", "<eos>", "<unk>"
SPECIAL = (PAD, BOS, EOS, UNKNOWN)
FORMAT = 1  # part of every cache key: raise it when this module trains differently
FINGERPRINT_ROWS = 256  # demonstrations hashed into the cache key, so that a changed teacher misses the cache
ENTRY = "warm_up.json"
RECIPE = 2
"""Counted up whenever the same demonstrations come to make another policy, so that no older entry of a cache is taken."""


@dataclass(frozen=True)
class PolicySize:
    """The shape of the policy. The defaults give 100,672 weights and 128 more for each token of the vocabulary.

    `rope_theta` is small because the texts are short: at the customary 10,000 most rotary frequencies hardly turn
    within 30 tokens, and the warm-up then does not learn where to look.
    """

    layers: int = 2
    width: int = 64
    feed_forward: int = 176
    heads: int = 4
    context: int = 256
    rope_theta: float = 10.0
    initializer_range: float = 0.08

    def __post_init__(self) -> None:
        check(
            min(self.layers, self.width, self.feed_forward, self.heads, self.context) >= 1
            and min(self.rope_theta, self.initializer_range) > 0,
            f"PolicySize: every size must be at least 1 and every other value positive, got {asdict(self)}",
        )
        check(
            self.width % self.heads == 0 and (self.width // self.heads) % 2 == 0,
            f"PolicySize: width / heads must be an even whole number, got {self.width} / {self.heads}",
        )


def make_tokenizer(task: Family, context: int = 256) -> "PreTrainedTokenizerFast":
    """Build the tokenizer: four special tokens, the characters of the task's alphabet, and its `units`.

    Decoding adds nothing.

    A text is cut into units where one stands and into characters elsewhere. A prompt begins with the `<bos>` that the
    tokenizer adds (`add_special_tokens`): with rotary positions it is what tells a token where in the text it stands.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate(dict.fromkeys((*SPECIAL, *task.alphabet, *task.units)))}
    pattern = "|".join([*map(re.escape, task.units), r"[\s\S]"])
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    backend.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, vocabulary[BOS])])
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNKNOWN,
        padding_side="left",
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )


def make_policy(tokenizer: "PreTrainedTokenizerFast", size: PolicySize | None = None) -> "LlamaForCausalLM":
    """Build a fresh policy for this tokenizer, in float32, with weights from torch's global generator."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    size = size or PolicySize()
    ids = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=size.width,
        intermediate_size=size.feed_forward,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        max_position_embeddings=size.context,
        rope_parameters={"rope_type": "default", "rope_theta": size.rope_theta},
        initializer_range=size.initializer_range,
        tie_word_embeddings=False,
        dtype=torch.float32,
        **ids,
    )
    model = LlamaForCausalLM(config)
    for name, value in ids.items():
        setattr(model.generation_config, name, value)
    return model


def warm_policy(
    task: Family,
    seed: int = 0,
    cache_dir: str | os.PathLike[str] | None = None,
    *,
    size: PolicySize | None = None,
    warm_up: WarmUp | None = None,
) -> tuple["LlamaForCausalLM", "PreTrainedTokenizerFast"]:
    """Return the tiny policy after its warm-up on `task`, and its tokenizer; from the cache where it is there.

    `cache_dir` defaults to `$EXGRPO_CACHE`, else `$XDG_CACHE_HOME/exgrpo`, else `~/.cache/exgrpo`. `size` and `warm_up`
    default to `PolicySize()` and the task's own. Raises ConfigurationError for a task without demonstrations.
    """
    check(isinstance(task, Family), f"The tiny policy has no warm-up for the task {getattr(task, 'name', task)!r}")
    size, warm_up = size or PolicySize(), warm_up or task.warm_up
    recipe = _recipe(task, seed, size, warm_up)
    text = json.dumps(recipe, sort_keys=True, indent=1)
    root = Path(cache_dir) if cache_dir is not None else default_cache_dir()
    entry = root / "tiny-policy" / f"{task.name}-{seed}-{hashlib.sha256(text.encode()).hexdigest()[:20]}"
    if not (entry / ENTRY).exists():
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=entry.parent, prefix=".building-") as building:
            with _isolated(seed):
                tokenizer = make_tokenizer(task, size.context)
                model = make_policy(tokenizer, size)
                _train(model, tokenizer, task, seed, warm_up)
            finished = Path(building) / "entry"
            with _no_progress_bars():
                model.save_pretrained(finished)
                tokenizer.save_pretrained(finished)
            (finished / ENTRY).write_text(text)
            _publish(finished, entry)
    return load_policy(entry)


def tiny_policy(
    task: Family, seed: int, batches: int | None = None
) -> tuple["LlamaForCausalLM", "PreTrainedTokenizerFast"]:
    """Return the built-in policy after its warm-up, and its tokenizer.

    `batches` replaces the task's own number.
    """
    return warm_policy(task, seed, warm_up=replace(task.warm_up, batches=batches) if batches else task.warm_up)


def load_policy(path: str | os.PathLike[str]) -> tuple["LlamaForCausalLM", "PreTrainedTokenizerFast"]:
    """Load model (evaluation mode) and tokenizer from a directory that `warm_policy` wrote."""
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    with _no_progress_bars():
        return LlamaForCausalLM.from_pretrained(path), PreTrainedTokenizerFast.from_pretrained(path)


def default_cache_dir() -> Path:
    """Return the default directory of warmed-up policies."""
    if given := os.environ.get("EXGRPO_CACHE"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "exgrpo"


def _recipe(task: Family, seed: int, size: PolicySize, warm_up: WarmUp) -> dict[str, Any]:
    """Return everything that decides the weights, as JSON values."""
    sample = json.dumps(task.demonstrations(FINGERPRINT_ROWS, seed))
    return {
        "format": FORMAT,
        "task": task.name,
        "knobs": task.knobs(),
        "alphabet": [task.alphabet, *task.units],
        "demonstrations": hashlib.sha256(sample.encode()).hexdigest(),
        "policy": asdict(size),
        "warm_up": asdict(warm_up),
        "seed": seed,
        "recipe": RECIPE,
        "versions": {package: version(package) for package in ("torch", "transformers", "trl", "tokenizers")},
    }


def _publish(finished: Path, entry: Path) -> None:
    """Move a finished entry into place; keep an equal one that another process put there first."""
    try:
        finished.rename(entry)
    except OSError:
        if not (entry / ENTRY).exists():
            raise


@contextmanager
def _isolated(seed: int) -> Iterator[None]:
    """Seed random states and use one thread inside; restore the caller's own after."""
    import numpy as np
    import torch

    states = random.getstate(), np.random.get_state(), torch.get_rng_state(), torch.get_num_threads()  # noqa: NPY002
    try:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])
        torch.set_num_threads(states[3])


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Disable progress bars, which a file of 400 kB does not need; restore the caller's setting after."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _encode(tokenizer: "PreTrainedTokenizerFast", pairs: list[tuple[str, str]]) -> dict[str, list[list[int]]]:
    """Return columns `input_ids` and `labels`: prompt, completion and end token, without loss on the prompt."""
    prompts = tokenizer([prompt for prompt, _ in pairs])["input_ids"]
    completions = tokenizer([completion for _, completion in pairs], add_special_tokens=False)["input_ids"]
    end = [tokenizer.eos_token_id]
    rows = [(prompt, completion + end) for prompt, completion in zip(prompts, completions, strict=True)]
    return {
        "input_ids": [prompt + completion for prompt, completion in rows],
        "labels": [[-100] * len(prompt) + completion for prompt, completion in rows],
    }


def _train(
    model: "LlamaForCausalLM", tokenizer: "PreTrainedTokenizerFast", task: Family, seed: int, warm_up: WarmUp
) -> None:
    """Run the warm-up in place: AdamW with betas .9 and .95, gradient norm clipped at 1, rate as `WarmUp` says."""
    from datasets import Dataset
    from transformers import PrinterCallback

    from trl import SFTConfig, SFTTrainer

    rows = Dataset.from_dict(_encode(tokenizer, task.demonstrations(warm_up.batches * warm_up.batch_size, seed)))
    decay = max(1, warm_up.batches // 4)
    with tempfile.TemporaryDirectory() as output_dir:
        config = SFTConfig(
            output_dir=output_dir,
            max_steps=warm_up.batches,
            per_device_train_batch_size=warm_up.batch_size,
            learning_rate=warm_up.learning_rate,
            warmup_steps=min(warm_up.rise, decay),
            lr_scheduler_type="warmup_stable_decay",
            lr_scheduler_kwargs={"num_decay_steps": decay, "decay_type": "linear"},
            adam_beta1=0.9,
            adam_beta2=0.95,
            max_grad_norm=1.0,
            seed=seed,
            dataset_kwargs={"skip_prepare_dataset": True},
            packing=False,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            dataloader_num_workers=0,
            dataloader_pin_memory=False,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = SFTTrainer(model=model, args=config, train_dataset=rows, processing_class=tokenizer)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    model.config.use_cache = True  # the trainer turns it off
