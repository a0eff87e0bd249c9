"""Bounds of a prefix: never the end of a stored success, never its answer, and always room left to go on."""

from collections.abc import Collection, Sequence

from ..experience.trajectory import Trajectory
from .context import Decoder

ANSWERS = ("\\boxed{", "####", "<answer>")
"""Marks at which a marked answer begins."""


def longest_prefix(
    trajectory: Trajectory, end_ids: Collection[int], completion_length: int, decode: Decoder | None = None
) -> int:
    """Return the most tokens that a group may begin with, 0 for none.

    Args:
        trajectory: a stored success.
        end_ids: tokens that end a completion.
        completion_length: R, tokens that a completion may have: one at least is left to the policy.
        decode: token ids -> texts, where the answer must not be given away; None: it may be.
    """
    ids = trajectory.completion_ids.tolist()
    end = next((place for place, token in enumerate(ids) if token in end_ids), len(ids))
    most = max(0, min(end, len(ids) - 1, completion_length - 1))
    return most if decode is None else min(most, before_answer(ids, decode))


def before_answer(ids: Sequence[int], decode: Decoder) -> int:
    """Return how many tokens there are before the last mark of an answer; all where there is none."""
    (text,) = decode([ids])
    begins = max(text.rfind(mark) for mark in ANSWERS)
    if begins < 0:
        return len(ids)
    low, high = 0, len(ids) - 1  # the longest whose text does not reach into the mark
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if len(decode([ids[:middle]])[0]) <= begins else (low, middle - 1)
    return low
