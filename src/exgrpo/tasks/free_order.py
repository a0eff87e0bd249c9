"""Free order: signed operands modulo m, folded in any order that the policy likes.

`a+3b-4c+2=` names its operands; a completion starts from 0 and writes, for each operand in an order of its own choice,
the operand's letter and the running result: `b7aTc1` is 0-4 = 7, 7+3 = 10, 10+2 = 1 (mod 11). All n! orders are valid.
The reward looks at the last number only, which one text in m has by luck; `is_valid` wants each operand exactly once
and each running result exact. Ten is written `T`; with m above 11 numbers are decimals with spaces between pairs.
"""

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from . import notation
from .base import Family, Question, RewardFunction, Stratum, Teacher, WarmUp, check, completion_text, radix
from .chains import check_strata

LETTERS = "abcdefgh"


def parse(question: str, modulus: int) -> list[int] | None:
    """Return the signed operands of a question text, or None if it is not one."""
    if not re.fullmatch(r"([a-h][+-][0-9T]+)+=", question):
        return None
    operands = []
    for i, (letter, sign, text) in enumerate(re.findall(r"([a-h])([+-])([0-9T]+)", question)):
        value = notation.read(text, modulus)
        if value is None or letter != LETTERS[i]:
            return None
        operands.append(value if sign == "+" else -value)
    return operands


def read_steps(completion: str, modulus: int) -> list[tuple[int, int]] | None:
    """Return the (operand index, running result) pairs of a completion, or None if it is not made of them."""
    text = completion.strip()
    parts = [text[i : i + 2] for i in range(0, len(text), 2)] if notation.compact(modulus) else text.split(" ")
    steps = []
    for part in parts:
        index, value = LETTERS.find(part[:1]), notation.read(part[1:], modulus)
        if not part or index < 0 or value is None:
            return None
        steps.append((index, value))
    return steps


def write_steps(steps: Sequence[tuple[int, int]], modulus: int) -> str:
    """Write (operand index, running result) pairs as a completion."""
    parts = [LETTERS[index] + notation.write(value, modulus) for index, value in steps]
    return ("" if notation.compact(modulus) else " ").join(parts)


def free_order_reward(
    prompts: list, completions: list, answer: list[str], modulus: list[int], **kwargs: object
) -> list[float | None]:
    """Give 1 where the completion ends with the right number, however it got there, else 0."""
    texts = [completion_text(completion) for completion in completions]
    return [
        float(notation.last_number(text, m) == notation.read(right, m))
        for text, right, m in zip(texts, answer, modulus, strict=True)
    ]


@dataclass(frozen=True)
class FreeOrder(Family):
    """Sums in any order; see the module.

    A question has as many operands as `operands` says, in the proportions of `shares`; their sizes are 1 to `largest`,
    which with both signs names each residue modulo 11 but 0 once.

    The warm-up's teacher takes the operands from left to right, from right to left or in a random order, leaves one
    out with probability `skip`, writes a random number in place of a result with probability `guess`, and is sure of a
    wrong result for the share `wrong` of the m*2*`largest` single-operand facts.
    """

    name: ClassVar[str] = "free_order"

    modulus: int = 11
    operands: tuple[int, ...] = (3, 4, 5)
    shares: tuple[float, ...] = (0.2, 0.4, 0.4)
    largest: int = 5
    skip: float = 0.4
    guess: float = 0.2
    wrong: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "operands", tuple(self.operands))
        object.__setattr__(self, "shares", tuple(float(share) for share in self.shares))
        notation.check_modulus(self.name, self.modulus)
        check_strata(self.name, "operands", self.operands, self.shares, largest=len(LETTERS))
        check(
            isinstance(self.largest, int) and 1 <= self.largest < self.modulus,
            f"{self.name}: largest must be a whole number in [1, modulus - 1], got {self.largest!r}",
        )
        for knob in ("skip", "guess", "wrong"):
            value = getattr(self, knob)
            check(0 <= value <= 1, f"{self.name}: {knob} must be in [0, 1], got {value}")

    @property
    def alphabet(self) -> str:
        return notation.characters(self.modulus) + "+-=" + LETTERS[: max(self.operands)]

    @property
    def units(self) -> tuple[str, ...]:
        """The signed operands."""
        if not notation.compact(self.modulus):
            return ()
        return tuple(sign + notation.write(size, self.modulus) for sign in "+-" for size in range(1, self.largest + 1))

    @property
    def max_completion_length(self) -> int:
        per_step = 1 + notation.width(self.modulus) + (not notation.compact(self.modulus))
        return max(self.operands) * per_step + 1

    @property
    def reward_function(self) -> RewardFunction:
        return free_order_reward

    def strata(self) -> list[Stratum]:
        return [
            Stratum(f"{count} operands", share, (2 * self.largest) ** count)
            for count, share in zip(self.operands, self.shares, strict=True)
        ]

    def unrank(self, stratum: int, index: int) -> Question:
        m = self.modulus
        digits = radix(index, [2, self.largest] * self.operands[stratum])
        operands = [(1 - 2 * sign) * (size + 1) for sign, size in zip(digits[::2], digits[1::2], strict=True)]
        signed = (f"{'+' if value > 0 else '-'}{notation.write(abs(value), m)}" for value in operands)
        prompt = "".join(map("".join, zip(LETTERS, signed, strict=False))) + "="
        return Question(prompt, notation.write(sum(operands) % m, m), {"modulus": m})

    def solution(self, question: Question, rng: random.Random | None = None) -> str:
        operands = parse(question.prompt, self.modulus)
        assert operands is not None
        order = list(range(len(operands)))
        if rng:
            rng.shuffle(order)
        return self.fold(operands, order)

    def fold(self, operands: Sequence[int], order: Sequence[int]) -> str:
        """Return the valid completion that takes the operands in this order."""
        running, steps = 0, []
        for index in order:
            running = (running + operands[index]) % self.modulus
            steps.append((index, running))
        return write_steps(steps, self.modulus)

    def is_valid(self, question: str, completion: str) -> bool:
        operands, steps = parse(question, self.modulus), read_steps(completion, self.modulus)
        if operands is None or steps is None:
            return False
        order = [index for index, _ in steps]
        return sorted(order) == list(range(len(operands))) and completion.strip() == self.fold(operands, order)

    def valid_count(self, question: Question) -> int:
        """Return how many valid completions a question has: n! for n operands."""
        return math.factorial(len(parse(question.prompt, self.modulus) or ()))

    def teacher(self, seed: int) -> Teacher:
        m, facts_rng = self.modulus, random.Random(f"free_order/facts/{seed}")
        values = range(-self.largest, self.largest + 1)
        facts = [(left, value) for left in range(m) for value in values if value]
        sure_of = {
            (left, value): (left + value + facts_rng.randrange(1, m)) % m
            for left, value in facts_rng.sample(facts, round(self.wrong * len(facts)))
        }

        def teach(question: Question, rng: random.Random) -> str:
            operands = parse(question.prompt, m)
            assert operands is not None
            order = list(range(len(operands)))
            habit = rng.randrange(3)
            if habit == 1:
                order.reverse()
            elif habit == 2:
                rng.shuffle(order)
            if rng.random() < self.skip:
                order.pop(rng.randrange(len(order)))
            running, steps = 0, []
            for index in order:
                fact = (running, operands[index])
                running = sure_of.get(fact, sum(fact) % m) if rng.random() >= self.guess else rng.randrange(m)
                steps.append((index, running))
            return write_steps(steps, m)

        return teach

    @property
    def warm_up(self) -> WarmUp:
        return WarmUp(batches=1800, batch_size=32)
