"""A study: settings (task, sizes, learning rate) x arms (a preset with overrides) x seeds. Data, read from YAML.

    title: Does replay help on chains?
    seeds: {first: 0, count: 8}
    baseline: on-policy
    settings:
      chains: {task: chains, steps: 150, learning_rate: 8.0e-4}
    arms:
      on-policy: {preset: on-policy}
      exgrpo: {preset: exgrpo, sigma: 0.25}  # any option of replay and objective
      twice: {preset: on-policy, budget: 2}  # times the tokens

Arms of a setting share their questions, their start and their budget of generated tokens, seed by seed, so that they are
pairs. Everything that decides the result of one run is in its *fingerprint*.
"""

import fnmatch
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError
from ..presets import OBJECTIVE_FIELDS, PRESETS, REPLAY_FIELDS, resolve
from .regime import Regime

START = "(start)"
SHORT = {"steps": 8, "eval_questions": 48, "num_samples": 4, "evaluations": 2, "warm_up_batches": 60}
HOST_OPTIONS = ("learning_rate", "num_iterations", "temperature", "beta", "epsilon", "scale_rewards", "loss_type")


@dataclass(frozen=True)
class Arm:
    """What is compared.

    Args:
        name: in tables and pictures.
        preset: of `exgrpo.PRESETS`.
        options: fields of `ExGRPOConfig` over those of preset and setting.
        budget: times the setting's budget of generated tokens.
        tried: how many settings were tried to arrive at this one, itself among them; printed beside every figure.
    """

    name: str
    preset: str
    options: Mapping[str, Any] = field(default_factory=dict)
    budget: float = 1.0
    tried: int = 1


@dataclass(frozen=True)
class Setting:
    """What the arms of a comparison have in common, and the arms."""

    name: str
    regime: Regime
    arms: tuple[Arm, ...]


