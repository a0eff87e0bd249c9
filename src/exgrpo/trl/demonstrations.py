"""Demonstrations: completions that others wrote, as trajectories of a run.

They are tokenised as its policy would have written them, scored by its reward functions, and get log-probs by a forward
of its model. The trainer never trains here.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import nn
from tqdm.auto import tqdm

from ..archive.transfer import KnownQuestion, KnownTrajectory, Source
from ..errors import ConfigurationError
from ..experience.trajectory import FloatArray, Trajectory
from ..log.records import FORWARD, UNKNOWN, Provenance
from ..rewards.completion import THINK, THINK_END, thinking_begun
from ..runtime.context import RunContext
from ..runtime.positions import positions_of
from ..tasks.completions import Completion
from .rescoring import rewards_of_stored
from .scoring import logps_of
from .trainer import ExGRPOTrainer
from .verifiers import begun_thoughts

CHUNK = 256


@dataclass(frozen=True)
class Demonstration:
    """A completion and the row of `train_dataset` that it answers; `place` is where it was read, for messages."""

    place: str
    row: int
    completion: Completion


@dataclass(eq=False)
class _Draft:
    """A completion on its way: as tokens, then with rewards, NaN where a function gave none."""

    place: str
    question: int
    ids: list[int]
    finish: str
    rewards: FloatArray = field(default_factory=lambda: np.empty(0, np.float32))


class Demonstrations:
    """Completions by others, prepared for the experience log.

    Args:
        trainer: of a run with these questions, reward functions, tokenizer and model.
        given: the completions.
        end_token: whether those that were not cut get the end token, where they lack it.
        accuracy: whether questions with right and wrong completions get their accuracy from these.

    Attributes:
        left_out: why some cannot be stored -> their places.
        drafts: the others.
        outcomes: right and scorable completions of each question, with the spread of their rewards.
        longest: tokens of the longest that was too long.
    """

    def __init__(
        self, trainer: ExGRPOTrainer, given: Sequence[Demonstration], end_token: bool = True, accuracy: bool = True
    ):
        if trainer.experience is None or trainer.questions is None:
            raise ConfigurationError("nothing can be imported for a preset without replay. Choose one with replay.")
        if any(isinstance(function, nn.Module) for function in trainer.reward_funcs):
            raise ConfigurationError("reward models cannot score what is imported. Give reward functions.")
        self._trainer, self._table = trainer, trainer.questions
        self._positions = positions_of(trainer.accelerator.unwrap_model(trainer.model))
        self.context: RunContext = trainer.experience.context
        self.left_out: dict[str, list[str]] = defaultdict(list)
        self.outcomes: dict[int, tuple[int, int, float]] = {}
        self.longest = 0
        self._advantages: dict[int, float] = {}  # baseline to subtract from rewards, by question
        drafts = [draft for one in given if (draft := self._tokenised(one, end_token)) is not None]
        self._score(drafts)
        scored = [draft for draft in drafts if not np.isnan(self._deciding(draft))]
        if accuracy:
            self._observe(scored)
        self.drafts = self._without_duplicates([draft for draft in drafts if self._is_stored(draft)])

    # Tokens -----------------------------------------------------------------------------------------------------

    def _tokenised(self, one: Demonstration, end_token: bool) -> _Draft | None:
        """Tokenise a completion as the policy would have written it; None, with a reason noted, if it could not."""
        tokenizer: Any = self._trainer._tokenizer
        question = int(self._table.question_of_row[one.row])
        prompt, text = self._table.prompt_ids(question), one.completion.text
        if begun_thoughts(tokenizer, [None], [prompt])[0]:
            bare = text.lstrip()
            text = bare.removeprefix(THINK).lstrip("\n") if bare.startswith(THINK) else text
            if THINK_END not in text and not one.completion.is_cut:
                self._leave_out("without the end of the thought that the chat template begins", one.place)
                return None
        ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
        if end_token and not one.completion.is_cut and not self._is_ended(ids):
            ids.append(tokenizer.eos_token_id)
        if (reason := self._unfit(prompt, ids)) is not None:
            self._leave_out(reason, one.place)
            return None
        return _Draft(one.place, question, ids, "stop" if self._is_ended(ids) else "length")

    def _is_ended(self, ids: Sequence[int]) -> bool:
        return bool(ids) and ids[-1] in self._trainer.eos_token_ids

    def _unfit(self, prompt: Sequence[int], ids: Sequence[int]) -> str | None:
        """Return why the policy could not have written these tokens, or None."""
        trainer, tokenizer = self._trainer, self._trainer._tokenizer
        limit, positions = trainer.max_completion_length, self._positions
        if set(ids[:-1]) & set(trainer.eos_token_ids):
            return "with an end token before the end"
        if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids:
            return "with text that the tokenizer does not know"
        if not ids or max(ids) >= self.context.vocabulary:
            return "without tokens of the model's vocabulary"
        if len(ids) > limit:
            self.longest = max(self.longest, len(ids))
            return f"longer than max_completion_length={limit}"
        if positions is not None and len(prompt) + len(ids) > positions:
            return f"longer, with its prompt, than the {positions} positions of the model"
        return None

    def _leave_out(self, reason: str, place: str) -> None:
        self.left_out[reason].append(place)

    # Rewards ----------------------------------------------------------------------------------------------------

    def _score(self, drafts: Sequence[_Draft]) -> None:
        tokenizer = self._trainer._tokenizer
        for start in range(0, len(drafts), CHUNK):
            chunk = drafts[start : start + CHUNK]
            rows = self._table.rows([draft.question for draft in chunk])
            prompts = [row["prompt"] for row in rows]
            begun = begun_thoughts(tokenizer, prompts, [self._table.prompt_ids(draft.question) for draft in chunk])
            with thinking_begun(prompts, begun):
                rewards = rewards_of_stored(self._trainer, rows, [draft.ids for draft in chunk])
            for draft, values in zip(chunk, rewards, strict=True):
                draft.rewards = values

    def _deciding(self, draft: _Draft) -> float:
        return float(draft.rewards[self.context.correctness.function])

    def _is_right(self, draft: _Draft) -> bool:
        return self._deciding(draft) > self.context.correctness.threshold

    def _total(self, draft: _Draft) -> float:
        return float(np.nansum(draft.rewards * self.context.reward_weights.cpu().numpy()))

    def _observe(self, drafts: Sequence[_Draft]) -> None:
        """Set accuracies and advantages where a question has right and wrong completions; else they are unknown."""
        groups: dict[int, list[_Draft]] = defaultdict(list)
        for draft in drafts:
            groups[draft.question].append(draft)
        for question, group in groups.items():
            right = sum(map(self._is_right, group))
            if 0 < right < len(group):
                totals = [self._total(draft) for draft in group]
                self.outcomes[question] = (right, len(group), float(np.std(totals)))
                self._advantages[question] = float(np.mean(totals))

    def _is_stored(self, draft: _Draft) -> bool:
        value, config = self._deciding(draft), self.context.config
        if np.isnan(value):
            self._leave_out("that the reward function cannot score", draft.place)
        elif draft.finish == "length" and not config.store_truncated:
            self._leave_out("cut, with store_truncated=False", draft.place)
        elif not self.context.bounds().admits(self._trajectory(draft)):
            wrong = not self._is_right(draft)
            self._leave_out("wrong by the reward" if wrong else "that this run would not store", draft.place)
        else:
            return True
        return False

    def _without_duplicates(self, drafts: Sequence[_Draft]) -> list[_Draft]:
        first: dict[tuple[int, ...], _Draft] = {}
        for draft in drafts:
            if first.setdefault((draft.question, *draft.ids), draft) is not draft:
                self._leave_out("twice in the data", draft.place)
        return list(first.values())

    def _trajectory(self, draft: _Draft) -> Trajectory:
        mean = self._advantages.get(draft.question, np.nan)
        return Trajectory(
            question=draft.question,
            completion_ids=np.array(draft.ids, np.int32),
            behaviour_logps=np.zeros(len(draft.ids), np.float32),
            rewards=draft.rewards,
            step=0,
            finish_reason=draft.finish,
            correct=self._is_right(draft),
            advantage=self._total(draft) - mean,
        )

    # What comes of them -----------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Count the storable ones, their questions, wrong and cut ones, tokens, and questions with an accuracy."""
        of_question = Counter(draft.question for draft in self.drafts)
        return {
            "trajectories": len(self.drafts),
            "failures": sum(not self._is_right(draft) for draft in self.drafts),
            "cut": sum(draft.finish == "length" for draft in self.drafts),
            "questions": len(of_question),
            "tokens": sum(len(draft.ids) for draft in self.drafts),
            "with_accuracy": len(self.outcomes),
        }

    def source(self, name: str, forward: bool, rows: int, progress: bool = False) -> Source:
        """Make experience of them that a log takes over.

        Args:
            name: of the data, which the trajectories carry.
            forward: whether log-probs come from a forward of the model; otherwise they stay unknown, and 0.
            rows: how many in one forward.
            progress: whether to show a progress bar.
        """
        trajectories = [self._trajectory(draft) for draft in self.drafts]
        if forward:
            items = [(self._table.prompt_ids(one.question), one) for one in trajectories]
            done = logps_of(self._trainer, items, rows)
            for place, logps in tqdm(done, desc="Log-probs", total=len(items), disable=not progress):
                trajectories[place] = replace(trajectories[place], behaviour_logps=logps)
        origin: Provenance = self.context.provenance()
        made = replace(origin, source=name, behaviour_logps=FORWARD if forward else UNKNOWN)
        unknown = (0, 0, None)
        questions = [
            KnownQuestion(self._table.record(q), right, scorable, 0, reward_std)
            for q in range(len(self._table))
            for right, scorable, reward_std in [self.outcomes.get(q, unknown)]
        ]
        return Source(name, 0, questions, [KnownTrajectory(one, made) for one in trajectories], origin=origin)
