"""Reading a completion, for every verifier: its text without its thinking, and its boxes.

A thought may have been begun by the prompt. A text prompt shows it; where the prompt is messages, only who put them
through the chat template knows, and says so by `thinking_begun`.

All functions take time linear in the length of the text: completions are hostile input.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from ..errors import ConfigurationError

logger = logging.getLogger(__name__)

THINK, THINK_END = "<think>", "</think>"
# as other families of models write them: R1's in capitals, Claude's, Magistral's, Kimi's, Sky-T1's, those of tutorials
_TAGS = {
    tag: end
    for opening, closing in (
        ("<THINK>", "</THINK>"), ("<thinking>", "</thinking>"), ("<thought>", "</thought>"), ("<reasoning>", "</reasoning>"),
        ("[THINK]", "[/THINK]"), ("◁think▷", "◁/think▷"), ("<|begin_of_thought|>", "<|end_of_thought|>"),
    )
    for tag, end in ((opening, THINK), (closing, THINK_END))
}  # fmt: skip
VERDICTS = "2"
F = TypeVar("F", bound=Callable[..., Any])
_BRACE = re.compile(r"\\(?:boxed|fbox)\s*\{|\\[{}\\]|[{}]")
_OPENING = re.compile(r"(?:[\n>|]|assistant\s?:)[ \t]*\Z", re.IGNORECASE)
_THOUGHTS = ("thinking", "reasoning", "reasoning_content")
_begun: ContextVar[Mapping[str, bool] | None] = ContextVar("exgrpo_thinking_begun", default=None)
_warned: set[str] = set()


def completion_text(completion: Any) -> str:
    """Return the text of a completion: a string, or the content of the last assistant message.

    A content may be a string, a list of parts of which those of type `text` count, or None (a tool call: no text).
    Raises `ConfigurationError` for anything else, since an exception must never become a score.
    """
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Sequence) and all(isinstance(message, Mapping) for message in completion):
        if (message := _reply(completion)) is not None:
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


def _reply(messages: Sequence[Any]) -> Mapping[str, Any] | None:
    """Return the last message of the assistant."""
    return next((message for message in reversed(messages) if message.get("role") == "assistant"), None)


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


def answer_text(completion: Any, begun: bool = False) -> str:
    """Return the text of a completion after its last `</think>`; nothing while it still thinks.

    Args:
        completion: see `completion_text`; a message with its thinking in a field of its own has an answer as its content.
        begun: whether the prompt began the thinking. Then a text without `</think>` is a thought that was cut.
    """
    _, end, text = _with_usual_tags(completion_text(completion)).rpartition(THINK_END)
    if THINK in text or (begun and not end and not _thinks_apart(completion)):
        return ""
    return text


def _with_usual_tags(text: str) -> str:
    for tag, usual in _TAGS.items():
        if tag in text:
            text = text.replace(tag, usual)
    return text


def answer_texts(prompts: Any, completions: Sequence[Any]) -> list[str]:
    """Return `answer_text` of all completions, using what is known of their prompts."""
    began = beginnings(prompts, len(completions))
    return [answer_text(completion, bool(begun)) for completion, begun in zip(completions, began, strict=True)]


def _thinks_apart(completion: Any) -> bool:
    message = None if isinstance(completion, str) else _reply(completion)
    return message is not None and any(message.get(name) for name in _THOUGHTS)


@contextmanager
def thinking_begun(prompts: Sequence[Any], begun: Sequence[bool]) -> Iterator[None]:
    """Tell the verifiers called inside, async ones too, which prompts end in a thought that their template began.

    Args:
        prompts: N lists of messages, as reward functions get them.
        begun: N flags.
    """
    told = _begun.set({repr(prompt): flag for prompt, flag in zip(prompts, begun, strict=True)})
    try:
        yield
    finally:
        _begun.reset(told)


def beginnings(prompts: Any, number: int) -> list[bool | None]:
    """Return whether each prompt ends in a thought that it began; None where that is not known."""
    if prompts is None or len(prompts) != number:
        prompts = [None] * number
    known = _begun.get()
    return [_has_begun(prompt, known) for prompt in prompts]


def _has_begun(prompt: Any, known: Mapping[str, bool] | None) -> bool | None:
    if isinstance(prompt, str):
        return opens_thinking(prompt)
    if known:
        told = known.get(repr(prompt)) if prompt is not None else None
        if told is not None:
            return told
        if len({*known.values()}) == 1:  # one template for all
            return next(iter(known.values()))
    last = prompt[-1] if isinstance(prompt, Sequence) and prompt else None
    if isinstance(last, Mapping) and last.get("role") == "assistant":  # to be continued
        return opens_thinking(_content_text(last.get("content"))) or None
    return None


def opens_thinking(prompt: str) -> bool:
    """Return whether a prompt ends in a thought that it began.

    Nothing follows its last `<think>`, or that stands where a reply begins. A tag that is only spoken of does not
    count.
    """
    before, tag, after = _with_usual_tags(prompt).rpartition(THINK_END)[2].rpartition(THINK)
    return bool(tag) and (not after.strip() or _OPENING.search(before[-64:]) is not None)


def boxes(text: str) -> list[str] | None:
    r"""Return the contents of all `\boxed{...}` in order.

    A box that holds nothing but another one counts once; one that holds more than that is read as a whole. None if a box is
    left open: the completion was cut inside its answer, and `\boxed{4` is not 4.
    """
    found = box_spans(text)
    return None if found is None else [text[start:end].strip() for _, _, start, end in found]


def box_spans(text: str) -> list[tuple[int, int, int, int]] | None:
    """Return where the boxes of `boxes` are: start and end of each, start and end of its content."""
    if "boxed" not in text and "fbox" not in text:
        return []
    found: list[tuple[int, int, int, int]] = []
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
    return None if any(is_box for _, _, is_box, _ in stack) else found


def versioned(function: F) -> F:
    """Mark a reward function with the version of its verdicts, to be raised when they change.

    Experience scored by another version is scored again when it is used.
    """
    function.__dict__["version"] = VERDICTS
    return function


def looks_for(where: str, finds: Callable[[str], bool]) -> Callable[[F], F]:
    """Declare where a reward function looks for an answer, and how to tell whether a text holds one there.

    See `answer_texts` for the texts. The trainer then reports at once when no completion of a generation holds one.
    """

    def mark(function: F) -> F:
        function.__dict__.update(where=where, finds=finds)
        return function

    return mark


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
    """Return `repr`, even of an integer that is too long to be written."""
    try:
        return repr(gold)
    except Exception:  # noqa: BLE001 - the object is not ours
        return f"an object that cannot be shown, a {type(gold).__name__}"