@dataclass(frozen=True)
class Cell:
    """One run: an arm of a setting with one seed; or, without an arm, the common start of the seed."""

    setting: Setting
    arm: Arm | None
    seed: int

    @property
    def key(self) -> str:
        """`setting/arm/seed`."""
        return f"{self.setting.name}/{self.arm.name if self.arm else START}/{self.seed}"

    @property
    def fingerprint(self) -> str:
        """A hash of all that decides the result; the preset's own options are among it."""
        text = json.dumps(
            {"regime": self.setting.regime.as_dict(), "seed": self.seed, **self._of_arm()}, sort_keys=True
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _of_arm(self) -> dict[str, Any]:
        if self.arm is None:
            return {}
        ours = {name: value for name, value in self.arm.options.items() if name in REPLAY_FIELDS + OBJECTIVE_FIELDS}
        replay, objective = resolve(self.arm.preset, **ours)
        return {
            "replay": asdict(replay),
            "objective": asdict(objective),
            "options": dict(self.arm.options),
            "start": ours.get("start_pass_at_1", 0.0),
            "budget": self.arm.budget,
        }


@dataclass(frozen=True)
class Study:
    """See the module.

    Args:
        name: of the file; names the results.
        title: one sentence, the question that is asked.
        seeds: of questions, warm-up and training together.
        settings: with their arms.
        baseline: the arm that all others are compared with.
        contrasts: further pairs (arm, arm) to compare.
    """

    name: str
    title: str
    seeds: tuple[int, ...]
    settings: tuple[Setting, ...]
    baseline: str
    contrasts: tuple[tuple[str, str], ...] = ()

    def cells(self) -> list[Cell]:
        """All runs, seed by seed, so that a study that was ended early has whole pairs."""
        return [
            Cell(setting, arm, seed)
            for seed in self.seeds
            for setting in self.settings
            for arm in (None, *setting.arms)
        ]

    def shortened(self) -> "Study":
        """One seed and some steps of each arm: shows that a study runs, and nothing else. Bit for bit repeatable."""

        def short(setting: Setting) -> Setting:
            questions = min(setting.regime.train_questions, 4 * setting.regime.questions_per_step)
            sizes: dict[str, Any] = {**SHORT, "train_questions": questions}
            return replace(setting, regime=replace(setting.regime, **sizes))

        return replace(self, seeds=self.seeds[:1], settings=tuple(map(short, self.settings)))

    def only(self, patterns: Sequence[str]) -> list[Cell]:
        """The cells whose key matches one of the patterns (`setting/arm/seed`, with * and ?), and their starts."""
        if not patterns:
            return self.cells()
        chosen = {c.key for c in self.cells() if any(fnmatch.fnmatchcase(c.key, pattern) for pattern in patterns)}
        if not chosen:
            raise ConfigurationError(
                f"Study {self.name}: nothing matches {' or '.join(map(repr, patterns))}. Keys look like "
                f"{self.cells()[-1].key!r}."
            )
        starts = {"/".join((key.split("/")[0], START, key.rsplit("/", 1)[1])) for key in chosen}
        return [cell for cell in self.cells() if cell.key in chosen | starts]


def load_study(path: str | Path) -> Study:
    """The study of a YAML file; ConfigurationError names what is wrong and where."""
    import yaml

    path = Path(path)
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"The study {path} cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"The study {path} is not YAML: {error}") from error
    return make_study(raw, path.stem)


def make_study(raw: Any, name: str) -> Study:
    """A study from its dictionary."""
    where = f"Study {name}"
    _mapping(raw, where, required=("settings", "arms"), optional=("title", "seeds", "baseline", "contrasts"))
    arms = _arms(raw["arms"], where)
    settings = tuple(
        _setting(key, value, arms, f"{where}, setting {key!r}") for key, value in _items(raw["settings"], where)
    )
    baseline = raw.get("baseline", next(iter(arms)))
    contrasts = tuple(tuple(pair) for pair in raw.get("contrasts", ()))
    for arm in (baseline, *itertools.chain(*contrasts)):
        if arm not in arms:
            raise ConfigurationError(f"{where}: there is no arm {arm!r}. Arms: {', '.join(arms)}.")
    for pair in contrasts:
        if len(pair) != 2:
            raise ConfigurationError(f"{where}: a contrast is a pair of arms, but {list(pair)} came.")
    return Study(name, str(raw.get("title", name)), _seeds(raw.get("seeds", 8), where), settings, baseline, contrasts)  # type: ignore[arg-type]


def _seeds(raw: Any, where: str) -> tuple[int, ...]:
    if isinstance(raw, Mapping):
        _mapping(raw, f"{where}, seeds", required=("count",), optional=("first",))
        first, count = raw.get("first", 0), raw["count"]
        seeds = list(range(first, first + count)) if isinstance(first, int) and isinstance(count, int) else []
    else:
        seeds = list(range(raw)) if isinstance(raw, int) else raw
    if not isinstance(seeds, list) or not seeds or not all(isinstance(seed, int) and seed >= 0 for seed in seeds):
        raise ConfigurationError(
            f"{where}: seeds must be a number of them, a list, or {{first: F, count: N}}, but {raw!r} came."
        )
    if len(set(seeds)) < len(seeds):
        raise ConfigurationError(f"{where}: a seed occurs twice in {seeds}.")
    return tuple(seeds)


def _arms(raw: Any, where: str) -> dict[str, Arm]:
    arms: dict[str, Arm] = {}
    for name, value in _items(raw, where):
        for arm in _expand(name, value, f"{where}, arm {name!r}"):
            if arm.name in arms:
                raise ConfigurationError(f"{where}: two arms are called {arm.name!r}.")
            arms[arm.name] = arm
    return arms


def _expand(name: str, raw: Any, where: str) -> Iterable[Arm]:
    """One arm; or with a `grid` of options an arm for every combination, named after its values."""
    if not isinstance(raw, Mapping):
        raise ConfigurationError(f"{where}: must be a mapping with at least `preset`, but {raw!r} came.")
    grid = raw.get("grid", {})
    if not isinstance(grid, Mapping) or not all(isinstance(values, list) and values for values in grid.values()):
        raise ConfigurationError(f"{where}: `grid` maps options to lists of values, but {grid!r} came.")
    plain = {key: value for key, value in raw.items() if key != "grid"}
    if not grid:
        return [_arm(name, plain, where)]
    combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return [_arm(f"{name} {_values(values)}", {**plain, **values}, where) for values in combinations]


def _values(options: Mapping[str, Any]) -> str:
    """`learning_rate=0.0008, positive_weight=4`"""
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in options.items()
    )


