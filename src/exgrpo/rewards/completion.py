"""What every verifier of this package reads: the text of a completion, without its thinking, and its boxes.

All functions take time linear in the length of the text: completions are hostile input.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ..errors import ConfigurationError

logger = logging.getLogger(__name__)

THINK, THINK_END = "<think>", "</think>"
VERDICTS = "1"
F = TypeVar("F", bound=Callable[..., Any])
_BRACE = re.compile(r"\\(?:boxed|fbox)\s*\{|\\[{}\\]|[{}]")
_warned: set[str] = set()


def completion_text(completion: Any) -> str:
    """The text of one completion: a string, or the content of the last assistant message of a list of messages.

    A content may be a string, a list of parts of which those of type `text` count, or None (a tool call: no text).
    Raises `ConfigurationError` for anything else, since an exception must never become a score.
    """
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Sequence) and all(isinstance(message, Mapping) for message in completion):
        for message in reversed(completion):
            if message.get("role") == "assistant":
                return _content_text(message.get("content"))
        if not completion:
            return ""
        raise ConfigurationError(
            "A reward function got a conversational completion without an assistant message; roles: "
            f"{[message.get('role') for message in completion]}."
        )
    raise ConfigurationError(
        "A reward function takes completions that are strings or lists of {'role', 'content'} messages, "
        f"got {type(completion).__name__}."
    )


def _content_text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence) and all(isinstance(part, Mapping) for part in content):
        return "".join(str(part.get("text") or "") for part in content if part.get("type") == "text")
    raise ConfigurationError(
        f"The content of an assistant message must be a string, a list of parts or None, got {type(content).__name__}."
    )


def answer_text(completion: Any) -> str:
    """The text of a completion after its last `</think>`; all of it where there is none; nothing while it still thinks."""
    text = completion_text(completion).rpartition(THINK_END)[2]
    return "" if THINK in text else text


def boxes(text: str) -> list[str] | None:
    r"""The contents of all `\boxed{...}` in order.

    A box that holds nothing but another one counts once; one that holds more than that is read as a whole. None if a box is
    left open: the completion was cut inside its answer, and `\boxed{4` is not 4.
    """
    if "boxed" not in text and "fbox" not in text:
        return []
    found: list[tuple[int, int, int, int]] = []  # start and end of a box, start and end of its content
    stack: list[tuple[int, int, bool, int]] = []  # (start, start of the content, is it a box, boxes found before it)
    for match in _BRACE.finditer(text):
        token = match.group()
        if token == "{" or len(token) > 2:
            stack.append((match.start(), match.end(), len(token) > 2, len(found)))
        elif token == "}" and stack:
            opened, start, is_box, before = stack.pop()
            if not is_box:
                continue
            content = start, match.start()
            if len(found) == before + 1:
                inner = found[before]
                if not text[start : inner[0]].strip() and not text[inner[1] : match.start()].strip():
                    content = inner[2], inner[3]
            del found[before:]
            found.append((opened, match.end(), *content))
    if any(is_box for _, _, is_box, _ in stack):
        return None
    return [text[start:end].strip() for _, _, start, end in found]


def versioned(function: F) -> F:
    """Mark a reward function with the version of its verdicts, to be raised when they change: experience that was scored by
    another one is then scored again when it is used."""
    function.__dict__["version"] = VERDICTS
    return function


def warn_unscorable(function: str, wanted: str, gold: Any) -> None:
    """Log, once per process and reward function, that a gold answer is not of the kind that the function reads."""
    if function not in _warned:
        _warned.add(function)
        logger.warning(
            "A gold answer is not %s: %.80s. %s returns None (unscorable) for such rows, which then count neither as "
            "right nor as wrong; if there are many, choose another reward function.",
            wanted,
            _shown(gold),
            function,
        )


def _shown(gold: Any) -> str:
    """`repr` that does not fail: an integer can be too long to be written."""
    try:
        return repr(gold)
    except Exception:  # noqa: BLE001 - the object is not ours
        return f"an object that cannot be shown, a {type(gold).__name__}"
