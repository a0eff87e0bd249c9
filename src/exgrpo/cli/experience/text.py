"""Completions as text: by the tokenizer that the log keeps, where the `tokenizers` library is installed."""

from collections.abc import Sequence
from typing import Any

from ...log import LogReader, Provenance


class Decoder:
    """Token ids as text, by the tokenizer under which they were made."""

    def __init__(self, reader: LogReader):
        self._reader = reader
        self._known: dict[str, Any] = {}

    def __call__(self, origin: Provenance, completions: Sequence[Sequence[int]]) -> list[str | None]:
        """Texts, special tokens included; None where the log keeps no such tokenizer."""
        tokenizer = self._tokenizer(origin.tokenizer)
        if tokenizer is None:
            return [None] * len(completions)
        return list(tokenizer.decode_batch([list(ids) for ids in completions], skip_special_tokens=False))

    def knows_any(self) -> bool:
        return any(self._tokenizer(origin.tokenizer) is not None for origin in self._reader.origins().values())

    def _tokenizer(self, digest: str) -> Any:
        if digest not in self._known:
            self._known[digest] = self._load(digest)
        return self._known[digest]

    def _load(self, digest: str) -> Any:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            return None
        try:
            text = self._reader.tokenizer(digest)
            return None if text is None else Tokenizer.from_str(text)
        except Exception:  # noqa: BLE001 - that library raises nothing narrower; ids are shown instead, also where it is damaged
            return None
