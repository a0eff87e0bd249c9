"""Reward for form, in the convention of TRL's `think_format_reward`: thinking between tags, then an answer.

It differs from TRL's in what it takes and in what it lets through: strings as well as messages; exactly one thinking
part, before which there may be space; an answer that is not empty; and a prompt that already opens `<think>`, as some
chat templates do, need not be answered with another. Whether the template of a prompt in messages does is known in
training and evaluation; elsewhere it is given the benefit of the doubt.
"""

from typing import Any

from .completion import THINK, THINK_END, beginnings, completion_text


def format_reward(prompts: Any, completions: list[Any], **kwargs: Any) -> list[float]:
    """Give 1.0 for `<think>...</think>` once, at the beginning, with text after it; else 0.0.

    Args:
        prompts: N strings, or N lists of messages; only whether they begin a thought matters. May be None.
        completions: N strings, or N lists of messages.
    """
    begun = beginnings(prompts, len(completions))
    opened = [prompts is not None if known is None else known for known in begun]
    texts = map(completion_text, completions)
    return [float(is_well_formed(text, before)) for text, before in zip(texts, opened, strict=True)]


def is_well_formed(text: str, opened: bool = False) -> bool:
    """Return whether a completion thinks once, to the end, and then says something.

    `opened`: its prompt began the thinking.
    """
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
