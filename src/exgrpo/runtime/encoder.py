"""Embed completions by any encoder of `transformers`, in a thread beside the training step."""

import itertools
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from ..errors import ConfigurationError
from ..experience.quality import Embedder, embed
from ..experience.trajectory import FloatArray

WIDTH_STEP = 32

TokenIds = tuple[int, ...]


class TextEncoder:
    """An embedder: the mean of an encoder's last hidden states over a text's tokens, at unit length.

    A text is padded to a width that follows from its own length, and shares a batch only with texts of that width, so its
    embedding does not depend on what else is embedded: to the bit on a CPU, where the kernels treat each row alike; equal
    texts have equal embeddings anywhere. Of a text longer than `max_length` tokens, the first `max_length` count.

    Loading draws nothing from the random state of the run. Gradients, autocast and training mode of the caller do not reach it.

    Args:
        model: a folder, or a name on the Hub: the option `embedding_model`.
        device: where it runs.
        batch_size: texts in a forward.
        max_length: tokens of a text, special ones included; less where the model takes less.

    Attributes:
        dimension: D.
        max_length: tokens of a text that count.

    Raises:
        ConfigurationError: the model cannot be loaded, or is none that embeds.
    """

    def __init__(self, model: str, device: str | torch.device = "cpu", batch_size: int = 32, max_length: int = 512):
        if batch_size < 1 or max_length < 1:
            raise ConfigurationError(
                f"embedding_model={model!r} needs a batch_size and a max_length of at least 1, not {batch_size} and "
                f"{max_length}."
            )
        self._name = str(model)
        self._batch_size = batch_size
        self._lock = Lock()
        self._device = torch.device("cpu")
        self._tokenizer, self._model = self._load()
        limits = (self._tokenizer.model_max_length, getattr(self._model.config, "max_position_embeddings", None))
        self.max_length = min([max_length, *(int(limit) for limit in limits if limit and limit > 0)])
        pad = self._tokenizer.pad_token_id
        self._pad = 0 if pad is None else pad
        self.dimension = self._try()
        self._device = torch.device(device)
        self._model.to(self._device)

    def __call__(self, texts: Sequence[str]) -> FloatArray:
        """Embed n texts as (n, D) float16, each row of unit length; zeros for a text without tokens."""
        if not len(texts):
            return np.zeros((0, self.dimension), np.float16)
        with self._lock:  # tokenizers are not thread-safe
            given = self._tokenizer(list(texts), truncation=True, max_length=self.max_length, padding=False)
            rows = [tuple(ids) for ids in given["input_ids"]]
            found: dict[TokenIds, FloatArray] = {(): np.zeros(self.dimension, np.float16)}
            for batch in self._batches(set(rows) - found.keys()):
                found.update(zip(batch, self._forward(batch), strict=True))
        return np.stack([found[ids] for ids in rows])

    def _load(self) -> tuple[Any, Any]:
        from transformers import AutoModel, AutoTokenizer

        try:
            with torch.random.fork_rng(devices=[]):
                tokenizer = AutoTokenizer.from_pretrained(self._name)
                model = AutoModel.from_pretrained(self._name, dtype=torch.float32)
        except Exception as error:  # transformers raises nothing narrower
            raise ConfigurationError(
                f"embedding_model={self._name!r} cannot be loaded as an encoder with its tokenizer: {error}. Set it to a "
                "folder that holds both, or to the name of such a model on the Hub."
            ) from error
        return tokenizer, model.eval().requires_grad_(False)

    def _try(self) -> int:
        """Return D from a text of the greatest length: what cannot work fails here, not after hours."""
        try:
            embedding = self._forward([(self._pad,) * self.max_length])
        except Exception as error:  # the model is the user's
            raise ConfigurationError(
                f"embedding_model={self._name!r} cannot embed a text of {self.max_length} tokens: {type(error).__name__}: "
                f"{error}. Set it to an encoder that takes ids and a mask and returns its last hidden states."
            ) from error
        if not np.isfinite(embedding).all():
            raise ConfigurationError(
                f"embedding_model={self._name!r} gives values that are not finite. Set another one."
            )
        return int(embedding.shape[1])

    def _width(self, ids: TokenIds) -> int:
        return min(-(-len(ids) // WIDTH_STEP) * WIDTH_STEP, self.max_length)

    def _batches(self, rows: set[TokenIds]) -> Iterator[list[TokenIds]]:
        """Yield rows of one width each; those without padding apart, since models take another path without a mask."""
        in_order = sorted(rows, key=lambda ids: (len(ids), ids))
        for _, alike in itertools.groupby(in_order, key=lambda ids: (self._width(ids), self._width(ids) == len(ids))):
            group = list(alike)
            for start in range(0, len(group), self._batch_size):
                yield group[start : start + self._batch_size]

    @torch.no_grad()
    def _forward(self, rows: list[TokenIds]) -> FloatArray:
        """Embed n texts of one width, padded on the right, as (n, D) float16."""
        width = self._width(rows[0])
        ids = torch.tensor([[*row, *(self._pad,) * (width - len(row))] for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        ids, mask = ids.to(self._device), mask.to(self._device)
        with torch.autocast(self._device.type, enabled=False):
            hidden = self._model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
            mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            return normalize(mean, dim=-1).half().cpu().numpy()


class EmbeddingAhead:
    """Run an embedder in one background thread, beside the forwards of the loss.

    The answers are those that the embedder gives when it is called directly, one call for each `submit`, in their order. The
    thread takes as many intra-op threads of torch as any other. Embedding and a training step that have one each take 0.98 of
    the CPU time they take in turn, so that all is gained where a core is free and nothing where none is; with as many as there
    are cores each, they compete for them (`benchmarks/embedding.py`).

    The thread lives from the first `submit` to `result`, so that a process that forks between generations has none of it. A
    process that ends in between waits for what was submitted.

    Args:
        embedder: texts -> (n, D); called in the thread only.
    """

    def __init__(self, embedder: Embedder):
        self._embedder = embedder
        self._answers: dict[Hashable, Future[FloatArray]] = {}
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, key: Hashable, texts: Sequence[str]) -> None:
        """Embed texts ahead, under a key; returns at once.

        Raises:
            ConfigurationError: something was submitted under this key, and `result` was not called since.
        """
        if key in self._answers:
            raise ConfigurationError(f"Texts were already submitted under {key!r}: call result() first.")
        self._pool = self._pool or ThreadPoolExecutor(1, "exgrpo-embedding")
        self._answers[key] = self._pool.submit(embed, self._embedder, tuple(texts))

    def result(self) -> dict[Hashable, FloatArray]:
        """Wait for all that was submitted since the last call; return it by key, in order, (n, D) float16.

        Raises what the embedder raised, or `ConfigurationError` for what it answered; what waits then is not embedded.
        """
        answers, pool = self._answers, self._pool
        self._answers, self._pool = {}, None
        try:
            return {key: answer.result() for key, answer in answers.items()}
        finally:
            if pool is not None:
                pool.shutdown(cancel_futures=True)
