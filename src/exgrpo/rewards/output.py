r"""Reward for what a program prints: the text itself must be equal. Nothing is ever run here.

The output that a completion commits itself to is looked for after `</think>`, in this order:

1. the last fenced block (three or more backticks or tildes), whatever its language; one left open was cut: wrong. Where
   there are `<answer>` elements only what they hold counts, and is read by these rules; different ones are wrong;
2. the `\boxed{...}`; boxes with different contents are several answers, hence wrong (see `marks`);
3. what follows the last "output is", "answer is", "output:" or "answer:": the rest of the line where the gold output is
   one line, with or without a final period, else the rest of the text;
4. the whole text.

Two outputs are equal if they are after this: line ends are `\n`; spaces and tabs at the end of a line, and empty lines
before and after all, are dropped. Outside of a block so is space before the first line, and one pair of backticks around
all. Case, inner spaces and indentation count, and `1.0` is not `1`.
"""

import re
from typing import Any

from .completion import answer_texts, looks_for, versioned, warn_unscorable
from .marks import marks

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})([^\n]*)")
_STATED = re.compile(r"\b(?:output|answer)\W{0,3}(?:\s?is\b|:)[ \t]*(?::|\*\*)?", re.IGNORECASE)


@looks_for(
    "after the thinking: in the last fenced block, in <answer>...</answer> or \\boxed{...}, after 'the output is', or the "
    "whole text",
    lambda text: bool(text.strip()),
)
@versioned
def code_output_reward(prompts: Any, completions: list[Any], answer: list[Any], **kwargs: Any) -> list[float | None]:
    """Give 1.0 where the output that a completion states equals the gold output, else 0.0.

    Args:
        prompts: Only whether they begin a thought matters.
        completions: N strings, or N lists of messages.
        answer: N gold outputs, each also as one fenced block.

    Returns:
        N rewards; None (unscorable) where the gold output is no string, or empty: then nothing at all would be right.
    """
    golds = [parse_output(gold) for gold in answer]
    if None in golds:
        warn_unscorable("code_output_reward", "what a program prints", answer[golds.index(None)])
    return [
        None if gold is None else float(states(text, gold))
        for text, gold in zip(answer_texts(prompts, completions), golds, strict=True)
    ]


def parse_output(gold: Any) -> str | None:
    """Return the gold output, normalised; None if it is empty or no string."""
    if not isinstance(gold, str):
        return None
    found = blocks(gold)
    whole = gold.strip().startswith(("```", "~~~")) and len(found) == 1
    return normalised(found[0] or "" if whole else gold) or None


def states(text: str, gold: str) -> bool:
    """Return whether the output that `text` commits itself to is the normalised `gold`."""
    marked = marks(text)
    if any(mark.is_element for mark in marked or ()):
        return all(
            states(mark.content, gold) if mark.is_element else _inline(mark.content) == gold.lstrip()
            for mark in marked or ()
        )
    found = blocks(text)
    if found:
        return found[-1] is not None and normalised(found[-1]) == gold
    gold = gold.lstrip()
    if marked != []:
        return {_inline(mark.content) for mark in marked or ()} == {gold}
    last = None
    for match in _STATED.finditer(text):
        last = match
    if last is not None:
        text = text[last.end() :].strip()
        if "\n" not in gold:
            text = text.partition("\n")[0]
        return gold in (_inline(text), _inline(text.rstrip().removesuffix(".")))
    return _inline(text) == gold


def blocks(text: str) -> list[str | None]:
    """Return the contents of all fenced blocks in order; None for the last if it is left open."""
    found: list[str | None] = []
    inside: list[str] = []
    fence = ""
    for line in text.replace("\r\n", "\n").split("\n"):
        match = _FENCE.fullmatch(line)
        if not fence:
            if match is not None and not (match[1][0] == "`" and "`" in match[2]):
                fence, inside = match[1], []
        elif match is not None and match[1].startswith(fence) and not match[2].strip():
            found.append("\n".join(inside))
            fence = ""
        else:
            inside.append(line)
    return [*found, None] if fence else found


def normalised(text: str) -> str:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(line.rstrip(" \t") for line in lines).strip("\n")


def _inline(text: str) -> str:
    text = normalised(text.strip())
    if len(text) > 2 and text[0] == text[-1] == "`" and "`" not in text[1:-1]:
        text = text[1:-1].strip()
    return text
