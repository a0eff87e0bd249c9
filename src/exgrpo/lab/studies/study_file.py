"""Reader of studies in YAML. Each error names the study, the setting or the arm."""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ...cli.fields import table
from ...cli.train import read_recipe
from ...errors import ConfigurationError
from ...presets import OBJECTIVE_FIELDS, PRESETS, REPLAY_FIELDS, resolve
from ...registry import resolve_rules
from ...spelling import did_you_mean, spelled
from ...yaml_file import read_yaml, with_numbers
from .recipe_regime import OF_THE_STUDY, RecipeRegime
from .regime import Regime, positive_number
from .study import START, Arm, Setting, Study


def _count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{name} must be a whole number of at least 1, but is {value!r}.")


def _not_negative(name: str, value: Any) -> None:
    if value != 0 or isinstance(value, bool):
        positive_number(name, value)


def _one_of(*values: str) -> Callable[[str, Any], None]:
    def check(name: str, value: Any) -> None:
        if value not in values:
            raise ConfigurationError(f"{name} must be one of {', '.join(values)}, but is {value!r}.")

    return check


HOST_OPTIONS: Mapping[str, Callable[[str, Any], None]] = {
    "learning_rate": positive_number,
    "num_iterations": _count,
    "temperature": positive_number,
    "beta": _not_negative,
    "epsilon": positive_number,
    "scale_rewards": _one_of("group", "batch", "none"),
    "loss_type": _one_of("grpo", "dr_grpo", "dapo", "bnpo"),
}
"""The host's options that an arm may set, and how each is checked."""
OF_AN_ARM = ("preset", "budget", "tried", "demonstrations", "grid")


def load_study(path: str | Path) -> Study:
    """Load the study of a YAML file.

    Raises:
        ConfigurationError: the file cannot be read, is not YAML, or is no study.
    """
    return make_study(read_study(path), Path(path).stem)


def read_study(path: str | Path) -> Any:
    """Return a study file's dictionary, with its recipes in place of their paths; raises like `load_study`."""
    raw = read_yaml(Path(path), "The study")
    settings = raw.get("settings") if isinstance(raw, Mapping) else None
    if not isinstance(settings, Mapping):
        return raw
    return {**raw, "settings": {name: _with_recipe(setting, Path(path).parent) for name, setting in settings.items()}}


def _with_recipe(setting: Any, folder: Path) -> Any:
    if not isinstance(setting, Mapping) or not isinstance(setting.get("recipe"), str):
        return setting
    return {**setting, "recipe": read_recipe(str(folder / setting["recipe"]))}


def make_study(raw: Any, name: str) -> Study:
    """Make a study from its dictionary; raises like `load_study`."""
    where, raw = f"Study {name}", with_numbers(raw)
    check_keys(raw, where, ("settings", "arms"), ("title", "seeds", "baseline", "contrasts"))
    recipes = [isinstance(value, Mapping) and "recipe" in value for _, value in _items(raw["settings"], where)]
    arms = _arms(raw["arms"], where, of_recipes=all(recipes))
    settings = tuple(
        _setting(key, value, arms, f"{where}, setting {key!r}") for key, value in _items(raw["settings"], where)
    )
    _check_files(settings, where)
    baseline, contrasts = raw.get("baseline", next(iter(arms))), raw.get("contrasts", [])
    if not isinstance(contrasts, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in contrasts):
        raise ConfigurationError(f"{where}: contrasts is a list of pairs [arm, arm], but {contrasts!r} came.")
    for arm in (baseline, *itertools.chain(*contrasts)):
        _known(arm, arms, where)
    pairs = tuple((ours, theirs) for ours, theirs in contrasts)
    return Study(name, str(raw.get("title", name)), _seeds(raw.get("seeds", 8), where), settings, baseline, pairs)


def _check_files(settings: Sequence[Setting], where: str) -> None:
    """Check that each setting has a picture file of its own."""
    seen = {"differences": "the picture of the differences"}
    for setting in settings:
        if (name := file_name(setting.name)) in seen:
            raise ConfigurationError(
                f"{where}: setting {setting.name!r} and {seen[name]} would share the file {name}.png: choose another name."
            )
        seen[name] = f"setting {setting.name!r}"


