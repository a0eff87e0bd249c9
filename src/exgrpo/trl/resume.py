"""`ResumableGRPOTrainer`: TRL's `GRPOTrainer` whose resumed runs are bit-equal to uninterrupted ones.

The host forgets, across a restart, which order of the data it is in, how far it is within a generation block, and the block
itself. With or without replay, a checkpoint says so here.
"""

import functools
import logging
import math
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput

from trl import GRPOTrainer

from ..errors import CheckpointError
from ..runtime.checkpoint import CheckpointFacts, can_be_saved, load_block, save_block
from ..runtime.step import ReplayStep
from .checkpoint import HOST_STATE, checkpoint_to_resume, last_checkpoint, mark_incomplete

logger = logging.getLogger(__name__)


class ResumableGRPOTrainer(GRPOTrainer):
    """
    `GRPOTrainer` with checkpoints that a run continues from exactly. What is kept beside the host's state is asked of a
    subclass (`_position`) and given back to it (`_begin`).

    Attributes:
        generated_tokens (`int`): completion tokens generated in training so far.
        counts (`dict`): of what was stored, replayed and retired so far.
    """

    @functools.wraps(GRPOTrainer.__init__)  # type: ignore[misc]  # its signature is the one that callers see
    def __init__(self, *args: Any, **kwargs: Any):
        self.generated_tokens = 0
        self.counts: Counter[str] = Counter()
        self._steps_of_earlier_calls = 0
        self._resuming: tuple[str, CheckpointFacts | None] | None = None
        self._iteration: ReplayStep | None = None
        super().__init__(*args, **kwargs)
        self.add_callback(_BeforeTheFirstBatch(self))

    def _begin(self, checkpoint: str | None, facts: CheckpointFacts | None) -> ReplayStep | None:
        """Begin, or continue from a checkpoint; returns the generation under way, where it can be learned from on."""
        raise NotImplementedError

    def _position(self, folder: Path) -> dict[str, Any] | None:
        """Write down what the checkpoint in a folder must find again, and say where; on all processes."""
        raise NotImplementedError

    _columns_of_replay = 0
    """Whether a batch has columns of its own beside the host's: 0 or 1."""

    @property
    def _optimizer_step(self) -> int:
        """Optimizer steps done, those of earlier calls of `train()` included: what staleness is counted in."""
        return self._steps_of_earlier_calls + int(self.state.global_step)

    @property
    def block_shape(self) -> list[int]:
        """How a generation block is cut: one of another shape cannot be learned from on."""
        args = self.args
        return [
            self.accelerator.num_processes, args.per_device_train_batch_size, args.steps_per_generation,
            args.gradient_accumulation_steps, self.num_iterations, self.num_generations, self._columns_of_replay,
        ]  # fmt: skip

    # Starting ---------------------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """
        Main training entry point; as the host's, with experience.

        Args:
            resume_from_checkpoint (`str` or `bool`, *optional*):
                A checkpoint; `True` for the last one in `args.output_dir` that was written to its end; or `"last"`, which
                begins anew where there is none. By default what `args.resume_from_checkpoint` says, in the first call of
                `train()`; `False` begins anew whatever it says. The run continues bit-equal to one that was never
                interrupted, its experience included. What the log holds beyond the checkpoint stays there, on a branch of
                its own.

        Raises:
            CheckpointError: there is no such checkpoint, it was not written to its end, or it has no experience.
            ExperienceLogError: the log cannot be opened or trusted, or another process writes it.
        """
        if resume_from_checkpoint is None and not self._optimizer_step:
            resume_from_checkpoint = self.args.resume_from_checkpoint
        checkpoint = checkpoint_to_resume(resume_from_checkpoint, self.args.output_dir)
        self._steps_of_earlier_calls = self._optimizer_step
        self._resuming = None if checkpoint is None else (checkpoint, CheckpointFacts.read(Path(checkpoint)))
        try:
            if checkpoint is not None and (reason := self._is_complete(checkpoint)):
                return self._take_over(checkpoint, reason)
            return super().train(checkpoint, *args, **kwargs)
        finally:
            self._resuming = None

    def _is_complete(self, checkpoint: str) -> str | None:
        """Why there is nothing left to train, or None; the host would train one more step."""
        args, facts = self.args, self._resuming[1] if self._resuming else None
        state = TrainerState.load_from_json(str(Path(checkpoint) / HOST_STATE))
        budget = getattr(args, "max_generated_tokens", None)
        if budget is not None and facts is not None and facts.generated_tokens >= budget:
            return f"{facts.generated_tokens} of max_generated_tokens={budget}"
        if args.max_steps > 0:
            done = state.global_step >= args.max_steps
            return f"step {state.global_step} of max_steps={args.max_steps}" if done else None
        done = (state.epoch or 0) >= args.num_train_epochs
        return f"epoch {state.epoch:g} of num_train_epochs={args.num_train_epochs:g}" if done else None

    def _take_over(self, checkpoint: str, reason: str) -> TrainOutput:
        """Become what a finished run was, without training."""
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:
            raise CheckpointError(f"{checkpoint} is the end of the run ({reason}). Nothing is left to train.")
        logger.warning("%s is the end of the run (%s): nothing is left to train.", checkpoint, reason)
        self._load_from_checkpoint(checkpoint)
        self.state = TrainerState.load_from_json(str(Path(checkpoint) / HOST_STATE))
        facts = self._resuming[1] if self._resuming else None
        if facts is not None:
            self._steps_of_earlier_calls = facts.steps_of_earlier_calls
        self._begin(checkpoint, facts)
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            self._load_best_model()
        nothing = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss")
        return TrainOutput(
            self.state.global_step, 0.0, {**dict.fromkeys(nothing, 0.0), "epoch": self.state.epoch or 0.0}
        )

    def _before_the_first_batch(self) -> None:
        """The host is ready to train, and has loaded its part of a checkpoint, if there is one."""
        checkpoint, facts = self._resuming or (None, None)
        if facts is not None:
            self._steps_of_earlier_calls = facts.steps_of_earlier_calls
        iteration = self._begin(checkpoint, facts)
        if checkpoint is None:
            last = last_checkpoint(self.args.output_dir)
            if last is not None and self.args.save_strategy != "no" and not self._steps_of_earlier_calls:
                logger.warning("%s is of an earlier run: resuming the 'last' checkpoint would continue that one.", last)
            return
        self._say_what_is_not_exact()
        self._fast_forward_sampler(math.floor(self.state.epoch or 0))
        self._step, self._buffered_inputs, self._iteration = 0, None, None
        if facts is None:
            return
        self._metrics["train"].clear()
        self._metrics["train"].update({name: list(values) for name, values in facts.metrics.items()})
        self._tr_loss += facts.loss_not_logged
        self._globalstep_last_logged = facts.last_logged_step
        of_another_run = facts.in_block and self._columns_of_replay and iteration is None
        if facts.shape != self.block_shape or of_another_run:
            return  # the next batch begins a generation
        self._step = facts.micro_step
        if facts.in_block:
            saved = load_block(Path(checkpoint), self.accelerator.process_index, self.accelerator.device)
            self._buffered_inputs, self._iteration = saved.block, iteration

    def _say_what_is_not_exact(self) -> None:
        """Options of the host under which a resumed run is not bit-equal, for reasons of the host's."""
        for name, why in (
            ("sync_ref_model", "the reference model has moved, and is not in the checkpoint"),
            ("ignore_data_skip", "the epoch begins anew"),
        ):
            if getattr(self.args, name, False):
                logger.warning("%s=True: the resumed run is not bit-equal (%s).", name, why)

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        self._train_sampler = super()._get_train_sampler(*args, **kwargs)
        return self._train_sampler

    def _fast_forward_sampler(self, epochs: int) -> None:
        """The host draws the order of epoch e as the (e+1)-th from one generator, and would begin with the first again."""
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

    def _save_rng_state(self, output_dir: str) -> None:
        """Runs on every process before the checkpoint is complete; skipped by `save_only_model`, as it should be."""
        super()._save_rng_state(output_dir)
        block: Any = self._buffered_inputs
        in_block = block is not None and self._step % (self.args.steps_per_generation * self.num_iterations) != 0
        if in_block and not can_be_saved(block):
            logger.warning("The batch of this generation holds more than tensors: resuming will generate it anew.")
            in_block = False
        if in_block:
            step = None if self._iteration is None else self._iteration.saved()
            save_block(Path(output_dir), self.accelerator.process_index, block, step)
        position = self._position(Path(output_dir))
        if self.args.should_save:
            metrics = {name: [float(v) for v in values] for name, values in self._metrics["train"].items()}
            CheckpointFacts(
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
