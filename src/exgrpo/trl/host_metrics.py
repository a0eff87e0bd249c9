"""Compute the host's own metrics over fresh completions alone, by the host's formulas."""

from collections.abc import Sequence

import torch
from trl.trainer.utils import nanstd


def reward_metrics(
    rewards_per_func: torch.Tensor, rewards: torch.Tensor, names: Sequence[str], stored: set[int]
) -> dict[str, float]:
    """Compute the host's reward metrics, over fresh completions only, by the host's own formulas.

    Args:
        rewards_per_func: (B*K, F), before any rescue; NaN where a function gave none.
        rewards: (B*K,), weighted sums.
        names: of the functions.
        stored: global rows of planned replays.
    """
    fresh = torch.ones(len(rewards), dtype=torch.bool, device=rewards.device)
    fresh[list(stored)] = False
    metrics = {}
    for name, values in zip(names, rewards_per_func[fresh].T, strict=True):
        metrics[f"rewards/{name}/mean"] = torch.nanmean(values).item()
        metrics[f"rewards/{name}/std"] = nanstd(values).item()
    return metrics | {"reward": torch.nanmean(rewards[fresh]).item(), "reward_std": nanstd(rewards[fresh]).item()}


def length_metrics(lengths: torch.Tensor, cut: torch.Tensor) -> dict[str, float]:
    """Compute the host's length metrics, of given completions. lengths, cut: (N,)."""
    ended = lengths[~cut] if bool((~cut).any()) else torch.zeros(1)
    metrics = {"completions/clipped_ratio": cut.float().mean().item()}
    for name, values in (("", lengths.float()), ("terminated_", ended.float())):
        metrics[f"completions/mean_{name}length"] = values.mean().item()
        metrics[f"completions/min_{name}length"] = values.min().item()
        metrics[f"completions/max_{name}length"] = values.max().item()
    return metrics
