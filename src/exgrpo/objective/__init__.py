"""How it is learned from: pure functions on tensors."""

from .advantage import are_alike, group_advantages, register_baseline, weight_positive, without_noise
from .explain import NetPush, gradient_weights, net_push
from .loss import LossOutput, effective_sample_size, fresh_loss, mixed_loss, replay_loss
from .ratio import Terms, register_correction

__all__ = [
    "LossOutput", "NetPush", "Terms", "are_alike", "effective_sample_size", "fresh_loss", "gradient_weights",
    "group_advantages", "mixed_loss", "net_push", "register_baseline", "register_correction", "replay_loss",
    "weight_positive", "without_noise",
]  # fmt: skip
