"""The objective: how experience is trained on, as pure functions on tensors."""

from ..registry import register_baseline, register_correction
from .advantage import group_advantages, weight_positive
from .group_stats import have_no_variance, without_noise
from .loss import LossOutput, Terms, fresh_loss, mixed_loss, replay_loss
from .push import NetPush, gradient_weights, net_push
from .stats import effective_sample_size

__all__ = [
    "LossOutput",
    "NetPush",
    "Terms",
    "effective_sample_size",
    "fresh_loss",
    "gradient_weights",
    "group_advantages",
    "have_no_variance",
    "mixed_loss",
    "net_push",
    "register_baseline",
    "register_correction",
    "replay_loss",
    "weight_positive",
    "without_noise",
]  # fmt: skip
