"""Input and output values of a `TrajectoryBuffer`."""

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import TrajectoryError
from ..experience.trajectory import FloatArray, IntArray, Trajectory

SUCCESS_ABOVE = 0.5
REQUIRED = ("prompt", "rollout", "reward", "entropy")
OPTIONAL = ("is_correct", "problem_type", "behaviour_logps")


@dataclass(frozen=True, eq=False)
class StoredRollout(Trajectory):
    """A trajectory as the recipe's users gave it.

    Args:
        text: the rollout, if it is text; `completion_ids` then say nothing.
        known_logps: whether `behaviour_logps` were given; else zeros stand there.
        number: how many were added before it.
    """

    text: str | None = None
    known_logps: bool = False
    number: int = 0

    @property
    def digest(self) -> int:
        """Identity of a rollout: the recipe stores one as often as it was generated."""
        return self.number

    @property
    def rollout(self) -> Any:
        """Text, or token ids (T,); marked, so that the buffer knows it again, and with its entropy."""
        given = self.completion_ids.copy().view(StoredIds) if self.text is None else StoredText(self.text)
        given.entropy = self.entropy
        return given


class StoredText(str):
    """Text that a buffer gave out; like any other text.

    Attributes:
        entropy: as it was given, in nats; NaN where it was not known.
    """

    entropy: float


class StoredIds(np.ndarray[Any, Any]):
    """Token ids that a buffer gave out; like any other array.

    Attributes:
        entropy: as it was given, in nats; NaN where it was not known. What is made of the array has none.
    """

    entropy: float


class SampledRollouts(list[Any]):
    """Rollouts that were drawn, text or token ids each, and what a loss needs to know of them beside.

    Attributes:
        prompts: as `Sample.prompts`.
        behaviour_logps: as `Sample.behaviour_logps`.
    """

    def __init__(self, rollouts: Iterable[Any], prompts: list[Any], behaviour_logps: list[FloatArray | None]):
        super().__init__(rollouts)
        self.prompts = prompts
        self.behaviour_logps = behaviour_logps


@dataclass(frozen=True, eq=False)
class Sample(Mapping[str, Any]):
    """n trajectories that were drawn, those of a question side by side.

    A mapping from names to columns: `sample["rewards"]` is `sample.rewards`, and `dict(sample)` has all. As with a table of
    columns elsewhere, `len(sample)` is the number of rows, n.

    Args:
        prompts: as they were given first, n.
        rollouts: text, or token ids (T,) int32, n.
        rewards: (n,) float32.
        is_correct: (n,).
        entropies: mean token entropy in nats, as it was given, (n,); NaN where it was not known.
        rates: correctness rate of the question now, (n,).
        questions: the number of each one's question, (n,): equal for equal prompts.
        behaviour_logps: (T,) float32 of each, None where they were not given.
    """

    prompts: list[Any]
    rollouts: SampledRollouts
    rewards: FloatArray
    is_correct: NDArray[np.bool_]
    entropies: FloatArray
    rates: FloatArray
    questions: IntArray
    behaviour_logps: list[FloatArray | None]

    def __len__(self) -> int:
        """Return the number of trajectories."""
        return len(self.prompts)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dataclass_fields__)

    def __getitem__(self, name: str) -> Any:
        if name not in self.__dataclass_fields__:
            raise KeyError(f"a sample has {', '.join(self.__dataclass_fields__)}, not {name!r}")
        return getattr(self, name)

    # The views of `Mapping` count with `len`, and its equality compares arrays.

    def keys(self) -> KeysView[str]:
        return self._columns().keys()

    def values(self) -> ValuesView[Any]:
        return self._columns().values()

    def items(self) -> ItemsView[str, Any]:
        return self._columns().items()

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def _columns(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self}


def check_keys(trajectory: Mapping[str, Any]) -> None:
    missing = [name for name in REQUIRED if name not in trajectory]
    unknown = [name for name in trajectory if name not in (*REQUIRED, *OPTIONAL)]
    if missing or unknown:
        fault = f"lacks {missing[0]!r}" if missing else f"has the unknown key {unknown[0]!r}"
        raise TrajectoryError(
            f"add: a trajectory needs {', '.join(REQUIRED)} and may have {', '.join(OPTIONAL)}; this one {fault}."
        )


def stored_rollout(
    question: int, number: int, trajectory: Mapping[str, Any], reward: float, right: bool
) -> StoredRollout:
    """Make a stored rollout of a mapping, the `number`-th that was added."""
    rollout, logps = trajectory["rollout"], trajectory.get("behaviour_logps")
    text = rollout if isinstance(rollout, str) else None
    try:
        if text is not None:
            if logps is not None:
                raise TrajectoryError("behaviour_logps belong to token ids, but the rollout is text")
            ids = np.zeros(1, np.int32)
        else:
            ids = _array(rollout)
        behaviour = np.zeros(len(ids), np.float32) if logps is None else _array(logps)
        entropy = trajectory["entropy"]
        return StoredRollout(
            question, ids, behaviour, np.array([reward]), 0, entropy=np.nan if entropy is None else float(entropy),
            correct=right, text=text,
            known_logps=logps is not None, number=number,
        )  # fmt: skip
    except TrajectoryError as error:
        raise TrajectoryError(f"add: prompt {str(trajectory['prompt'])[:60]!r}: {error}") from error


def _array(values: Any) -> NDArray[Any]:
    """Convert a list, an array, or a tensor on any device and of any precision."""
    if not hasattr(values, "detach"):
        return np.asarray(values)
    cpu = values.detach().cpu()
    return np.asarray(cpu.float() if cpu.is_floating_point() else cpu)
