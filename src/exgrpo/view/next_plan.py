"""The next plan for each question: its bucket, the bucket's weight, and its probability of being drawn."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import QUESTION_SAMPLERS, ReplayConfig
from ..errors import ExGRPOError
from ..experience.buffer import ExperienceBuffer
from ..experience.difficulty import UNKNOWN, tier_of
from ..experience.questions import NEVER
from ..replay import expected_count
from ..replay.sampling import bucket_probabilities, pools_of
from .history import UNSEEN, History
from .options import configs_of, of_the_user, options_in

Array = NDArray[Any]


class NextPlan:
    """The question sampler of a run on its current experience, without the choice of trajectories.

    Args:
        history: of the run.

    Attributes:
        config: of replay.
        wanted: questions that a plan replays on average.
        chance: of each question to be among them, (Q,); NaN where it cannot be replayed.
        weight: of a draw from its bucket, in [0, 1], (Q,).
        why: why none of this is known; None where it is.
    """

    def __init__(self, history: History):
        self.config, _ = configs_of(options_in(history.origin))
        self._history, size = history, len(history.questions.scorable)
        self.chance, self.weight = np.full(size, np.nan), np.full(size, np.nan)
        self.ready: Array = np.full(size, UNKNOWN)
        self.wanted, self.why = 0.0, self._why_not()
        if self.why is None:
            try:
                self._fill(self._buffer())
            except (ExGRPOError, ValueError, FloatingPointError) as error:
                self.why = f"the sampler could not be asked: {error}"

    def _why_not(self) -> str | None:
        config = self.config
        if not len(self._history.generations):
            return "an export has no run that goes on"
        if config.mixing == "none":
            return "this run replays nothing (mixing='none')"
        if config.mixing == "rescue":
            return "with mixing='rescue' a question is replayed when its fresh group fails, not by plan"
        if config.mixing == "prefix" and config.prefix_max_accuracy < 1:
            return "with prefix_max_accuracy only hard questions are drawn, which is not worked out here"
        if config.by_problem_type:
            return "its draws are by problem type, which is not worked out here"
        return of_the_user(options_in(self._history.origin), QUESTION_SAMPLERS, "question_choice")

    def _buffer(self) -> ExperienceBuffer:
        """Build a buffer with what is known of the questions; its table holds only counts of trajectories."""
        per, history = self._history.questions, self._history
        buffer = ExperienceBuffer(len(per.scorable), history.num_generations, self.config)
        seen = np.flatnonzero(per.seen)
        stats = buffer.questions
        stats.observe(seen, per.successes[seen], per.scorable[seen], per.spread[seen])
        stats.retired[:] = per.retired
        stats.replayed_at[:] = np.where(per.replayed_at == UNSEEN, NEVER, per.replayed_at)
        stats.replays[:] = per.chosen
        buffer.table.count[:] = per.stored
        buffer.advance(history.step)
        return buffer

    def _fill(self, buffer: ExperienceBuffer) -> None:
        self.ready = buffer.ready()
        rows = self._history.generations
        batch = int(rows["questions"][-1])
        share = self.config.replay_probability if self.config.mixing == "coin" else self.config.replay_share
        self.wanted = float(expected_count(batch, share))
        pools = pools_of(buffer, self.config, self._history.step)
        available = max(1, sum(int(pool.room.sum()) for pool in pools))
        for pool in pools:
            if not pool.room.any():
                continue
            with np.errstate(divide="ignore"):
                chances = bucket_probabilities(pool.log_weights + np.log(pool.room), pool.room)
            wanted = self.wanted * pool.room.sum() / available
            each = np.minimum(1.0, wanted * chances / np.maximum(pool.room, 1))
            questions = pool.candidates.questions
            places: Array = np.flatnonzero(pool.ready != UNKNOWN) if questions is None else questions
            entry: Array = pool.ready[places] if questions is None else np.arange(len(places))
            self.weight[places], self.chance[places] = chances[entry], np.where(pool.room > 0, each, np.nan)[entry]

    def of(self, question: int) -> dict[str, Any]:
        """Describe a question for people: bucket, weight, probability, or why there are none."""
        per, k = self._history.questions, self._history.num_generations
        bucket = int(self._history.buckets()[question])
        found: dict[str, Any] = {
            "bucket": None if bucket == UNSEEN else f"{bucket}/{k}", "tier": None if bucket == UNSEEN else tier_of(bucket, k),
            "sampler": self.config.question_choice, "wanted": self.wanted, "weight": None, "chance": None,
        }  # fmt: skip
        if self.why is None and np.isfinite(self.chance[question]):
            return {
                **found,
                "weight": float(self.weight[question]),
                "chance": float(self.chance[question]),
                "why": None,
            }
        return {**found, "why": self.why or _why_none(per, question, self.config)}


def _why_none(per: Any, question: int, config: ReplayConfig) -> str:
    if per.retired[question]:
        return "it is retired: no plan takes it"
    if not per.seen[question]:
        return "its accuracy is not known yet"
    if not per.stored[question] and config.mixing != "prompt":
        return "nothing of it is stored"
    return "it rests, was used as often as is allowed, or the question sampler takes none that stand so"
