"""`TrajectoryBuffer` of recipe A: the core's `ExperienceBuffer` for questions that come one by one, by their prompts.

buffer = TrajectoryBuffer(max_size=100_000)
buffer.add({"prompt": "3+4=", "rollout": "7", "reward": 1.0, "entropy": 0.2})
batch = buffer.sample("medium_difficulty_low_entropy", 64, difficulty_range=(0.3, 0.7), entropy_percentile=25)
batch.prompts, batch.rollouts, batch.rewards
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import ReplayConfig
from ..experience.buffer import ExperienceBuffer
from ..experience.difficulty import bucket_of
from ..experience.policy_stats import PolicyStats
from ..experience.replayed import BY_QUESTION, FILL, restore, snapshot_of
from ..experience.trajectory import FloatArray, IntArray, Trajectory
from ..replay.choice import choose, eligible_questions, eligible_trajectories
from ..replay.rng import QUESTIONS, TRAJECTORIES, generator_for
from ..replay.sampling import Eligible, draw_questions
from .entropy_guided import (
    DifficultyBucketer,
    Range,
    check,
    check_count,
    check_percentile,
    check_range,
    check_strategy,
)  # fmt: skip
from .stored import (
    SUCCESS_ABOVE,
    Sample,
    SampledRollouts,
    StoredIds,
    StoredRollout,
    StoredText,
    check_keys,
    stored_rollout,
)  # fmt: skip

FIRST_ROOM = 1024


class TrajectoryBuffer:
    """Trajectories, right and wrong, by question; the oldest leaves first.

    Args:
        max_size: trajectories in all.
        difficulty_tiers: tiers of equal width in the correctness rate, for `tier` and `uniform_difficulty`.
        entropy_percentiles: of the stored entropies, ascending: the bounds between the classes of entropy.
        max_per_question: trajectories of one question.
        difficulty: keeps the rates; `DifficultyBucketer()` by default. `add` updates it, and nothing else should.
        seed: of the draws of `sample`.

    Attributes:
        experience: the core's buffer, to be looked at.
        policy_snapshot: the old policy, wherever a loop keeps one; the buffer itself never uses it.

    Raises:
        ConfigurationError: a number out of range.
    """

    def __init__(
        self,
        max_size: int = 100_000,
        difficulty_tiers: int = 5,
        entropy_percentiles: Sequence[float] = (25, 50, 75),
        *,
        max_per_question: int = 100,
        difficulty: DifficultyBucketer | None = None,
        seed: int = 0,
    ):
        who = type(self).__name__
        for name, value, low in (
            ("max_size", max_size, 1),
            ("difficulty_tiers", difficulty_tiers, 1),
            ("max_per_question", max_per_question, 1),
            ("seed", seed, 0),
        ):
            check_count(who, name, value, low)
        self.entropy_percentiles = tuple(check_percentile(who, p) for p in entropy_percentiles)
        ascending = all(a < b for a, b in zip(self.entropy_percentiles, self.entropy_percentiles[1:], strict=False))
        check(ascending, f"{who} needs ascending entropy_percentiles, not {entropy_percentiles!r}")
        self.difficulty_tiers = difficulty_tiers
        self.difficulty = difficulty if difficulty is not None else DifficultyBucketer()
        self.seed = seed
        self._config = ReplayConfig(
            mixing="coin",
            admission="all",
            retirement="never",
            entropy_refresh="stored",
            capacity=max_size,
            capacity_per_question=max_per_question,
            tier_shares=(1.0,) * difficulty_tiers,
        )
        self._draws = 0
        self.policy_snapshot: Any = None
        self.experience = self._room(FIRST_ROOM)

    def __len__(self) -> int:
        """Return how many trajectories are stored."""
        return len(self.experience)

    def clear(self) -> None:
        """Forget everything: trajectories, rates, the policy snapshot."""
        self.difficulty.clear()
        self.policy_snapshot = None
        self._draws = 0
        self.experience = self._room(FIRST_ROOM)

    def snapshot_policy(self, model: Any) -> None:
        """Copy a model (`torch.nn.Module`) into `policy_snapshot`: evaluation mode, no gradient.

        The model itself, put there, would keep training.
        """
        self.policy_snapshot = copy.deepcopy(model).eval().requires_grad_(False)

    # In ---------------------------------------------------------------------------------------------------------

    def add(self, trajectory: Mapping[str, Any]) -> bool:
        """Count a fresh trajectory for its question's rate, and store it; returns whether it was stored.

        A rollout that comes twice is stored twice. One without a reward (None or NaN) is unscorable: it neither counts nor is
        stored; nor does one that `sample` gave out, for the rate would then say what the policy did, not what it does.

        Args:
            trajectory: `prompt`: text, token ids, messages, or anything hashable. `rollout`: text, kept as it is, or token
                ids. `reward`. `entropy`: mean token entropy in nats, NaN if not known. Optional: `is_correct`, by default
                whether the reward is above 0.5; `problem_type`; `behaviour_logps`: log-probs of the token ids under the policy
                that generated them, (T,).

        Raises:
            TrajectoryError: a key is missing or unknown, or a value is not as above.
        """
        check_keys(trajectory)
        reward = trajectory["reward"]
        if reward is None or math.isnan(reward) or isinstance(trajectory["rollout"], (StoredText, StoredIds)):
            return False
        is_correct = trajectory.get("is_correct")
        right = bool(reward > SUCCESS_ABOVE if is_correct is None else is_correct)
        known = self.difficulty.number(trajectory["prompt"])
        question = len(self.difficulty) if known is None else known
        stored = stored_rollout(question, self.experience.next_serial, trajectory, float(reward), right)
        self.difficulty.update(trajectory["prompt"], right, trajectory.get("problem_type"))
        if question >= self.experience.num_questions:
            self.experience = self._enlarged(2 * question)
        self.experience.observe(question, *self.difficulty.counts(question))
        return self.experience.admit([stored]) != [None]

    # Out --------------------------------------------------------------------------------------------------------

    def sample(
        self,
        strategy: str = "medium_difficulty_low_entropy",
        size: int = 64,
        difficulty_range: Range = (0.3, 0.7),
        entropy_percentile: float = 25.0,
        *,
        group_size: int | None = None,
        seed: int | tuple[int, int] | None = None,
    ) -> Sample:
        """Draw qualifying trajectories uniformly without replacement; fewer than `size` where there are no more.

        With `group_size`, draw questions alike instead, however many trajectories they have, and of each up to so many of its
        own: GRPO then has something to compare in.

        Args:
            strategy: `medium_difficulty_low_entropy`: questions whose rate lies inside the range, trajectories whose entropy is
                at or below the percentile of all stored entropies. `medium_difficulty`, `low_entropy`: one of these
                conditions alone. `uniform_difficulty`: the tiers that hold something in equal shares. `random`: any.
            size: trajectories, at most.
            difficulty_range: of the rate, exclusive; quantiles of the rates, inclusive, where `difficulty` is adaptive.
            entropy_percentile: in (0, 100].
            group_size: trajectories of one question, at most; None: as they come.
            seed: the same seed draws the same from the same content; by default each call draws anew, from the seed of the
                buffer.

        Raises:
            ConfigurationError: a strategy that there is not, or a number out of range.
        """
        question_choice, only_medium, trajectory_choice = check_strategy("sample", strategy)
        check_count("sample", "size", size, 0)
        if group_size is not None:
            check_count("sample", "group_size", group_size, 1)
        check_range("sample", difficulty_range)
        config = replace(
            self._config,
            question_choice=question_choice,
            trajectory_choice=trajectory_choice,
            entropy_percentile=check_percentile("sample", entropy_percentile),
        )
        if seed is None:
            seed, self._draws = (self.seed, self._draws), self._draws + 1
        base, draw = seed if isinstance(seed, tuple) else (seed, 0)
        eligible = eligible_questions(self.experience, config, 0, "plan")
        if only_medium:
            eligible = self._medium(difficulty_range, eligible)
        if group_size is None:
            return self._sample(self._alike(size, config, eligible, generator_for(base, draw, TRAJECTORIES)))
        rng = generator_for(base, draw, QUESTIONS)
        questions = draw_questions(self.experience, size, config, rng, eligible=eligible)
        rng = generator_for(base, draw, TRAJECTORIES)
        chosen = choose(self.experience, questions, 0, config, rng, _no_scorer, count=group_size)
        return self._sample([slot for group in chosen for slot in group][:size])

    # Asking -----------------------------------------------------------------------------------------------------

    def tier(self, prompt: Any) -> int | None:
        """Return a question's tier, 0 (never right) and up, by its rate rounded to 1 / `window_size`.

        None if unknown.
        """
        question = self.difficulty.number(prompt)
        if question is None:
            return None
        resolution = self.experience.resolution
        bucket = bucket_of(*self.difficulty.counts(question), resolution)
        return min(int(bucket / resolution * self.difficulty_tiers), self.difficulty_tiers - 1)

    def entropy_bounds(self) -> FloatArray:
        """Return the stored entropies at `entropy_percentiles`; NaN where none is known."""
        entropies = self._entropies()
        if not entropies.size:
            return np.full(len(self.entropy_percentiles), np.nan)
        return np.asarray(np.percentile(entropies, self.entropy_percentiles, method="inverted_cdf"))

    def entropy_class(self, entropy: float) -> int | None:
        """Return an entropy's class, 0 (at or below the lowest bound) to 3 (above the highest); None where unknown."""
        bounds = self.entropy_bounds()
        if math.isnan(entropy) or np.isnan(bounds).any():
            return None
        return int(np.searchsorted(bounds, np.float32(entropy), side="left"))

    def _entropies(self) -> FloatArray:
        stored = self.experience.column("entropy")[self.experience.live_slots()]
        return np.asarray(stored[~np.isnan(stored)])

    # Inside -----------------------------------------------------------------------------------------------------

    def _alike(self, size: int, config: ReplayConfig, eligible: Eligible | None, rng: np.random.Generator) -> list[int]:
        """Draw the slots of `size` trajectories uniformly among all that qualify.

        With `tiers`, among those of each tier.
        """
        questions = np.sort(self.experience.replayable())
        if eligible is not None:
            questions = questions[eligible(questions)]
        candidates = replace(self.experience.candidates(questions, 0, rng), config=config)
        qualifies = eligible_trajectories(candidates, "plan")
        slots = candidates.slots[qualifies]
        shares = None
        if config.question_choice == "tiers" and slots.size:
            buckets = self.experience.ready()[questions] / self.experience.resolution
            tiers = np.minimum((buckets * self.difficulty_tiers).astype(np.int64), self.difficulty_tiers - 1)
            tier_of_slot = np.repeat(tiers, qualifies.sum(1))
            held = np.bincount(tier_of_slot)
            shares = 1 / held[tier_of_slot] / np.count_nonzero(held)
        places = rng.choice(slots.size, min(size, slots.size), replace=False, p=shares)
        return slots[np.sort(places)].tolist()

    def _medium(self, difficulty_range: Range, allowed: Eligible | None) -> Eligible:
        """Return a filter for questions of medium difficulty that `allowed` takes too."""

        def eligible(questions: IntArray) -> NDArray[np.bool_]:
            rates, kinds = self.experience.questions.accuracy(questions), self.difficulty.kinds()[questions]
            medium = self.difficulty.inside(rates, difficulty_range, kinds)
            if allowed is not None:
                medium[medium] = allowed(questions[medium])
            return medium

        return eligible

    def _sample(self, slots: list[int]) -> Sample:
        records = self.experience.table.records[slots]
        rollouts: list[StoredRollout] = self.experience.get_many(slots)  # type: ignore[assignment]
        questions = records["question"].astype(np.int64)
        prompts = [self.difficulty.prompts[question] for question in questions]
        logps = [stored.behaviour_logps.copy() if stored.known_logps else None for stored in rollouts]
        return Sample(
            prompts=prompts,
            rollouts=SampledRollouts((stored.rollout for stored in rollouts), prompts, logps),
            rewards=np.array([stored.rewards[0] for stored in rollouts], np.float32),
            is_correct=records["correct"].copy(),
            entropies=records["entropy"].copy(),
            rates=self.experience.questions.accuracy(questions),
            questions=questions,
            behaviour_logps=logps,
        )

    def _room(self, num_questions: int) -> ExperienceBuffer:
        """Create a core buffer for so many questions.

        The rate over the window comes from `difficulty`.
        """
        return ExperienceBuffer(num_questions, self.difficulty.window_size, self._config)

    def _enlarged(self, num_questions: int) -> ExperienceBuffer:
        """Return the same content, with room for more questions."""
        old, new = self.experience, self._room(num_questions)
        snapshot = snapshot_of(old)
        for name in BY_QUESTION:
            rows = snapshot[name]
            snapshot[name] = np.full((num_questions, *rows.shape[1:]), FILL.get(name, 0), rows.dtype)
            snapshot[name][: len(rows)] = rows
        new.store = old.store
        restore(new, snapshot)
        return new


def _no_scorer(trajectories: Sequence[Trajectory]) -> Sequence[PolicyStats]:
    """Raise: no choice of the recipe measures, and entropies are those that were stored."""
    raise AssertionError("nothing is measured again with entropy_refresh='stored'")
