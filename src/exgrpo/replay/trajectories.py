"""Which stored trajectories of a question are replayed.

A *trajectory choice* ranks candidates. What it ranks by may be measured under the CURRENT policy, by a scorer that the host
passes in: the only call back from the core [ExGRPO, sec. 3.2].
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..config import TRAJECTORY_CHOICES, ReplayConfig
from ..experience.buffer import ExperienceBuffer
from ..experience.candidates import Candidates
from ..experience.quality import tier_of_each
from ..experience.trajectory import FloatArray, IntArray, Scores, Trajectory
from ..registry import register
from .answers import answer

Scorer = Callable[[Sequence[Trajectory]], Sequence[Scores] | FloatArray]
"""Trajectories -> `Scores` of each under the current policy, or their mean token entropies alone (nats, full vocabulary, the
completion's own tokens)."""


def keys_of(candidates: Candidates) -> FloatArray:
    """Return what the rule ranks by, checked, (n, W): the lowest wins, of equals the older; NaN: not known."""
    name, shape = candidates.config.trajectory_choice, candidates.held.shape
    return answer("trajectory_choice", name, TRAJECTORY_CHOICES[name](candidates), shape)


def may_be_chosen(candidates: Candidates) -> NDArray[np.bool_]:
    """Return which candidates the rule lets compete at all, checked, (n, W); all that are held where it does not say."""
    name, shape = candidates.config.trajectory_choice, candidates.held.shape
    eligible = TRAJECTORY_CHOICES[name].traits["eligible"]
    if eligible is None:
        return candidates.held
    return np.asarray(answer("eligible of the trajectory_choice", name, eligible(candidates), shape) != 0)


# The choices ------------------------------------------------------------------------------------------------------------


def low_entropy(candidates: Candidates) -> NDArray[np.bool_]:
    """At or below the percentile of the entropies of all that is stored, as last measured (recipe A)."""
    buffer = candidates.buffer
    stored = buffer.column("entropy")[buffer.live_slots()]
    stored = stored[~np.isnan(stored)]
    if not stored.size:
        return candidates.held
    return np.asarray(
        candidates.entropy <= np.percentile(stored, candidates.config.entropy_percentile, method="inverted_cdf")
    )


def in_quality_tier(candidates: Candidates) -> FloatArray:
    """A random one of a tier of its question's trajectories; the tier is drawn by `quality_tier_shares` among those that are
    not empty, best first (recipe B)."""
    keys, shares = candidates.draw(), np.array(candidates.config.quality_tier_shares)
    for row, held in enumerate(candidates.held):
        tier = tier_of_each(candidates.quality[row][held])
        filled = np.unique(tier[tier < len(shares)])
        if (total := shares[filled].sum()) > 0:
            keys[row][held] += tier != candidates.rng.choice(filled, p=shares[filled] / total)
    return keys


register("trajectory_choice", "lowest_entropy", lambda c: c.entropy, measured=True)
register("trajectory_choice", "random", lambda c: c.draw())
register("trajectory_choice", "newest", lambda c: -c.serial.astype(np.float64))
register("trajectory_choice", "lowest_nll", lambda c: c.nll, measured=True)
register("trajectory_choice", "lowest_confidence_variance", lambda c: c.confidence_variance, measured=True)
register("trajectory_choice", "entropy_percentile", lambda c: c.draw(), eligible=low_entropy)
register("trajectory_choice", "highest_quality", lambda c: -c.quality)
register("trajectory_choice", "quality_tiers", in_quality_tier)
register("trajectory_choice", "highest_entropy", lambda c: -c.entropy, measured=True)
register(
    "trajectory_choice", "headroom", lambda c: -c.headroom, measured=True, eligible=lambda c: ~np.isnan(c.advantage)
)


# Choosing ---------------------------------------------------------------------------------------------------------------


def allowed(candidates: Candidates, moment: str) -> NDArray[np.bool_]:
    """Which candidates may be chosen at this moment (`plan`, `added` or `rescue`), as far as is known, (n, W)."""
    c, config = candidates, candidates.config
    mask = c.held & may_be_chosen(c)
    if moment == "rescue":
        mask = mask & c.correct
    if moment == "added":
        mask = mask & ~np.isnan(c.advantage)
    if config.max_drift:
        mask = mask & ((c.drift <= config.max_drift) | stale(c))
    return np.asarray(mask)


def stale(candidates: Candidates) -> NDArray[np.bool_]:
    """Whose measured values no longer count."""
    c, refresh = candidates, candidates.config.entropy_refresh
    if refresh == "stored":
        return np.zeros(c.held.shape, bool)
    if refresh == "exact":
        return np.ones(c.held.shape, bool)
    return np.asarray(c.step - c.column("entropy_step") > c.config.max_entropy_age)


def needs_filter(config: ReplayConfig, moment: str) -> bool:
    """Whether some replayable questions may hold nothing that may be chosen."""
    has_rule = TRAJECTORY_CHOICES[config.trajectory_choice].traits["eligible"] is not None
    return has_rule or bool(config.max_drift) or moment == "added"


def eligible_questions(
    buffer: ExperienceBuffer, config: ReplayConfig, step: int, moment: str
) -> Callable[[IntArray], NDArray[np.bool_]] | None:
    """Which of given questions hold a trajectory that may be chosen; None where all do. Time grows with the pool."""
    if not needs_filter(config, moment):
        return None
    return lambda questions: np.asarray(
        allowed(replace(buffer.candidates(questions, step, np.random.default_rng(0)), config=config), moment).any(1)
    )


def choose(
    buffer: ExperienceBuffer,
    questions: Sequence[int],
    step: int,
    config: ReplayConfig,
    rng: np.random.Generator,
    score: Scorer,
    moment: str = "plan",
    count: int = 1,
) -> list[list[int]]:
    """The slots of up to `count` stored trajectories of each question, best first; none where none may be chosen.

    All trajectories of a question compete (`exact`), or the best few by what is cached (`lazy`), those that were never
    measured first among them. Competitors whose values are not known well enough are measured, in one call of the scorer; a
    question with no more trajectories than are wanted needs no measurement, unless drift is limited.
    """
    if not questions:
        return []
    measured = TRAJECTORY_CHOICES[config.trajectory_choice].traits["measured"]
    candidates = replace(buffer.candidates(questions, step, rng), config=config)
    candidates = replace(candidates, held=allowed(candidates, moment))
    measures = (measured or config.max_drift > 0) and config.entropy_refresh != "stored"
    keys = _known(candidates, keys_of(candidates), -np.inf if measures and measured else np.inf)
    if measures:
        competing = _first(keys, None if config.entropy_refresh == "exact" else config.entropy_candidates + count - 1)
        competing &= candidates.held
        to_measure = competing & (stale(candidates) | np.isnan(candidates.entropy))
        if not config.max_drift:
            to_measure &= competing.sum(1, keepdims=True) > count
        if len(slots := candidates.slots[to_measure]):
            buffer.measured(slots, score(buffer.get_many(slots)), step)
        candidates = replace(candidates, held=competing)
        if config.max_drift:
            candidates = replace(candidates, held=competing & (candidates.drift <= config.max_drift))
        keys = _known(candidates, keys_of(candidates), np.inf) if measured else keys
    order = np.lexsort((keys, ~candidates.held), axis=1)[:, :count]
    best, held = (np.take_along_axis(values, order, 1).tolist() for values in (candidates.slots, candidates.held))
    return [[slot for slot, is_held in zip(*row, strict=True) if is_held] for row in zip(best, held, strict=True)]


def _known(candidates: Candidates, keys: FloatArray, unknown: float) -> FloatArray:
    """Keys with a value for what is not known, and the highest for what is not held."""
    return np.where(candidates.held, np.where(np.isnan(keys), unknown, keys), np.inf)


def _first(keys: FloatArray, n: int | None) -> NDArray[np.bool_]:
    """The n lowest of each row; of equals those further left, which are older."""
    mask = np.zeros(keys.shape, bool)
    np.put_along_axis(mask, np.argsort(keys, axis=1, kind="stable")[:, :n], True, axis=1)
    return mask
