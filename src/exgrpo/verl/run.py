"""Replay on verl's driver: a run's questions, experience and iterations, in the host's terms."""

import logging
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transfer_queue import KVBatchMeta
from verl.utils.config import omega_conf_to_dataclass

from ..errors import ConfigurationError, DatasetError
from ..experience.policy_stats import PolicyStats
from ..experience.trajectory import Trajectory
from ..objective import replay_loss, weight_positive
from ..runtime import checks as shared_checks
from ..runtime.checkpoint import CheckpointRecord
from ..runtime.comm import SingleProcess
from ..runtime.context import Correctness, Progress, RunContext
from ..runtime.encoder import EmbeddingAhead
from ..runtime.provenance import (
    bounds_of,
    columns_of_run,
    embedding_of,
    provenance_of,
    rewards_of,
    tokenizer_json,
    vocabulary_of,
)
from ..runtime.questions import QuestionTable
from ..runtime.session import ExperienceSession
from ..runtime.step import ReplayStep
from ..runtime.timing import Stopwatch
from . import checks
from .columns import FreshRows, Layout, StoredRow, columns, jagged, put_stored
from .data import PromptTokenizer, QuestionRows
from .loss import marked
from .options import VerlOptions
from .rescoring import VerlReward
from .scoring import measure

logger = logging.getLogger(__name__)

CHUNK = 256
"""Rows that are looked at together."""
SEED = 42
"""Default of `data.seed`, as TRL's."""


