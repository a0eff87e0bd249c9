"""The options of a run: which preset it had, and what differs from it and from the defaults."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..config import ObjectiveConfig, ReplayConfig
from ..errors import ConfigurationError
from ..log.records import Provenance
from ..presets import PRESETS, resolve
from .texts import value_text


def options_in(origin: Provenance) -> dict[str, Any]:
    """Return options as they were written; none where they cannot be read."""
    try:
        found = json.loads(origin.options or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def configs_of(options: dict[str, Any]) -> tuple[ReplayConfig, ObjectiveConfig]:
    """Return a run's configuration as far as this version knows its options; defaults for the rest."""
    replay, objective = ReplayConfig(), ObjectiveConfig()
    for name, value in options.items():
        value = tuple(value) if isinstance(value, list) else value
        if name in _names(ReplayConfig):
            replay = _with(replay, name, value)
        if name in _names(ObjectiveConfig):
            objective = _with(objective, name, value)
    lists = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    for config in (
        ReplayConfig,
        ObjectiveConfig,
    ):  # all at once, since single values may contradict the others' defaults
        given: dict[str, Any] = {name: value for name, value in lists.items() if name in _names(config)}
        with contextlib.suppress(ConfigurationError, TypeError, ValueError):
            if config is ReplayConfig:
                replay = ReplayConfig(**given)
            else:
                objective = ObjectiveConfig(**given)
    return replay, objective


def of_the_user(options: dict[str, Any], rules: Mapping[str, Any], *names: str) -> str | None:
    """Return why an option's rule cannot be called here, or None.

    Code of the user that a file names is never imported.
    """
    for name in names:
        rule = options.get(name)
        if rule is not None and rule not in tuple(rules):
            return f"its {name}, {str(rule)!r}, is code of the user's, which is not run here"
    return None


def _with(config: Any, name: str, value: Any) -> Any:
    try:
        return type(config)(**{**vars(config), name: value})
    except (ConfigurationError, TypeError, ValueError):
        return config


def _names(config: type) -> set[str]:
    return {field.name for field in fields(config)}


def described(origin: Provenance) -> dict[str, Any]:
    """Describe every option: its value, its meaning, and the values of preset and default."""
    options = options_in(origin)
    name = str(options.get("preset", ""))
    of_preset: dict[str, Any] = {}
    if name in PRESETS:
        replay, objective = resolve(name)
        of_preset = vars(replay) | vars(objective)
    rows = []
    for config in (ReplayConfig, ObjectiveConfig):
        default = config()
        for field in fields(config):
            if field.name in options:
                value, usual = options[field.name], getattr(default, field.name)
                preset = of_preset.get(field.name, usual)
                rows.append(
                    {
                        "name": field.name, "value": value_text(value), "default": value_text(usual),
                        "preset": value_text(preset), "meaning": str(field.metadata.get("help", "")),
                        "differs": not _alike(value, usual), "own": not _alike(value, preset),
                    }
                )  # fmt: skip
    known = {row["name"] for row in rows} | {"preset"}
    others = [{"name": n, "value": value_text(v)} for n, v in options.items() if n not in known]
    summary = PRESETS[name].summary if name in PRESETS else ""
    return {"preset": name, "summary": summary, "rows": rows, "others": others}


def _alike(one: Any, other: Any) -> bool:
    return json.dumps(one, default=str) == json.dumps(other, default=str)
