"""Questions that compete for replay, as arrays: what a question sampler looks at."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import ReplayConfig
from ..experience.buffer import ExperienceBuffer
from ..experience.trajectory import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class QuestionCandidates:
    """Questions that can be replayed, as a question sampler sees them; arrays are (n,), one entry each.

    A sampler registered with `by_accuracy` sees one entry for each bucket instead, empty ones too, since its answer is
    the same for all questions of a bucket.

    Args:
        accuracy: in [0, 1]; with `spread` difficulty the scaled spread of the rewards.
        bucket_size: how many questions can be replayed in the bucket of each.
        config: the options.
        buffer: that holds them.
        questions: their numbers; None where entries are buckets.
        step: optimizer steps done.
    """

    accuracy: FloatArray
    bucket_size: NDArray[np.int64]
    config: ReplayConfig
    buffer: ExperienceBuffer
    questions: IntArray | None = None
    step: int = 0

    @property
    def numbers(self) -> IntArray:
        """Numbers of the questions."""
        assert self.questions is not None, "entries are buckets: register the sampler without by_accuracy"
        return self.questions

    def of_questions(self, values: NDArray[Any]) -> NDArray[Any]:
        """Select these questions' entries of an array over all, (Q,), such as `buffer.questions.replays`."""
        return np.asarray(values[self.numbers])
