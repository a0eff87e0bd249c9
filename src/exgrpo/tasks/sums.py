"""Sums: several numbers of equal width added in columns, from the least significant digit, with the carries written.

`47+85=` has the completion `2131`: the units column gives digit 2 and carry 1 (7+5 = 12), the tens column digit 3 and
carry 1 (4+8+1 = 13); the last carry leads the sum, 132. The `final` reward reads the sum alone; `strict` and `is_valid`
want the carries in between right as well.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from .base import Family, Question, RewardFunction, Stratum, Teacher, WarmUp, check, completion_text, radix
from .chains import REWARDS, check_strata

MAX_DIGITS = 12


def parse(question: str) -> list[list[int]] | None:
    """Return a question's columns, least significant first, each top to bottom; None if the text is not a question."""
    if not re.fullmatch(r"[0-9]+(\+[0-9]+)+=", question):
        return None
    numbers = question[:-1].split("+")
    if len({len(number) for number in numbers}) != 1:
        return None
    return [[int(digit) for digit in column] for column in zip(*(reversed(number) for number in numbers), strict=True)]


def work(columns: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Compute the (digit, carry) pair of each column."""
    pairs, carry = [], 0
    for column in columns:
        carry, digit = divmod(sum(column) + carry, 10)
        pairs.append((digit, carry))
    return pairs


def read_sum(completion: str) -> str | None:
    """Return the sum that a completion writes, without leading zeros; None where it is not made of digit pairs."""
    text = completion.strip()
    if not re.fullmatch(r"([0-9][0-9])+", text[: 4 * MAX_DIGITS]) or len(text) > 2 * MAX_DIGITS:
        return None
    return (text[-1] + text[-2::-2]).lstrip("0") or "0"


def sums_strict_reward(
    prompts: list, completions: list, answer: list[str], trace: list[str], **kwargs: object
) -> list[float | None]:
    """Give 1 where every digit and every carry is right, else 0. `trace` holds the right ones."""
    texts = [completion_text(completion) for completion in completions]
    return [float(text.strip() == right) for text, right in zip(texts, trace, strict=True)]


def sums_final_reward(prompts: list, completions: list, answer: list[str], **kwargs: object) -> list[float | None]:
    """Return 1 where the digits and the last carry give the right sum, whatever the carries between them, else 0."""
    texts = [completion_text(completion) for completion in completions]
    return [float(read_sum(text) == right) for text, right in zip(texts, answer, strict=True)]


@dataclass(frozen=True)
class Sums(Family):
    """Column addition; see the module.

    Numbers are as wide as `digits` says, in the proportions of `shares`; leading zeros are written.

    The warm-up's teacher knows the share `taught` of the digit sums with their incoming carry, and writes a random pair
    instead of those with probability `noise`; at the others it always guesses.
    """

    name: ClassVar[str] = "sums"

    digits: tuple[int, ...] = (2, 3)
    shares: tuple[float, ...] = (0.4, 0.6)
    operands: int = 2
    reward: str = "strict"
    taught: float = 0.6
    noise: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "digits", tuple(self.digits))
        object.__setattr__(self, "shares", tuple(float(share) for share in self.shares))
        check_strata(self.name, "digits", self.digits, self.shares, largest=MAX_DIGITS)
        check(
            isinstance(self.operands, int) and 2 <= self.operands <= 9,
            f"{self.name}: operands must be a whole number in [2, 9], for carries of one digit, got {self.operands!r}",
        )
        check(self.reward in REWARDS, f"{self.name}: reward must be one of {', '.join(REWARDS)}, got {self.reward!r}")
        check(
            0 <= self.taught <= 1 and 0 <= self.noise <= 1,
            f"{self.name}: taught and noise are shares in [0, 1], got {self.taught} and {self.noise}",
        )

    @property
    def alphabet(self) -> str:
        return "0123456789+="

    @property
    def max_completion_length(self) -> int:
        return 2 * max(self.digits) + 1

    @property
    def reward_function(self) -> RewardFunction:
        return sums_strict_reward if self.reward == "strict" else sums_final_reward

    def strata(self) -> list[Stratum]:
        return [
            Stratum(f"{digits} digits", share, 10 ** (digits * self.operands))
            for digits, share in zip(self.digits, self.shares, strict=True)
        ]

    def unrank(self, stratum: int, index: int) -> Question:
        digits = self.digits[stratum]
        numbers = radix(index, [10**digits] * self.operands)
        prompt = "+".join(f"{number:0{digits}d}" for number in numbers) + "="
        columns = parse(prompt)
        assert columns is not None
        return Question(prompt, str(sum(numbers)), {"trace": "".join(f"{d}{c}" for d, c in work(columns))})

    def solution(self, question: Question, rng: random.Random | None = None) -> str:
        return question.columns["trace"]

    def is_valid(self, question: str, completion: str) -> bool:
        columns = parse(question)
        return columns is not None and completion.strip() == "".join(f"{d}{c}" for d, c in work(columns))

    def teacher(self, seed: int) -> Teacher:
        facts = [(total, carry) for total in range(9 * self.operands + 1) for carry in range(self.operands)]
        known = set(random.Random(f"sums/facts/{seed}").sample(facts, round(self.taught * len(facts))))

        def teach(question: Question, rng: random.Random) -> str:
            columns = parse(question.prompt)
            assert columns is not None
            text, carry = "", 0
            for column in columns:
                if (sum(column), carry) in known and rng.random() >= self.noise:
                    carry, digit = divmod(sum(column) + carry, 10)
                else:
                    carry, digit = rng.randrange(self.operands), rng.randrange(10)
                text += f"{digit}{carry}"
            return text

        return teach

    @property
    def warm_up(self) -> WarmUp:
        return WarmUp(batches=1200, batch_size=48)
