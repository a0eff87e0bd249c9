"""Completions as text, whole and token by token: by the tokenizer that the log keeps, where `tokenizers` is installed."""

from collections.abc import Sequence
from typing import Any

from ..log import LogReader, Provenance

REPLACEMENT = "\ufffd"
"""The decoder's output for bytes that are not a whole character yet."""
CONTEXT = 6
"""Tokens before a token that its text may depend on."""


class Decoder:
    """Token ids as text, by the tokenizer under which they were made."""

    def __init__(self, reader: LogReader):
        self._reader = reader
        self._known: dict[str, Any] = {}

    def __call__(self, origin: Provenance, completions: Sequence[Sequence[int]]) -> list[str | None]:
        """Decode completions with special tokens; None where the log keeps no such tokenizer."""
        tokenizer = self._tokenizer(origin.tokenizer)
        if tokenizer is None:
            return [None] * len(completions)
        return list(tokenizer.decode_batch([list(ids) for ids in completions], skip_special_tokens=False))

    def pieces(self, origin: Provenance, ids: Sequence[int]) -> list[str] | None:
        """Cut the text of a completion into that of each token, (T,); joined they are the text.

        A token that ends within a character has an empty piece, and the one that completes it has the character. None where
        the log keeps no such tokenizer.
        """
        tokenizer = self._tokenizer(origin.tokenizer)
        if tokenizer is None:
            return None
        ids = list(ids)
        whole = tokenizer.decode(ids, skip_special_tokens=False)
        alone = tokenizer.decode_batch([[one] for one in ids], skip_special_tokens=False)
        return list(alone) if "".join(alone) == whole else _by_context(tokenizer, ids, whole)

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


def _by_context(tokenizer: Any, ids: list[int], whole: str) -> list[str]:
    """Return the text that each token adds to its predecessors, where it depends on its neighbours."""
    pieces: list[str] = []
    start, shown = 0, 0  # of the window, and how far the text was cut
    for end in range(1, len(ids) + 1):
        before = tokenizer.decode(ids[start:shown], skip_special_tokens=False) if shown > start else ""
        text = tokenizer.decode(ids[start:end], skip_special_tokens=False)
        if text.endswith(REPLACEMENT) and end < len(ids):
            pieces.append("")
            continue
        pieces.append(text[len(before) :])
        start, shown = max(start, end - CONTEXT), end
    return pieces if "".join(pieces) == whole else ["", *[""] * (len(ids) - 2), whole][-len(ids) :]
