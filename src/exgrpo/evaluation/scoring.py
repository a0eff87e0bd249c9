"""Scores of completions: by the reward function that decides in training, and by others to compare it with."""

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import MissingExtraError
from ..rewards import get_reward
from ..rewards.completion import answer_texts, thinking_begun
from ..rewards.pool import score
from .generation import Completion
from .policy import scores
from .store import Answer, StoredQuestion

THRESHOLD = 0.5  # a completion is right above it, as in training
SECOND = ("strict_math_reward", "math_verify")
"""Verifiers that a mathematical reward is compared with."""


@dataclass(frozen=True)
class Verifiers:
    """Reward functions by name; the first decides correctness."""

    functions: Mapping[str, Callable[..., Any]]

    @classmethod
    def named(cls, names: Sequence[str]) -> "Verifiers":
        """Build verifiers by the names of `exgrpo train`, and `math_verify` as that package decides by itself."""
        return cls({name: math_verify if name == "math_verify" else get_reward(name) for name in names})

    @property
    def decides(self) -> str:
        return next(iter(self.functions))

    def scored(
        self, answers: Iterable[list[Answer]], questions: Sequence[StoredQuestion], begun: Callable[[Any], bool]
    ) -> Iterator[list[Answer]]:
        """Yield the answers with their rewards.

        Args:
            answers: in batches.
            questions: that they may be of.
            begun: whether a prompt ends in a thought that it, or its chat template, began.
        """
        by_id = {question.id: question for question in questions}
        for batch in answers:
            asked = [by_id[answer.question] for answer in batch]
            rows = [{"prompt": one.prompt, "answer": one.gold, **one.columns} for one in asked]
            completions = [Completion([], answer.text, answer.finish == "stop") for answer in batch]
            with thinking_begun([row["prompt"] for row in rows], [begun(one.prompt) for one in asked]):
                columns = {name: scores(function, rows, completions) for name, function in self.functions.items()}
            yield [
                replace(answer, rewards={name: _plain(values[i]) for name, values in columns.items()})
                for i, answer in enumerate(batch)
            ]


def _plain(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def default_verifiers(reward: str) -> tuple[str, ...]:
    """Return the reward that decides, and what it is compared with where that is known."""
    return (reward, *(name for name in SECOND if name != reward)) if "math" in reward else (reward,)


def math_verify(prompts: Any, completions: list[Any], answer: list[Any], **columns: Any) -> list[float | None]:
    """Give 1.0 where the package math-verify finds the gold in a completion, by its own extraction and comparison.

    Within the limits of the verifiers' pool; what they stop is wrong.
    """
    texts = answer_texts(prompts, completions)
    if importlib.util.find_spec("math_verify") is None:
        raise MissingExtraError("math-verify", "math", "The verifier math_verify")
    calls = [(text, str(gold)) for text, gold in zip(texts, answer, strict=True)]
    return [result.value or 0.0 for result in score(verified, calls)]


def verified(text: str, gold: str) -> float:
    """Give 1.0 if math-verify says that the text answers the gold."""
    from math_verify import parse, verify

    right = parse(f"\\boxed{{{gold}}}", parsing_timeout=None)
    return float(verify(right, parse(text, parsing_timeout=None), timeout_seconds=None))


def _import_math_verify() -> None:
    """Import it before the time limit of the first call starts."""
    importlib.import_module("math_verify")


verified.warm_up = _import_math_verify  # type: ignore[attr-defined]
