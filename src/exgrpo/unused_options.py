"""Unused options: report options that have no effect beside the others, by their `used_if`."""

from dataclasses import fields

from .config import ObjectiveConfig, ReplayConfig
from .presets import resolve


def without_effect(preset: str, replay: ReplayConfig, objective: ObjectiveConfig) -> list[str]:
    """Return the options that were set to something else than the preset's, and change nothing under the others."""
    found: list[str] = []
    replay_default, objective_default = resolve(preset)
    for config, default in ((replay, replay_default), (objective, objective_default)):
        for f in fields(config):
            changed = getattr(config, f.name) != getattr(default, f.name)
            if changed and not f.metadata["used_if"](replay, objective) and f.name not in found:
                found.append(f.name)
    return found
