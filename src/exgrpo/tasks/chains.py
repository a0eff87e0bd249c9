"""Chains: arithmetic modulo m, strictly from left to right, every running result written down.

`3+4x2=` has the completion `74`: 3+4 = 7, 7x2 = 4 (mod 10). There is no precedence. With m above 11 the results are
decimals with spaces between. The `strict` reward wants every running result right; the `final` reward only the last
number, which one text in m has by luck, so that `is_valid` then tells reasoning from luck.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from . import notation
from .base import Family, Question, RewardFunction, Stratum, Teacher, check, completion_text, radix

OPERATIONS = "+-x"
REWARDS = ("strict", "final")


def apply(left: int, operation: str, right: int, modulus: int) -> int:
    """Apply one operation modulo m."""
    if operation == "x":
        return left * right % modulus
    return (left + right if operation == "+" else left - right) % modulus


def parse(question: str, modulus: int) -> tuple[int, list[tuple[str, int]]] | None:
    """Return the first number and the (operation, number) pairs of a question text, or None if it is not one."""
    parts = re.split(r"([+\-x])", question[:-1])
    numbers = [notation.read(part, modulus) for part in parts[::2]]
    if not question.endswith("=") or len(numbers) < 2 or any(number is None for number in numbers):
        return None
    first, *rest = [number for number in numbers if number is not None]
    return first, list(zip(parts[1::2], rest, strict=True))


def running_results(first: int, steps: Sequence[tuple[str, int]], modulus: int) -> list[int]:
    """Return the result after each step, left to right."""
    results = []
    for operation, number in steps:
        first = apply(first, operation, number, modulus)
        results.append(first)
    return results


def write_results(results: Sequence[int], modulus: int) -> str:
    """Write running results as a completion."""
    return ("" if notation.compact(modulus) else " ").join(notation.write(value, modulus) for value in results)


def chains_strict_reward(
    prompts: list, completions: list, answer: list[str], trace: list[str], **kwargs: object
) -> list[float | None]:
    """Give 1 where every running result is right and none is missing or in excess, else 0.

    `trace` holds the right ones.
    """
    texts = [completion_text(completion) for completion in completions]
    return [float(text.strip() == right) for text, right in zip(texts, trace, strict=True)]


def chains_final_reward(
    prompts: list, completions: list, answer: list[str], modulus: list[int], **kwargs: object
) -> list[float | None]:
    """Give 1 where the completion ends with the right number, however it got there, else 0."""
    texts = [completion_text(completion) for completion in completions]
    return [
        float(notation.last_number(text, m) == notation.read(right, m))
        for text, right, m in zip(texts, answer, modulus, strict=True)
    ]


@dataclass(frozen=True)
class Chains(Family):
    """Chains of operations modulo m; see the module.

    A question has as many operations as `lengths` says, in the proportions of `shares`.

    Of the m*3*m single-operation facts the warm-up's teacher knows the share `taught`, and writes a random number
    instead of those with probability `noise`; the others it always guesses.
    """

    name: ClassVar[str] = "chains"

    modulus: int = 10
    lengths: tuple[int, ...] = (2, 3, 4, 8)
    shares: tuple[float, ...] = (0.08, 0.08, 0.08, 0.76)
    reward: str = "strict"
    taught: float = 0.6
    noise: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", tuple(self.lengths))
        object.__setattr__(self, "shares", tuple(float(share) for share in self.shares))
        notation.check_modulus(self.name, self.modulus)
        check_strata(self.name, "lengths", self.lengths, self.shares, largest=64)
        check(self.reward in REWARDS, f"{self.name}: reward must be one of {', '.join(REWARDS)}, got {self.reward!r}")
        check(
            0 <= self.taught <= 1 and 0 <= self.noise <= 1,
            f"{self.name}: taught and noise are shares in [0, 1], got {self.taught} and {self.noise}",
        )

    @property
    def alphabet(self) -> str:
        return notation.characters(self.modulus) + OPERATIONS + "="

    @property
    def units(self) -> tuple[str, ...]:
        """Operations with their numbers, one token a step in question and completion."""
        if not notation.compact(self.modulus):
            return ()
        return tuple(op + notation.write(number, self.modulus) for op in OPERATIONS for number in range(self.modulus))

    @property
    def max_completion_length(self) -> int:
        per_step = notation.width(self.modulus) + (not notation.compact(self.modulus))
        return max(self.lengths) * per_step + 1

    @property
    def reward_function(self) -> RewardFunction:
        return chains_strict_reward if self.reward == "strict" else chains_final_reward

    def strata(self) -> list[Stratum]:
        return [
            Stratum(f"length {length}", share, self.modulus * (3 * self.modulus) ** length)
            for length, share in zip(self.lengths, self.shares, strict=True)
        ]

    def unrank(self, stratum: int, index: int) -> Question:
        m = self.modulus
        first, *digits = radix(index, [m] + [3, m] * self.lengths[stratum])
        steps = [(OPERATIONS[op], number) for op, number in zip(digits[::2], digits[1::2], strict=True)]
        prompt = notation.write(first, m) + "".join(op + notation.write(number, m) for op, number in steps) + "="
        results = running_results(first, steps, m)
        columns = {"trace": write_results(results, m), "modulus": m}
        return Question(prompt, notation.write(results[-1], m), columns)

    def solution(self, question: Question, rng: random.Random | None = None) -> str:
        return question.columns["trace"]

    def is_valid(self, question: str, completion: str) -> bool:
        parsed = parse(question, self.modulus)
        if parsed is None:
            return False
        return completion.strip() == write_results(running_results(*parsed, self.modulus), self.modulus)

    def teacher(self, seed: int) -> Teacher:
        m = self.modulus
        facts = [(left, op, right) for left in range(m) for op in OPERATIONS for right in range(m)]
        known = set(random.Random(f"chains/facts/{seed}").sample(facts, round(self.taught * len(facts))))

        def teach(question: Question, rng: random.Random) -> str:
            parsed = parse(question.prompt, m)
            assert parsed is not None
            running, steps = parsed
            results = []
            for op, number in steps:
                knows = (running, op, number) in known and rng.random() >= self.noise
                running = apply(running, op, number, m) if knows else rng.randrange(m)
                results.append(running)
            return write_results(results, m)

        return teach


def check_strata(family: str, what: str, values: Sequence[int], shares: Sequence[float], largest: int) -> None:
    """Raise ConfigurationError unless the values are distinct, in [1, largest], and have one positive share each."""
    check(
        len(values) >= 1 and all(isinstance(v, int) and 1 <= v <= largest for v in values),
        f"{family}: {what} must be whole numbers in [1, {largest}], got {list(values)}",
    )
    check(len(set(values)) == len(values), f"{family}: {what} must be distinct, got {list(values)}")
    check(
        len(shares) == len(values) and all(share > 0 for share in shares),
        f"{family}: shares must be positive, one for each of {what} {list(values)}, got {list(shares)}",
    )
