"""`ResumableGRPOTrainer`: TRL's `GRPOTrainer` with resumed runs that are bit-equal to uninterrupted ones.

The host forgets, across a restart, which order of the data it is in, how far it is within a generation block, and the block
itself. With or without replay, a checkpoint says so here.
"""

import functools
import logging
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from transformers import TrainerCallback, TrainerState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput

from trl import GRPOTrainer

from ..errors import CheckpointError
from ..runtime.checkpoint import CheckpointRecord, can_be_saved, load_block, save_block
from ..runtime.step import ReplayStep
from .checkpoint import HOST_STATE, checkpoint_to_resume, is_complete, last_checkpoint, mark_incomplete
from .comm import AccelerateComm

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resuming:
    """The checkpoint that a run continues from, the same on every process.

    Args:
        checkpoint: its folder.
        record: what it says beside the host's files; None: nothing.
        finished: why nothing is left to train after it; None: something is.
    """

    checkpoint: str
    record: CheckpointRecord | None
    finished: str | None


class _NothingLeft(Exception):
    """The checkpoint was the end of the run, and all of it is loaded."""


class ResumableGRPOTrainer(GRPOTrainer):
    """`GRPOTrainer` with checkpoints that a run continues from exactly.

    A subclass provides the state beside the host's (`_position`) and takes it back (`_begin`).

    Attributes:
        generated_tokens (`int`): completion tokens generated in training so far.
        counts (`dict`): of what was stored, replayed and retired so far.
    """

    @functools.wraps(GRPOTrainer.__init__)  # type: ignore[misc]  # its signature is the one that callers see
    def __init__(self, *args: Any, **kwargs: Any):
        self.generated_tokens = 0
        self.counts: Counter[str] = Counter()
        self._steps_of_earlier_calls = 0
        self._told_of_disks = False
        self._resuming: Resuming | None = None
        self._iteration: ReplayStep | None = None
        super().__init__(*args, **kwargs)
        self.comm = AccelerateComm(self.accelerator)
        self.add_callback(_BeforeTheFirstBatch(self))

    def _begin(self, checkpoint: str | None, record: CheckpointRecord | None) -> ReplayStep | None:
        """Begin, or continue from a checkpoint; return the iteration to continue, if there is one."""
        raise NotImplementedError

    def _position(self, folder: Path) -> dict[str, Any] | None:
        """Write down what the checkpoint in a folder must find again, and say where; on all processes."""
        raise NotImplementedError

    _columns_of_replay = 0
    """1 if a batch has replay columns beside the host's, else 0."""

    @property
    def _optimizer_step(self) -> int:
        """Optimizer steps done, those of earlier calls of `train()` included: what staleness is counted in."""
        return self._steps_of_earlier_calls + int(self.state.global_step)

    @property
    def block_shape(self) -> list[int]:
        """The shape of a generation block; one of another shape cannot be continued after a resume."""
        args = self.args
        return [
            self.accelerator.num_processes, args.per_device_train_batch_size, args.steps_per_generation,
            args.gradient_accumulation_steps, self.num_iterations, self.num_generations, self._columns_of_replay,
        ]  # fmt: skip

    # Starting ---------------------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train, like the host's `train()`, and keep or restore the experience.

        Args:
            resume_from_checkpoint (`str` or `bool`, *optional*):
                A checkpoint; `True` for the last complete one in `args.output_dir`; or `"last"`, which does the same but
                starts from scratch where there is none. The first call of `train()` defaults to
                `args.resume_from_checkpoint`; `False` starts from scratch whatever that says. The run continues bit-equal
                to one that was never interrupted, experience included. Anything in the log beyond the checkpoint stays
                there, on a branch of its own.

        Raises:
            CheckpointError: there is no such checkpoint, it was not written to its end, or it has no experience.
            ExperienceLogError: the log cannot be opened or trusted, or another process writes it.
        """
        if resume_from_checkpoint is None and not self._optimizer_step:
            resume_from_checkpoint = self.args.resume_from_checkpoint
        self._steps_of_earlier_calls = self._optimizer_step
        self._resuming = self._agree_on_checkpoint(resume_from_checkpoint)
        try:
            return super().train(self._resuming and self._resuming.checkpoint, *args, **kwargs)
        except _NothingLeft:
            self.control: Any = self.callback_handler.on_train_end(self.args, self.state, self.control)
            nothing = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss")
            metrics = {**dict.fromkeys(nothing, 0.0), "epoch": self.state.epoch or 0.0}
            return TrainOutput(self.state.global_step, 0.0, metrics)
        finally:
            self._resuming = None

    def _agree_on_checkpoint(self, asked: str | bool | None) -> Resuming | None:
        """Decide on the main process what the run continues from; no process begins unless all of them see it.

        Otherwise each would go by its own disk: one would resume, another start from scratch, and both train as one job.

        Raises:
            CheckpointError: on every process, for the reason of any.
        """
        found = self.comm.from_main(lambda: self._find_checkpoint(asked))
        if found is None:
            return None
        seen = self.comm.gather(is_complete(Path(found.checkpoint)))
        if not all(seen):
            blind = [rank for rank, sees in enumerate(seen) if not sees]
            raise CheckpointError(
                f"processes {blind} of {len(seen)} do not see {found.checkpoint}, from which the main process would resume. "
                "output_dir must lie on a file system that all nodes share; put the checkpoint there."
            )
        return found

    def _find_checkpoint(self, asked: str | bool | None) -> Resuming | None:
        checkpoint = checkpoint_to_resume(asked, self.args.output_dir)
        if checkpoint is None:
            return None
        record = CheckpointRecord.read(Path(checkpoint))
        return Resuming(checkpoint, record, self._why_finished(checkpoint, record))

    def _why_finished(self, checkpoint: str, record: CheckpointRecord | None) -> str | None:
        """Return why nothing is left to train, or None; the host would train one more step."""
        args, state = self.args, TrainerState.load_from_json(str(Path(checkpoint) / HOST_STATE))
        budget = getattr(args, "max_generated_tokens", None)
        if budget is not None and record is not None and record.generated_tokens >= budget:
            return f"{record.generated_tokens} of max_generated_tokens={budget}"
        if args.max_steps > 0:
            done = state.global_step >= args.max_steps
            return f"step {state.global_step} of max_steps={args.max_steps}" if done else None
        done = (state.epoch or 0) >= args.num_train_epochs
        return f"epoch {state.epoch:g} of num_train_epochs={args.num_train_epochs:g}" if done else None

    def _before_the_first_batch(self) -> None:
        """Begin once the host is ready to train, and has loaded its part of a checkpoint, if there is one."""
        resuming = self._resuming
        if resuming is None:
            self._begin(None, None)
            self._warn_of_earlier_run()
            return
        checkpoint, record = resuming.checkpoint, resuming.record
        if record is not None:
            self._steps_of_earlier_calls = record.steps_of_earlier_calls
        iteration = self._begin(checkpoint, record)
        if resuming.finished is not None:
            self._end_at_once(resuming)
        self._say_what_is_not_exact()
        self._fast_forward_sampler(math.floor(self.state.epoch or 0))
        buffered: Any = None
        self._step, self._buffered_inputs, self._iteration = 0, buffered, None
        if record is not None:
            self._restore_record(checkpoint, record, iteration)

    def _warn_of_earlier_run(self) -> None:
        if not self.accelerator.is_main_process or self.args.save_strategy == "no" or self._steps_of_earlier_calls:
            return
        if (last := last_checkpoint(self.args.output_dir)) is not None:
            logger.warning("%s is from an earlier run: resuming the 'last' checkpoint would continue that run.", last)

    def _end_at_once(self, resuming: Resuming) -> NoReturn:
        """Load a finished run's model, optimizer and experience, without training."""
        if self.accelerator.is_main_process:
            logger.warning(
                "%s is the end of the run (%s): nothing is left to train.", resuming.checkpoint, resuming.finished
            )
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            self._load_best_model()
        raise _NothingLeft

    def _restore_record(self, checkpoint: str, record: CheckpointRecord, iteration: ReplayStep | None) -> None:
        """Restore what the host forgets."""
        self._metrics["train"].clear()
        self._metrics["train"].update({name: list(values) for name, values in record.metrics.items()})
        self._tr_loss += record.loss_not_logged
        self._globalstep_last_logged = record.last_logged_step
        of_another_run = record.in_block and self._columns_of_replay and iteration is None
        if record.shape != self.block_shape or of_another_run:
            return  # the next batch begins a generation
        self._step = record.micro_step
        if record.in_block:
            saved = load_block(Path(checkpoint), self.accelerator.process_index, self.accelerator.device)
            self._buffered_inputs, self._iteration = saved.block, iteration

    def _say_what_is_not_exact(self) -> None:
        """Warn of host options under which a resumed run is not bit-equal, for reasons of the host's."""
        for name, why in (
            ("sync_ref_model", "the reference model has moved, and is not in the checkpoint"),
            ("ignore_data_skip", "the epoch starts over"),
        ):
            if getattr(self.args, name, False):
                logger.warning("%s=True: the resumed run is not bit-equal (%s).", name, why)

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        self._train_sampler = super()._get_train_sampler(*args, **kwargs)
        return self._train_sampler

    def _fast_forward_sampler(self, epochs: int) -> None:
        """Advance the host's sampler to the given epoch.

        The host draws the order of epoch e as the (e+1)-th from one generator, and would begin with the first again.
        """
        sampler: Any = getattr(self, "_train_sampler", None)
        if getattr(sampler, "shuffle", False):
            for _ in range(epochs):
                torch.randperm(sampler.num_samples, generator=sampler.generator)

    # Saving -----------------------------------------------------------------------------------------------------

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        if self.args.should_save:
            mark_incomplete(folder)
        self.accelerator.wait_for_everyone()
        super()._save_checkpoint(model, trial)
        if not self._told_of_disks and self.comm.world_size > 1:
            self.accelerator.wait_for_everyone()
            self._warn_of_disks(folder)
            self._told_of_disks = True

    def _warn_of_disks(self, folder: Path) -> None:
        """Say, at the first checkpoint, that no run can resume from it: some processes do not see it whole."""
        blind = [rank for rank, sees in enumerate(self.comm.gather(is_complete(folder))) if not sees]
        if blind and self.accelerator.is_main_process:
            logger.warning(
                "Processes %s do not see %s as it was written: nothing can resume from it. output_dir must lie on a file "
                "system that all nodes share.",
                blind,
                folder,
            )

    def _save_rng_state(self, output_dir: str) -> None:
        """Save random states and the block, on every process before the checkpoint is complete.

        The host skips this with `save_only_model`, as it should.
        """
        super()._save_rng_state(output_dir)
        block: Any = self._buffered_inputs
        in_block = block is not None and self._step % (self.args.steps_per_generation * self.num_iterations) != 0
        if in_block and not can_be_saved(block):
            logger.warning("The batch of this generation holds more than tensors: resuming will generate it again.")
            in_block = False
        if in_block:
            step = None if self._iteration is None else self._iteration.saved()
            save_block(Path(output_dir), self.accelerator.process_index, block, step)
        position = self._position(Path(output_dir))
        if self.args.should_save:
            metrics = {name: [float(v) for v in values] for name, values in self._metrics["train"].items()}
            CheckpointRecord(
                self._step, self.accelerator.num_processes, self.generated_tokens, self._steps_of_earlier_calls, position,
                in_block, self.block_shape, metrics, float(self._tr_loss), self._globalstep_last_logged,
                dict(self.counts),
            ).write(Path(output_dir))  # fmt: skip
        self.accelerator.wait_for_everyone()


class _BeforeTheFirstBatch(TrainerCallback):
    """The moment between the host's loading of a checkpoint and its first batch."""

    def __init__(self, trainer: ResumableGRPOTrainer):
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer._before_the_first_batch()
