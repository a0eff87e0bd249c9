"""`ExGRPOTrainer`: verl's synchronous trainer with experience replay.

Every override calls `super()`; no body of the host is copied. In the order of a step:

    on_init_end, on_step_end     plan the next batch, once weights are updated and before the rollout engines wake
    _fetch_one_gen_batch         the planned questions in place of the loader's, K-1 rollouts of a replayed one
    _balance_batch               score; stored trajectories become rows; failures are replaced by stored successes
    _compute_old_log_prob        record log-probs and entropies of all rows; store, and write the log
    _compute_advantage           the advantages of mixed groups, and the mark of stored rows for the loss
    _update_actor                leave out the rows that have no gradient

What happens in between is a `ReplayStep`'s, on the driver, which is the only process that knows of replay. The loss
(`exgrpo.verl.loss`) is the only part in the workers.
"""

import contextlib
import dataclasses
import json
import logging
import math
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf, open_dict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn

from ..registry import resolve_rules
from ..replay import BY_THE_COIN
from ..runtime.alarm_messages import WatchedRun
from ..runtime.alarms import STOPPING, ReplayMonitor
from ..runtime.checkpoint import CheckpointRecord
from ..runtime.metric_table import PREFIXES, hidden
from . import checks
from .columns import weight_positive_advantages
from .loss import PolicyLoss
from .options import VerlOptions
from .run import Run

logger = logging.getLogger(__name__)


