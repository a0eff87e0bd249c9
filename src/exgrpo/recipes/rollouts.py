"""Importance weights and the loss of recipe A, on tensors, for a training loop written by hand.

    rollouts = Rollouts.collate(prompts, completions, pad_id=pad).under(policy)
    compute_grpo_loss(rollouts, rewards).backward()                          # fresh ones

    weights = compute_importance_weights(buffer.policy_snapshot, policy, rollouts)
    compute_grpo_loss(rollouts, rewards, weights).backward()                 # replayed ones

Shapes: B rollouts, P and T the tokens of the longest prompt and completion, V words.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import ConfigurationError
from ..objective import fresh_loss, group_advantages
from ..objective.loss import MAX_LOG_RATIO, log_ratio
from .entropy_guided import check
from .stored import SampledRollouts

LOSS_TYPES = ("grpo", "dr_grpo")

Policy = nn.Module | Callable[[Any], Tensor]
"""A causal language model, or any function from rollouts to log-probs of their completion tokens, (B, T)."""


@dataclass(frozen=True, eq=False)
class Rollouts:
    """Prompts and completions as tensors.

    Args:
        prompt_ids: (B, P), padded on the left.
        prompt_mask: 1 on the prompt's own tokens, (B, P).
        completion_ids: (B, T), padded on the right.
        mask: 1 on the completion's own tokens, (B, T).
        behaviour_logps: log-probs under the policy that generated them, (B, T); None if not all are known.
        logps: log-probs under the policy that learns, with gradient, (B, T); `under` writes them.

    Raises:
        ConfigurationError: shapes that do not fit.
    """

    prompt_ids: Tensor
    prompt_mask: Tensor
    completion_ids: Tensor
    mask: Tensor
    behaviour_logps: Tensor | None = None
    logps: Tensor | None = None

    def __post_init__(self) -> None:
        size, width = self.completion_ids.shape
        for name, wanted in (
            ("prompt_ids", (size, self.prompt_ids.shape[-1])),
            ("prompt_mask", tuple(self.prompt_ids.shape)),
            ("mask", (size, width)),
            ("behaviour_logps", (size, width)),
            ("logps", (size, width)),
        ):
            given: Tensor | None = getattr(self, name)
            if given is not None:
                check(
                    tuple(given.shape) == wanted, f"Rollouts needs {name} of shape {wanted}, not {tuple(given.shape)}"
                )

    @classmethod
    def collate(
        cls,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        behaviour_logps: Sequence[Any] | None = None,
        *,
        pad_id: int = 0,
        device: torch.device | str | None = None,
    ) -> "Rollouts":
        """Side by side, padded.

        Args:
            prompts: token ids of each, B.
            completions: token ids of each, B.
            behaviour_logps: of each completion's tokens, B, as `Sample.behaviour_logps` has them; where one of them is None,
                none is kept.
            pad_id: what stands where nothing is.
            device: of the tensors; the CPU by default.
        """
        check(
            len(prompts) == len(completions), f"{len(prompts)} prompts need as many completions, not {len(completions)}"
        )
        prompt_ids, prompt_mask = _padded(prompts, pad_id, torch.long, left=True)
        completion_ids, mask = _padded(completions, pad_id, torch.long)
        known = None
        if behaviour_logps is not None and all(given is not None for given in behaviour_logps):
            known, counted = _padded(behaviour_logps, 0.0, torch.float32)
            check(torch.equal(counted, mask), "Rollouts needs one behaviour log-prob for each token of a completion")
        tensors = (prompt_ids, prompt_mask, completion_ids, mask, known)
        return cls(*(tensor if tensor is None else tensor.to(device) for tensor in tensors))  # type: ignore[arg-type]

    @classmethod
    def of(cls, rollouts: Any, device: torch.device | str | None = None) -> "Rollouts":
        """Return `Rollouts` as they are; those of a sample as tensors.

        Raises:
            ConfigurationError: it is neither, or the prompts or rollouts of the sample are not token ids.
        """
        if isinstance(rollouts, cls):
            return rollouts
        if isinstance(rollouts, SampledRollouts):
            return cls.collate(rollouts.prompts, rollouts, rollouts.behaviour_logps, device=device)
        raise ConfigurationError(
            f"rollouts must be `Rollouts` or the rollouts of a sample, not {type(rollouts).__name__}. Make them with "
            "Rollouts.collate(prompts, completions), from token ids."
        )

    def __len__(self) -> int:
        return len(self.completion_ids)

    def __iter__(self) -> Iterator[Tensor]:
        """Yield the token ids of each completion, without padding."""
        return (ids[own] for ids, own in zip(self.completion_ids, self.mask.bool(), strict=True))

    @property
    def groups(self) -> Tensor:
        """Index of the prompt that each rollout answers, (B,): equal for equal token ids."""
        own = torch.where(self.prompt_mask.bool(), self.prompt_ids, -1)
        return torch.unique(own, dim=0, return_inverse=True)[1]

    def under(self, policy: Policy, temperature: float = 1.0) -> "Rollouts":
        """Return a copy with `logps` under a policy, with gradient unless the caller turned that off.

        Args:
            policy: see `Policy`.
            temperature: that completions are sampled at.
        """
        return replace(self, logps=logps_under(policy, self, temperature))


def logps_under(policy: Policy, rollouts: Any, temperature: float = 1.0) -> Tensor:
    """Return log-probs of the completion tokens under a policy, (B, T); 0 outside the mask.

    A module is called as `model(input_ids=..., attention_mask=...)` and answers with logits, (B, L, V), or with an object that
    has `logits`; any other policy is called with the rollouts.
    """
    if not isinstance(policy, nn.Module):
        return policy(rollouts)
    rollouts = Rollouts.of(rollouts, _device_of(policy))
    logits = completion_logits(policy, rollouts, temperature)
    logps = logits.gather(2, rollouts.completion_ids[:, :, None])[:, :, 0] - logits.logsumexp(-1)
    return torch.where(rollouts.mask.bool(), logps, 0.0)


def completion_logits(policy: nn.Module, rollouts: Rollouts, temperature: float = 1.0) -> Tensor:
    """Return the logits that a model gives for each completion token, (B, T, V), float32 at least."""
    lead = rollouts.prompt_mask.argmax(1, keepdim=True)  # moved behind its row: padding then shifts no position
    width = rollouts.prompt_ids.shape[1] + rollouts.completion_ids.shape[1]
    places = torch.arange(width, device=lead.device)[None] + lead
    ids = torch.cat([rollouts.prompt_ids, rollouts.completion_ids], 1).gather(1, places % width)
    mask = torch.cat([rollouts.prompt_mask, rollouts.mask], 1).gather(1, places % width)
    answer = policy(input_ids=ids, attention_mask=mask)
    own = torch.arange(rollouts.completion_ids.shape[1], device=lead.device)[None]
    own = own + (rollouts.prompt_ids.shape[1] - 1 - lead)
    logits = getattr(answer, "logits", answer)[torch.arange(len(own), device=lead.device)[:, None], own]
    return logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature


def compute_importance_weights(
    old_policy: Policy | None, current_policy: Policy | None, rollouts: Any, *, temperature: float = 1.0
) -> Tensor:
    """Return w = pi_current / pi_old of each completion token.

    Computed from the difference of log-probs; log w counts as at most 20 either way, so that nothing overflows.

    Args:
        old_policy: that generated the rollouts; no gradient flows through it. None: the rollouts' `behaviour_logps`, which are
            exact where the trajectories are of different ages and one old policy cannot have generated them all.
        current_policy: that learns. None: the rollouts' `logps`.
        rollouts: `Rollouts`, or the rollouts of a sample, or whatever the policies take where both are functions.
        temperature: that completions are sampled at, where a policy is a module.

    Returns:
        (B, T), with the gradient of the current policy, 1 outside the mask.

    Raises:
        ConfigurationError: log-probs that are needed are not there, or have another shape than the others.
    """
    if isinstance(rollouts, SampledRollouts) and not (_is_function(old_policy) and _is_function(current_policy)):
        rollouts = Rollouts.of(rollouts, _device_of(old_policy, current_policy))
    with torch.no_grad():
        old = _logps(old_policy, rollouts, temperature, "behaviour_logps", "old_policy")
    current = _logps(current_policy, rollouts, temperature, "logps", "current_policy")
    check(
        old.shape == current.shape,
        f"old and current policy must give log-probs of one shape, not {tuple(old.shape)} and {tuple(current.shape)}",
    )
    mask = rollouts.mask if isinstance(rollouts, Rollouts) else torch.ones_like(current)
    return torch.exp(log_ratio(current, old, mask).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


def compute_grpo_loss(
    rollouts: Rollouts | SampledRollouts,
    rewards: Any,
    importance_weights: Tensor | None = None,
    *,
    epsilon: float = 0.2,
    baselines: Any = None,
    loss_type: str = "grpo",
    scale: str = "group",
    max_completion_length: int | None = None,
) -> Tensor:
    """Compute GRPO's loss: group advantages, policy gradient, and PPO's clip where weights are given.

    The gradient flows through the weights if they have one, else through `rollouts.logps`; weights without gradient count as
    numbers. A rollout that is the only one of its prompt, or whose group has equal rewards, teaches nothing; a warning says so
    where all are the only ones.

    Args:
        rollouts: with `logps`, unless weights with a gradient are given; or the rollouts of a sample, with such weights.
        rewards: (B,), NaN where unscorable.
        importance_weights: pi_current / pi_old of each token, (B, T), as `compute_importance_weights` gives them; None for
            rollouts that the current policy has just generated.
        epsilon: of PPO's clip.
        baselines: what each reward is compared with, (B,), instead of the mean of its group; then nothing is divided by a
            standard deviation. `Sample.rates`, for rewards of 0 and 1: stored trajectories of low entropy that share a
            question mostly share their outcome too, and their group then teaches nothing.
        loss_type: `grpo`: mean over the tokens of a completion, then over completions. `dr_grpo`: sum over all tokens, over
            completions times `max_completion_length`; the default of this package's trainer.
        scale: `group`: advantages are divided by the standard deviation of their group; `none`, the default of the trainer.
        max_completion_length: for `dr_grpo`; T by default.

    Returns:
        A scalar, to be minimised.

    Raises:
        ConfigurationError: an option that there is not, shapes that do not fit, or nothing has a gradient.
    """
    check(loss_type in LOSS_TYPES, f"compute_grpo_loss needs a loss_type of {', '.join(LOSS_TYPES)}, not {loss_type!r}")
    check(scale in ("group", "none"), f"compute_grpo_loss needs scale 'group' or 'none', not {scale!r}")
    rollouts = Rollouts.of(rollouts, None if importance_weights is None else importance_weights.device)
    mask, (size, width) = rollouts.mask, rollouts.mask.shape
    check(
        size > 0, "compute_grpo_loss needs at least one rollout, not 0: where nothing was sampled, leave the update out"
    )
    if isinstance(rewards, Sequence):
        rewards = [math.nan if reward is None else reward for reward in rewards]
    rewards = torch.as_tensor(rewards, dtype=torch.float32, device=mask.device)
    check(rewards.shape == (size,), f"compute_grpo_loss needs {size} rewards, (B,), not {tuple(rewards.shape)}")
    log_w = _log_weights(rollouts, importance_weights)
    if baselines is None:
        groups = rollouts.groups
        if size == len(groups.unique()):
            warnings.warn(
                f"compute_grpo_loss has no gradient: each of {size} rollouts is the only one of its prompt, and no reward has "
                "another to be compared with. Draw groups (group_size=8), or pass baselines=batch.rates.",
                stacklevel=2,
            )
        advantages = advantages_by_group(rewards, groups, scale)
    else:
        baselines = torch.as_tensor(baselines, dtype=torch.float32, device=mask.device)
        check(
            baselines.shape == (size,), f"compute_grpo_loss needs {size} baselines, (B,), not {tuple(baselines.shape)}"
        )
        advantages = (rewards - baselines).nan_to_num(nan=0.0)
    if loss_type == "grpo":
        weights = 1.0 / (size * mask.sum(1, keepdim=True).clamp(min=1))
    else:
        weights = torch.tensor(1.0 / (size * (max_completion_length or width)), device=mask.device)
    return fresh_loss(log_w, torch.zeros_like(log_w), advantages, mask, weights, epsilon)


def advantages_by_group(rewards: Tensor, groups: Tensor, scale: str = "none") -> Tensor:
    """Return advantages (B,) of rewards (B,) in groups (B,) of any sizes; see `objective.group_advantages`."""
    order = torch.argsort(groups, stable=True)
    sizes = torch.bincount(groups)
    place = torch.arange(len(groups), device=groups.device) - (sizes.cumsum(0) - sizes)[groups[order]]
    rows = torch.full((len(sizes), int(sizes.max())), torch.nan, device=rewards.device)
    rows[groups[order], place] = rewards[order]
    advantages = torch.empty_like(rewards)
    advantages[order] = group_advantages(rows, scale=scale)[groups[order], place]
    return advantages


# Inside -----------------------------------------------------------------------------------------------------------------


def _padded(rows: Sequence[Any], pad: float, dtype: torch.dtype, left: bool = False) -> tuple[Tensor, Tensor]:
    """Pad rows to (B, longest); return them and their mask."""
    text = [row for row in rows if isinstance(row, str)]
    check(not text, f"Rollouts needs token ids, not text ({text[0][:40]!r})" if text else "")
    given = [torch.as_tensor(np.array(row) if isinstance(row, np.ndarray) else row, dtype=dtype) for row in rows]
    width = max((len(row) for row in given), default=0)
    values = torch.full((len(given), width), pad, dtype=dtype)
    mask = torch.zeros(len(given), width, dtype=torch.long)
    for i, row in enumerate(given):
        own = slice(width - len(row), width) if left else slice(0, len(row))
        values[i, own], mask[i, own] = row, 1
    return values, mask


def _is_function(policy: Policy | None) -> bool:
    return policy is not None and not isinstance(policy, nn.Module)


def _device_of(*policies: Policy | None) -> torch.device:
    """Return the device of the first module with parameters, else the CPU."""
    modules = (policy for policy in policies if isinstance(policy, nn.Module))
    return next((parameter.device for module in modules for parameter in module.parameters()), torch.device("cpu"))


def _logps(policy: Policy | None, rollouts: Any, temperature: float, kept: str, argument: str) -> Tensor:
    if policy is not None:
        return logps_under(policy, rollouts, temperature)
    logps: Tensor | None = getattr(rollouts, kept, None)
    if logps is None:
        raise ConfigurationError(
            f"{argument}=None takes the rollouts' {kept}, but they have none. Pass a policy "
            "(`TrajectoryBuffer.snapshot_policy` keeps an old one), or add trajectories with their behaviour_logps."
        )
    return logps


def _log_weights(rollouts: Rollouts, weights: Tensor | None) -> Tensor:
    """Return log w with a gradient, (B, T)."""
    own = None if rollouts.logps is None else rollouts.logps - rollouts.logps.detach()  # 0, with a gradient
    if weights is None:
        log_w = own
    else:
        fits = weights.shape == rollouts.mask.shape
        check(fits, f"importance_weights must be of shape {tuple(rollouts.mask.shape)}, not {tuple(weights.shape)}")
        log_w = weights.clamp(min=torch.finfo(weights.dtype).tiny).log()
        if not weights.requires_grad:
            log_w = log_w if own is None else log_w + own
    if log_w is None or (torch.is_grad_enabled() and not log_w.requires_grad):
        raise ConfigurationError(
            "compute_grpo_loss has nothing to take a gradient of: neither importance_weights nor rollouts.logps has one. "
            "Use rollouts.under(policy), or weights of compute_importance_weights(old, policy, rollouts)."
        )
    return log_w
