"""Reasons why nothing can be replayed now, in words, for logs and alarms."""

from ..config import ReplayConfig
from ..experience.buffer import ExperienceBuffer


def why_empty(buffer: ExperienceBuffer, expired: int) -> str:
    """Explain why no question can be replayed.

    Args:
        buffer: without a replayable question.
        expired: trajectories that have just left because of their age.
    """
    config = buffer.config
    if expired and not len(buffer):
        return f"all over age: the last {expired} trajectories were older than max_age={config.max_age}"
    if resting := buffer.num_resting:
        return f"all replayable questions rest: {resting} within cooldown={config.cooldown}"
    if stored := len(buffer):  # imported
        return f"no replayable question stored: {stored} trajectories are of questions whose accuracy is not known yet"
    if config.mixing == "prompt" and config.max_uses and buffer.questions.replays.any():
        return f"no replayable question stored: those seen were replayed max_uses={config.max_uses} times or retired"
    return _why_none_stored(buffer, config)


def _why_none_stored(buffer: ExperienceBuffer, config: ReplayConfig) -> str:
    retired, seen = buffer.num_retired, buffer.questions.scorable > 0
    if not seen.any():
        return "no replayable question stored"
    if config.capacity == 0:
        return "nothing is stored: capacity=0"
    if retired and (buffer.next_serial or retired >= seen.sum()):
        return f"all retired: {retired} questions have left replay, and of the others nothing is stored"
    if buffer.next_serial:
        return "all evicted: what was stored has left (capacity, max_age, max_uses)"
    others = seen & ~buffer.retired
    if right := int((others & (buffer.questions.successes > 0)).sum()):
        if config.store_truncated:
            return (
                f"none admitted: the rule {config.admission!r} took no completion of {right} questions with right ones"
            )
        return f"all cut: what was right of {right} questions reached the length limit, and store_truncated=False"
    besides = f", and {retired} were solved at once" if retired else ""
    return f"nothing right yet: no completion of {int(others.sum())} questions{besides}"
