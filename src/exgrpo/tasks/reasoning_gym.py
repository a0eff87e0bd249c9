"""Questions of reasoning-gym (optional extra `reasoning-gym`), but for the data sets that cannot be scored safely.

What is refused and how the rest is scored stands in `exgrpo.rewards.reasoning_gym`.

Item i of the library is drawn from seed + i, so neighbouring seeds share questions: seeds are spread by a hash here,
and whether a question is for training or evaluation is decided by its text, as in every other family.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import ConfigurationError
from ..rewards.reasoning_gym import check_name, open_dataset, reasoning_gym_reward
from .base import SPLITS, RewardFunction, Task, check, split_of

if TYPE_CHECKING:
    from datasets import Dataset

TRIES_PER_QUESTION = 64  # items looked at for each question asked for, before the family counts as exhausted


@dataclass(frozen=True)
class ReasoningGym(Task):
    """One data set of reasoning-gym by its name there, with its configuration options. There is no checker."""

    name: ClassVar[str] = "reasoning_gym"

    dataset: str = "chain_sum"
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name(self.dataset)
        reserved = sorted({"seed", "size"} & set(self.config))
        check(not reserved, f"reasoning_gym: {', '.join(reserved)} cannot be in config; pass them to make()")

    @property
    def reward_function(self) -> RewardFunction:
        return reasoning_gym_reward

    def make(self, split: str, size: int, seed: int = 0) -> "Dataset":
        """See `Task.make`. Columns: `prompt`, `answer` and `source`, which identifies the item.

        Raises MissingExtraError where reasoning-gym is not installed, ConfigurationError where it has no such data set.
        """
        from datasets import Dataset

        check(split in SPLITS, f"{self.name}: there is no split {split!r}; splits: {', '.join(SPLITS)}")
        check(size >= 1, f"{self.name}: size must be at least 1, got {size}")
        digest = hashlib.blake2b(f"{self.dataset}/{split}/{seed}".encode(), digest_size=8).digest()
        origin = {"dataset": self.dataset, "seed": int.from_bytes(digest, "big") >> 33, "config": dict(self.config)}
        tries = size * TRIES_PER_QUESTION
        items = open_dataset(json.dumps({**origin, "size": tries}, sort_keys=True))
        rows: dict[str, dict[str, str]] = {}
        for index in range(tries):
            entry = items[index]
            prompt = entry["question"]
            if split_of(prompt) == split and prompt not in rows:
                source = json.dumps({**origin, "size": tries, "index": index}, sort_keys=True)
                rows[prompt] = {"prompt": prompt, "answer": str(entry["answer"]), "source": source}
            if len(rows) == size:
                return Dataset.from_list(list(rows.values()))
        raise ConfigurationError(
            f"{self.name}: {size} distinct questions of split {split!r} were asked for, and {tries} items of "
            f"{self.dataset!r} have {len(rows)}. Ask for fewer, or widen its config."
        )
