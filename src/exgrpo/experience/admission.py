"""Which scored completions are stored."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..config import ADMISSIONS, ReplayConfig
from .quality import quality_of


@dataclass(frozen=True)
class Completion:
    """A fresh completion that was scored, before it is stored.

    Args:
        question: its number.
        correct: whether it is right; one that cannot be scored is never asked about.
        successes: right ones among the fresh completions of its group. A rule is also asked what of another run's experience
            may be taken over (`experience_from`), where no more of a group is known than the completion: 1 or 0 of 1.
        scorable: those that could be scored.
        finish_reason: `stop` or `length`.
        quality: of success and diversity; NaN before it is known, and where none is used. A rule is asked before (so that
            nothing is embedded in vain) and after.
        config: the options.
    """

    question: int
    correct: bool
    successes: int
    scorable: int
    finish_reason: str
    quality: float
    config: ReplayConfig


Admission = Callable[[Completion], bool]


def register_admission(name: str, rule: Admission | None = None, *, needs_quality: bool = False) -> Admission:
    """Add a rule under a name, as a call or as a decorator: `Completion` -> whether it is stored. `needs_quality`: it looks at
    the quality."""
    ADMISSIONS.check(name, rule)
    if rule is None:
        traits: Any = {"needs_quality": needs_quality}
        return lambda function: register_admission(name, function, **traits)  # type: ignore[return-value, arg-type]
    ADMISSIONS.register(name, rule, needs_quality)
    return rule


def correct(completion: Completion) -> bool:
    """Right ones [ExGRPO, sec. 3.1]."""
    return completion.correct


def everything(completion: Completion) -> bool:
    """Right and wrong ones."""
    return True


def single_success(completion: Completion) -> bool:
    """The right one of a group that has exactly one."""
    return completion.correct and completion.successes == 1


def quality(completion: Completion) -> bool:
    """Those whose quality exceeds `min_quality`: where even the greatest diversity could not make it, at once not."""
    c = completion
    if c.quality == c.quality:
        return c.quality > c.config.min_quality
    return quality_of(float(c.correct), 1.0, c.config.success_weight) > c.config.min_quality


register_admission("correct", correct)
register_admission("all", everything)
register_admission("single_success", single_success)
register_admission("quality", quality, needs_quality=True)