class ExGRPOTrainer(PPOTrainerSync):  # type: ignore[misc]  # a class of the host
    """
    Synchronous PPO trainer of verl with experience replay ([ExGRPO](https://huggingface.co/papers/2510.02245)).

    Made by verl where `trainer.v1.trainer_mode=exgrpo`; what it does is set under `exgrpo` in verl's configuration.

    Raises:
        ConfigurationError: an option that cannot be combined with replay; before any worker starts.
        DatasetError: data that cannot be replayed, or fewer questions than one step takes.
        HostVersionError: an unsupported version of verl.
    """

    trainer_mode = property(lambda self: "sync", lambda self, name: None)
    """The mode that the host branches on; its registry knows this class by another name."""

    def __init__(self, config: Any):
        checks.check_host_version()
        given = OmegaConf.select(config, "exgrpo")
        self.options = VerlOptions.of(None if given is None else OmegaConf.to_container(given, resolve=True))
        resolve_rules(self.options.replay, self.options.objective)
        checks.check_config(OmegaConf.to_container(config, resolve=True), self.options)
        self.replay: Run | None = None
        self._stops = False
        self._saved_at = -1
        self._shown: set[str] = set()
        self._monitor = ReplayMonitor() if self.options.alarms != "off" else None
        super().__init__(config)
        self.updates = checks.updates_of_step(config)
        self._skips_rows = self.options.skip_rows is not False and checks.why_rows_stay(config) is None

    @property
    def _replays(self) -> bool:
        return self.options.replay.active and not self.config.trainer.get("val_only", False)

    # Starting ---------------------------------------------------------------------------------------------------

    def _init_tokenizer(self) -> None:
        super()._init_tokenizer()
        if self._replays:
            self.replay = Run(self.config, self.options, self.tokenizer, self)
            with open_dict(self.config):
                loss = self.config.actor_rollout_ref.actor.policy_loss
                loss._target_ = f"{PolicyLoss.__module__}.{PolicyLoss.__qualname__}"
                loss.loss_mode = checks.LOSS_MODE
                loss.objective = json.dumps(dataclasses.asdict(self.options.objective))
                loss.vocabulary = self.replay.vocabulary

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        if self.replay is not None:
            self.replay.read_questions(self.train_dataset)

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.replay is not None:
            record = self.replay.open(self._checkpoint_folder() if self.global_steps else None, self.global_steps)
            if self._monitor is not None and record is not None and record.alarms is not None:
                self._monitor.restore(record.alarms)

    def _checkpoint_folder(self) -> Path:
        """Return the folder that the host has resumed from."""
        trainer = self.config.trainer
        if trainer.resume_mode == "resume_path":
            return Path(trainer.resume_from_path).absolute()
        return self._folder_of_step()

    def _folder_of_step(self) -> Path:
        return Path(self.config.trainer.default_local_dir).absolute() / f"global_step_{self.global_steps}"

    def on_init_end(self) -> None:
        if self.replay is not None and self._goes_on(self.global_steps):
            self.replay.plan(self.global_steps, self._epoch(self.global_steps))
        super().on_init_end()

    def fit(self, agent_loop_manager: Any) -> None:
        done = False
        try:
            super().fit(agent_loop_manager)
            done = True
        finally:
            if self.replay is not None:
                self.replay.close(done)

    def _goes_on(self, done: int) -> bool:
        """Return whether another step follows after so many."""
        epochs = done // self.steps_per_epoch < self.config.trainer.total_epochs
        return bool(epochs and done < self.total_training_steps and not self._stops)

    def _epoch(self, done: int) -> float:
        return float(done / self.steps_per_epoch)

    # A step -----------------------------------------------------------------------------------------------------

    def _fetch_one_gen_batch(self) -> Any:
        if self.replay is None:
            return super()._fetch_one_gen_batch()
        size = self.config.data.get("gen_batch_size", None) or self.config.data.train_batch_size
        questions, rollouts = self.replay.next_questions(size)
        columns = collate_fn([self.train_dataset[row] for row in questions])
        columns["uid"] = np.array([str(uuid.uuid4()) for _ in questions], dtype=object)
        columns["__rollout_n__"] = np.array(rollouts, dtype=object)
        self.replay.layout.uids += columns["uid"].tolist()
        return tu.get_tensordict(columns)

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> KVBatchMeta:
        if self.replay is not None:
            batch = self.replay.score(batch, metrics, self.train_dataset)
        return super()._balance_batch(batch, metrics, *args, **kwargs)

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        if self.replay is None:
            return int(super()._get_required_batch_multiple(dp_size))
        return self.updates * self._rows_of_update(dp_size)

    def _rows_of_update(self, dp_size: int) -> int:
        """Return the multiple that a mini-batch's row count must be.

        Whole prompts in verl's count, and whole micro-batches on each rank.
        """
        model = self.config.actor_rollout_ref
        sizes = [dp_size]
        if not model.actor.use_dynamic_bsz:
            micro = (model.actor.ppo_micro_batch_size_per_gpu, model.rollout.log_prob_micro_batch_size_per_gpu)
            sizes += [dp_size * size for size in micro if size]
        return math.lcm(model.rollout.n, *sizes)

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        batch = super()._compute_old_log_prob(batch, metrics)
        if self.replay is not None:
            self.replay.record(batch, metrics)
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        batch = super()._compute_advantage(batch, metrics)
        if self.replay is not None:
            self.replay.credit(batch)
        elif self.options.objective.positive_weight != 1.0:
            weight_positive_advantages(batch, self.options.objective.positive_weight)
        return batch

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        if self.replay is None:
            return super()._update_actor(batch, metrics)
        part = self._rows_to_learn_from(batch, metrics)
        with self._mini_batches_of(len(part)):
            super()._update_actor(part, metrics)
        return batch

    def _rows_to_learn_from(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Return the rows of a batch that have a gradient, balanced again, and write the weights that compensate."""
        assert self.replay is not None
        part = batch
        if self._skips_rows:
            ranks = self.actor_rollout_wg._dispatch_info["actor"]
            keys = self.replay.keys_with_gradient(batch, self._rows_of_update(max(ranks) + 1))
            metrics["fresh/rows_skipped"] = 1 - len(keys) / len(batch)
            if len(keys) < len(batch):
                part = super()._balance_batch(batch.select_keys(keys), {})
        self.replay.write_weights(part, self.config.actor_rollout_ref)
        return part

    @contextlib.contextmanager
    def _mini_batches_of(self, rows: int) -> Iterator[None]:
        """Make the host cut these rows into as many mini-batches as a batch without added rows."""
        model = self.config.actor_rollout_ref
        before = model.actor.ppo_mini_batch_size
        model.actor.ppo_mini_batch_size = rows // self.updates // model.rollout.n
        try:
            yield
        finally:
            model.actor.ppo_mini_batch_size = before

    def _step_once(self, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> KVBatchMeta:
        batch = super()._step_once(metrics, *args, **kwargs)
        if self.replay is not None:
            self._watch(metrics)
        return batch

    def _watch(self, metrics: dict[str, Any]) -> None:
        """Raise alarms, stop where that is asked for, and leave out the metrics that are not to be shown."""
        assert self.replay is not None
        options, step = self.options, self.global_steps
        values = {name: value for name, value in metrics.items() if name.startswith(PREFIXES)}
        if self._monitor is not None:
            self._monitor.run = self._watched()
            reason = self.replay.idle_reason
            alarms = self._monitor.update({**values, "epoch": self._epoch(step)}, step, lambda: reason)
            for alarm in alarms:
                logger.warning("%s", alarm.message)
            if options.alarms == "stop" and any(alarm.kind in STOPPING for alarm in alarms):
                self._stop("this alarm (exgrpo.alarms=stop)")
        budget = options.max_generated_tokens
        if budget is not None and self.replay.generated_tokens >= budget:
            self._stop(f"{self.replay.generated_tokens} of exgrpo.max_generated_tokens={budget}")
        out = hidden(values, options.replay_metrics, self._shown)
        self._shown |= values.keys() - out
        for name in out:
            del metrics[name]

    def _watched(self) -> WatchedRun:
        replay, data, rollout = self.options.replay, self.config.data, self.config.actor_rollout_ref.rollout
        assert self.replay is not None
        return WatchedRun(
            mixing=replay.mixing, replay_share=replay.replay_share, start_step=replay.start_step,
            start_epoch=replay.start_epoch, start_size=replay.start_size, start_pass_at_1=replay.start_pass_at_1,
            start_completions=replay.start_completions, retired_in_stream=replay.retired_in_stream,
            num_questions=self.replay.planner.stream.num_questions, completions=data.train_batch_size * rollout.n,
            num_generations=rollout.n,
        )  # fmt: skip

    def _stop(self, reason: str) -> None:
        """Make this the last step."""
        if not self._stops:
            logger.warning("Training stops at step %d because of %s.", self.global_steps, reason)
        self._stops, self.total_training_steps = True, self.global_steps

    def on_step_end(self) -> None:
        if self.replay is not None:
            if self._stops and self.config.trainer.save_freq > 0 and self._saved_at < self.global_steps:
                self._save_checkpoint()
            if self._goes_on(self.global_steps):
                self.replay.plan(self.global_steps, self._epoch(self.global_steps))
                self._report_idle()
        super().on_step_end()

    def _report_idle(self) -> None:
        """Log why nothing is replayed, once for each kind of reason; and that replay has started."""
        assert self.replay is not None
        reason, before = self.replay.idle_reason, self.replay.reported
        if reason is not None and reason.startswith(BY_THE_COIN):
            return
        if (reason and reason.split(":")[0]) != (before and before.split(":")[0]):
            if reason:
                logger.warning("Replay is idle after step %d: %s.", self.global_steps, reason)
            elif before:
                logger.warning("Replay is on after step %d.", self.global_steps)
        self.replay.reported = reason

    # Checkpoints ------------------------------------------------------------------------------------------------

    def _save_checkpoint(self) -> None:
        """Save the position in the log, then the host's checkpoint, which is the latest once complete."""
        if self.replay is not None:
            folder = self._folder_of_step()
            folder.mkdir(parents=True, exist_ok=True)
            position = self.replay.session.checkpoint(self.replay.planner, folder)
            CheckpointRecord(
                micro_step=0, world_size=1, generated_tokens=self.replay.generated_tokens, steps_of_earlier_calls=0,
                log=position, in_block=False, shape=[], alarms=None if self._monitor is None else self._monitor.state(),
            ).write(folder)  # fmt: skip
        super()._save_checkpoint()
        self._saved_at = self.global_steps
