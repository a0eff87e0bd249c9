"""Cost of a run on a recipe, estimated from two of its steps.

It is told before a comparison starts, and budgets are computed from it.
"""

import functools
import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...errors import ConfigurationError
from ...presets import resolve
from .recipe_regime import RecipeRegime
from .results import write_whole
from .running import OFFLINE, SECONDS_PER_BATCH, SET_UP, environment_of
from .study import Cell, Setting, Study
from .study_file import file_name
from .workers import Job, run_jobs

MORE_TIME = 1.3
"""Of an arm that replays, on a budget of tokens: a replayed completion costs none of it, but is learned from. Arms of the tiny
policy took 1.0 to 1.8 times the time of on-policy training in our studies, those of models whose completions are long less."""


@dataclass(frozen=True)
class Probe:
    """Seconds and tokens, measured in a process of its own.

    Attributes:
        load: seconds of a process beside training and evaluation: imports, questions and weights.
        generate, update: of the last generation of the probe, until it was scored, and for the optimizer steps on it.
        updates: optimizer steps of a generation.
        tokens: completion tokens of a generation.
        evaluate: seconds of one held-out evaluation, reckoned from a batch of it.
        warm_up: seconds of the tiny policy's warm-up, which the start of each seed begins with; of other models 0.
    """

    load: float
    generate: float
    update: float
    updates: int
    tokens: float
    evaluate: float
    warm_up: float = 0.0

    def tokens_of(self, steps: int) -> int:
        """Return completion tokens of so many on-policy optimizer steps, to three digits."""
        return int(float(f"{self.tokens * steps / self.updates:.3g}"))

    def steps_of(self, tokens: float) -> int:
        """Return on-policy optimizer steps that generate so many tokens."""
        return max(1, round(tokens / self.tokens * self.updates))

    def seconds(self, cell: Cell) -> float:
        """Estimate how long a cell takes on this machine."""
        if cell.arm is None:
            return self.load + self.warm_up + self.evaluate
        regime = cell.setting.regime
        budget = regime.budget(cell.seed, cell.arm.budget)
        passes = int({**regime.recipe, **cell.arm.given}.get("num_iterations", 1))
        a_generation = self.generate + self.update * passes
        if budget.kind == "seconds":
            train = budget.size
        elif budget.kind == "steps":
            train = a_generation * budget.size / (self.updates * passes)
        else:
            more = MORE_TIME if resolve(cell.arm.preset)[0].active else 1.0
            train = a_generation * more * budget.size / self.tokens
        return self.load + train + self.evaluate * regime.evaluations * cell.arm.budget


def check_arms(study: Study, setting: Setting) -> None:
    """Parse what each arm would be trained with; ConfigurationError for what cannot be, before anything costly."""
    from ...cli.training import parse
    from ...trl.quiet import quiet_host
    from .arm import unsaved

    for arm in setting.arms:
        recipe = {**setting.regime.recipe_of(study.seeds[0]), "preset": arm.preset, **arm.options, "max_steps": 1}
        try:
            with quiet_host():
                parse({**recipe, "output_dir": "unused", **unsaved(recipe)}, [])
        except ConfigurationError as error:
            raise ConfigurationError(f"The arm {arm.name!r}: {error}") from error


def probed(setting: Setting, seed: int, folder: Path) -> Probe:
    """Return the cost of a run of the setting, as measured by an earlier start, or now.

    It is kept, so that a comparison that goes on has the budget that it began with.
    """
    regime, path = setting.regime, folder / f"probe-{file_name(setting.name)}.json"
    assert isinstance(regime, RecipeRegime)
    kept = json.loads(path.read_text()) if path.exists() else {}
    if kept.get("recipe") == json.loads(json.dumps(regime.recipe)):
        return Probe(**kept["probe"])
    found = _measure(regime, seed, setting.arms[0].preset, setting.arms[0].options)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({"probe": found, "recipe": dict(regime.recipe)}, indent=1) + "\n")
    return Probe(**found)


def _measure(regime: RecipeRegime, seed: int, preset: str, options: Mapping[str, Any]) -> dict[str, Any]:
    arguments = {"regime": regime, "seed": seed, "preset": preset, "options": dict(options)}
    job = Job("the probe", "exgrpo.lab.studies.probe:run_probe", arguments, environment=environment_of(regime, 1))
    began = time.perf_counter()
    [(spent, found)] = [payload for kind, _, payload in run_jobs([job], 1, SET_UP, OFFLINE) if kind == "done"]
    return {"load": time.perf_counter() - began - spent, **found}


# In the worker ----------------------------------------------------------------------------------------------------------


def run_probe(regime: RecipeRegime, seed: int, preset: str, options: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
    """Run two generations and a part of an evaluation: their seconds, and the fields of a `Probe`."""
    from transformers import PrinterCallback

    from ...cli.training import make_trainer
    from ...trl.quiet import quiet_host
    from .arm import prepare

    with tempfile.TemporaryDirectory() as output_dir, quiet_host():
        prepared = prepare(regime, seed, preset, options, output_dir, max_steps=1)
        args = prepared.settings.args
        assert args.steps_per_generation is not None
        updates = max(1, args.steps_per_generation // args.gradient_accumulation_steps) * args.num_iterations
        args.max_steps = 2 * updates
        waited, warm_up = _warmed_up(prepared)
        clock, rewards = _clock(updates), [*prepared.inputs.rewards]
        rewards[prepared.deciding] = clock.timed(rewards[prepared.deciding])
        trainer = make_trainer(prepared.settings, replace(prepared.inputs, rewards=rewards))
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(clock)
        began = time.perf_counter()
        trainer.train()
        trained = time.perf_counter()
        number = min(len(prepared.held_out), max(1, regime.eval_batch_size // regime.num_samples))
        replace(prepared, held_out=prepared.held_out.select(range(number))).evaluate(trainer)
        ended = time.perf_counter()
    return waited + ended - began, {
        "generate": clock.scored - clock.began,
        "update": (clock.ended - clock.scored) / args.num_iterations,
        "updates": updates // args.num_iterations,
        "tokens": trainer.generated_tokens / 2,
        "evaluate": (ended - trained) * len(prepared.held_out) / number,
        "warm_up": warm_up,
    }


def _warmed_up(prepared: Any) -> tuple[float, float]:
    """Make the tiny policy of the seed, if it is one; return seconds that this took now, and that it takes uncached."""
    from ...tasks.tiny_policy import tiny_policy

    script, task = prepared.settings.script, prepared.inputs.task
    if not prepared.regime.is_tiny:
        return 0.0, 0.0
    began = time.perf_counter()
    tiny_policy(task, script.warm_up_seed, script.warm_up_batches)
    waited = time.perf_counter() - began
    return waited, max(waited, SECONDS_PER_BATCH * (script.warm_up_batches or task.warm_up.batches))


def _clock(updates: int) -> Any:
    """Make a callback that times the last of two generations: begun, scored, trained."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.began = self.scored = self.ended = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == updates:
                self.began = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.ended = time.perf_counter()

        def timed(self, function: Any) -> Any:
            @functools.wraps(function)
            def reward_function(*arguments: Any, **columns: Any) -> Any:
                self.scored = time.perf_counter()
                return function(*arguments, **columns)

            return reward_function

    return Clock()
