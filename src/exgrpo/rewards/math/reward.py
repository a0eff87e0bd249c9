r"""Reward for mathematical answers: numbers, expressions, intervals, sets, tuples, matrices, equations, words.

Gold and answer are read as forms (`form`): equal text or equal exact numbers are right, different numbers are wrong, and
collections are compared part by part. Only two expressions with the same variables are compared symbolically
(`symbolic`, with math-verify, gold first), within the limits of the pool; what the limit stops is wrong.

`strict` is for deciding what enters the experience: see `math_reward`.
"""

import importlib.util
import math
import re
from dataclasses import replace
from decimal import Decimal
from numbers import Rational
from typing import Any

from ...errors import MissingExtraError
from ..choice import final_choice
from ..completion import answer_text, answer_texts, boxes, looks_for, versioned, warn_unscorable
from ..number import may_lack_sign
from ..pool import Scored, score, score_async
from ..typography import plain_characters
from .answer import final_answers
from .form import Form, folded, read, spelled
from .symbolic import rounds_to, symbolic_equal, warm_up

MAX_SYMBOLIC_PARTS = 8  # of an unordered collection; more must match as text
MAX_WORDS = 6  # of a gold answer in words
MAX_GOLD_BITS = 800  # of a gold that is an integer, not text

_NO_LABEL = re.compile(r"[-+*/=^<>×÷·√∛∜≤≥≠≈∞±∪∩∈]|\\(?!text|math|mbox|left|right)")

_MARKED = "after the thinking: in \\boxed{...} or <answer>...</answer>, after '####' or 'the answer is'"


class _NeedsSymbolic(Exception):
    """A signal, not an error: only the pool may decide."""


@looks_for(f"{_MARKED}, after the last '=', or a text of one line", lambda text: bool(final_answers(text)))
@versioned
def math_reward(
    prompts: Any, completions: list[Any], answer: list[Any], strict: bool = False, **kwargs: Any
) -> list[float | None]:
    r"""Give 1.0 where the final answer of a completion is mathematically equal to the gold answer, else 0.0.

    Args:
        prompts: Only whether they begin a thought matters.
        completions: N strings, or N lists of messages.
        answer: N gold answers: LaTeX with or without `$`, plain text, numbers, or a solution with a box or `####`.
        strict: Right only if beyond doubt: the same text, the same exact number, or equal both for math-verify and at every
            point of a numeric evaluation; the same unit, base and percent sign if both have one; no decimal in place of
            a number that is none; an answer that is boxed or introduced. `strict_math_reward` is this function with it
            set: pass both to a trainer, with weights 1 and 0, and name it as `correctness_function`. Then `math_reward`
            is what the policy is trained on, and only what is strictly right enters the experience.

    Returns:
        N rewards; None (unscorable) where the gold answer cannot be read, which is logged once per process.
    """
    batch = _Batch(answer_texts(prompts, completions), answer, strict)
    return batch.filled(score(verify_answers, batch.calls)) if batch.calls else batch.rewards


@looks_for(_MARKED, lambda text: bool(final_answers(text, strict=True)))
@versioned
def strict_math_reward(prompts: Any, completions: list[Any], answer: list[Any], **kwargs: Any) -> list[float | None]:
    """Score as `math_reward` with `strict=True`."""
    return math_reward(prompts, completions, answer, strict=True, **{k: v for k, v in kwargs.items() if k != "strict"})


async def async_math_reward(
    prompts: Any, completions: list[Any], answer: list[Any], strict: bool = False, **kwargs: Any
) -> list[float | None]:
    """Score as `math_reward`, without blocking the event loop."""
    batch = _Batch(answer_texts(prompts, completions), answer, strict)
    return batch.filled(await score_async(verify_answers, batch.calls)) if batch.calls else batch.rewards


