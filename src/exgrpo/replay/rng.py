"""Random draws from (seed, generation counter, purpose) and nothing else.

The same run draws the same again on every rank and after a resume, whatever else used a generator meanwhile.
"""

import numpy as np

QUESTIONS, TRAJECTORIES, RESCUE, COIN, REVIEW, SHARE, PREFIX, SKIP = range(8)


def generator_for(seed: int, generation: int, purpose: int) -> np.random.Generator:
    """Return the generator for one purpose in one iteration."""
    return np.random.default_rng(np.random.SeedSequence((seed, generation, purpose)))
