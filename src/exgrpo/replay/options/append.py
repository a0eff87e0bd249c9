"""Mixings like `share` that differ in what of a replayed question enters the batch: trajectories beside it, or its prompt."""

from ...config import MIXINGS, ReplayConfig
from ..counts import by_share


def added(config: ReplayConfig, batch_size: int, epoch: float, seed: int, iteration: int) -> tuple[int, str | None]:
    """Plan trajectories to be added to a batch that stays all fresh."""
    return by_share(config, batch_size, epoch, seed, iteration)


def prompt(config: ReplayConfig, batch_size: int, epoch: float, seed: int, iteration: int) -> tuple[int, str | None]:
    """Plan questions to be replayed without a trajectory."""
    return by_share(config, batch_size, epoch, seed, iteration)


MIXINGS.register("added", added, stage="added")
MIXINGS.register("prompt", prompt, trajectories=False)