class _Batch:
    """A batch of answers to be scored.

    What text and exact numbers decide is scored at once; the rest waits as `calls` for the pool, equal ones together.
    """

    def __init__(self, texts: list[str], answer: list[Any], strict: bool):
        if importlib.util.find_spec("math_verify") is None:
            raise MissingExtraError("math-verify", "math", "math_reward")
        golds = [parse_gold(gold) for gold in answer]
        if None in golds:
            warn_unscorable("math_reward", "a mathematical answer", answer[golds.index(None)])
        self.rewards: list[float | None] = []
        self.waiting: dict[tuple[tuple[str, ...], str], list[int]] = {}
        for row, (text, gold) in enumerate(zip(texts, golds, strict=True)):
            answers = final_answers(text, strict)
            try:
                self.rewards.append(None if gold is None else float(_decide(answers, gold, strict, here=False)))
            except _NeedsSymbolic:
                self.rewards.append(0.0)
                self.waiting.setdefault((tuple(answers), gold or ""), []).append(row)
        self.calls: list[tuple[Any, ...]] = [(list(answers), gold, strict) for answers, gold in self.waiting]

    def filled(self, results: list[Scored]) -> list[float | None]:
        """Return the rewards, with the results of `calls`.

        What did not finish within the limits was not shown to be right.
        """
        for rows, result in zip(self.waiting.values(), results, strict=True):
            for row in rows:
                self.rewards[row] = result.value or 0.0
        return self.rewards


def verify_math(text: str, gold: Any, strict: bool = False) -> float | None:
    """Return the reward of one text, in this process and without a time limit; None where the gold cannot be read."""
    parsed = parse_gold(gold)
    return None if parsed is None else verify_answers(final_answers(answer_text(text), strict), parsed, strict)


def verify_answers(answers: list[str], gold: str, strict: bool) -> float:
    """Return 1.0 if there are answers and all equal the gold answer, a result of `parse_gold`; runs in the pool."""
    return float(_decide(answers, gold, strict, here=True))


verify_answers.warm_up = warm_up  # type: ignore[attr-defined]


def parse_gold(gold: Any) -> str | None:
    """Return the text of a gold answer, without box or solution; None if nothing could be scored against it."""
    if isinstance(gold, bool) or not isinstance(gold, (str, float, Decimal, Rational)):
        return None
    if (
        isinstance(gold, Rational)
        and max(int(gold.numerator), int(gold.denominator), key=abs).bit_length() > MAX_GOLD_BITS
    ):
        return None
    if isinstance(gold, (float, Decimal)) and not math.isfinite(gold):
        return None
    text = str(gold).strip()
    if "####" in text:
        text = text.rpartition("####")[2].strip()
    elif (found := boxes(text)) != []:
        if found is None or len(set(found)) != 1:
            return None
        text = found[0]
    if text.casefold() in ("", "none", "nan", "null", "n/a"):
        return None
    form = read(text)
    return None if form is None or _is_sentence(form) else text


def _is_sentence(form: Form) -> bool:
    """Return whether a part of a gold answer is prose, which no other text will repeat."""
    return (form.kind == "text" and len(form.text.split()) > MAX_WORDS) or any(
        _is_sentence(part) for part in form.parts
    )


# Comparison ---------------------------------------------------------------------------------------------------------


def _decide(answers: list[str], gold: str, strict: bool, here: bool) -> bool:
    wanted = read(gold)
    if wanted is None or not answers:
        return False
    return all(_is_right(answer, gold, wanted, strict, here) for answer in answers)


def _is_right(answer: str, gold: str, wanted: Form, strict: bool, here: bool) -> bool:
    label = re.fullmatch(r"\(?([A-Ja-j])\)?", wanted.text) if wanted.kind == "text" else None
    bare = re.fullmatch(r"[A-J]", wanted.text) if wanted.kind == "expression" else None
    if (label or bare) and _NO_LABEL.search(plain := plain_characters(_spaced(answer))) is None:
        letter = (label or bare)[1 if label else 0].upper()  # type: ignore[index]
        shown = label[1] if label else letter  # type: ignore[index]
        if final_choice(f"\\boxed{{{plain}}}") == letter and (shown in plain or letter in plain):
            return True
    given = read(answer)
    return given is not None and _equal(wanted, given, strict, here)


