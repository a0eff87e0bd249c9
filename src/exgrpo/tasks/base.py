"""Verifiable task families: questions by the thousand, a reward function, and a checker of the reasoning.

A `Task` makes datasets and scores completions. A `Family` is a task whose questions are generated here: it numbers its
questions (`unrank`), so that a set is a draw of distinct numbers, and it can write noisy demonstrations for the warm-up
of the built-in tiny policy. Which split a question belongs to is decided by a hash of its text and by nothing else:
training and evaluation sets are disjoint whatever the sizes and seeds.

Imports neither torch nor datasets at module level.
"""

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from datasets import Dataset

SPLITS = ("train", "eval")
EVAL_SHARE = 0.25  # share of a family's questions that belong to the evaluation split
ENUMERABLE = 1 << 17  # strata up to this size are permuted, larger ones drawn from by rejection

RewardFunction = Callable[..., list[float | None]]
Teacher = Callable[["Question", random.Random], str]


@dataclass(frozen=True)
class Question:
    """One dataset row: the text, the reference answer, and the further columns that the reward function reads."""

    prompt: str
    answer: str
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Stratum:
    """A part of a family: a label for messages, its share of every set, and how many numbers `unrank` takes."""

    label: str
    share: float
    count: int


@dataclass(frozen=True)
class WarmUp:
    """Supervised steps that give a fresh policy something to improve: `batches` AdamW steps of `batch_size` rows.

    The learning rate rises to `learning_rate` over `rise` steps, a quarter of `batches` at most, stays there, and falls
    to zero over the last quarter.
    """

    batches: int = 800
    batch_size: int = 64
    learning_rate: float = 2.5e-3
    rise: int = 40

    def __post_init__(self) -> None:
        check(self.batches >= 1 and self.batch_size >= 1, "WarmUp: batches and batch_size must be at least 1")
        check(self.learning_rate > 0 and self.rise >= 0, "WarmUp: learning_rate must be positive and rise at least 0")


def check(condition: bool, message: str) -> None:
    """Raise `ConfigurationError(message)` unless the condition holds."""
    if not condition:
        raise ConfigurationError(f"{message}.")


def split_of(prompt: str) -> str:
    """Return the split a question belongs to, from its text alone."""
    digest = hashlib.blake2b(prompt.encode(), digest_size=8, person=b"exgrpo-split").digest()
    return "eval" if int.from_bytes(digest, "big") < EVAL_SHARE * 2**64 else "train"


def completion_text(completion: Any) -> str:
    """Return the text of a completion: a string, or the last message of a conversation."""
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if completion else ""
    if isinstance(content, list):  # content parts
        return "".join(part.get("text", "") for part in content)
    return content or ""


