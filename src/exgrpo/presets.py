"""Named recipes. A preset is data: option values over the defaults of `ReplayConfig` and `ObjectiveConfig`.

Any option given beside a preset overrides it. No code anywhere asks for a preset's name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

from .config import ObjectiveConfig, ReplayConfig
from .errors import ConfigurationError

REPLAY_FIELDS = tuple(f.name for f in fields(ReplayConfig))
OBJECTIVE_FIELDS = tuple(f.name for f in fields(ObjectiveConfig))


@dataclass(frozen=True)
class Preset:
    """A recipe: what it is in a sentence, where it comes from, and the option values that differ from the defaults."""

    summary: str
    source: str
    options: Mapping[str, Any]


def _preset(summary: str, source: str, **options: Any) -> Preset:
    return Preset(summary, source, MappingProxyType(options))


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "exgrpo": _preset(
            "half of each batch replays questions near 50 % accuracy with their lowest-entropy success, shaped ratio",
            "arXiv 2510.02245, sigma as its released code",
        ),
        "on-policy": _preset("no replay: plain GRPO, the control", "control", mixing="none"),
        "positive-weight": _preset(
            "no replay, positive advantages times 8: the control for what replay seems to give",
            "control, this project",
            mixing="none",
            positive_weight=8.0,
        ),
        "rescue": _preset(
            "all questions fresh; a group without success gets one stored success in place of a failure",
            "this project",
            mixing="rescue",
            trajectory_choice="random",
            start_pass_at_1=0.0,
            correction="truncated",
            truncation=1.0,
            positive_weight=8.0,
        ),
    }
)


def resolve(preset: str = "exgrpo", **options: Any) -> tuple[ReplayConfig, ObjectiveConfig]:
    """The configuration of a preset with `options` over it; an option that is None counts as not given."""
    if preset not in PRESETS:
        raise ConfigurationError(f"There is no preset {preset!r}. Presets: {', '.join(PRESETS)}.")
    unknown = sorted(set(options) - set(REPLAY_FIELDS) - set(OBJECTIVE_FIELDS))
    if unknown:
        raise ConfigurationError(
            f"Unknown option {unknown[0]!r}. Options: {', '.join((*REPLAY_FIELDS, *OBJECTIVE_FIELDS))}."
        )
    values = {**PRESETS[preset].options, **{name: value for name, value in options.items() if value is not None}}
    return (
        ReplayConfig(**{name: value for name, value in values.items() if name in REPLAY_FIELDS}),
        ObjectiveConfig(**{name: value for name, value in values.items() if name in OBJECTIVE_FIELDS}),
    )
