r"""Reward for answers that are one number: exact, bounded, without evaluating anything.

The final answer of a completion is looked for after `</think>`, in this order:

1. the `\boxed{...}` and the `<answer>` elements: different ones are several answers, hence wrong (see `marks`);
2. the number after the last `####` (the form of GSM8K) that anything follows;
3. the number after the last "answer is" or "answer:"; "5 or 6" there is several answers, and so is another number in its
   clause;
4. the last number of the text, and behind "answer is" if that is there, unless the words around it deny it or make it a
   bound, a part of an expression or one of several.
"""

import math
import re
from decimal import Decimal
from fractions import Fraction
from numbers import Rational
from typing import Any

from .completion import answer_texts, boxes, looks_for, versioned, warn_unscorable
from .marks import Mark, after_hashes, is_denied, marks
from .number import (
    MAX_CHARS,
    NONE,
    NOT_COUNTED,
    NUMBER_WORDS,
    Signed,
    clean,
    find_numbers,
    is_unit,
    parse_number,
    parse_signed,
    sign_of,
)

_ANSWER_IS = re.compile(r"\banswer\W{0,3}(?:\s?is\b|[:=])[\s:*]{0,8}", re.IGNORECASE)
_CLAUSE_END = re.compile(r"\n|(?:[.?]|(?<![0-9)}])!)(?=\s|$)")
_DOUBT = re.compile(
    r"\b(?:wait|hmm+|no|actually|sorry|i\s+mean|instead|rather|wrong|incorrect|correction|maybe|perhaps|possibly"
    r"|alternatively|(?:may|might|could)\s+(?:also\s+)?be|not\s+sure|or\s+(?:two|three|four|five|six|seven|eight|nine|ten|[0-9]+))\b",
    re.IGNORECASE,
)
_SPELLED = re.compile(
    r"\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|hundred)\b", re.IGNORECASE
)
_REASON = re.compile(r"\b(?:because|since)\b", re.IGNORECASE)
_ASIDE = re.compile(r"[,;:]\s|(?<=[0-9A-Za-z%])\s*\(")
_FACTOR = re.compile(r"\s*[-+*/^]\s*[\\0-9({]|[*/^][A-Za-z]|\s*\\[A-Za-z]|[²³]|[!]")
# What makes the number behind it a bound, a part of an expression, or one of several
_BEFORE_LAST = re.compile(
    r"""(?:[0-9}%]\s*[-+*/×÷·^–] | \)\s*[+*/×÷·^] | [0-9]:\Z | [0-9)}]\s*\\(?:times|cdot|div)
    | \\?\b(?:sqrt|log|ln|sin|cos|tan)\b\s*[({]?
    | [√_^≠≤≥∼]\s*\{? | != | [<>]= | [A-Za-z0-9)]\s+[<>] | \\(?:neq?|[lg]eq?|[lg]t)\b
    | \b(?:than|at\s+least|at\s+most|up\s+to|under|below|above|over|almost|nearly|power\s+of|between\s+[0-9.,]+\s+and)\b
    | [0-9](?:\s+[A-Za-z]+)?,?\s+(?:or|to|through)\b | \\lor\b | [0-9][,;]?\s+[0-9.]+[,;]?(?:\s+(?:and|or))?\s
    )[\s$*(]*\Z""",
    re.VERBOSE | re.IGNORECASE,
)
_FIGURE = re.compile(r"[0-9]++(?:,[0-9]{3})*+(?:\.[0-9]++)?(?:/[0-9]++)?")
_LETTERS = re.compile(r"[A-Za-z]*")
_BOUND = re.compile(
    r"\b(?:not|less|more|greater|fewer|least|most|either|between|below|above|under|maybe|perhaps|longer|than|except)\b|n't\b",
    re.IGNORECASE,
)
_CONDITION = re.compile(
    r"\b(?:if|when|unless|else|otherwise|or|less|more|fewer|greater)\b|^\s+[b-fi-kn-rt-zB-KM-Z]\b(?!\.)"
)
_OPERATION = re.compile(
    rf"[\s-]*(?:(?:{'|'.join(sorted(NOT_COUNTED))})\b|[,;]?\s*\(?(?:or|and|to)\s+(?:{'|'.join(sorted(NUMBER_WORDS))})\b)",
    re.IGNORECASE,
)


@looks_for(
    "after the thinking: in \\boxed{...} or <answer>...</answer>, after '####' or 'the answer is', or the last number",
    lambda text: final_number(text) is not None,
)
@versioned
def numeric_reward(prompts: Any, completions: list[Any], answer: list[Any], **kwargs: Any) -> list[float | None]:
    """Give 1.0 where the final answer of a completion equals the gold number exactly, else 0.0.

    A percent or degree sign that only one of them has is a matter of form behind a whole number: 25 is 25%, 0.25 not 0.25%.

    Args:
        prompts: Only whether they begin a thought matters.
        completions: N strings, or N lists of messages.
        answer: N gold answers: numbers, or strings that hold one number ("1,234", "3/4", a GSM8K or boxed solution).

    Returns:
        N rewards; None (unscorable) where the gold answer is not a number, which is logged once per process.
    """
    golds = [_signed_gold(gold) for gold in answer]
    values = [gold.value for gold in golds]
    if None in values:
        warn_unscorable("numeric_reward", "a number", answer[values.index(None)])
    return [
        None if gold.value is None else float(gold.equals(_final(text)))
        for text, gold in zip(answer_texts(prompts, completions), golds, strict=True)
    ]


def parse_gold(gold: Any) -> Fraction | None:
    """Return the number of a gold answer, or None if it is not one number."""
    return _signed_gold(gold).value


