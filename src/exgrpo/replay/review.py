"""Review: retired questions that return, a share of them every so many steps."""

import numpy as np

from ..experience.buffer import ExperienceBuffer
from ..experience.events import Listener, Returned
from .counts import replay_count
from .rng import REVIEW, generator_for


def review(
    buffer: ExperienceBuffer, listener: Listener, seed: int, iteration: int, step: int, reviewed: int
) -> int | None:
    """Bring back a share of the retired questions when a review is due; return how many, or None when it is not.

    Args:
        buffer: that knows them.
        listener: sees `Returned`.
        seed, iteration: of the draw.
        step: optimizer steps done.
        reviewed: optimizer step of the latest review.
    """
    config, retired = buffer.config, np.flatnonzero(buffer.retired)
    if not config.review_every or step - reviewed < config.review_every:
        return None
    if not retired.size:
        return 0
    n = max(1, replay_count(retired.size, config.review_share))
    back = np.sort(generator_for(seed, iteration, REVIEW).choice(retired, n, replace=False))
    buffer.questions.bring_back(back)
    listener(Returned(iteration, step, back))
    return n
