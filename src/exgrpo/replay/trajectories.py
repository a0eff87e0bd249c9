"""Which stored trajectory of a question is replayed.

Entropies are measured by a scorer that the host passes in, the only call back from the core: trajectories in, mean
token entropies under the CURRENT policy out (nats, full vocabulary, the completion's own tokens) [ExGRPO, sec. 3.2].
"""

from collections.abc import Callable, Sequence

import numpy as np

from ..config import ReplayConfig
from ..experience.buffer import ExperienceBuffer
from ..experience.trajectory import FloatArray, Trajectory

EntropyScorer = Callable[[Sequence[Trajectory]], FloatArray]


def contenders(buffer: ExperienceBuffer, slots: Sequence[int], config: ReplayConfig) -> list[int]:
    """Slots that compete for the lowest entropy: all of them (`exact`), or the best few by cached entropy (`lazy`).

    An entropy that was never measured competes first; ties go to the older trajectory.
    """
    if config.entropy_refresh == "exact":
        return list(slots)
    entropy, serial = buffer.column("entropy"), buffer.column("serial")
    known = {slot: -np.inf if np.isnan(entropy[slot]) else float(entropy[slot]) for slot in slots}
    return sorted(slots, key=lambda slot: (known[slot], int(serial[slot])))[: config.entropy_candidates]


def is_stale(buffer: ExperienceBuffer, slot: int, step: int, config: ReplayConfig) -> bool:
    """Whether a contender's entropy must be measured before it can be compared."""
    if config.entropy_refresh == "exact" or np.isnan(buffer.column("entropy")[slot]):
        return True
    return bool(step - int(buffer.column("entropy_step")[slot]) > config.max_entropy_age)


def lowest_entropy(
    buffer: ExperienceBuffer, questions: Sequence[int], step: int, config: ReplayConfig, score: EntropyScorer
) -> list[int]:
    """The slot of the lowest-entropy trajectory of each question. One call of the scorer for all that must be measured;
    a question with a single trajectory needs no measurement."""
    competing = [contenders(buffer, buffer.slots_of(question), config) for question in questions]
    stale = [slot for slots in competing if len(slots) > 1 for slot in slots if is_stale(buffer, slot, step, config)]
    if stale:
        buffer.measured(stale, score([buffer.get(slot) for slot in stale]), step)
    entropy, serial = buffer.column("entropy"), buffer.column("serial")
    return [min(slots, key=lambda slot: (float(entropy[slot]), int(serial[slot]))) for slots in competing]


def choose(
    buffer: ExperienceBuffer,
    questions: Sequence[int],
    step: int,
    config: ReplayConfig,
    rng: np.random.Generator,
    score: EntropyScorer,
) -> list[int]:
    """The slot of one stored trajectory of each question, by `config.trajectory_choice`."""
    if config.trajectory_choice == "lowest_entropy":
        return lowest_entropy(buffer, questions, step, config, score)
    if config.trajectory_choice == "newest":
        return [buffer.slots_of(question)[0] for question in questions]
    return [slots[int(rng.integers(len(slots)))] for slots in map(buffer.slots_of, questions)]