def quotas(size: int, shares: Sequence[float]) -> list[int]:
    """Split `size` by `shares` (any positive scale) into whole numbers that sum to it: largest remainders first."""
    exact = [size * share / sum(shares) for share in shares]
    counts = [int(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: size - sum(counts)]:
        counts[i] += 1
    return counts


def distinct_indices(count: int, rng: random.Random) -> Iterator[int]:
    """Yield every number below `count` once, in random order.

    Lazily, so that a huge `count` costs only what is taken.
    """
    if count <= ENUMERABLE:
        order = list(range(count))
        rng.shuffle(order)
        yield from order
        return
    seen: set[int] = set()
    while len(seen) < count:
        index = rng.randrange(count)
        if index not in seen:
            seen.add(index)
            yield index


def radix(index: int, bases: Sequence[int]) -> list[int]:
    """Return the digits of `index` in mixed radix, least significant first: `digits[i] < bases[i]`."""
    digits = []
    for base in bases:
        index, digit = divmod(index, base)
        digits.append(digit)
    return digits


class Task(ABC):
    """A verifiable task: datasets with the columns `prompt` and `answer`, a reward function, a checker."""

    name: ClassVar[str]

    @abstractmethod
    def make(self, split: str, size: int, seed: int = 0) -> "Dataset":
        """Make `size` distinct questions of a split ("train" or "eval"), the same for the same arguments.

        Raises ConfigurationError where the family has fewer distinct questions than asked for.
        """

    @property
    @abstractmethod
    def reward_function(self) -> RewardFunction:
        """A module-level `f(prompts, completions, answer, **columns) -> list[float | None]`, as TRL calls it."""

    def is_valid(self, question: str, completion: str) -> bool:
        """Return whether the completion reaches the right answer by right reasoning, not by luck.

        Raises ConfigurationError where the task can check answers only.
        """
        raise ConfigurationError(f"The task {self.name!r} has no checker of reasoning, only of answers.")

    def knobs(self) -> dict[str, Any]:
        """Return the options that this task was made with."""
        return asdict(self)  # type: ignore[call-overload]


class Family(Task):
    """A task whose questions are generated, small enough for the built-in tiny policy."""

    @property
    @abstractmethod
    def alphabet(self) -> str:
        """Every character that questions and completions are written with, in a fixed order."""

    @property
    def units(self) -> tuple[str, ...]:
        """Texts of several characters, in questions only, that are one token each to the tiny policy."""
        return ()

    @property
    @abstractmethod
    def max_completion_length(self) -> int:
        """Tokens of the longest valid completion, end token included (one token a character)."""

    @abstractmethod
    def strata(self) -> list[Stratum]:
        """Return the parts of the family; a set holds each in proportion to its share."""

    @abstractmethod
    def unrank(self, stratum: int, index: int) -> Question | None:
        """Return the question with this number, or None where the number stands for none."""

    @abstractmethod
    def solution(self, question: Question, rng: random.Random | None = None) -> str:
        """Return a valid completion; with `rng` a random one among them, where there are several."""

    @abstractmethod
    def is_valid(self, question: str, completion: str) -> bool:
        """See `Task.is_valid`; every family has a checker."""

    @abstractmethod
    def teacher(self, seed: int) -> Teacher:
        """Return a demonstrator that knows the task only in part; what it knows is drawn from the seed."""

    @property
    def warm_up(self) -> WarmUp:
        """The supervised steps that suit this family."""
        return WarmUp()

    def make(self, split: str, size: int, seed: int = 0) -> "Dataset":
        """See `Task.make`. Columns: `prompt` (str), `answer` (str), and the family's own."""
        from datasets import Dataset

        questions = self.draw(split, size, seed)
        rows = [{"prompt": q.prompt, "answer": q.answer, **q.columns} for q in questions]
        return Dataset.from_list(rows)

    def draw(self, split: str, size: int, seed: int = 0) -> list[Question]:
        """Return the rows of `make` as `Question` objects, in random order."""
        check(split in SPLITS, f"{self.name}: there is no split {split!r}; splits: {', '.join(SPLITS)}")
        check(size >= 1, f"{self.name}: size must be at least 1, got {size}")
        strata, drawn = self.strata(), []
        texts: set[str] = set()
        for i, quota in enumerate(quotas(size, [s.share for s in strata])):
            before = len(texts)
            indices = distinct_indices(strata[i].count, random.Random(f"{self.name}/{split}/{seed}/{i}"))
            while len(texts) - before < quota:
                index = next(indices, None)
                if index is None:
                    raise ConfigurationError(
                        f"{self.name}: {size} questions of split {split!r} need {quota} of {strata[i].label}, and "
                        f"the family has {len(texts) - before} distinct ones there. Ask for fewer, or give that part a "
                        "smaller share."
                    )
                question = self.unrank(i, index)
                if question and question.prompt not in texts and split_of(question.prompt) == split:
                    texts.add(question.prompt)
                    drawn.append(question)
        random.Random(f"{self.name}/{split}/{seed}/order").shuffle(drawn)
        return drawn

    def demonstrations(self, size: int, seed: int = 0) -> list[tuple[str, str]]:
        """Return pairs (question, completion) by the teacher, on training questions drawn with replacement.

        Strata are drawn halfway between their shares and equal shares, so that the small ones are learned too.
        """
        rng = random.Random(f"{self.name}/demonstrations/{seed}")
        teach, strata = self.teacher(seed), self.strata()
        total = sum(s.share for s in strata)
        shares = [s.share / total + 1 / len(strata) for s in strata]
        pairs: list[tuple[str, str]] = []
        while len(pairs) < size:
            (i,) = rng.choices(range(len(strata)), shares)
            question = self.unrank(i, rng.randrange(strata[i].count))
            if question and split_of(question.prompt) == "train":
                pairs.append((question.prompt, teach(question, rng)))
        return pairs
