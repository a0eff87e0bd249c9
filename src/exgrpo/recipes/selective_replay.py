"""Recipe A, "entropy guided": which updates replay."""

from ..replay.rng import COIN, generator_for
from .entropy_guided import Range, check, check_count, check_percentile, check_range, check_strategy
from .trajectory_buffer import Sample, TrajectoryBuffer


class SelectiveReplay:
    """Replay in a random share of the updates, once the gate is open.

    What an update does follows from the seed and its number (`updates`) alone; set that when a run goes on.

    Args:
        strategy: of `TrajectoryBuffer.sample`; `entropy_guided` is `medium_difficulty_low_entropy`.
        replay_probability: that an update is a replay update, in [0, 1].
        medium_difficulty_range: of the correctness rate, exclusive; quantiles where the buffer's bounds adapt.
        entropy_percentile: a trajectory's entropy is at or below this percentile of all that is stored, in (0, 100].
        replay_start_epoch: epochs done, at least; the recipe has 5 to 10.
        min_stored: more trajectories than this must be stored.
        seed: of the coin and of what is drawn.

    Attributes:
        updates: how many were asked about.
        replay_updates: how many of them were replay updates.
        idle: why the latest was none, or None.

    Raises:
        ConfigurationError: a strategy that there is not, or a number out of range.
    """

    def __init__(
        self,
        strategy: str = "entropy_guided",
        replay_probability: float = 0.3,
        medium_difficulty_range: Range = (0.3, 0.7),
        *,
        entropy_percentile: float = 25.0,
        replay_start_epoch: float = 5,
        min_stored: int = 1000,
        seed: int = 0,
    ):
        who = "SelectiveReplay"
        check_strategy(who, strategy)
        check(0 <= replay_probability <= 1, f"{who} needs replay_probability in [0, 1], not {replay_probability!r}")
        check(replay_start_epoch >= 0, f"{who} needs replay_start_epoch of at least 0, not {replay_start_epoch!r}")
        check_count(who, "min_stored", min_stored, 0)
        check_count(who, "seed", seed, 0)
        self.strategy = strategy
        self.replay_probability = replay_probability
        self.medium_difficulty_range = check_range(who, medium_difficulty_range)
        self.entropy_percentile = check_percentile(who, entropy_percentile)
        self.seed = seed
        self.updates = 0
        self.replay_updates = 0
        self.idle: str | None = None
        self.replay_start_epoch = replay_start_epoch
        self.min_stored = min_stored

    def batch(
        self, buffer: TrajectoryBuffer, size: int, epoch: float, *, group_size: int | None = None
    ) -> "Sample | None":
        """Return what this update replays, at most `size` trajectories; None where it is a fresh one.

        Call it once for each update.

        Args:
            buffer: that holds the trajectories.
            size: how many are wanted.
            epoch: epochs done.
            group_size: of `TrajectoryBuffer.sample`.
        """
        update, self.updates = self.updates, self.updates + 1
        self.idle = self._closed(epoch, len(buffer))
        if self.idle is None and not generator_for(self.seed, update, COIN).random() < self.replay_probability:
            self.idle = f"on-policy by the coin: replay_probability is {self.replay_probability:g}"
        if self.idle is not None:
            return None
        sample = buffer.sample(
            self.strategy,
            size,
            self.medium_difficulty_range,
            self.entropy_percentile,
            group_size=group_size,
            seed=(self.seed, update),
        )
        if not len(sample):
            self.idle = f"none of {len(buffer)} stored trajectories qualifies for {self.strategy!r}"
            return None
        self.replay_updates += 1
        return sample

    def _closed(self, epoch: float, stored: int) -> str | None:
        """Return why the gate is closed, or None.

        Evaluated on every call: a buffer that was cleared fills up first.
        """
        closed = []
        if epoch < self.replay_start_epoch:
            closed.append(f"epoch {epoch:.2f} < {self.replay_start_epoch:g}")
        if stored <= self.min_stored:
            closed.append(f"{stored} trajectories stored, must be more than {self.min_stored}")
        return "gate closed: " + "; ".join(closed) if closed else None


# What is shared ---------------------------------------------------------------------------------------------------------