def _signed_gold(gold: Any) -> Signed:
    if isinstance(gold, bool) or gold is None:
        return NONE
    if isinstance(gold, Rational):
        return Signed(Fraction(gold))
    if isinstance(gold, float) and not math.isfinite(gold):
        return NONE
    if not isinstance(gold, (str, float, Decimal)):
        return NONE
    text = str(gold)
    if "####" in text:
        return parse_signed(text.rpartition("####")[2])
    found = boxes(text)
    return (
        parse_signed(text)
        if found == []
        else _agreed([parse_signed(content) for content in dict.fromkeys(found or ())])
    )


def final_number(text: str) -> Fraction | None:
    """Return the one number that `text` commits itself to as its answer.

    None if there is none, or there are several.
    """
    return _final(text).value


def _final(text: str) -> Signed:
    found = marks(text)
    if found != []:
        return _agreed([_marked(mark) for mark in found or ()])
    signed = parse_signed(after_hashes(text, MAX_CHARS))
    if signed.value is not None:
        return signed  # otherwise it was a heading
    last = None
    for match in _ANSWER_IS.finditer(text):
        last = match
    if last is not None:
        stated, signed = _statement(text[last.end() :].lstrip())
        if stated:
            return NONE if is_denied(text, last.end(), last.end()) else signed
        text = text[last.end() :]
    return _last_number(text)


def _marked(mark: Mark) -> Signed:
    """Return the number in a box, or in an element.

    In an element also one that a sentence states, or several lines end with.
    """
    signed = parse_signed(mark.content)
    if signed.value is not None or not mark.is_element:
        return signed
    if "\n" in mark.content or marks(mark.content) or _ANSWER_IS.search(mark.content):
        return _final(mark.content)
    return _statement(mark.content)[1]


def _statement(text: str) -> tuple[bool, Signed]:
    """Return whether the first clause of `text` holds a number, and the one that it states and does not take back."""
    stated, signed, rest, line = _stated(text)
    return stated, signed if signed.value is not None and _stands(rest, line, signed.value) else NONE


def _agreed(numbers: list[Signed]) -> Signed:
    """Return the number in all of the boxes, if they agree."""
    first = numbers[0] if numbers else NONE
    return first if all(first.equals(other) for other in numbers) else NONE


def _stated(text: str) -> tuple[bool, Signed, str, str]:
    """Return what follows "answer is": whether its clause holds a number, the number stated, and the rest.

    The rest of the clause, and of the line.
    """
    head = text[: MAX_CHARS + 1]
    end = _CLAUSE_END.search(head)
    if end is None and len(head) > MAX_CHARS:
        head = head[: max(head.rfind(" "), 0)]  # a number may have been cut with the text
    clause = head[: end.start()] if end else head
    line = text[len(clause) :].partition("\n")[0]
    if (signed := parse_signed(clause)).value is not None:
        return True, signed, "", line
    clause = clean(clause)
    numbers = find_numbers(clause)
    if not numbers:
        return False, NONE, "", line
    aside = _ASIDE.search(clause, numbers[0][1])
    after_equals = clause.rfind("=", 0, aside.start() if aside else len(clause)) + 1
    start, end_of_number, value = next((n for n in numbers if n[0] >= after_equals), (0, 0, None))
    rest = clause[end_of_number:]
    if value is None or _is_factor(rest) or _BOUND.search(clause[:start]):
        return True, NONE, "", line
    if _OPERATION.match(rest) is not None or _CONDITION.search(rest) is not None:
        return True, NONE, "", line
    return True, Signed(value, _sign_behind(rest)), rest, line


def _sign_behind(rest: str) -> str:
    """Return the sign that `rest` begins with."""
    words = rest.lstrip(" $)*").split(maxsplit=1)
    return sign_of(words[0]) if words else ""


def _stands(clause: str, line: str, value: Fraction) -> bool:
    """Return whether a stated answer stands: nothing on the line takes it back, and no number of its clause differs.

    What comes after "because" or "since" is a reason.
    """
    if (reason := _REASON.search(clause)) is not None:
        clause = clause[: reason.start()]
    if _DOUBT.search(clause) or _DOUBT.search(line) or _SPELLED.search(clause):
        return False
    figures: set[str] = set()  # the equal ones: each is read once
    for match in _FIGURE.finditer(clause):
        if match.end() - match.start() > MAX_CHARS:
            return False
        if match.group() not in figures and parse_number(match.group()) not in (value, -value):
            return False
        figures.add(match.group())
    return True


def _last_number(text: str) -> Signed:
    last_digit = max(text.rfind(digit) for digit in "0123456789")
    if last_digit < 0:
        return NONE
    window = clean(text[max(0, last_digit - 2 * MAX_CHARS) : last_digit + 32])
    numbers = find_numbers(window)
    if numbers and is_denied(window, numbers[-1][0], numbers[-1][1]):
        return NONE
    if _DOUBT.search(window[window.rfind("\n", 0, numbers[-1][0]) + 1 :] if numbers else ""):
        return NONE
    if not numbers or _is_factor(rest := window[numbers[-1][1] :]) or "\\over" in window[: numbers[-1][0]]:
        return NONE
    if _OPERATION.match(rest) or _BEFORE_LAST.search(window, max(0, numbers[-1][0] - 64), numbers[-1][0]):
        return NONE
    return Signed(numbers[-1][2], _sign_behind(rest))


def _is_factor(rest: str) -> bool:
    r"""Return whether the text after a number makes it a part of an expression: `5x`, `5^2`, `5 + 3`, `5\pi`."""
    return _FACTOR.match(rest) is not None or not is_unit(_LETTERS.match(rest).group())  # type: ignore[union-attr]