def file_name(setting: str) -> str:
    """Return a setting's name as part of a file name."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", setting).strip("-").lower()


def _seeds(raw: Any, where: str) -> tuple[int, ...]:
    seeds: Any = raw
    if isinstance(raw, Mapping):
        check_keys(raw, f"{where}, seeds", ("count",), ("first",))
        seeds = [raw.get("first", 0), raw["count"]]
        seeds = list(range(seeds[0], sum(seeds))) if all(map(_is_seed, seeds)) else None
    elif _is_seed(raw):
        seeds = list(range(raw))
    if not isinstance(seeds, list) or not seeds or not all(map(_is_seed, seeds)):
        raise ConfigurationError(
            f"{where}: seeds must be a number of them, a list, or {{first: F, count: N}}, but {raw!r} came."
        )
    if len(set(seeds)) < len(seeds):
        raise ConfigurationError(f"{where}: a seed occurs twice in {seeds}.")
    return tuple(seeds)


def _is_seed(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _arms(raw: Any, where: str, of_recipes: bool) -> dict[str, Arm]:
    arms: dict[str, Arm] = {}
    for name, value in _items(raw, where):
        for arm in _expand(name, value, f"{where}, arm {name!r}", of_recipes):
            if arm.name in arms:
                raise ConfigurationError(f"{where}: two arms are called {arm.name!r}.")
            arms[arm.name] = arm
    return arms


def _expand(name: str, raw: Any, where: str, of_recipes: bool) -> Iterable[Arm]:
    """Return one arm; or, with a `grid` of options, an arm for every combination, named after its values."""
    if not isinstance(raw, Mapping):
        raise ConfigurationError(f"{where}: must be a mapping with at least `preset`, but {raw!r} came.")
    grid = raw.get("grid", {})
    if not isinstance(grid, Mapping) or not all(isinstance(values, list) and values for values in grid.values()):
        raise ConfigurationError(f"{where}: `grid` maps options to lists of values, but {grid!r} came.")
    plain = {key: value for key, value in raw.items() if key != "grid"}
    if not grid:
        return [_arm(name, plain, where, of_recipes)]
    combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return [_arm(f"{name} {_values(values)}", {**plain, **values}, where, of_recipes) for values in combinations]


def _values(options: Mapping[str, Any]) -> str:
    """Format options: `learning_rate=0.0008, positive_weight=4`."""
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in options.items()
    )


def _arm(name: str, raw: Mapping[str, Any], where: str, of_recipes: bool) -> Arm:
    if "/" in name or name == START:
        raise ConfigurationError(f"{where}: an arm's name must not contain a slash, nor be {START!r}.")
    options = dict(raw)
    preset, budget, tried = options.pop("preset", None), options.pop("budget", 1.0), options.pop("tried", 1)
    preset = spelled(preset, PRESETS)
    if not isinstance(preset, str) or preset not in PRESETS:
        raise ConfigurationError(
            f"{where}: `preset` must be one of {', '.join(PRESETS)}, but is {preset!r}.{did_you_mean(preset, PRESETS)}"
        )
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget < math.inf:
        raise ConfigurationError(f"{where}: `budget` is a factor above 0 of the setting's tokens, but is {budget!r}.")
    _count(f"{where}: `tried`", tried)
    demonstrations = options.pop("demonstrations", 0)
    _check_options(options, preset, where, of_recipes)
    if demonstrations != 0:
        _check_demonstrations(demonstrations, preset, options, where)
    return Arm(name, preset, options, float(budget), tried, demonstrations)


def _check_demonstrations(number: Any, preset: str, options: Mapping[str, Any], where: str) -> None:
    """Raise ConfigurationError for a number that is none, and for an arm that replays nothing."""
    _count(f"{where}: `demonstrations`", number)
    ours = {name: value for name, value in options.items() if name in REPLAY_FIELDS + OBJECTIVE_FIELDS}
    replay, _ = resolve(preset, **ours)
    if not replay.replays or replay.mixing == "prompt":
        raise ConfigurationError(
            f"{where}: preset {preset!r} replays no completions, so that {number} demonstrations have no effect. Choose one "
            "that does."
        )


def _check_options(options: Mapping[str, Any], preset: str, where: str, of_recipes: bool) -> None:
    """Raise ConfigurationError for what an arm cannot set; of an arm on recipes the values are checked where it is parsed."""
    ours = {name: value for name, value in options.items() if name in REPLAY_FIELDS + OBJECTIVE_FIELDS}
    if of_recipes:
        _check_recipe_options(options, where)
        return
    unknown = [name for name in options if name not in ours and name not in HOST_OPTIONS]
    if unknown:
        raise ConfigurationError(
            f"{where}: unknown option {unknown[0]!r}.{_nearest_option(unknown[0])} An arm has preset, budget, tried, "
            "demonstrations, grid, the host's "
            f"{', '.join(HOST_OPTIONS)}, and the options of replay and objective (docs/configuration.md)."
        )
    for name in options.keys() - ours.keys():
        HOST_OPTIONS[name](f"{where}: `{name}`", options[name])
    try:
        replay, objective = resolve(preset, **ours)
        resolve_rules(replay, objective)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    if replay.uses_quality:
        raise ConfigurationError(f"{where}: the tiny policies of the lab have no encoder, which these options need.")


def _check_recipe_options(options: Mapping[str, Any], where: str) -> None:
    known = {row["name"] for row in table()["fields"]}
    for name in options:
        if name in OF_THE_STUDY:
            raise ConfigurationError(f"{where}: {name!r} is the study's own: arms differ in other options.")
        if name not in known:
            near = did_you_mean(name, sorted(known))
            raise ConfigurationError(f"{where}: unknown option {name!r}.{near} See exgrpo train --help all.")


def _nearest_option(name: str) -> str:
    return did_you_mean(name, (*HOST_OPTIONS, *REPLAY_FIELDS, *OBJECTIVE_FIELDS, *OF_AN_ARM))


def _setting(name: str, raw: Any, arms: Mapping[str, Arm], where: str) -> Setting:
    if "/" in name:
        raise ConfigurationError(f"{where}: a setting's name must not contain a slash.")
    of_recipe = isinstance(raw, Mapping) and "recipe" in raw
    required = ("recipe", "budget") if of_recipe else ("task",)
    optional = tuple(
        f.name for f in fields(RecipeRegime if of_recipe else Regime) if f.name not in (*required, "budget_of")
    )
    check_keys(raw, where, required, (*optional, "arms", "overrides"))
    values = dict(raw)
    chosen, overrides = values.pop("arms", list(arms)), values.pop("overrides", {})
    if not isinstance(chosen, list) or not chosen:
        raise ConfigurationError(f"{where}: `arms` is a list of names, but {chosen!r} came.")
    for arm in chosen:
        _known(arm, arms, where)
    if len(set(chosen)) < len(chosen):
        raise ConfigurationError(f"{where}: an arm occurs twice in {chosen}.")
    own = _overridden([arms[arm] for arm in chosen], overrides, where, of_recipe)
    try:
        if of_recipe:
            if banked := [arm.name for arm in own if arm.demonstrations]:
                raise ConfigurationError(
                    f"arm {banked[0]!r} has `demonstrations`, which are written for a task of the lab. With a recipe import "
                    "them (exgrpo experience import), and set experience_from."
                )
            return Setting(name, RecipeRegime(budget_of=values.pop("budget"), **values), own)
        values["task"] = _task_name(values, where)
        regime = Regime(**values)
        for arm in own:
            if arm.demonstrations > regime.train_questions:
                raise ConfigurationError(
                    f"arm {arm.name!r} has {arm.demonstrations} demonstrations, but there are {regime.train_questions} "
                    "training questions, and one of each."
                )
        return Setting(name, regime, own)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error


def _overridden(arms: Sequence[Arm], overrides: Any, where: str, of_recipe: bool) -> tuple[Arm, ...]:
    """Return the arms with a setting's changes to their options and to `tried`."""
    if not isinstance(overrides, Mapping) or not all(isinstance(value, Mapping) for value in overrides.values()):
        raise ConfigurationError(f"{where}: `overrides` maps arms to options, but {overrides!r} came.")
    for name in overrides:
        _known(name, {arm.name: arm for arm in arms}, f"{where}, overrides")
    own = []
    for arm in arms:
        here = f"{where}, overrides of {arm.name!r}"
        more = dict(overrides.get(arm.name, {}))
        tried = more.pop("tried", arm.tried)
        _count(f"{here}: `tried`", tried)
        for fixed in ("preset", "budget", "demonstrations", "grid"):
            if fixed in more:
                raise ConfigurationError(f"{here}: `{fixed}` belongs to the arm; overrides change options and `tried`.")
        options = {**arm.options, **more}
        _check_options(options, arm.preset, here, of_recipe)
        own.append(replace(arm, options=options, tried=tried))
    return tuple(own)


