"""Which scored completions are stored."""

from ...registry import register
from ..contexts import AdmissionCandidate
from ..quality import quality_of


def correct(completion: AdmissionCandidate) -> bool:
    """Right ones [ExGRPO, sec. 3.1]."""
    return completion.correct


def everything(completion: AdmissionCandidate) -> bool:
    """Right and wrong ones."""
    return True


def single_success(completion: AdmissionCandidate) -> bool:
    """The right one of a group that has exactly one."""
    return completion.correct and completion.successes == 1


def quality(completion: AdmissionCandidate) -> bool:
    """Those whose quality exceeds `min_quality`: where even the greatest diversity could not make it, at once not."""
    c = completion
    if c.quality == c.quality:
        return c.quality > c.config.min_quality
    return quality_of(float(c.correct), 1.0, c.config.success_weight) > c.config.min_quality


def none(completion: AdmissionCandidate) -> bool:
    """Nothing of this run; of what `experience_from` brings the right ones."""
    return completion.correct


register("admission", "correct", correct)
register("admission", "all", everything)
register("admission", "single_success", single_success)
register("admission", "quality", quality)
register("admission", "none", none, frozen=True)
