"""`ExGRPOTrainer`: TRL's `GRPOTrainer` with experience replay.

Every override calls `super()`; no body of the host is copied. In the order of a step:

    _generate_and_score_completions   plan the batch, replace the sampler's rows; afterwards, the advantages
      _generate                         rescue: score early, replace failures by stored successes
        _generate_single_turn             generate the fresh rows only, splice the stored ones in
      _calculate_rewards                stored trajectories keep their recorded rewards
    _compute_loss                     the host's loss on fresh rows, plus the replayed terms; after the last, finish

A `ReplayStep` does the work in between. `ResumableGRPOTrainer` handles runs and checkpoints.
"""

import functools
import inspect
import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trl import GRPOTrainer

from ..errors import ConfigurationError
from ..experience.events import Admitted, Event, Replayed, Retired, Stored
from ..experience.policy_stats import PolicyStats
from ..experience.quality import Embedder
from ..experience.trajectory import Trajectory
from ..log import Provenance
from ..objective import have_no_variance, weight_positive
from ..registry import resolve_rules
from ..replay import BY_THE_COIN, ReplayPlanner
from ..rewards.completion import thinking_begun
from ..runtime import checks as shared_checks
from ..runtime.batch import NO_LOGP, ReplayBatch, weighted
from ..runtime.behaviour import check_behaviour, without_behaviour
from ..runtime.checkpoint import CheckpointRecord
from ..runtime.context import Correctness, Progress, RunContext
from ..runtime.encoder import EmbeddingAhead
from ..runtime.metric_table import FILE_NAME as METRICS
from ..runtime.metric_table import PREFIXES, hidden, metric_of
from ..runtime.metrics import fresh_metrics
from ..runtime.padding import without_left_padding
from ..runtime.positions import has_absolute_positions, has_table_of_positions, positions_of
from ..runtime.prefixes import longest_prefix
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
from ..runtime.skip_rows import counted, only, rows_to_compute, scale_of
from ..runtime.step import ReplayStep, Stage
from ..runtime.timing import Stopwatch
from . import checks, model_card
from .callbacks import MetricsFile, StopAtGeneratedTokens, alarm_of
from .config import ExGRPOConfig
from .generation import gathers_prompts, rows_to_generate
from .host_metrics import length_metrics, reward_metrics
from .loss import added_term, capture_forward, replayed_term, token_weights
from .rescoring import rescorer
from .resume import ResumableGRPOTrainer
from .reward_answers import checked
from .scoring import measure
from .skip_rows import account, most_of, skips_rows
from .verifiers import UnansweredReport, begun_thoughts

logger = logging.getLogger(__name__)

MAX_REWARD = 1e30
"""Larger rewards are treated as unscorable: their means and squares overflow."""


