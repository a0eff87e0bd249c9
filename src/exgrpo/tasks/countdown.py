"""Countdown: reach a target from given numbers with + - * /, each number used at most once.

`3,7,25:46=` asks for an expression such as `25+3*7`. Many are right. Questions are made from an expression, so that
each has a solution. The answer is scored by `arithmetic.evaluate`, exactly and with every cost bounded; a text that is
not an expression scores 0. Each right answer is valid: the expression is the whole reasoning.
"""

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from .arithmetic import ExpressionError, evaluate
from .base import Family, Question, RewardFunction, Stratum, Teacher, check, completion_text, radix

OPERATIONS = "+-*/"


def parse(question: str) -> tuple[list[int], int] | None:
    """Return the numbers and the target of a question text, or None if it is not one."""
    if not re.fullmatch(r"[0-9]{1,4}(,[0-9]{1,4})*:[0-9]{1,4}=", question):
        return None
    numbers, target = question[:-1].split(":")
    return [int(number) for number in numbers.split(",")], int(target)


def reaches(expression: str, numbers: Sequence[int], target: int) -> bool:
    """Return whether an expression has the target's value and uses each number at most as often as given."""
    try:
        value, used = evaluate(expression.strip())
    except ExpressionError:
        return False
    return value == target and not Counter(used) - Counter(numbers)


def countdown_reward(
    prompts: list, completions: list, answer: list[str], numbers: list[list[int]], **kwargs: object
) -> list[float | None]:
    """Give 1 where the completion is an expression that reaches the target (`answer`) from the numbers, else 0."""
    texts = [completion_text(completion) for completion in completions]
    return [
        float(reaches(text, given, int(target))) for text, given, target in zip(texts, numbers, answer, strict=True)
    ]


@dataclass(frozen=True)
class Countdown(Family):
    """Countdown; see the module.

    `numbers` numbers from 1 to `largest`; the target is a whole number from 1 to `largest_target`.

    The warm-up's teacher gives the expression that a question was made from, and with probability `noise` a random
    expression of the same numbers in its place.
    """

    name: ClassVar[str] = "countdown"

    numbers: int = 4
    largest: int = 9
    largest_target: int = 50
    noise: float = 0.1

    def __post_init__(self) -> None:
        for knob, least, most in (("numbers", 2, 6), ("largest", 2, 999), ("largest_target", 1, 9999)):
            value = getattr(self, knob)
            check(
                isinstance(value, int) and least <= value <= most,
                f"{self.name}: {knob} must be a whole number in [{least}, {most}], got {value!r}",
            )
        check(0 <= self.noise <= 1, f"{self.name}: noise must be in [0, 1], got {self.noise}")

    @property
    def alphabet(self) -> str:
        return "0123456789" + OPERATIONS + "(),:="

    @property
    def max_completion_length(self) -> int:
        return self.numbers * len(str(self.largest)) + 3 * (self.numbers - 1) + 1

    @property
    def reward_function(self) -> RewardFunction:
        return countdown_reward

    def strata(self) -> list[Stratum]:
        """Return the one stratum; its numbers stand for expressions, of which several make the same question."""
        return [Stratum("expressions", 1.0, self.largest**self.numbers * 4 ** (self.numbers - 1) * 2)]

    def unrank(self, stratum: int, index: int) -> Question | None:
        *digits, nested = radix(index, [self.largest] * self.numbers + [4] * (self.numbers - 1) + [2])
        chosen = [digit + 1 for digit in digits[: self.numbers]]
        expression, value = _compose(chosen, [OPERATIONS[i] for i in digits[self.numbers :]], bool(nested))
        if value is None or not 1 <= value <= self.largest_target:
            return None
        given = sorted(chosen)
        prompt = ",".join(map(str, given)) + f":{value}="
        return Question(prompt, str(value), {"numbers": given, "solution": expression})

    def solution(self, question: Question, rng: random.Random | None = None) -> str:
        return question.columns["solution"]

    def is_valid(self, question: str, completion: str) -> bool:
        parsed = parse(question)
        return parsed is not None and reaches(completion, *parsed)

    def teacher(self, seed: int) -> Teacher:
        def teach(question: Question, rng: random.Random) -> str:
            if rng.random() >= self.noise:
                return self.solution(question)
            order = list(question.columns["numbers"])
            rng.shuffle(order)
            return _compose(order, rng.choices(OPERATIONS, k=len(order) - 1), rng.random() < 0.5)[0]

        return teach


def _compose(numbers: Sequence[int], operations: Sequence[str], nested: bool) -> tuple[str, int | None]:
    """Join numbers by the operations; return the expression and its value, None where a division leaves a remainder.

    `nested` works strictly from left to right, with parentheses where that needs them; else products come first.
    """
    text = str(numbers[0])
    total, term, whole = 0, numbers[0], True
    for i, (operation, number) in enumerate(zip(operations, numbers[1:], strict=True)):
        if operation in "*/":
            if nested and i and operations[i - 1] in "+-":
                text, total, term = f"({text})", 0, total + term
            whole = whole and (operation == "*" or term % number == 0)
            term = term * number if operation == "*" else term // number
        else:
            total, term = total + term, number if operation == "+" else -number
        text += f"{operation}{number}"
    return text, total + term if whole else None
