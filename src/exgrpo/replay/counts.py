"""The number of replayed questions in a batch: exact, or by a coin where it is below one.

Mixings differ in what enters the batch for a replayed question: `share` puts a stored trajectory into its group, `added`
puts one beside the groups, `prompt` asks the question alone.
"""

import math
from decimal import Decimal

from ..config import MIXINGS, ReplayConfig
from ..errors import ConfigurationError
from .rng import SHARE, generator_for
from .validation import share_now

BY_THE_COIN = "on-policy by the coin"
"""Beginning of a plan's `idle` when a coin decided against replay this time."""


def by_share(config: ReplayConfig, batch_size: int, epoch: float, seed: int, iteration: int) -> tuple[int, str | None]:
    """Replay floor(rho * B) questions [ExGRPO, Alg. 1]; where that is none, one with probability rho * B."""
    share = share_now(config, config.replay_share, epoch)
    wanted = replay_count(batch_size, share)
    return (wanted, None) if wanted else one_by_coin(batch_size, share, seed, iteration)


MIXINGS.register("share", by_share)
MIXINGS.register("added", by_share, stage="added")
MIXINGS.register("prompt", by_share, trajectories=False)


def replay_count(batch_size: int, replay_share: float) -> int:
    """Return floor(rho * B), in exact decimal arithmetic: 0.29 of 100 is 29, not 28."""
    return int(_product(batch_size, replay_share))


def expected_count(batch_size: int, replay_share: float) -> float:
    """Return how many questions an iteration replays on average: floor(rho * B), or rho * B where that is 0."""
    product = _product(batch_size, replay_share)
    return float(product) if product < 1 else int(product)


def one_by_coin(batch_size: int, share: float, seed: int, iteration: int) -> tuple[int, str | None]:
    """Decide by a coin whether one question is replayed where the share is below one; say why not."""
    if not share:
        return 0, "replay_share is 0"
    chance = expected_count(batch_size, share)
    if generator_for(seed, iteration, SHARE).random() < chance:
        return 1, None
    return 0, f"{BY_THE_COIN}: replay_share {share:g} of {batch_size} questions is one with probability {chance:g}"


def _product(batch_size: int, replay_share: float) -> Decimal:
    if not 0 <= replay_share < math.inf:
        raise ConfigurationError(f"replay_share must be a finite number of at least 0, but is {replay_share}")
    return Decimal(str(replay_share)) * batch_size
