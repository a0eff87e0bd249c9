"""Mixing by a coin: all questions of a batch are replayed ones, or none."""

from ...config import MIXINGS, ReplayConfig
from ..counts import BY_THE_COIN
from ..rng import COIN, generator_for
from ..validation import share_now


def coin(config: ReplayConfig, batch_size: int, epoch: float, seed: int, iteration: int) -> tuple[int, str | None]:
    """Replay every question of the batch with probability `replay_probability`."""
    probability = share_now(config, config.replay_probability, epoch)
    if generator_for(seed, iteration, COIN).random() < probability:
        return batch_size, None
    return 0, f"{BY_THE_COIN}: replay_probability is {probability:g}"


MIXINGS.register("coin", coin)
