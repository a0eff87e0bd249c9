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


def lowest_entropy(
    buffer: ExperienceBuffer, questions: Sequence[int], step: int, config: ReplayConfig, score: EntropyScorer
) -> list[int]:
    """The slot of the lowest-entropy trajectory of each question; ties go to the older.

    All trajectories of a question compete (`exact`), or the best few by cached entropy (`lazy`), one that was never
    measured first among them. Competitors whose entropy is not known well enough are measured, in one call of the scorer;
    a question with a single trajectory needs no measurement.
    """
    slots, held = buffer.slots_of_each(questions)
    exact = config.entropy_refresh == "exact"
    entropy = buffer.column("entropy")
    known = np.where(held, np.nan_to_num(entropy[slots], nan=-np.inf), np.inf)
    order = np.argsort(known, axis=1, kind="stable")[:, : None if exact else config.entropy_candidates]
    slots, held = np.take_along_axis(slots, order, 1), np.take_along_axis(held, order, 1)
    stale = np.isnan(entropy[slots]) | (step - buffer.column("entropy_step")[slots] > config.max_entropy_age) | exact
    to_measure = slots[stale & held & (held.sum(1, keepdims=True) > 1)].tolist()
    if to_measure:
        buffer.measured(to_measure, score(buffer.get_many(to_measure)), step)
    # among equals the older: order by serial first, then take the first minimum
    age = np.argsort(np.where(held, buffer.column("serial")[slots], np.iinfo(np.int64).max), axis=1)
    slots, held = np.take_along_axis(slots, age, 1), np.take_along_axis(held, age, 1)
    best = np.argmin(np.where(held, np.nan_to_num(buffer.column("entropy")[slots], nan=np.inf), np.inf), axis=1)
    return [int(row[place]) for row, place in zip(slots, best, strict=True)]


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
