"""Question samplers of the 0.2.0 form, which answered per stratum: recognised and translated for one release."""

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..config import QUESTION_SAMPLERS, ReplayConfig
from ..experience.buffer import ExperienceBuffer
from ..experience.trajectory import FloatArray, IntArray
from ..registry import Rule
from .question_candidates import QuestionCandidates
from .validation import checked


@dataclass(frozen=True, eq=False)
class Strata:
    """The argument of such a sampler: buckets, or single questions of size 1."""

    accuracy: FloatArray
    sizes: NDArray[np.int64]
    config: ReplayConfig
    buffer: ExperienceBuffer
    questions: IntArray | None
    step: int


def sampler_of(name: str) -> Rule:
    """Return the question sampler of a name, one of the old form translated."""
    rule = QUESTION_SAMPLERS[name]
    if not _is_old(rule):
        return rule
    warnings.warn(
        f"question_choice {name!r} answers per stratum (it is registered with per_question or uniform, takes `strata`, or "
        "reads `.sizes`). The next release refuses this form: take `candidates`, answer with one log-weight per question "
        "(subtract np.log(candidates.bucket_size) where buckets were weighed), and use `eligible=` in place of NaN.",
        FutureWarning,
        stacklevel=2,
    )
    single, uniform = bool(rule.traits["per_question"]), bool(rule.traits["uniform"])

    def answer(candidates: QuestionCandidates) -> FloatArray:
        c = candidates
        sizes = np.ones_like(c.bucket_size) if single else c.bucket_size
        strata = Strata(c.accuracy, sizes, c.config, c.buffer, c.questions, c.step)
        return checked("question_choice", name, rule(strata), c.accuracy.shape)

    def weigh(candidates: QuestionCandidates) -> FloatArray:
        weights = np.nan_to_num(answer(candidates), nan=0.0, posinf=np.inf, neginf=-np.inf)
        if single:
            return weights
        if uniform:
            return np.where(np.isneginf(weights), -np.inf, 0.0)
        return weights - np.log(np.maximum(candidates.bucket_size, 1))

    traits = {"by_accuracy": not single, "eligible": lambda candidates: ~np.isnan(answer(candidates))}
    return Rule(weigh, rule.traits | traits)  # type: ignore[operator]


def _is_old(rule: Rule) -> bool:
    if rule.traits["per_question"] is not None or rule.traits["uniform"] is not None:
        return True
    code = getattr(rule.function, "__code__", None)
    return code is not None and ("strata" in code.co_varnames[: code.co_argcount] or "sizes" in code.co_names)