def _spaced(answer: str) -> str:
    r"""Rewrite `(C)\ 5` with a plain space."""
    return answer.replace("\\ ", " ") if re.search(r"\([A-J]\)", answer) else answer


def _equal(gold: Form, answer: Form, strict: bool, here: bool) -> bool:
    if gold.name and answer.name and gold.name != answer.name:
        return _equations_equal(gold, answer, strict, here)
    if not _units_agree(gold, answer):
        return False
    if (
        bool(gold.unit) != bool(answer.unit)
        and (gold.unit or answer.unit) in ("percent", "degree")
        and gold.kind != "equation" != answer.kind
    ):
        return not strict and _sign_agrees(gold, answer)
    if gold.kind == "joined" or answer.kind == "joined":
        return _joined_equal(gold, answer, strict)
    if answer.kind == "equation" and gold.kind != "equation":
        return _equations_equal(gold, answer, strict, here) if gold.name else _chain_equal(gold, answer, strict, here)
    if gold.kind == "equation":
        if answer.number is not None and all(part.number is not None for part in gold.parts):  # 0.56 = 56%
            return any(_equal(part, answer, strict, here) for part in gold.parts)
        return _equations_equal(gold, answer, strict, here)
    if gold.number is not None and answer.number is not None:
        if gold.number == answer.number:
            return True
        return not strict and _rounded(gold, answer, here)
    if gold.is_collection or answer.is_collection:
        return _collections_equal(gold, answer, strict, here)
    if gold.kind == "base" or answer.kind == "base":
        if gold.kind == answer.kind or strict:
            return gold.text == answer.text
        return gold.kind == "base" and answer.number is not None and gold.text.partition("_")[0] == answer.text
    if gold.kind == "text" or answer.kind == "text":
        return _words(gold.text) == _words(answer.text)
    if gold.kind == answer.kind and gold.text == answer.text:
        return True
    if gold.letters != answer.letters:
        return False
    if not here:
        raise _NeedsSymbolic
    return (not strict and _rounded(gold, answer, here)) or symbolic_equal(
        spelled(gold), spelled(answer), False, strict
    )


def _chain_equal(gold: Form, answer: Form, strict: bool, here: bool) -> bool:
    """Return whether all of `x = a = b` is right, apart from the name at its head."""
    parts = answer.parts
    if len(parts) > 2 and re.fullmatch(r"[A-Za-z]", parts[0].text):
        parts = parts[1:]
    return not gold.is_collection and not strict and all(_equal(gold, part, strict, here) for part in parts)


def _joined_equal(gold: Form, answer: Form, strict: bool) -> bool:
    """Compare dates, scores, ranges and sizes as text.

    Only as an answer to a number `5-3` is a difference, and not beyond doubt.
    """
    if gold.kind != "joined":
        difference = re.fullmatch(r"([1-9][0-9]*)-(0|[1-9][0-9]*)", answer.text)
        if difference is not None:
            return not strict and gold.number == int(difference[1]) - int(difference[2])
    return _size(gold.text) == _size(answer.text)


def _size(text: str) -> str:
    return re.sub(r"\\cdot\s*", "x", text)


def _words(text: str) -> str:
    return re.sub(r"[\s()]|^(?:the|an?)\s", "", folded(text))


def _units_agree(gold: Form, answer: Form) -> bool:
    if gold.kind == "text" and gold.unit in ("am", "pm"):
        return gold.unit == answer.unit
    return not gold.unit or not answer.unit or gold.unit == answer.unit


def _sign_agrees(gold: Form, answer: Form) -> bool:
    """Return whether a number with a percent or degree sign equals one without.

    25% is 0.25, and may stand for 25.
    """
    signed, plain = (gold, answer) if gold.unit else (answer, gold)
    if signed.number is None or plain.number is None:
        return False
    if signed.number == plain.number:
        return may_lack_sign(plain.number, signed.unit)
    return signed.unit == "percent" and signed.number == plain.number * 100


