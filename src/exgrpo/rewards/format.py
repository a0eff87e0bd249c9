"""Reward for form, in the convention of TRL's `think_format_reward`: thinking between tags, then an answer.

It differs from TRL's in what it takes and in what it lets through: strings as well as messages; exactly one thinking
part, before which there may be space; an answer that is not empty; and a prompt that already opens `<think>`, as some
chat templates do, need not be answered with another.
"""

from typing import Any

from .completion import THINK_END, completion_text

THINK = "<think>"


def format_reward(prompts: Any, completions: list[Any], **kwargs: Any) -> list[float]:
    """1.0 for `<think>...</think>` once, at the beginning, with text after it; else 0.0.

    Args:
        prompts: N strings, or N lists of messages; only whether a string ends with `<think>` matters. May be None.
        completions: N strings, or N lists of messages.
    """
    opened = [False] * len(completions) if prompts is None else [_is_open(prompt) for prompt in prompts]
    texts = map(completion_text, completions)
    return [float(is_well_formed(text, before)) for text, before in zip(texts, opened, strict=True)]


def is_well_formed(text: str, opened: bool = False) -> bool:
    """Whether a completion thinks once, to the end, and then says something; `opened`: its prompt began the thinking."""
    text = text.lstrip()
    begins = text.startswith(THINK)
    if begins:
        text = text[len(THINK) :]
    thought, end, answer = text.partition(THINK_END)
    return (
        (begins or opened)
        and bool(end)
        and bool(answer.strip())
        and THINK not in thought
        and THINK not in answer
        and THINK_END not in answer
    )


def _is_open(prompt: Any) -> bool:
    return isinstance(prompt, str) and prompt.rstrip().endswith(THINK)