class ExGRPOTrainer(ResumableGRPOTrainer):
    """GRPO with experience replay ([ExGRPO](https://huggingface.co/papers/2510.02245)).

    Successful completions are stored by question and by the question's current difficulty, and the most valuable ones are
    replayed in groups together with fresh completions.

    Takes the arguments of `GRPOTrainer`; `args` must be an [`ExGRPOConfig`]. `embedder`, a function from texts to an array
    (n, D), replaces `embedding_model` where the quality of completions is used.

    ```python
    from exgrpo.rewards import math_reward
    from exgrpo.trl import ExGRPOConfig, ExGRPOTrainer

    trainer = ExGRPOTrainer(
        model="Qwen/Qwen2.5-Math-1.5B",
        reward_funcs=math_reward,
        args=ExGRPOConfig("out", gradient_accumulation_steps=16),  # 16 questions of 8 a step, half of them replayed
        train_dataset=dataset,
    )
    trainer.train()
    ```

    Attributes:
        planner ([`~exgrpo.replay.ReplayPlanner`] or `None`): the experience and its plans; `None` without replay.
        questions: the questions of the dataset; `None` without replay.
        experience: the session that writes the log; its `listeners` see every event. `None` without replay.
        generated_tokens (`int`): completion tokens generated in training so far, over all processes and all calls of
            `train()`; `max_generated_tokens` limits it.
        idle_reason (`str` or `None`): why the last iteration replayed nothing.
        last_metrics (`dict`): all of this package's metrics in the training log that is being written, whether or not
            `replay_metrics` shows them; callbacks can read them in `on_log`.
        counts (`dict`): completions `stored` and `replayed`, and questions `retired`, in this run so far.

    Raises:
        ConfigurationError: an option or argument cannot be combined with replay; raised before the model is loaded.
        DatasetError: a column is missing, or there are fewer questions than one generation takes.
        HostVersionError: the version of TRL is not supported.
    """

    def __init__(self, *args: Any, embedder: Embedder | None = None, **kwargs: Any):
        given = checks.bound_arguments(super().__init__, args, kwargs)
        given["args"] = config = self._config(given)
        resolve_rules(config.replay, config.objective)
        checks.check_columns(given)
        checks.check_upload(config)
        checks.check_saving(config)
        checks.check_rewards(given, config)
        if config.replay.active:
            checks.check_replayable(given)
        checks.check_rows(given.get("train_dataset"), config.generation_batch_size // config.num_generations)
        if config.replay.active:
            checks.check_problem_types(config.replay, given)
            path = config.experience_from
            if path is not None and Path(path).expanduser().exists():  # other nodes may not see it
                check_behaviour(config.replay, config.objective, without_behaviour(path), path)
            embedder = shared_checks.embedder_of(config, embedder)
        self.planner: ReplayPlanner | None = None
        self.questions: QuestionTable | None = None
        self.experience: ExperienceSession | None = None
        self._tokens_of_this_process = 0
        self.idle_reason: str | None = None
        self.last_metrics: dict[str, float] = {}
        self._shown: set[str] | None = None
        self.time = Stopwatch()
        self._begun: list[bool] = []
        self._rows: list[dict[str, Any]] = []
        self._host_metrics: dict[str, float] = {}
        self._name, self._paper = model_card.method_of(config.preset)
        if config.replay.active:
            self._tag_names = [*GRPOTrainer._tag_names, "exgrpo"]
        self._told: set[str] = set()
        config.own_trainer = True
        super().__init__(**given)
        shared_checks.check_trainable(self.model)
        checks.report_names(self)
        checks.report_sharding(self)
        self._positions = positions_of(self.accelerator.unwrap_model(self.model))
        self._objective = config.objective
        self.embedder = embedder if config.replay.uses_quality else None
        self._embedding = EmbeddingAhead(self.embedder) if self.embedder is not None else None
        decides = shared_checks.correctness_index(self.reward_func_names, config.correctness_function)
        self._correctness = Correctness(decides, config.correctness_threshold)
        self._unanswered = UnansweredReport(self.reward_funcs, self.reward_func_names, decides)
        checks.check_generation_defaults(self)
        if not config.clip_fresh:
            self.epsilon_low = self.epsilon_high = math.inf
        if config.max_generated_tokens is not None:
            self.add_callback(StopAtGeneratedTokens(self))
        if config.replay.active:
            self._start_replay(config)
        checks.report_options(self)
        self._skips_rows = skips_rows(self)
        if (alarm := alarm_of(self)) is not None:
            self.add_callback(alarm)
        if config.keeps_log:
            self.add_callback(MetricsFile(self, config.experience_path.with_name(METRICS)))

    @staticmethod
    def _config(given: dict[str, Any]) -> ExGRPOConfig:
        args = given.get("args")
        if args is None:
            model = given["model"]
            name = model if isinstance(model, str) else (getattr(model.config, "_name_or_path", "") or "model")
            return ExGRPOConfig(f"{name.split('/')[-1]}-ExGRPO")
        if not isinstance(args, ExGRPOConfig):
            raise ConfigurationError(
                f"ExGRPOTrainer needs args of type ExGRPOConfig, not {type(args).__name__}. Replace GRPOConfig(...) by "
                "exgrpo.trl.ExGRPOConfig(...); it takes the same options."
            )
        return args

    def _start_replay(self, config: ExGRPOConfig) -> None:
        shared_checks.check_no_dropout(self.model)
        main = self.accelerator.is_main_process
        self.questions = QuestionTable(
            self.train_dataset,
            lambda prompts: self._tokenize_prompts(prompts)[0],
            progress=main and not config.disable_tqdm and len(self.train_dataset) > 10_000,
        )
        shared_checks.check_same_questions(self.comm.gather(self.questions.digest()))
        by_type = config.by_problem_type and config.replay.replays_questions
        self.types = self.questions.types() if by_type else None
        model = self.accelerator.unwrap_model(self.model)
        self._vocabulary = vocabulary_of(model)
        self.experience = ExperienceSession(self._context(config, self.questions), self.comm)
        self.experience.listeners.append(self._count)
        self.planner = self.experience.new_planner()
        self._columns_of_replay = 1
        prompt, pad = self.questions.prompt_ids(0), self._tokenizer.pad_token_id
        self._has_absolute_positions = self.comm.from_main(lambda: has_absolute_positions(model, pad, prompt))
        shared_checks.check_lengths(
            self.questions.prompt_lengths, self.questions.row_of_question, self._positions, config.max_completion_length,
            self._has_absolute_positions or has_table_of_positions(self.model, self._positions),
        )  # fmt: skip
        if config.mixing == "prefix" and self._has_absolute_positions and not self.use_vllm:
            shared_checks.check_prefix_room(
                self.questions.prompt_lengths, self._positions, config.max_completion_length
            )
        if main:
            checks.report_start(self, self.questions)

    def _context(self, config: ExGRPOConfig, questions: QuestionTable) -> RunContext:
        """Make the run's context, for code that knows no host."""
        return RunContext(
            config=config.replay,
            objective=config.objective,
            seed=config.seed,
            shuffle=self.shuffle_dataset,
            num_generations=self.num_generations,
            questions=questions,
            types=self.types,
            correctness=self._correctness,
            reward_weights=self.reward_weights,
            scale=self.scale_rewards,
            epsilon=self.args.epsilon,
            vocabulary=self._vocabulary,
            log_path=config.experience_path if config.keeps_log else None,
            experience_from=config.experience_from,
            keep_retired=config.keep_retired,
            embedder=self.embedder,
            device=self.accelerator.device,
            progress=lambda: Progress(self._optimizer_step, self.generated_tokens),
            provenance=self._provenance,
            tokenizer=lambda: tokenizer_json(self._tokenizer),
            score=self._scores,
            rescore=rescorer(self, questions, self._correctness),
            decode=lambda ids: self.processing_class.batch_decode(ids, skip_special_tokens=True),
            bounds=lambda: bounds_of(config.replay, self._vocabulary, len(self.reward_funcs)),
            columns_read=lambda: columns_of_run(
                self.reward_funcs, self.train_dataset.column_names, config.by_problem_type
            ),
            longest_prefix=self._longest_prefixes,
            importance_level=self.importance_sampling_level,
        )

    def _provenance(self) -> Provenance:
        assert self.questions is not None
        args, options = self.args, {"preset": self.args.preset, "seed": self.args.seed, "shuffle": self.shuffle_dataset}
        correctness, weights = self._correctness, self.reward_weights.tolist()
        return provenance_of(
            self.accelerator.unwrap_model(self.model),
            self._tokenizer,
            getattr(self.processing_class, "chat_template", None),
            rewards=rewards_of(
                self.reward_funcs, self.reward_func_names, weights, correctness.function, correctness.threshold
            ),
            temperature=float(args.temperature),
            num_generations=self.num_generations,
            questions=self.questions.digest(),
            versions={name: version(name) for name in ("torch", "transformers", "trl", "accelerate")},
            options=asdict(args.replay) | asdict(args.objective) | options,
            embedding=embedding_of(self.embedder, args.embedding_model),
        )

    # Experience and checkpoints ---------------------------------------------------------------------------------

    def train(self, *args: Any, **kwargs: Any) -> Any:
        done = False
        try:
            output = super().train(*args, **kwargs)
            done = True
            return output
        finally:
            if self.experience is not None and self.planner is not None:
                self.experience.close(self.planner, done)

    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        """Push to the hub like the host; refuse prompts and completions that nobody asked to upload."""
        if self.experience is not None:
            checks.check_push(self.args)
        return super().push_to_hub(*args, **kwargs)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write the host's card, with the preset, the options that differ from it, and what was replayed."""
        super().create_model_card(*args, **kwargs)
        if self.is_world_process_zero():
            counts = None if self.planner is None else self.counts
            run = model_card.Replayed(self.args, self.state.global_step, self.generated_tokens, counts)
            model_card.add_to_card(Path(self.args.output_dir) / "README.md", run)

    def _begin(self, checkpoint: str | None, record: CheckpointRecord | None) -> ReplayStep | None:
        if record is not None:
            self.generated_tokens = record.generated_tokens
        self._shown = None
        if self.experience is None or self.planner is None or self.questions is None:
            return None
        before = Counter(record.counts) if record is not None else self.counts.copy()
        self.experience.context = self._context(self.args, self.questions)  # options may have changed since
        self.planner, saved = self.experience.open(self.planner, checkpoint, record, self.block_shape)
        self.counts = before  # rebuilt or imported experience was not stored now
        if saved is None:
            return None
        step = self._new_step()
        step.resume(saved)
        return step

    def _new_step(self) -> ReplayStep:
        assert self.planner is not None and self.experience is not None
        return ReplayStep(
            self.experience.context, self.comm, self.planner, self.experience, self.time, self._embedding
        )  # fmt: skip

    def _position(self, folder: Path) -> dict[str, Any] | None:
        if self.experience is None or self.planner is None:
            return None
        return self.experience.checkpoint(self.planner, folder)

    # Generation -------------------------------------------------------------------------------------------------

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        if self.planner is None:
            output = super()._generate_and_score_completions(inputs)
            self._say_where_nothing_is_learned(output)
            return self._without_noise(output)
        self._iteration = step = self._new_step()
        with self.time("plan"):
            self._rows = self._plan(step, inputs)
        try:
            output = super()._generate_and_score_completions(self._rows)
            self._log_fresh_rewards(step.batch)
        except BaseException:  # a reward function raised, or the user interrupted
            step.abandon()
            raise
        self._say_where_nothing_is_learned(output)
        with self.time("observe"):
            return self._credit(step, output)

    def _without_noise(self, output: dict[str, Any]) -> dict[str, Any]:
        """Set the host's advantages to exactly 0 where a group's rewards are equal up to rounding, and weight them."""
        advantages, size = output["advantages"], len(output["advantages"])
        no_variance = have_no_variance(self._fresh_values.view(-1, self.num_generations))
        if self.multi_objective_aggregation != "sum_then_normalize":  # it compares with the other groups of a batch
            no_variance = torch.zeros_like(no_variance)
        mine = slice(self.accelerator.process_index * size, (self.accelerator.process_index + 1) * size)
        rows = no_variance.repeat_interleave(self.num_generations)[mine]
        advantages = torch.where(rows.to(advantages.device), 0.0, advantages)
        output["advantages"] = weight_positive(advantages, self._objective.positive_weight)
        self._count_groups_without_variance(no_variance)
        if self._objective.positive_weight != 1.0 or no_variance.any():
            self._rewrite_logged_advantages(output["advantages"])
        return output

    def _count_groups_without_variance(self, no_variance: Tensor) -> None:
        """Include groups whose only variance is rounding in the host's share; no_variance: (G,)."""
        if self.scale_rewards in ("group", "none") and self.multi_objective_aggregation == "sum_then_normalize":
            values = self._metrics["train"]["frac_reward_zero_std"]
            values[-1] = max(values[-1], no_variance.float().mean().item())

    def _say_where_nothing_is_learned(self, output: dict[str, Any]) -> None:
        """Warn when all completions were cut and cut ones are masked: at once, and again after it had ended."""
        nothing = self.mask_truncated_completions and not int(output["num_items_in_batch"])
        if not nothing:
            self._told.discard("cut")
        else:
            self._warn_once(
                "cut",
                "No token to train on at step %d: every completion of the generation was cut at max_completion_length=%d, "
                "and mask_truncated_completions=True leaves such out of the loss. Set max_completion_length higher, or "
                "mask_truncated_completions=False.",
                self.state.global_step,
                self.max_completion_length,
            )

    def _warn_once(self, kind: str, text: str, *values: Any) -> None:
        if kind not in self._told and self.accelerator.is_main_process:
            logger.warning(text, *values)
        self._told.add(kind)

    def _plan(self, step: ReplayStep, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows of this process for the next generation; the sampler's are only counted."""
        assert self.questions is not None
        questions = len(inputs) * self.comm.world_size // self.num_generations
        batch = step.plan(questions, self._optimizer_step, self.state.epoch or 0.0)
        self._report_idle(batch.plan.idle)
        columns = list(inputs[0])
        return [{name: row[name] for name in columns} for row in self.questions.rows(batch.questions())]

    def _report_idle(self, reason: str | None) -> None:
        """Log why nothing is replayed, once for each kind of reason; and that replay has started."""
        if reason is not None and reason.startswith(BY_THE_COIN):
            return
        kind, before = (reason and reason.split(":")[0]), (self.idle_reason and self.idle_reason.split(":")[0])
        if self.accelerator.is_main_process and kind != before:
            step = self.state.global_step
            if reason:
                logger.warning("Replay is idle at step %d: %s.", step, reason)
            elif before:
                logger.warning("Replay is on from step %d.", step)
        self.idle_reason = reason

    def _scores(self, trajectories: Sequence[Trajectory]) -> list[PolicyStats]:
        assert self.questions is not None
        with self.time("measure"):
            return measure(self, [(self.questions.prompt_ids(t.question), t) for t in trajectories], self.comm)

    def _longest_prefixes(self, trajectories: Sequence[Trajectory]) -> list[int]:
        decode = functools.partial(self.processing_class.batch_decode, skip_special_tokens=True)
        decoder = decode if self.args.prefix_before_answer else None
        ends, room = set(self.eos_token_ids), self.max_completion_length
        return self.comm.from_main(lambda: [longest_prefix(one, ends, room, decoder) for one in trajectories])

    def _generate(self, prompts: list[Any]) -> Any:
        self._tokens_of_this_process = 0
        output = super()._generate(prompts)
        self._begun = begun_thoughts(self._tokenizer, prompts, output[0])
        if self.model.training:
            self._count_tokens(output[1])
        if (step := self._in_training()) is None:
            return output
        completion_ids, completions, logprobs = output[1], output[3], output[4]
        if step.batch.other_rows:
            self._replace_logged(self._fresh_lengths(step.batch, completion_ids))
        if step.batch.plan.prefixes:  # like tool results: attended to, not trained on
            output = (*output[:2], step.batch.own_tokens([len(ids) for ids in completion_ids]), *output[3:])
        if self.args.replay.mixing != "rescue":
            return output
        # A replaced row must be replaced before the host pads and scores log-probs, so rewards are needed now; the
        # host's later call gets the same ones.
        self._calculate_rewards(self._rows, prompts, completions, completion_ids)
        for row, choice in step.batch.local().items():
            ids = choice.trajectory.completion_ids.tolist()
            text = self.processing_class.batch_decode([ids], skip_special_tokens=True)[0]
            completion_ids[row] = ids
            completions[row] = text if isinstance(completions[row], str) else [{"role": "assistant", "content": text}]
            if logprobs is not None:
                logprobs[row] = [NO_LOGP] * len(ids)
            for values in self._pending_extra_logs.values():
                if len(values) == step.batch.size:
                    values[row] = None
        self._log_labels(step.batch)
        return output

    def _generate_single_turn(self, prompt_ids: list[Any], *args: Any, **kwargs: Any) -> Any:
        step = self._in_training()
        if self.planner is None:
            shared_checks.check_prompts(prompt_ids, self._positions)
        stored = step.batch.local() if step is not None else {}
        begun = step.batch.local_prefixes() if step is not None else {}
        if begun:
            prompt_ids = [[*ids, *begun.get(row, ())] for row, ids in enumerate(prompt_ids)]
        rows = list(range(len(prompt_ids)))
        if step is not None and step.batch.stored:
            rows = rows_to_generate(self, step.batch, self.comm.world_size)
            if gathers_prompts(self):  # the rows are no whole groups any more
                bound = inspect.signature(super()._generate_single_turn).bind(prompt_ids, *args, **kwargs)
                args = tuple({**bound.arguments, "num_generations": 1}.values())[1:]
        ids: list[Any] = [None] * len(prompt_ids)
        logprobs: list[Any] | None = None
        if rows:
            fresh, fresh_logprobs = super()._generate_single_turn([prompt_ids[row] for row in rows], *args, **kwargs)
            if fresh_logprobs is not None:
                logprobs = [None] * len(prompt_ids)
            for place, row in enumerate(rows):
                ids[row] = fresh[place]
                if logprobs is not None:
                    logprobs[row] = fresh_logprobs[place]
        for row, before in begun.items():
            room = self.max_completion_length - len(before)
            ids[row] = [*before, *ids[row][:room]]
            if logprobs is not None:
                logprobs[row] = [*[NO_LOGP] * len(before), *logprobs[row][:room]]
        self._tokens_of_this_process += sum(
            len(ids[row]) - len(begun.get(row, ())) for row in rows if row not in stored
        )
        for row, choice in stored.items():
            ids[row] = choice.trajectory.completion_ids.tolist()
            if logprobs is not None:
                logprobs[row] = [NO_LOGP] * len(ids[row])
        return ids, logprobs

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        step = self._in_training()
        if step is not None and step.stage >= Stage.SCORED:
            return step.scored.rewards
        functions = list(self.reward_funcs)
        self.reward_funcs: list[Any] = checked(functions, self.reward_func_names)
        begun = self._begun if len(self._begun) == len(prompts) else [False] * len(prompts)
        with thinking_begun(prompts, begun):
            try:
                rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
            finally:
                self.reward_funcs = functions
            if self.model.training:
                others = step.batch.other_rows if step is not None else set()
                stored = (
                    {row - step.batch.offset for row in others & set(step.batch.rows)} if step is not None else others
                )
                share = self._unanswered(self, prompts, completions, completion_ids_list, stored)
                self._log({} if share is None else {"fresh/unanswered": share})
        if not self.model.training:
            if self.planner is not None and self.log_completions:
                self._log_completion_extra("replayed", [""] * len(prompts))
            return rewards
        if self.planner is not None and (infinite := rewards.abs() > MAX_REWARD).any():
            names = [name for name, column in zip(self.reward_func_names, infinite.T, strict=True) if column.any()]
            logger.warning("Infinite or huge rewards of %s count as unscorable (None).", ", ".join(map(repr, names)))
            rewards.masked_fill_(infinite, torch.nan)
        self._say_at_the_threshold(rewards[:, self._correctness.function])
        values = self._fresh_values = weighted(rewards, self.reward_weights, self.num_generations)
        if step is None:
            self._log(fresh_metrics(self._correctness.outcomes(rewards, self.num_generations), set()))
            return rewards
        planned, names = step.batch.other_rows, self.reward_func_names
        self._host_metrics = reward_metrics(rewards, values, names, planned)
        finish = ["stop" if ids and ids[-1] in self.eos_token_ids else "length" for ids in completion_ids_list]
        scored = step.score(rewards, completion_ids_list, finish)
        if self.args.replay.mixing != "rescue":
            self._log_labels(step.batch)
        self._log(step.metrics)
        return scored.rewards

    def _credit(self, step: ReplayStep, output: dict[str, Any]) -> dict[str, Any]:
        """Add advantages and the columns of the loss to the host's columns, after scoring."""
        self._count_groups_without_variance(step.scored.uniform)
        output["advantages"] = step.advantages(step.scored)
        self._rewrite_logged_advantages(output["advantages"])
        ids = output["completion_ids"]
        output |= step.columns(ids.size(1), ids.device)
        if "old_per_token_logps" in output:
            step.record(output["generation_row"].tolist(), output["old_per_token_logps"])
        return output

    # Loss -------------------------------------------------------------------------------------------------------

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if not self.model.training:
            return super()._compute_loss(model, inputs)
        step = self._in_training()
        computed, scale = self._computed(inputs, step)
        if step is None or self.experience is None:
            loss = self._host_loss(model, inputs, computed) * scale
            self._log({"fresh/entropy": self._metrics["train"]["entropy"][-1]})  # every row is fresh
            return loss
        context, replayed = self.experience.context, computed["replay_mask"]
        host_inputs = {**computed, "advantages": computed["advantages"].masked_fill(replayed, 0.0)}
        with capture_forward(self, host_inputs) as forwards:
            loss = self._host_loss(model, inputs, host_inputs) * scale
        forward = forwards[-1]
        if others := step.batch.other_rows:
            known = torch.tensor([row in others for row in computed["generation_row"].tolist()])
            own = computed["completion_mask"] * computed["policy_mask"]
            self._log_fresh_means(forward.entropies, own, known.to(own.device))
        weights = token_weights(self, inputs, computed["completion_mask"])
        for term in (
            replayed_term(step, context, computed, forward, weights),
            added_term(self, model, step, context, inputs),
        ):
            loss = loss if term is None else loss + term
        if self._step % (self.args.steps_per_generation * self.num_iterations) == self.args.steps_per_generation - 1:
            self._finish(step)
        return loss

    def _finish(self, step: ReplayStep) -> None:
        """Finish the step: store what it admits, and log its metrics and timings."""
        with self.time("admit"):
            metrics = step.finish()
        self._log(metrics | self.time.take())

    def _computed(self, inputs: dict[str, Any], step: ReplayStep | None) -> tuple[dict[str, Any], float]:
        """Return the rows of a micro-batch that are computed, and what the host's mean over them is multiplied with."""
        if not self._skips_rows:
            return inputs, 1.0
        needed = None if step is None else torch.as_tensor(step.needs(inputs["generation_row"].tolist()))
        size, count = inputs["completion_mask"].size(0), counted(inputs, needed)
        rows = rows_to_compute(inputs, count, functools.partial(most_of, self))
        inputs = {**inputs, "counted": count}
        return (inputs, 1.0) if rows is None else (only(inputs, rows), scale_of(self.loss_type, len(rows), size))

    def _host_loss(self, model: Any, inputs: dict[str, Any], computed: dict[str, Any]) -> Tensor:
        loss: Tensor = super()._compute_loss(model, computed)
        if self._skips_rows:
            self._log({"fresh/rows_skipped": account(self, inputs, computed)})
        return loss

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, *args: Any, **kwargs: Any
    ) -> Any:
        forward = super()._get_per_token_logps_and_entropies
        if self.planner is not None and self._has_absolute_positions:
            forward = functools.partial(without_left_padding, forward)
        return forward(model, input_ids, attention_mask, logits_to_keep, *args, **kwargs)

    def _in_training(self) -> ReplayStep | None:
        return self._iteration if self.model.training else None

    # Logging ----------------------------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log like the host, without the metrics of this package that `replay_metrics` leaves out."""
        self.last_metrics = {}
        if self.model.training:
            waiting = self._metrics["train"]
            for name in [name for name in waiting if name.startswith(PREFIXES)]:
                if known := [value for value in waiting[name] if not math.isnan(value)]:
                    self.last_metrics[name] = sum(known) / len(known)
            if self._shown is None:
                self._shown = {name for row in self.state.log_history for name in row}
            out = hidden(self.last_metrics, self.args.replay_metrics, self._shown)
            self._shown |= self.last_metrics.keys() - out
            for name in out:
                del waiting[name]
        super().log(logs, start_time)

    def _replace_logged(self, metrics: dict[str, float]) -> None:
        """Replace values that the host has just logged."""
        for name, value in metrics.items():
            self._metrics["train"][name][-1] = value

    def _log(self, metrics: dict[str, float]) -> None:
        """Log values that TRL averages until it logs, or states of which only the latest is true."""
        for name, value in metrics.items():
            if (metric := metric_of(name)) is not None and metric.state:
                self._metrics["train"][name] = [value]
            else:
                self._metrics["train"][name].append(value)

    def _log_fresh_means(self, entropies: Tensor, mask: Tensor, replayed: Tensor) -> None:
        """Restrict the host's token means of a micro-batch to fresh rows. entropies, mask: (b, T)."""
        fresh = mask * ~replayed.unsqueeze(1)
        sums = torch.stack([(entropies.detach() * fresh).sum(), fresh.sum(), mask.sum()]).float()
        total, tokens, everything = self.accelerator.reduce(sums, reduction="sum").tolist()
        logged = self._metrics["train"]
        logged["entropy"][-1] = total / tokens if tokens else math.nan
        if logged.get("kl"):
            logged["kl"][-1] = logged["kl"][-1] * everything / tokens if tokens else math.nan

    def _log_fresh_rewards(self, batch: ReplayBatch) -> None:
        """Restrict the host's reward metrics to fresh rows where a batch has stored ones."""
        mixed = self._metrics["train"]["reward"][-1]
        if batch.other_rows:
            self._replace_logged(self._host_metrics)
        self._log({"replay/reward_mixed": mixed})

    def _fresh_lengths(self, batch: ReplayBatch, completion_ids: list[list[int]]) -> dict[str, float]:
        """Return the host's length metrics over the generated rows of all processes."""
        ended, others = {*self.eos_token_ids, self._tokenizer.pad_token_id}, batch.other_rows
        rows = [
            [len(ids), ids[-1] not in ended, row not in others]
            for row, ids in zip(batch.rows, completion_ids, strict=True)
        ]
        lengths, cut, fresh = self.accelerator.gather(torch.tensor(rows, device=self.accelerator.device)).cpu().T
        fresh = fresh.bool()
        return length_metrics(lengths[fresh], cut[fresh].bool()) if fresh.any() else {}

    def _count(self, event: Event) -> None:
        name = {Admitted: "stored", Stored: "stored", Replayed: "replayed", Retired: "retired"}.get(type(event))
        if name is not None:
            self.counts[name] += sum(1 for _ in event.each())

    # Small things -----------------------------------------------------------------------------------------------

    def _say_at_the_threshold(self, values: Tensor) -> None:
        threshold = self.args.correctness_threshold
        if (values == threshold).any() and not (values > threshold).any():
            self._warn_once(
                "threshold",
                "Completions with a reward of %g count as wrong: that is correctness_threshold, and a completion is right only "
                "above it. Set it lower if they are right.",
                threshold,
            )

    def _count_tokens(self, completion_ids: list[list[int]]) -> None:
        """Count generated tokens, once per generation on every process, however many turns a completion took."""
        count = sum(map(len, completion_ids)) if self.rollout_func is not None else self._tokens_of_this_process
        counts = self.accelerator.gather(torch.tensor([count], device=self.accelerator.device))
        self.generated_tokens += int(counts.sum())
        self._log({"fresh/generated_tokens": float(self.generated_tokens)})

    def _log_labels(self, batch: ReplayBatch) -> None:
        if self.log_completions:
            self._log_completion_extra("replayed", batch.labels())

    def _rewrite_logged_advantages(self, advantages: Tensor) -> None:
        """Put the advantages that the loss used into TRL's completions table."""
        values = self.accelerator.gather(advantages).tolist()
        logged = self._logs["advantages"]
        for _ in range(min(len(values), len(logged))):
            logged.pop()
        logged.extend(values)