class Run:
    """Replay of one run, as its trainer calls it.

    Args:
        config: of verl.
        options: of the run.
        tokenizer: of the model.
        trainer: asked for its workers when candidates are measured.

    Attributes:
        planner, session: the experience and its plans; where it is kept.
        layout: the rows of the current batch by their keys.
        idle_reason: why the batch that was planned last replays nothing.
        reported: the reason that was logged last.
        generated_tokens: completion tokens so far.
    """

    def __init__(self, config: Any, options: VerlOptions, tokenizer: Any, trainer: Any):
        self.config, self.options, self.tokenizer, self._trainer = config, options, tokenizer, trainer
        rollout = config.actor_rollout_ref.rollout
        self.num_generations = int(rollout.n)
        self._model = omega_conf_to_dataclass(config.actor_rollout_ref.model).hf_config
        self.vocabulary = vocabulary_of(SimpleNamespace(config=self._model))
        checks.check_no_dropout(self._model.to_dict())
        self._reward = VerlReward(config, tokenizer)
        names = self._reward.names
        self._correctness = Correctness(
            shared_checks.correctness_index(names, options.correctness_function), options.correctness_threshold
        )
        self._embedder = shared_checks.embedder_of(options, None)
        self._embedding = None if self._embedder is None else EmbeddingAhead(self._embedder)
        self.time = Stopwatch()
        self.layout = Layout(self.num_generations)
        self.idle_reason: str | None = None
        self.reported: str | None = None
        self.generated_tokens = 0
        self._done = 0

    # Starting ---------------------------------------------------------------------------------------------------

    def read_questions(self, dataset: Any) -> None:
        """Find out which row is which question.

        Raises:
            DatasetError: they cannot be replayed, or are too few.
        """
        size = int(self.config.data.train_batch_size)
        if len(dataset) < size:
            raise DatasetError(
                f"data.train_files have {len(dataset)} rows, but one step takes {size} questions (data.train_batch_size). "
                f"Lower data.train_batch_size so that at most {len(dataset)} are taken."
            )
        replay = self.options.replay
        rows = QuestionRows(dataset)
        if replay.by_problem_type and replay.replays_questions and "problem_type" not in rows.column_names:
            raise DatasetError(
                "exgrpo.by_problem_type=True needs a key 'problem_type' in extra_info of data.train_files, which have "
                f"{sorted(rows.column_names)}. Write it there, or set exgrpo.by_problem_type=False."
            )
        tokenize = PromptTokenizer(self.tokenizer, self.config, self._model.model_type)
        self.questions = QuestionTable(rows, tokenize, progress=len(rows) > 10_000)
        by_type = replay.by_problem_type and replay.replays_questions
        self._types = self.questions.types() if by_type else None
        if self.questions.num_duplicates:
            logger.warning(
                "%d of %d rows of data.train_files repeat another (same prompt, same columns) and count as one question.",
                self.questions.num_duplicates,
                len(rows),
            )
        self._reward.questions, self._reward.rows = self.questions, dataset.dataframe

    def open(self, checkpoint: Path | None, step: int) -> CheckpointRecord | None:
        """Open the experience, and continue from a checkpoint where there is one; return what it says of the run.

        Args:
            checkpoint: folder that the host has resumed from.
            step: training steps done there.

        Raises:
            CheckpointError, ExperienceLogError: it cannot be continued, or the log cannot be opened.
        """
        self._done = step
        record = None if checkpoint is None else CheckpointRecord.read(checkpoint)
        if record is not None:
            self.generated_tokens = record.generated_tokens
        self.session = ExperienceSession(self._context(), SingleProcess())
        planner = self.session.new_planner()
        self.planner, _ = self.session.open(planner, None if checkpoint is None else str(checkpoint), record)
        return record

    def _context(self) -> RunContext:
        """Make the run's context, for code that knows no host."""
        config, options = self.config, self.options
        normed = config.algorithm.get("norm_adv_by_std_in_grpo", True)
        path = options.log_path(config.trainer.default_local_dir)
        return RunContext(
            config=options.replay,
            objective=options.objective,
            seed=self.seed,
            shuffle=bool(config.data.shuffle),
            num_generations=self.num_generations,
            questions=self.questions,
            types=self._types,
            correctness=self._correctness,
            reward_weights=torch.ones(1),
            scale="group" if normed else "none",
            epsilon=float(config.actor_rollout_ref.actor.clip_ratio_low),
            vocabulary=self.vocabulary,
            log_path=path,
            experience_from=options.experience_from,
            keep_retired=options.keep_retired,
            embedder=self._embedder,
            device=torch.device("cpu"),
            progress=lambda: Progress(self._done, self.generated_tokens),
            provenance=self._provenance,
            tokenizer=lambda: tokenizer_json(self.tokenizer),
            score=self._scores,
            rescore=self._reward.rescorer(self._correctness),
            decode=lambda ids: self.tokenizer.batch_decode(ids, skip_special_tokens=True),
            bounds=lambda: bounds_of(options.replay, self.vocabulary, 1),
            longest_prefix=lambda trajectories: [0] * len(trajectories),  # refused in `verl.checks`
            columns_read=lambda: columns_of_run(
                self._reward.functions, self.questions.row(0).keys() - {"prompt"}, options.replay.by_problem_type
            ),
        )

    @property
    def seed(self) -> int:
        seed = self.config.data.get("seed")
        return SEED if seed is None else int(seed)

    def _provenance(self) -> Any:
        correctness, options = self._correctness, self.options
        settings = {"preset": options.preset, "seed": self.seed, "shuffle": bool(self.config.data.shuffle)}
        packages = ("torch", "transformers", "verl", "ray")
        return provenance_of(
            SimpleNamespace(config=self._model),
            self.tokenizer,
            getattr(self.tokenizer, "chat_template", None),
            rewards=rewards_of(
                self._reward.functions, self._reward.names, [1.0], correctness.function, correctness.threshold
            ),
            temperature=float(self.config.actor_rollout_ref.rollout.temperature),
            num_generations=self.num_generations,
            questions=self.questions.digest(),
            versions={name: version(name) for name in packages},
            options=options.core() | settings,
            embedding=embedding_of(self._embedder, options.embedding_model),
        )

    def close(self, done: bool) -> None:
        """Free the log, since training is over; `done` if nothing went wrong."""
        self.session.close(self.planner, done)

    # A step -----------------------------------------------------------------------------------------------------

    def plan(self, done: int, epoch: float) -> None:
        """Decide what the next batch is made of; its candidates are measured now.

        Args:
            done: training steps done.
            epoch: epochs done.
        """
        self._done = done
        self.step = ReplayStep(
            self.session.context, SingleProcess(), self.planner, self.session, self.time, self._embedding
        )  # fmt: skip
        with self.time("plan"):
            batch = self.step.plan(int(self.config.data.train_batch_size), done, epoch)
        self.idle_reason = batch.plan.idle
        self.layout = Layout(self.num_generations)
        self._next = 0
        self._ratios: dict[str, float] = {}

    def next_questions(self, count: int) -> tuple[list[int], list[int]]:
        """Return the dataset's rows of the next planned questions, and how many completions are rolled out of each.

        Where a plan has none to roll out at all, there is one all the same, which only shows what columns a row has.
        """
        plan, k = self.step.batch.plan, self.num_generations
        groups = range(self._next, self._next + count)
        if groups.stop > len(plan.questions):
            raise ConfigurationError(
                f"verl asked for {groups.stop} questions of a step that was planned with {len(plan.questions)}: something "
                "fetches more than data.train_batch_size, such as a sampler of its own. Leave trainer.v1.sampler at its "
                "defaults."
            )
        self._next = groups.stop
        rollouts = [k - len(plan.replays[group]) for group in groups]
        if not groups.start and not any(k - len(choices) for choices in plan.replays):
            rollouts[0] = 1
        return self.questions.row_of_question[plan.questions[groups]].tolist(), rollouts

    def score(self, batch: KVBatchMeta, metrics: dict[str, Any], dataset: Any) -> KVBatchMeta:
        """Update the experience from the outcomes; return the batch with stored trajectories in it.

        Args:
            batch: the fresh rows of the step.
            metrics: of the step, to which some are added.
            dataset: of verl.
        """
        step, layout = self.step, self.layout
        layout.place(batch.keys)
        if not batch.keys:
            raise ConfigurationError(
                "no completion of this step was rolled out. See verl's messages of why they failed."
            )
        fresh = self._fresh(
            batch.select_keys([key for key in batch.keys if layout.row_of[key] not in step.batch.stored])
        )
        self._check_prompts(fresh)
        with self.time("observe"):
            means = {"reward": float(fresh.rewards.nanmean())} if not fresh.rewards.isnan().all() else {}
            scored = step.score(fresh.rewards, fresh.ids, fresh.finish)
            self._advantages = step.advantages(scored)
        self.generated_tokens += fresh.tokens
        metrics |= step.metrics | means | {"fresh/generated_tokens": float(self.generated_tokens)}
        if not scored.rewards.isnan().all():
            metrics["replay/reward_mixed"] = float(scored.rewards.nanmean())
        replaced = [key for key in batch.keys if layout.row_of[key] in scored.batch.stored]
        batch = put_stored(batch, batch.keys[0], self._stored_rows(dataset))
        return self._in_order(batch, replaced)

    def _fresh(self, batch: KVBatchMeta) -> FreshRows:
        rows = len(self.step.batch.plan.questions) * self.num_generations
        longest = int(self.config.actor_rollout_ref.rollout.response_length)
        end = self.tokenizer.eos_token_id
        generation = getattr(self._model, "eos_token_id", None)
        ends = {end, *(generation if isinstance(generation, list) else [generation])}
        return FreshRows.read(batch, self.layout, rows, longest, ends)

    def _check_prompts(self, fresh: FreshRows) -> None:
        """Check that the rolled out prompts are those of the question table, which stored completions follow."""
        for group, prompt in fresh.prompts.items():
            question = int(self.step.batch.plan.questions[group])
            if list(self.questions.prompt_ids(question)) != prompt:
                raise ConfigurationError(
                    f"the rollout of question {question} has another prompt ({len(prompt)} tokens) than its messages give "
                    f"({len(self.questions.prompt_ids(question))} tokens): an agent loop changes it, and stored completions "
                    "would follow another one. Set actor_rollout_ref.rollout.agent.default_agent_loop=single_turn_agent."
                )

    def _stored_rows(self, dataset: Any) -> list[StoredRow]:
        """Return the step's stored trajectories, each under a new key, and register their rows."""
        batch, found = self.step.scored.batch, []
        for row in sorted(batch.replayed_rows):
            choice = batch.stored_at(row)
            assert choice is not None
            trajectory, key = choice.trajectory, self.layout.key(row)
            question = batch.question_of(row)
            others = dataset[int(self.questions.row_of_question[question])]
            reward = float(np.nan_to_num(trajectory.rewards[0]))
            found.append(StoredRow(key, self.questions.prompt_ids(question), trajectory, reward, others))
            self.layout.row_of[key] = row
        return found

    def _in_order(self, batch: KVBatchMeta, without: Sequence[str]) -> KVBatchMeta:
        """Return rows in the order of the plan, whatever order they arrived in, without some of them.

        Training then does not depend on the order of arrival.
        """
        if without:
            tq.kv_clear(keys=list(without), partition_id=batch.partition_id)
        for key in without:
            del self.layout.row_of[key]
        rows = self.layout.row_of
        return batch.select_keys(sorted((key for key in batch.keys if key in rows), key=rows.__getitem__))

    def record(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> None:
        """Record log-probs and entropies of all rows, with the behaviour policy's for stored ones, and admit."""
        layout, step = self.layout, self.step
        keys = sorted((key for key in batch.keys if key in layout.row_of), key=layout.row_of.__getitem__)
        dtype = torch.float32
        for first in range(0, len(keys), CHUNK):
            part = keys[first : first + CHUNK]
            data = tq.kv_batch_get(
                keys=part, partition_id=batch.partition_id, select_fields=["old_log_probs", "entropy"]
            )
            dtype = data["old_log_probs"].dtype  # a column has one dtype
            self._record_rows([layout.row_of[key] for key in part], data["old_log_probs"], data["entropy"])
        stored = [key for key in keys if step.batch.stored_at(layout.row_of[key]) is not None]
        if stored:
            behaviour = jagged([self._behaviour(layout.row_of[key]).to(dtype) for key in stored])
            tq.kv_batch_put(keys=stored, partition_id=batch.partition_id, fields=columns(old_log_probs=behaviour))
        with self.time("admit"):
            metrics |= step.finish()
        metrics |= self.time.take()

    def _behaviour(self, row: int) -> Tensor:
        choice = self.step.batch.stored_at(row)
        assert choice is not None
        return torch.as_tensor(choice.trajectory.behaviour_logps.copy())

    def _record_rows(self, rows: list[int], logps: Tensor, entropies: Tensor) -> None:
        values, measured = (
            pad_sequence(list(column.unbind(0)), batch_first=True).float() for column in (logps, entropies)
        )
        lengths = torch.tensor([len(one) for one in logps.unbind(0)])
        mask = torch.arange(values.size(1))[None] < lengths[:, None]
        stored = torch.tensor([self.step.batch.stored_at(row) is not None for row in rows])
        behaviour = torch.zeros_like(values)
        for place in stored.nonzero()[:, 0].tolist():
            own = self._behaviour(rows[place])
            behaviour[place, : len(own)] = own
        context = self.session.context
        ratios = None
        if stored.any():
            ratios = replay_loss(
                values, behaviour, torch.tensor([self._advantage(row) for row in rows]), mask, stored, context.objective,
                1.0, context.epsilon, vocabulary=context.vocabulary,
            ).stats  # fmt: skip
        self.step.record(rows, values, measured, mask, ratios)

    def _advantage(self, row: int) -> float:
        """Return the advantage of a row as the loss weighs it."""
        if row in self.step.batch.added:
            advantage = torch.tensor(self.step.batch.added[row].trajectory.advantage)
            return float(weight_positive(advantage, self.options.objective.positive_weight))
        return float(self._advantages[row])

    def credit(self, batch: KVBatchMeta) -> None:
        """Replace the host's advantages by those of the groups."""
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["response_mask"])
        self._values = {
            key: self._advantage(self.layout.row_of[key]) if key in self.layout.row_of else 0.0 for key in batch.keys
        }
        masks = data["response_mask"].unbind(0)
        self._tokens = {key: int(mask.sum()) for key, mask in zip(batch.keys, masks, strict=True)}
        advantages = [mask.float() * self._values[key] for key, mask in zip(batch.keys, masks, strict=True)]
        fields = columns(advantages=jagged(advantages), returns=jagged([one.clone() for one in advantages]))
        tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)

    def keys_with_gradient(self, batch: KVBatchMeta, multiple: int) -> list[str]:
        """Return rows with a gradient, filled up to a multiple, at least one, by the shortest others."""
        needed = [key for key in batch.keys if self._values[key] != 0 and self._tokens[key]]
        size = max(1, -(-len(needed) // multiple)) * multiple
        lengths = dict(zip(batch.keys, (tag["seq_len"] for tag in batch.tags), strict=True))
        chosen = set(needed)
        others = sorted((key for key in batch.keys if key not in chosen), key=lengths.__getitem__)  # ties as they stand
        chosen.update(others[: size - len(needed)])
        return [key for key in batch.keys if key in chosen]

    def write_weights(self, part: KVBatchMeta, model: Any) -> None:
        """Write the weight of each trained row: its sign marks stored rows, its size is a correction factor.

        The factor corrects the rollout engine's log-probs, and a batch of another size than the host's.
        """
        scale = self._scale(part, model)
        names = ["response_mask"]
        corrected = (self.config.algorithm.get("rollout_correction") or {}).get("rollout_is") is not None
        names += ["rollout_is_weights"] * corrected
        data = tq.kv_batch_get(keys=part.keys, partition_id=part.partition_id, select_fields=names)
        stored = torch.tensor(
            [key in self.layout.row_of and self.step.batch.stored_at(self.layout.row_of[key]) is not None for key in part.keys]
        )  # fmt: skip
        sizes = data["rollout_is_weights" if corrected else "response_mask"].unbind(0)
        weights = []
        for is_stored, size in zip(stored.tolist(), sizes, strict=True):
            own = size.float() if corrected and not is_stored else torch.ones(len(size))
            weights.append(marked((own * scale)[None], torch.tensor([is_stored]))[0])
        tq.kv_batch_put(
            keys=part.keys, partition_id=part.partition_id, fields=columns(rollout_is_weights=jagged(weights))
        )

    def _scale(self, part: KVBatchMeta, model: Any) -> float:
        """Return what turns verl's mean over the rows of an update into that over those of a batch of fresh rows."""
        actor = model.actor
        updates = int(self.config.data.train_batch_size) // actor.ppo_mini_batch_size
        if actor.loss_agg_mode in checks.OF_SEQUENCES:
            return len(part) / updates / (actor.ppo_mini_batch_size * model.rollout.n)
        if actor.loss_agg_mode == "token-mean" and updates == 1:
            beside = [key for key, row in self.layout.row_of.items() if row in self.step.batch.added]
            everything = sum(self._tokens.values()) - sum(self._tokens.get(key, 0) for key in beside)
            return sum(self._tokens[key] for key in part.keys) / max(everything, 1)
        return 1.0

    # Measuring --------------------------------------------------------------------------------------------------

    def _scores(self, trajectories: Sequence[Trajectory]) -> list[PolicyStats]:
        """Measure how trajectories look to the policy now."""
        with self.time("measure"):
            prompts = [self.questions.prompt_ids(t.question) for t in trajectories]
            return measure(self._trainer.actor_rollout_wg, self.config.actor_rollout_ref, prompts, trajectories)
