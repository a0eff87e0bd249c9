"""Options of a run under verl: those of `exgrpo.*` in its configuration, with the names and checks that they have on TRL."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ..config import ObjectiveConfig, ReplayConfig
from ..errors import ConfigurationError
from ..log import FILE_NAME
from ..presets import OBJECTIVE_FIELDS, PRESETS, REPLAY_FIELDS, preset_name, resolve
from ..runtime.run_options import check_run_options
from ..spelling import did_you_mean

_CORE = tuple(dict.fromkeys((*REPLAY_FIELDS, *OBJECTIVE_FIELDS)))


@dataclass(frozen=True)
class VerlOptions:
    """The options under `exgrpo`, checked.

    Args:
        replay: what is remembered and replayed.
        objective: options of the objective.
        preset: whose values the options have that were not given.
        correctness_function: name of the reward function; verl has one.
        correctness_threshold: a completion is right if its reward is above this.
        max_generated_tokens: training stops after the step in which this many were generated; None: never.
        experience_log: file of the experience, relative to `trainer.default_local_dir`; `none`: memory only.
        experience_from: other experience to start from: a folder of a run, its log, or an export.
        keep_retired: whether questions that had retired there stay so.
        embedding_model: encoder of completions, where their quality is used.
        embedding_device: where it runs, on the driver.
        alarms: `warn`, `stop` or `off`.
        replay_metrics: `basic` or `all`.
        skip_rows: whether rows without gradient are left out of the update; None: where that is exact.
    """

    replay: ReplayConfig
    objective: ObjectiveConfig
    preset: str = "exgrpo"
    correctness_function: str | None = None
    correctness_threshold: float = 0.5
    max_generated_tokens: int | None = None
    experience_log: str | None = None
    experience_from: str | None = None
    keep_retired: bool = False
    embedding_model: str | None = None
    embedding_device: str = "cpu"
    alarms: str = "warn"
    replay_metrics: str = "basic"
    skip_rows: bool | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> "VerlOptions":
        """Read the node `exgrpo`; an option that is null counts as not given.

        Raises:
            ConfigurationError: an unknown option, or a value that cannot work.
        """
        values = {name: value for name, value in (given or {}).items() if value is not None}
        unknown = [name for name in values if name not in OPTIONS]
        if unknown:
            raise ConfigurationError(
                f"There is no option exgrpo.{unknown[0]}.{did_you_mean(unknown[0], OPTIONS)} Options under exgrpo: "
                f"{', '.join(OPTIONS)}."
            )
        preset = preset_name(values.pop("preset", cls.preset))
        if host := PRESETS[preset].host:
            sets = ", ".join(f"{name}={value}" for name, value in host.items())
            raise ConfigurationError(
                f"exgrpo.preset={preset} sets {sets}, an option of TRL. "
                "Set exgrpo.preset=positive-weight and actor_rollout_ref.actor.ppo_epochs=2."
            )
        core = {name: values.pop(name) for name in _CORE if name in values}
        replay, objective = resolve(preset, **core)
        options = cls(replay, objective, preset, **values)
        check_run_options(options)
        return options

    @property
    def keeps_log(self) -> bool:
        return (self.experience_log or "").lower() != "none"

    def log_path(self, folder: str) -> Path | None:
        """Return the file of the experience in a run's folder; None: it is kept in memory."""
        return Path(folder).expanduser() / Path(self.experience_log or FILE_NAME) if self.keeps_log else None

    def core(self) -> dict[str, Any]:
        """Return the options of replay and objective by name."""
        return asdict(self.replay) | asdict(self.objective)


OPTIONS = (*(f.name for f in fields(VerlOptions) if f.name not in ("replay", "objective")), *_CORE)