def _arm(name: str, raw: Mapping[str, Any], where: str) -> Arm:
    if "/" in name or name == START:
        raise ConfigurationError(f"{where}: an arm's name must not contain a slash, nor be {START!r}.")
    options = dict(raw)
    preset, budget, tried = options.pop("preset", None), options.pop("budget", 1.0), options.pop("tried", 1)
    if preset not in PRESETS:
        raise ConfigurationError(f"{where}: `preset` must be one of {', '.join(PRESETS)}, but is {preset!r}.")
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not budget > 0:
        raise ConfigurationError(f"{where}: `budget` is a factor above 0 of the setting's tokens, but is {budget!r}.")
    if isinstance(tried, bool) or not isinstance(tried, int) or tried < 1:
        raise ConfigurationError(f"{where}: `tried` is a number of settings of at least 1, but is {tried!r}.")
    _check_options(options, preset, where)
    return Arm(name, preset, options, float(budget), tried)


def _check_options(options: Mapping[str, Any], preset: str, where: str) -> None:
    known = REPLAY_FIELDS + OBJECTIVE_FIELDS + HOST_OPTIONS
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ConfigurationError(
            f"{where}: unknown option {unknown[0]!r}. An arm has preset, budget, tried, grid, the host's "
            f"{', '.join(HOST_OPTIONS)}, and the options of replay and objective (docs/configuration.md)."
        )
    resolved = resolve(preset, **{k: v for k, v in options.items() if k not in HOST_OPTIONS})
    if resolved[0].uses_quality:
        raise ConfigurationError(f"{where}: the tiny policies of the lab have no encoder, which these options need.")


def _setting(name: str, raw: Any, arms: Mapping[str, Arm], where: str) -> Setting:
    if "/" in name:
        raise ConfigurationError(f"{where}: a setting's name must not contain a slash.")
    sizes = tuple(f.name for f in fields(Regime))
    _mapping(raw, where, required=("task",), optional=(*sizes, "arms", "overrides"))
    values = dict(raw)
    chosen, overrides = values.pop("arms", list(arms)), values.pop("overrides", {})
    for arm in (*chosen, *overrides):
        if arm not in arms:
            raise ConfigurationError(f"{where}: there is no arm {arm!r}. Arms: {', '.join(arms)}.")
    _check_task(values, where)
    own = []
    for arm in (arms[name] for name in chosen):
        more = dict(overrides.get(arm.name, {}))
        tried = more.pop("tried", arm.tried)
        options = {**arm.options, **more}
        _check_options(options, arm.preset, f"{where}, overrides of {arm.name!r}")
        own.append(replace(arm, options=options, tried=tried))
    try:
        return Setting(name, Regime(**values), tuple(own))
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error


def _check_task(values: Mapping[str, Any], where: str) -> None:
    from ..tasks import Family, get_task

    try:
        task = get_task(values["task"], **values.get("knobs", {}))
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    if not isinstance(task, Family):
        raise ConfigurationError(f"{where}: the tiny policy cannot be warmed up on the task {values['task']!r}.")


def _items(raw: Any, where: str) -> Iterable[tuple[str, Any]]:
    if not isinstance(raw, Mapping) or not raw or not all(isinstance(key, str) for key in raw):
        raise ConfigurationError(f"{where}: settings and arms are mappings from names, but {raw!r} came.")
    return raw.items()


def _mapping(raw: Any, where: str, required: Sequence[str], optional: Sequence[str]) -> None:
    if not isinstance(raw, Mapping):
        raise ConfigurationError(f"{where}: a mapping is required, but {raw!r} came.")
    missing = [key for key in required if key not in raw]
    unknown = [key for key in raw if key not in (*required, *optional)]
    if missing or unknown:
        what = f"lacks {missing[0]!r}" if missing else f"has no {unknown[0]!r}"
        raise ConfigurationError(f"{where} {what}. Keys: {', '.join((*required, *optional))}.")
