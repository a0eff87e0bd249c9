"""A study: settings (task, sizes, learning rate; or a recipe) x arms (a preset with overrides) x seeds.

Data, read from YAML by `study_file`.

    title: Does replay help on chains?
    seeds: {first: 0, count: 8}
    baseline: on-policy
    settings:
      chains: {task: chains, steps: 150, learning_rate: 8.0e-4}
      gsm8k: {recipe: recipes/gsm8k.yaml, budget: {tokens: 2000000}}
    arms:
      on-policy: {preset: on-policy}
      exgrpo: {preset: exgrpo, sigma: 0.25}  # any option of replay and objective
      twice: {preset: on-policy, budget: 2}  # times the tokens

Arms of a setting share their questions, their start and their budget of generated tokens, seed by seed, so that they are
pairs. Everything that decides the result of one run is in its *fingerprint*.
"""

import fnmatch
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ... import presets
from ...config import ObjectiveConfig, ReplayConfig
from ...errors import ConfigurationError
from ...presets import OBJECTIVE_FIELDS, REPLAY_FIELDS, resolve
from .recipe_regime import RecipeRegime
from .regime import Regime

START = "(start)"
SHORT = {"steps": 8, "eval_questions": 48, "num_samples": 4, "evaluations": 2, "warm_up_batches": 400}
"""Sizes of a shortened study, at most: with fewer warm-up batches the policies have no success yet, and nothing is replayed."""


NEWER = (
    "retired_in_stream", "start_completions", "rule_options", "prefix_length", "prefix_range", "prefix_steps", "prefix_aim",
    "prefix_max_accuracy", "prefix_before_answer", "admit_prefixed", "age_decay", "advantage", "skip", "skip_explore",
    "skip_floor_solved", "skip_floor_hopeless", "retest_passes", "moment_limit", "asymmetry", "veto_ratio",
)  # fmt: skip
"""Options that came after the first results that are kept: they count where they are not the default."""


@dataclass(frozen=True)
class Arm:
    """One side of a comparison.

    Args:
        name: in tables and pictures.
        preset: of `exgrpo.PRESETS`.
        options: fields of `ExGRPOConfig` over those of preset and setting.
        budget: times the setting's budget of generated tokens.
        tried: how many settings were tried to arrive at this one, itself among them; printed beside every figure.
        demonstrations: right answers of so many training questions that are there as experience when it starts.
    """

    name: str
    preset: str
    options: Mapping[str, Any] = field(default_factory=dict)
    budget: float = 1.0
    tried: int = 1
    demonstrations: int = 0

    @property
    def given(self) -> dict[str, Any]:
        """The arm's options, and what its preset sets of the host."""
        return {**presets.PRESETS[presets.preset_name(self.preset)].host, **self.options}


@dataclass(frozen=True)
class Setting:
    """The common part of a comparison, and its arms."""

    name: str
    regime: Regime | RecipeRegime
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
        given = {**self.setting.regime.recipe, **self.arm.given}
        ours = {name: value for name, value in given.items() if name in REPLAY_FIELDS + OBJECTIVE_FIELDS}
        replay, objective = resolve(self.arm.preset, **ours)
        return {
            "replay": _deciding(replay),
            "objective": _deciding(objective),
            "options": self.arm.given,
            "start": ours.get("start_pass_at_1", 0.0),
            "budget": self.arm.budget,
            **({"demonstrations": self.arm.demonstrations} if self.arm.demonstrations else {}),
        }


def _deciding(config: ReplayConfig | ObjectiveConfig) -> dict[str, Any]:
    """Return the options that decide a result; those that came later only where they are set."""
    rows = asdict(config).items()
    return {name: value for name, value in rows if name not in NEWER or value != getattr(type(config), name)}


@dataclass(frozen=True)
class Study:
    """A study; see the module.

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
        """List all runs, seed by seed, so that a study that ends early has whole pairs."""
        return [
            Cell(setting, arm, seed)
            for seed in self.seeds
            for setting in self.settings
            for arm in (None, *setting.arms)
        ]

    def shortened(self) -> "Study":
        """Return one seed and some steps of each arm, to test that a study runs; bit for bit repeatable."""

        def short(setting: Setting) -> Setting:
            regime = setting.regime
            if isinstance(regime, RecipeRegime):
                return replace(setting, regime=regime.shortened())
            sizes: dict[str, Any] = {name: min(getattr(regime, name) or most, most) for name, most in SHORT.items()}
            sizes["train_questions"] = min(regime.train_questions, 4 * regime.questions_per_step)
            arms = tuple(
                replace(arm, demonstrations=min(arm.demonstrations, sizes["train_questions"])) for arm in setting.arms
            )
            return replace(setting, regime=replace(regime, **sizes), arms=arms)

        return replace(self, seeds=self.seeds[:1], settings=tuple(map(short, self.settings)))

    def only(self, patterns: Sequence[str]) -> list[Cell]:
        """Return cells whose key matches one of the patterns, and their starts.

        Patterns are `setting/arm/seed`, with * and ?.
        """
        if not patterns:
            return self.cells()
        keys = [cell.key for cell in self.cells()]
        chosen = {key for key in keys if key in patterns or any(fnmatch.fnmatchcase(key, p) for p in patterns)}
        if not chosen:
            raise ConfigurationError(
                f"Study {self.name}: nothing matches {' or '.join(map(repr, patterns))}. Keys look like {keys[-1]!r}."
            )
        starts = {"/".join((key.split("/")[0], START, key.rsplit("/", 1)[1])) for key in chosen}
        return [cell for cell in self.cells() if cell.key in chosen | starts]
