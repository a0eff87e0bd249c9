r"""Reward for multiple-choice questions whose gold answer is the label of an option: a letter, or a digit.

The chosen option is looked for after `</think>`, in this order:

1. the `\boxed{...}` and the `<answer>` elements; those that name different options are several answers (see `marks`);
2. the label after the last "answer is", "answer:" or "correct option is"; "A or B" there is several answers, and so is any
   other label that stands free in the sentence, or in the box; what comes after "because" or "since" is a reason;
3. the labels in parentheses, `(C)`, on the last line that has one; different ones are several answers, and
   none is one beside "not", "exclude" and the like, or at the end of a list of options;
4. the whole text, if it is nothing but a label, or begins with one as an option does: `C`, `C.`, `C) Mars`.
"""

import re
from numbers import Integral
from typing import Any

from .completion import answer_texts, looks_for, versioned, warn_unscorable
from .marks import Mark, is_denied, marks
from .typography import plain_characters, undressed

_MAX_CHARS = 256
_LABEL = r"\(?(?P<label>[A-Z]|[0-9])(?![A-Za-z0-9'’^_]|\s*[-+*/=]\s*[A-Za-z0-9]|\.[0-9]|\+\+|#)\)?"
_ANSWER_IS = re.compile(
    r"\b(?:answer|(?:correct|right|best)\s+(?:option|choice))\W{0,3}(?:\s?is\b|[:=])[\s:*]{0,8}", re.IGNORECASE
)
_LEAD = re.compile(
    r"(?:the\s+)?(?:(?:correct|right|best)\s+)?(?:option|choice|letter|both|either)?[\s:]*", re.IGNORECASE
)
_CHOICE = re.compile(_LABEL)
_JOINED = re.compile(
    r"\s*(?:[,;/&+|\\]|(?:or|and)\b|(?=\([A-Zb-hj0-9]\)))[\s,\\]*(?:or\b|and\b)?\s*(?:option|choice)?\s*"
    + _LABEL.replace("[A-Z]", "[A-Zb-hj]")
)
_BESIDE = re.compile(r"\s+" + _LABEL)
_LISTED = re.compile(r"^[ \t]*\(?([A-Z0-9])[).:]", re.MULTILINE)
_BRACKETED = re.compile(r"\(([A-Za-z0-9])\)")
_ARTICLE = re.compile(r"[AI]\s+(?!(?:because|since|as|which|and|or|is|for|but|due|given|so|by|from)\b)[a-z]")
_OTHER = re.compile(r"(?<![A-Za-z0-9'’^_\\])([A-J]|(?<!\.)[0-9])(?![A-Za-z0-9'’^_]|\.[0-9])")
_DOUBT = re.compile(r"\s*(?:or|and|maybe|perhaps|possibly|alternatively|no|wait|actually)\b", re.IGNORECASE)
_REASON = re.compile(r"\b(?:because|since)\b", re.IGNORECASE)
_NEGATED = re.compile(
    r"\b(?:not|never|neither|nor|exclud\w*|eliminat\w*|reject\w*|rul(?:e|es|ed|ing)\s+out|incorrect|wrong|false|except)\b|n['’]t\b",
    re.IGNORECASE,
)
_STOP = re.compile(r"\n|[.!](?=\s|$)")
_TYPOGRAPHY = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|sc|up|normal)?|math(?:rm|bb|frak)|mbox|operatorname)\s*(?=\{)|\\[()\[\]]|[{}$*`]"
)


@looks_for(
    "after the thinking: in \\boxed{...} or <answer>...</answer>, after 'the answer is', in parentheses on the last line that "
    "has a label, or the text as a whole",
    lambda text: final_choice(text) is not None,
)
@versioned
def choice_reward(prompts: Any, completions: list[Any], answer: list[Any], **kwargs: Any) -> list[float | None]:
    """Return 1.0 where a completion chooses the gold option and no other, else 0.0.

    Args:
        prompts: Only whether they begin a thought matters.
        completions: N strings, or N lists of messages.
        answer: N gold labels, such as "C", "(c)" or "2".

    Returns:
        N rewards; None (unscorable) where the gold answer is not a label, which is logged once per process.
    """
    golds = [parse_label(gold) for gold in answer]
    if None in golds:
        warn_unscorable("choice_reward", "the label of an option", answer[golds.index(None)])
    return [
        None if gold is None else float(final_choice(text) == gold)
        for text, gold in zip(answer_texts(prompts, completions), golds, strict=True)
    ]


def parse_label(gold: Any) -> str | None:
    """Return the label that a gold answer consists of, in upper case, or None."""
    if isinstance(gold, bool) or not isinstance(gold, (str, Integral)):
        return None
    if not isinstance(gold, str) and int(gold) not in range(10):
        return None
    match = re.fullmatch(r"\(?([A-Za-z0-9])[).]?", str(gold).strip())
    return match[1].upper() if match else None


def final_choice(text: str) -> str | None:
    """Return the label of the one option that `text` commits itself to, in upper case; None if none, or several."""
    found = marks(text)
    if found != []:
        labels = {_marked_label(mark) for mark in found or ()}
        return labels.pop() if len(labels) == 1 else None
    last = None
    for match in _ANSWER_IS.finditer(text):
        last = match
    if last is not None:
        stated = _plain(text[last.end() : last.end() + _MAX_CHARS]).lstrip().partition("\n")[0]
        bare = parse_label(stated)
        if bare or _CHOICE.match(stated, _LEAD.match(stated).end()):  # type: ignore[union-attr]
            return None if is_denied(text, last.end(), last.end()) else bare or _leading_label(stated, sentence=True)
    text = plain_characters(text)
    if _BRACKETED.search(text):
        return _bracketed(text)
    return None if len(set(_LISTED.findall(text))) > 1 else _leading_label(_plain(text[: _MAX_CHARS + 1]).strip())


def _plain(text: str) -> str:
    """Strip `text` of its looks: characters of other alphabets, fonts, colours and spaces of LaTeX, emphasis."""
    return _TYPOGRAPHY.sub("", undressed(plain_characters(text)))


def _marked_label(mark: Mark) -> str | None:
    if mark.is_element and parse_label(_plain(mark.content[:_MAX_CHARS]).strip()) is None:
        return final_choice(mark.content)
    return _boxed_label(mark.content)


def _boxed_label(content: str) -> str | None:
    if "\\boxed" in content or "\\fbox" in content:
        return None
    plain = _plain(content[: _MAX_CHARS + 1]).strip()
    return plain.upper() if re.fullmatch(r"[A-Za-z0-9]", plain) else parse_label(plain) or _leading_label(plain)


def _leading_label(text: str, sentence: bool = False) -> str | None:
    """Return the label that `text` begins with, unless another one is joined to it or it is the word "A" or "I"."""
    start = _LEAD.match(text).end()  # type: ignore[union-attr]
    if _ARTICLE.match(text, start):
        return None
    match = _CHOICE.match(text, start)
    if match is None:
        return _bracketed(text[start:].partition("\n")[0]) if text[start : start + 1] == "(" else None
    if is_denied(text, match.start(), match.end()):
        return None
    label, end = match["label"], match.end()
    bare = not text[match.end("label") :].startswith((")", ".", ":"))
    while (more := _JOINED.match(text, end) or (_BESIDE.match(text, end) if bare else None)) is not None:
        if more["label"].upper() != label and not _ARTICLE.match(text, more.start("label")):
            return None
        end = more.end()
    return None if _names_another(text, end, label, sentence) else label


def _names_another(text: str, start: int, label: str, sentence: bool) -> bool:
    """Return whether another label stands free in the rest of the sentence: `C: 5 or D: 6`, `C maybe D`."""
    end = len(text)
    if sentence:
        if (stop := _STOP.search(text, start)) is not None and not _DOUBT.match(text, stop.end()):
            end = stop.start()
        if (reason := _REASON.search(text, start, end)) is not None:
            end = reason.start()
    return any(
        match[1] != label and match[1].isdigit() == label.isdigit() and not _ARTICLE.match(text, match.start())
        for match in _OTHER.finditer(text, start, end)
    )


def _bracketed(text: str) -> str | None:
    """Return the label in parentheses on the last line that has one, if it is alone there and no item of a list."""
    for line in reversed(text.splitlines()):
        labels = {label.upper() for label in _BRACKETED.findall(line)}
        if labels:
            start = max(line.rfind(f"({label})") for label in (*labels, *map(str.lower, labels)))
            denied = _NEGATED.search(line) or is_denied(line, start, start + 3)
            return labels.pop() if len(labels) == 1 and not denied and not _is_listed(text, line) else None
    return None


def _is_listed(text: str, line: str) -> bool:
    """Return whether a line is the end of a list of options, which chooses none."""
    listed = _LISTED.findall(text)
    return len(listed) > 1 and _LISTED.match(line) is not None and listed[-1] not in listed[:-1]
