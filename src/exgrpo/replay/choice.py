"""Trajectory choice: which stored trajectories of a question are replayed.

A *trajectory choice* ranks candidates. Its keys may be measured under the CURRENT policy, by a scorer that the host passes
in: the only callback of the core [ExGRPO, sec. 3.2].
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..config import TRAJECTORY_CHOICES, ReplayConfig
from ..experience.buffer import ExperienceBuffer
from ..experience.candidates import Candidates
from ..experience.policy_stats import PolicyStats
from ..experience.trajectory import FloatArray, IntArray, Trajectory
from ..registry import register
from .decay import decayed
from .validation import checked

Scorer = Callable[[Sequence[Trajectory]], Sequence[PolicyStats] | FloatArray]
"""Trajectories -> `PolicyStats` of each under the current policy, or their mean token entropies alone (nats, full vocabulary,
the completion's own tokens)."""


def keys_of(candidates: Candidates) -> FloatArray:
    """Return the checked ranking keys, (n, W): the lowest wins, the older on a tie; NaN: not known."""
    name, shape = candidates.config.trajectory_choice, candidates.valid.shape
    return decayed(checked("trajectory_choice", name, TRAJECTORY_CHOICES[name](candidates), shape), candidates)


register("trajectory_choice", "lowest_entropy", lambda c: c.entropy, measured=True)


def eligible_trajectories(candidates: Candidates, stage: str) -> NDArray[np.bool_]:
    """Return which candidates may be chosen at a stage, as far as is known, (n, W).

    Stages are `plan`, `added`, `prefix` and `rescue`.
    """
    c, name = candidates, candidates.config.trajectory_choice
    mask = c.valid
    if (rule := TRAJECTORY_CHOICES[name].traits["eligible"]) is not None:
        mask = mask & (checked("eligible of the trajectory_choice", name, rule(c), mask.shape) != 0)
    if stage in ("rescue", "prefix"):
        mask = mask & c.correct & ((stage != "prefix") | (c.accuracy <= c.config.prefix_max_accuracy))
    if stage == "added" and c.config.advantage == "birth":
        mask = mask & ~np.isnan(c.advantage)
    if c.config.max_drift:
        mask = mask & ((c.drift <= c.config.max_drift) | stale(c))
    return np.asarray(mask)


def eligible_questions(
    buffer: ExperienceBuffer, config: ReplayConfig, step: int, stage: str
) -> Callable[[IntArray], NDArray[np.bool_]] | None:
    """Return which of given questions hold a trajectory that may be chosen, as a function; None where all do."""
    has_rule = TRAJECTORY_CHOICES[config.trajectory_choice].traits["eligible"] is not None
    if not (has_rule or config.max_drift or stage in ("added", "prefix")):
        return None
    return lambda questions: np.asarray(
        eligible_trajectories(
            replace(buffer.candidates(questions, step, np.random.default_rng(0)), config=config), stage
        ).any(1)
    )


def stale(candidates: Candidates) -> NDArray[np.bool_]:
    """Return which measured values are too old to count, (n, W)."""
    refresh, age = candidates.config.entropy_refresh, candidates.step - candidates.column("entropy_step")
    if refresh == "lazy":
        return np.asarray(age > candidates.config.max_entropy_age)
    return np.full(age.shape, refresh == "exact")


def choose(
    buffer: ExperienceBuffer, questions: Sequence[int], step: int, config: ReplayConfig, rng: np.random.Generator,
    score: Scorer, stage: str = "plan", count: int = 1,
) -> list[list[int]]:  # fmt: skip
    """Return the slots of up to `count` stored trajectories of each question, best first; none where none may be chosen.

    All trajectories of a question compete (`exact`), or the best few by cached values (`lazy`), unmeasured ones first.
    Competitors with missing or stale values are measured, in one call of the scorer; a question with no more trajectories
    than requested needs no measurement, unless drift is limited.
    """
    if not questions:
        return []
    measured = TRAJECTORY_CHOICES[config.trajectory_choice].traits["measured"]
    candidates = replace(buffer.candidates(questions, step, rng), config=config)
    candidates = replace(candidates, valid=eligible_trajectories(candidates, stage))
    measures = (measured or config.max_drift > 0) and config.entropy_refresh != "stored"
    keys = _known(candidates, keys_of(candidates), -np.inf if measures and measured else np.inf)
    if measures:
        competing = _first(keys, None if config.entropy_refresh == "exact" else config.entropy_candidates + count - 1)
        competing &= candidates.valid
        to_measure = competing & (stale(candidates) | np.isnan(candidates.entropy))
        if not config.max_drift:
            to_measure &= competing.sum(1, keepdims=True) > count
        if len(slots := candidates.slots[to_measure]):
            buffer.update_stats(slots, score(buffer.get_many(slots)), step)
        candidates = replace(candidates, valid=competing)
        if config.max_drift:
            candidates = replace(candidates, valid=competing & (candidates.drift <= config.max_drift))
        keys = _known(candidates, keys_of(candidates), np.inf) if measured else keys
    order = np.lexsort((keys, ~candidates.valid), axis=1)[:, :count]
    best, valid = (np.take_along_axis(values, order, 1).tolist() for values in (candidates.slots, candidates.valid))
    return [[slot for slot, is_valid in zip(*row, strict=True) if is_valid] for row in zip(best, valid, strict=True)]


def _known(candidates: Candidates, keys: FloatArray, unknown: float) -> FloatArray:
    """Fill unknown keys with a value; put invalid ones last."""
    return np.where(candidates.valid, np.where(np.isnan(keys), unknown, keys), np.inf)


def _first(keys: FloatArray, n: int | None) -> NDArray[np.bool_]:
    """Return the n lowest of each row; of equals those further left, which are older."""
    mask = np.zeros(keys.shape, bool)
    np.put_along_axis(mask, np.argsort(keys, axis=1, kind="stable")[:, :n], True, axis=1)
    return mask
