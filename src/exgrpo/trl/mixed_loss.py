"""The mixed loss inside TRL's: the host's on fresh rows, the replayed term beside it, and no row computed in vain.

Every override calls `super()`; one forward of the host serves both terms.
"""

import functools
import math
from typing import Any

import torch
from torch import Tensor

from ..config import ObjectiveConfig
from ..objective import LossOutput, replay_loss, weight_positive
from ..replay import ReplayPlanner
from ..runtime.batch import Generation
from ..runtime.padding import at_left, padded, without_left_padding
from ..runtime.questions import QuestionTable
from ..runtime.skip_rows import counted, only, rows_to_compute, scale_of
from ..runtime.timing import Stopwatch
from .added import share_of
from .resume import ResumableGRPOTrainer
from .skip_rows import account, most_of


class MixedLossTrainer(ResumableGRPOTrainer):
    """What an `ExGRPOTrainer` does with a batch that holds stored trajectories.

    Attributes:
        planner: None without replay; then all rows are fresh.
        time: what each phase takes.
    """

    planner: ReplayPlanner | None
    questions: QuestionTable | None
    time: Stopwatch
    _objective: ObjectiveConfig
    _vocabulary: int
    _skips_rows: bool
    _has_absolute_positions: bool
    _forward: tuple[Tensor, Tensor] | None
    _host_inputs: dict[str, Any] | None = None

    def _admit(self, generation: Generation) -> None:
        """All forwards of a generation are done."""
        raise NotImplementedError

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if (generation := self._in_training()) is None:
            if not self.model.training:
                return super()._compute_loss(model, inputs)
            computed, scale = self._computed(inputs, None)
            loss = self._host_loss(model, inputs, computed) * scale
            self._log({"fresh/entropy": self._metrics["train"]["entropy"][-1]})  # every row is fresh
            return loss
        everything = inputs
        inputs, scale = self._computed(inputs, generation)
        replayed, advantages, mask = inputs["replay_mask"], inputs["advantages"], inputs["completion_mask"]
        host_inputs = {**inputs, "advantages": advantages.masked_fill(replayed, 0.0)}
        self._host_inputs = host_inputs
        try:
            loss = self._host_loss(model, everything, host_inputs) * scale
        finally:
            self._host_inputs = None
        assert self._forward is not None
        (logps, entropies), self._forward = self._forward, None
        if generation.stored:
            self._log_fresh_means(entropies, mask, replayed)
        rows = inputs["generation_row"].tolist()
        if "counted" in inputs:
            generation.fillers |= {
                row for row, count in zip(rows, inputs["counted"].tolist(), strict=True) if not count
            }
        if replayed.any():
            part = replay_loss(
                logps, inputs["behaviour_logps"], advantages, mask, replayed, self._objective,
                self.token_weights(everything, mask), self.args.epsilon, vocabulary=self._vocabulary,
            )  # fmt: skip
            loss = loss + part.loss
            generation.keep_ratios(rows, part.stats)
            generation.keep_scores(rows, logps)
        generation.keep_logps(rows, logps)
        generation.keep_entropies(rows, entropies, mask, self._optimizer_step)
        if (added := self._added_loss(model, generation, everything)) is not None:
            self._forward = None
            loss = loss + added
        if self._step % (self.args.steps_per_generation * self.num_iterations) == self.args.steps_per_generation - 1:
            with self.time("admit"):
                self._admit(generation)
            self._log(self.time.take())
        return loss

    def _computed(self, inputs: dict[str, Any], generation: Generation | None) -> tuple[dict[str, Any], float]:
        """The rows of a micro-batch that are computed, and what the host's mean over them is multiplied with."""
        if not self._skips_rows:
            return inputs, 1.0
        needed = None
        if generation is not None:
            wanted = [
                row in generation.wanted and not (row in generation.logps and row in generation.entropies)
                for row in inputs["generation_row"].tolist()
            ]
            needed = torch.tensor(wanted)
        size = inputs["completion_mask"].size(0)
        count = counted(inputs, needed)
        rows = rows_to_compute(inputs, count, functools.partial(most_of, self))
        inputs = {**inputs, "counted": count}
        return (inputs, 1.0) if rows is None else (only(inputs, rows), scale_of(self.loss_type, len(rows), size))

    def _host_loss(self, model: Any, inputs: dict[str, Any], computed: dict[str, Any]) -> Tensor:
        loss: Tensor = super()._compute_loss(model, computed)
        if self._skips_rows:
            self._log({"fresh/rows_skipped": account(self, inputs, computed)})
        return loss

    def token_weights(self, inputs: dict[str, Any], mask: Tensor) -> Tensor | float:
        """What the host's loss multiplies each token's term with; a number or (b, 1).

        Args:
            inputs: the host's micro-batch of B rows.
            mask: (b, T), of the rows that are weighted: those of the micro-batch, or others beside it.
        """
        size, accumulation = inputs["completion_mask"].size(0), self.current_gradient_accumulation_steps
        if self.loss_type == "dr_grpo":
            return 1.0 / (size * self.max_completion_length * accumulation)
        if self.loss_type == "grpo":
            return 1.0 / (mask.sum(1, keepdim=True).clamp(min=1) * size * accumulation)
        tokens = inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes  # dapo
        return 1.0 / (tokens * accumulation / self.args.steps_per_generation)

    def _added_loss(self, model: Any, generation: Generation, inputs: dict[str, Tensor]) -> Tensor | None:
        """The term of this micro-batch's added trajectories, with the weight that a fresh token has; None where none was added.

        Their advantages are those of the groups they came from.
        """
        accelerator, steps = self.accelerator, self.args.steps_per_generation
        part = self._step % steps * accelerator.num_processes + accelerator.process_index
        share = share_of(generation, part, steps * accelerator.num_processes)
        if share is None:
            return None
        assert self.questions is not None
        items = [(self.questions.prompt_ids(t.question), t) for t in share.trajectories]
        batch = padded(items, self._tokenizer.pad_token_id, accelerator.device)
        logps, entropies, *_ = self._get_per_token_logps_and_entropies(
            model, batch.ids, batch.mask, batch.keep, compute_entropy=True
        )
        logps, entropies, own = (
            at_left(logps, batch.own),
            at_left(entropies, batch.own),
            at_left(batch.own, batch.own).bool(),
        )
        behaviour = torch.zeros(logps.shape, dtype=torch.float32, device=logps.device)
        for row, trajectory in enumerate(share.trajectories):
            behaviour[row, : len(trajectory)] = torch.as_tensor(trajectory.behaviour_logps.copy())
        advantages = torch.tensor([t.advantage for t in share.trajectories], dtype=torch.float32, device=logps.device)
        advantages = weight_positive(advantages, self.args.objective.positive_weight)
        counts = torch.arange(len(advantages), device=logps.device) < share.real
        output: LossOutput = replay_loss(
            logps, behaviour, advantages, own, counts, self.args.objective,
            self.token_weights(inputs, own), self.args.epsilon, vocabulary=self._vocabulary,
        )  # fmt: skip
        rows = share.rows
        generation.keep_ratios(rows, output.stats)
        generation.keep_entropies(rows, entropies[: share.real], own[: share.real], self._optimizer_step)
        generation.keep_scores(rows, logps)
        return output.loss + 0.0 * logps.sum()  # so that every process has a gradient, also one whose rows all fill up

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, *args: Any, **kwargs: Any
    ) -> Any:
        forward = super()._get_per_token_logps_and_entropies
        if self.planner is not None and self._has_absolute_positions:
            forward = functools.partial(without_left_padding, forward)
        result = forward(model, input_ids, attention_mask, logits_to_keep, *args, **kwargs)
        if self.planner is not None and torch.is_grad_enabled():
            self._forward = (result[0], result[1])
            if self._host_inputs is not None and "ref_per_token_logps" in self._host_inputs:
                self._leave_replayed_rows_out_of_the_kl(self._host_inputs, result[0])
        return result

    @staticmethod
    def _leave_replayed_rows_out_of_the_kl(inputs: dict[str, Any], logps: Tensor) -> None:
        """The host's KL is a mean over samples of the policy, which stored completions are not: there the reference is taken
        to be the policy itself, so that term and gradient are exactly 0. logps: (b, T), of the policy."""
        replayed = inputs["replay_mask"].unsqueeze(1)
        inputs["ref_per_token_logps"] = torch.where(replayed, logps.detach(), inputs["ref_per_token_logps"])

    def _log_fresh_means(self, entropies: Tensor, mask: Tensor, replayed: Tensor) -> None:
        """The host's token means of a micro-batch are of all rows; put those of fresh ones there. entropies, mask: (b, T)."""
        fresh = mask * ~replayed.unsqueeze(1)
        sums = torch.stack([(entropies.detach() * fresh).sum(), fresh.sum(), mask.sum()]).float()
        total, tokens, everything = self.accelerator.reduce(sums, reduction="sum").tolist()
        logged = self._metrics["train"]
        logged["entropy"][-1] = total / tokens if tokens else math.nan
        if logged.get("kl"):
            logged["kl"][-1] = logged["kl"][-1] * everything / tokens if tokens else math.nan

    def _in_training(self) -> Generation | None:
        return self._generation if self.model.training else None

    def _log(self, metrics: dict[str, float], latest: bool = False) -> None:
        """Log values that TRL averages until it logs, or states of which only the `latest` is true."""
        for name, value in metrics.items():
            if latest:
                self._metrics["train"][name] = [value]
            else:
                self._metrics["train"][name].append(value)
