"""Admission rules: which scored completions are stored."""

from ...registry import register
from ..contexts import AdmissionCandidate
from ..quality import quality_of


def correct(completion: AdmissionCandidate) -> bool:
    """Admit correct completions [ExGRPO, sec. 3.1]."""
    return completion.correct


def everything(completion: AdmissionCandidate) -> bool:
    """Admit every scorable completion, right or wrong."""
    return True


def single_success(completion: AdmissionCandidate) -> bool:
    """Admit the correct completion of a group that has exactly one."""
    return completion.correct and completion.successes == 1


def quality(completion: AdmissionCandidate) -> bool:
    """Admit completions whose quality exceeds `min_quality`.

    Before the quality is known, reject those that even the greatest diversity could not lift above it.
    """
    c = completion
    if c.quality == c.quality:
        return c.quality > c.config.min_quality
    return quality_of(float(c.correct), 1.0, c.config.success_weight) > c.config.min_quality


def none(completion: AdmissionCandidate) -> bool:
    """Admit nothing of this run; import the correct ones from `experience_from`."""
    return completion.correct


register("admission", "correct", correct)
register("admission", "all", everything)
register("admission", "single_success", single_success)
register("admission", "quality", quality)
register("admission", "none", none, frozen=True)
