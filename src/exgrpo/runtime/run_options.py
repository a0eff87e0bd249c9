"""Checks of run options that belong to no part of the core, the same on every host."""

import math
from typing import Any

from ..errors import ConfigurationError
from .metric_table import SHOWN

ALARMS = ("warn", "stop", "off")


def check_run_options(options: Any) -> None:
    """Refuse values that cannot work.

    Args:
        options: of a run, in whatever class a host keeps them.

    Raises:
        ConfigurationError: one of them.
    """
    threshold, tokens, replay = options.correctness_threshold, options.max_generated_tokens, options.replay
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not math.isfinite(threshold):
        raise ConfigurationError(f"correctness_threshold must be a finite number, but is {threshold!r}.")
    if tokens is not None and tokens < 1:
        raise ConfigurationError(f"max_generated_tokens must be at least 1, but is {tokens}.")
    if options.alarms not in ALARMS:
        raise ConfigurationError(f"alarms must be one of {', '.join(map(repr, ALARMS))}, but is {options.alarms!r}.")
    if options.replay_metrics not in SHOWN:
        raise ConfigurationError(
            f"replay_metrics must be one of {', '.join(map(repr, SHOWN))}, but is {options.replay_metrics!r}."
        )
    if options.experience_from is not None and (not replay.replays or not options.keeps_log):
        why = "nothing is replayed" if not replay.replays else "experience_log='none'"
        raise ConfigurationError(
            f"experience_from={options.experience_from!r} has no effect where {why}. Remove it, or "
            + ("choose a preset with replay." if not replay.replays else "leave experience_log at its default.")
        )
    if options.keep_retired and options.experience_from is None:
        raise ConfigurationError(
            "keep_retired=True has no effect without experience_from: a run that is resumed keeps what had retired. Remove it, "
            "or set experience_from."
        )
