"""How it is learned from: pure functions on tensors."""

from .advantage import group_advantages, register_baseline, weight_positive
from .explain import NetPush, gradient_weights, net_push
from .loss import LossOutput, effective_sample_size, fresh_loss, mixed_loss, replay_loss
from .ratio import Terms, register_correction

__all__ = [
    "LossOutput", "NetPush", "Terms", "effective_sample_size", "fresh_loss", "gradient_weights", "group_advantages",
    "mixed_loss", "net_push", "register_baseline", "register_correction", "replay_loss", "weight_positive",
]  # fmt: skip
