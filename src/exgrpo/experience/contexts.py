"""Inputs of admission and retirement rules."""

from dataclasses import dataclass

from ..config import ReplayConfig


@dataclass(frozen=True)
class AdmissionCandidate:
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


@dataclass(frozen=True)
class RetirementContext:
    """A question after its fresh group was observed.

    Args:
        question: its number.
        successes: right ones of the latest fresh group.
        completions: all of that group, those that could not be scored among them.
        accuracy: of the question, as `difficulty` has it; NaN if never known.
        config: the options.
    """

    question: int
    successes: int
    completions: int
    accuracy: float
    config: ReplayConfig
