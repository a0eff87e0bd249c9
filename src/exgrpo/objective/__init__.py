"""How it is learned from: pure functions on tensors."""

from ..registry import register_baseline, register_correction
from .advantage import group_advantages, weight_positive
from .group_stats import are_alike, without_noise
from .loss import LossOutput, Terms, fresh_loss, mixed_loss, replay_loss
from .push import NetPush, gradient_weights, net_push
from .stats import effective_sample_size

__all__ = [
    "LossOutput", "NetPush", "Terms", "are_alike", "effective_sample_size", "fresh_loss", "gradient_weights",
    "group_advantages", "mixed_loss", "net_push", "register_baseline", "register_correction", "replay_loss",
    "weight_positive", "without_noise",
]  # fmt: skip
