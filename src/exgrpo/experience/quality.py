"""Quality of trajectories by the recipe "success and diversity", and the tiers that follow from it.

    quality   = w success + (1 - w) diversity                 w = 0.7
    diversity = 1 - mean_j cos(e, e_j), in [0, 1]             e_j: the previous rollouts of the same question

A cosine below 0 is possible, so the mean may be: then the diversity is 1 and no more, and the quality stays in [0, 1].
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import ConfigurationError, TrajectoryError
from .contexts import AdmissionCandidate
from .events import Admitted, Event
from .trajectory import FloatArray, Group, Trajectory

if TYPE_CHECKING:
    from .buffer import ExperienceBuffer

SUCCESS_WEIGHT = 0.7
TIERS = 4
TIER_FLOOR = 0.05

Embedder = Callable[[Sequence[str]], ArrayLike]


def quality_of(success: float, diversity: float, success_weight: float = SUCCESS_WEIGHT) -> float:
    """Return the quality of one rollout, in [0, 1]; NaN where success or diversity is NaN.

    Rounded to nine decimals, so that a wrong rollout unlike all others has 0.3 and not a little more.

    Args:
        success: 1 or 0, or what lies between.
        diversity: as `Diversity.of` gives it.
        success_weight: w.

    Raises:
        ConfigurationError: a success weight outside [0, 1].
        TrajectoryError: a success or a diversity outside [0, 1].
    """
    if not 0 <= success_weight <= 1:
        raise ConfigurationError(f"success_weight must lie in [0, 1], but is {success_weight}.")
    for name, value in (("success", success), ("diversity", diversity)):
        if not (math.isnan(value) or 0 <= value <= 1):
            raise TrajectoryError(f"a quality is made of values in [0, 1], or NaN, but {name} is {value}")
    return round(float(success_weight * success + (1 - success_weight) * diversity), ndigits=9)


class Diversity:
    """Sum and count of the unit embeddings seen for each question.

    The mean of the cosines to n unit vectors is the product with their sum over n, so nothing grows with n: 4 D bytes a
    question seen (1.5 kB at D = 384). An embedding is rounded to float16 before any use, as a trajectory keeps it, then
    brought to unit length. Products are summed exactly, whatever their order, and the sum of vectors is added to element by
    element: the same embeddings in the same order give the same bits, on every machine. A zero vector has cosine 0 to all.
    Rounding of the sum (float32) moves a diversity by less than 6e-8 a rollout seen.
    """

    def __init__(self) -> None:
        self._sums: dict[int, NDArray[np.float32]] = {}
        self._counts: dict[int, int] = {}
        self._dimension = 0

    def seen(self, question: int) -> int:
        """Count the embeddings added for a question."""
        return self._counts.get(question, 0)

    def of(self, question: int, embedding: ArrayLike) -> float:
        """Return 1 - mean cosine similarity to the question's embeddings, in [0, 1]; 1 if there are none.

        Args:
            question: any number of a question.
            embedding: (D,).

        Raises:
            TrajectoryError: not a finite vector, or not of the D of those before it.
        """
        unit = self._unit(question, embedding)
        if question not in self._sums:
            return 1.0
        products = unit.astype(np.float64) * self._sums[question]
        return min(max(1.0 - math.fsum(products.tolist()) / self._counts[question], 0.0), 1.0)

    def add(self, question: int, embedding: ArrayLike) -> None:
        """Remember an embedding, (D,); raises as `of` does."""
        unit = self._unit(question, embedding)
        self._dimension = unit.size
        if question in self._sums:
            self._sums[question] += unit
        else:
            self._sums[question] = unit
        self._counts[question] = self.seen(question) + 1

    def hear(self, event: Event) -> None:
        """Add the embeddings of admitted trajectories."""
        if isinstance(event, Admitted):
            for one in event.each():
                if one.trajectory.embedding is not None:
                    self.add(one.trajectory.question, one.trajectory.embedding)

    def forget(self) -> None:
        """Forget all embeddings, and their dimension."""
        self._sums.clear()
        self._counts.clear()
        self._dimension = 0

    def _unit(self, question: int, embedding: ArrayLike) -> NDArray[np.float32]:
        rounded = _float16(embedding)
        if rounded.ndim != 1 or rounded.size == 0 or not np.isfinite(rounded).all():
            raise TrajectoryError(
                f"an embedding of question {question} must have shape (D,) and be finite in float16, but has shape "
                f"{rounded.shape} and {int((~np.isfinite(rounded)).sum())} values that are not finite"
            )
        if self._dimension not in (0, rounded.size):
            raise TrajectoryError(
                f"an embedding of question {question} has D = {rounded.size}, but those before it have D = "
                f"{self._dimension}: they come from another embedding_model. Use the one that the run began with"
            )
        values = rounded.astype(np.float64)
        length = math.sqrt(math.fsum(np.square(values).tolist()))
        return (values / (length or 1.0)).astype(np.float32)


def admit_graded(
    buffer: "ExperienceBuffer", diversity: Diversity, rule: Callable[[AdmissionCandidate], bool],
    trajectories: Sequence[Trajectory], groups: Sequence[Group | None],
) -> int:  # fmt: skip
    """Store trajectories one by one, graded against those stored before; return how many were new.

    Args:
        buffer: where to.
        diversity: that hears of what is stored.
        rule: of admission, asked again with the quality where the group is known.
        trajectories: with their embeddings.
        groups: of this iteration.
    """
    config, admitted = buffer.config, 0
    by_question = {group.question: group for group in groups if group is not None}
    for t in trajectories:
        if t.embedding is not None:
            quality = quality_of(float(t.correct), diversity.of(t.question, t.embedding), config.success_weight)
            t = replace(t, quality=quality)
            if (group := by_question.get(t.question)) is not None:
                counts = group.successes, group.scorable
                if not rule(AdmissionCandidate(t.question, t.correct, *counts, t.finish_reason, quality, config)):
                    continue
        admitted += buffer.admit([t]) != [None]
    return admitted


def embed(embedder: Embedder, texts: Sequence[str]) -> FloatArray:
    """Embed texts and check the result.

    Args:
        embedder: n texts -> (n, D), finite; a `TextEncoder`, or any callable. It is not called for no texts.
        texts: n of them.

    Returns:
        (n, D) float16; (0, 0) for no texts.

    Raises:
        ConfigurationError: it answered with another shape, or with values that are not finite in float16.
    """
    if not texts:
        return np.zeros((0, 0), np.float16)
    given = np.asarray(embedder(texts))
    if given.ndim != 2 or len(given) != len(texts) or given.shape[1] == 0 or given.dtype.kind not in "fiu":
        raise ConfigurationError(
            f"an embedder must return numbers of shape ({len(texts)}, D), D >= 1, for {len(texts)} texts, but "
            f"{_name_of(embedder)} gave {given.dtype} of shape {given.shape}. Set embedding_model, or use another one."
        )
    embeddings = _float16(given)
    rows = np.flatnonzero(~np.isfinite(embeddings).all(1))
    if rows.size:
        raise ConfigurationError(
            f"an embedder must give values that are finite in float16, but {_name_of(embedder)} did not for {rows.size} of "
            f"{len(texts)} texts, the first of them text {rows[0]}. Set embedding_model, or use another one."
        )
    return embeddings


def tier_of_each(qualities: ArrayLike) -> NDArray[np.intp]:
    """Return the quartile of each among one question's trajectories: 0 is the best 25 %, 3 the last.

    Ranked by quality, highest first, of equals the older; rank r of n is in tier 4 r // n. So of five, the best two are in
    tier 0, and fewer than four leave tiers empty. One that was never scored (NaN) ranks last.

    Args:
        qualities: (n,), oldest first.

    Returns:
        (n,), in 0..3.
    """
    values = np.asarray(qualities, np.float64)
    tiers = np.empty(values.size, np.intp)
    tiers[np.argsort(-values, kind="stable")] = np.arange(values.size) * TIERS // max(values.size, 1)
    return tiers


def eviction_place(qualities: ArrayLike, floor: float = TIER_FLOOR) -> int:
    """Choose which trajectory of a question leaves: the oldest of the lowest tier that can spare one.

    A tier can spare one while it holds more than ceil(floor n); where none does (few trajectories), the lowest tier that
    holds any gives one up.

    Args:
        qualities: (n,), oldest first, n >= 1.
        floor: share of the n that each tier keeps, in [0, 1).

    Returns:
        A place in 0..n-1.
    """
    if not 0 <= floor < 1:
        raise ConfigurationError(f"the share that each tier keeps must lie in [0, 1), but is {floor}.")
    tiers = tier_of_each(qualities)
    if tiers.size == 0:
        raise TrajectoryError("one of a question's trajectories can leave only where there is one, but there are none")
    sizes = np.bincount(tiers, minlength=TIERS)
    kept = math.ceil(floor * tiers.size)
    can_spare = np.flatnonzero(sizes > kept)
    lowest = can_spare[-1] if can_spare.size else np.flatnonzero(sizes)[-1]
    return int(np.argmax(tiers == lowest))


def _float16(values: Any) -> FloatArray:
    with np.errstate(over="ignore"):  # too large values become infinite, and are refused
        return np.asarray(values).astype(np.float16)


def _name_of(embedder: Embedder) -> str:
    return getattr(embedder, "__name__", type(embedder).__name__)