def _rounded(gold: Form, answer: Form, here: bool) -> bool:
    """Return whether one is a decimal with enough digits, and the other a number that it rounds or cuts."""
    decimal, other = (answer, gold) if answer.places else (gold, answer)
    if decimal.number is None or not decimal.places or other.places or other.letters:
        return False
    if other.number is not None:
        scaled, shown = other.number * 10**decimal.places, decimal.number * 10**decimal.places
        return other.number.denominator > 1 and shown in (round(scaled), int(scaled))
    if not here:
        raise _NeedsSymbolic
    return rounds_to(other.text, decimal.number, decimal.places)


def _equations_equal(gold: Form, answer: Form, strict: bool, here: bool) -> bool:
    sides = [_sides(form) for form in (gold, answer)]
    if sides[0] is None or sides[1] is None:
        return False
    if sides[0] == sides[1] or sides[0] == sides[1][::-1]:
        return True
    if any(part.kind not in ("number", "expression") for form in (gold, answer) for part in form.parts or (form,)):
        return False
    letters = [
        frozenset().union(*(part.letters for part in form.parts or (form,)), _name_letters(form))
        for form in (gold, answer)
    ]
    if letters[0] != letters[1] or not letters[0]:
        return False
    left, right = (f"({side[0]})-({side[1]})" for side in sides if side is not None)
    if not here:
        raise _NeedsSymbolic
    return symbolic_equal(left, right, True, strict)


def _name_letters(form: Form) -> frozenset[str]:
    return frozenset(re.findall(r"[A-Za-z]+", form.name))


def _sides(form: Form) -> tuple[str, ...] | None:
    if form.kind == "equation":
        return tuple(spelled(part) for part in form.parts) if len(form.parts) == 2 else None
    return (form.name, spelled(form)) if form.name and not form.is_collection else None


def _collections_equal(gold: Form, answer: Form, strict: bool, here: bool) -> bool:
    if {gold.kind, answer.kind} == {"()", "list"} and not strict:
        gold, answer = _by_name(gold), _by_name(answer)  # x = 1, y = 2 for (1, 2)
    unordered = {"list", "union", "{}"}
    if gold.kind != answer.kind and not {gold.kind, answer.kind} <= {"list", "{}"}:
        return False
    if len(gold.parts) != len(answer.parts):
        return False
    if gold.text == answer.text:
        return True
    named = {part.name for part in gold.parts} - {""}
    in_order = len(named) > 1 and not any(part.name for part in answer.parts)  # x = 1, y = 2 is not 2, 1
    if gold.kind in unordered and not in_order:
        return _match_unordered(list(gold.parts), list(answer.parts), strict, here)
    # the cheap parts first: one that differs spares the symbolic ones
    pairs = sorted(zip(gold.parts, answer.parts, strict=True), key=lambda pair: pair[0].number is None)
    return all(_equal(a, b, strict, here) for a, b in pairs)


def _by_name(form: Form) -> Form:
    """Return the tuple that a list of `x = 1, y = 2` gives, in the order of the names, which are different letters."""
    names = [part.name for part in form.parts]
    if form.kind != "list" or len(set(names)) != len(names) or not all(re.fullmatch("[A-Za-z]", n) for n in names):
        return form
    parts = tuple(replace(part, name="") for _, part in sorted(zip(names, form.parts, strict=True), key=lambda p: p[0]))
    return replace(form, kind="()", text="", parts=parts)


def _match_unordered(golds: list[Form], answers: list[Form], strict: bool, here: bool) -> bool:
    for gold in list(golds):  # equal as text or number
        for answer in answers:
            if (
                gold.kind == answer.kind
                and gold.text == answer.text
                and (gold.name, gold.unit) == (answer.name, answer.unit)
            ):
                golds.remove(gold)
                answers.remove(answer)
                break
    if len(golds) > MAX_SYMBOLIC_PARTS:
        return False
    for gold in golds:
        match = next((i for i, answer in enumerate(answers) if _equal(gold, answer, strict, here)), None)
        if match is None:
            return False
        del answers[match]
    return True