def _task_name(values: Mapping[str, Any], where: str) -> str:
    """Return the task as spelled here; raise ConfigurationError where it cannot be warmed up on."""
    from ...tasks import Family, get_task

    name, knobs = values["task"], values.get("knobs", {})
    if not isinstance(name, str) or not isinstance(knobs, Mapping):
        raise ConfigurationError(f"{where}: `task` is a name and `knobs` a mapping, but {name!r} and {knobs!r} came.")
    try:
        task = get_task(name, **knobs)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    except TypeError as error:
        raise ConfigurationError(f"{where}: the knobs {dict(knobs)} do not fit the task {name!r}: {error}.") from error
    if not isinstance(task, Family):
        raise ConfigurationError(f"{where}: the tiny policy cannot be warmed up on the task {name!r}.")
    return task.name


def _known(name: Any, arms: Mapping[str, Arm], where: str) -> None:
    if not isinstance(name, str) or name not in arms:
        raise ConfigurationError(f"{where}: there is no arm {name!r}. Arms: {', '.join(arms)}.")


def _items(raw: Any, where: str) -> Iterable[tuple[str, Any]]:
    if not isinstance(raw, Mapping) or not raw or not all(isinstance(key, str) for key in raw):
        raise ConfigurationError(f"{where}: settings and arms are mappings from names, but {raw!r} came.")
    return raw.items()


def check_keys(raw: Any, where: str, required: Sequence[str], optional: Sequence[str]) -> None:
    """Raise ConfigurationError unless `raw` is a mapping with the required keys and none but these."""
    if not isinstance(raw, Mapping):
        raise ConfigurationError(f"{where}: a mapping is required, but {raw!r} came.")
    missing = [key for key in required if key not in raw]
    unknown = [key for key in raw if key not in (*required, *optional)]
    if missing or unknown:
        keys = (*required, *optional)
        what = f"lacks {missing[0]!r}." if missing else f"has no {unknown[0]!r}.{did_you_mean(unknown[0], keys)}"
        raise ConfigurationError(f"{where} {what} Keys: {', '.join(keys)}.")
