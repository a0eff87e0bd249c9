"""How it is learned from: pure functions on tensors."""

from .advantage import group_advantages, weight_positive
from .loss import LossOutput, effective_sample_size, fresh_loss, mixed_loss, replay_loss

__all__ = [
    "LossOutput", "effective_sample_size", "fresh_loss", "group_advantages", "mixed_loss", "replay_loss",
    "weight_positive",
]  # fmt: skip
