"""Verifiable task families, and the built-in tiny policy that starts on them.

`get_task("chains", reward="final")` gives a task, `task.make("train", 2048)` a dataset, `task.reward_function` what
scores it.
"""

from dataclasses import fields
from typing import Any

from ..errors import ConfigurationError
from ..spelling import did_you_mean, spelled
from .base import Family, Question, Task
from .chains import Chains
from .countdown import Countdown
from .free_order import FreeOrder
from .reasoning_gym import ReasoningGym
from .sums import Sums

TASKS: dict[str, type[Task]] = {task.name: task for task in (Chains, FreeOrder, Sums, Countdown, ReasoningGym)}


def get_task(name: str, **knobs: Any) -> Task:
    """Return the task of a name with these knobs; raise ConfigurationError where name, knob or value do not exist."""
    name = spelled(name, TASKS)
    if name not in TASKS:
        raise ConfigurationError(f"There is no task {name!r}.{did_you_mean(name, TASKS)} Tasks: {', '.join(TASKS)}.")
    known = [f.name for f in fields(TASKS[name])]  # type: ignore[arg-type]
    unknown = sorted(set(knobs) - set(known))
    if unknown:
        raise ConfigurationError(
            f"The task {name!r} has no knob {unknown[0]!r}.{did_you_mean(unknown[0], known)} Knobs: {', '.join(known)}."
        )
    return TASKS[name](**knobs)


__all__ = ["TASKS", "Family", "Question", "Task", "get_task"]
