"""One arm of a comparison: train with one preset, from a given start, on a budget of tokens, steps or time."""

import functools
import inspect
import logging
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, TrainerCallback

from ...archive.merge import import_source
from ...cli.training import RunInputs, Settings, check_inputs, load_inputs, make_trainer, parse
from ...errors import ConfigurationError
from ...evaluation import EvaluationResult, evaluate_policy
from ...experience.events import Admitted, Event, Replayed, one_by_one
from ...presets import PRESETS, preset_name
from ...runtime.checks import correctness_index
from ...tasks import Family, Task
from ...tasks.completions import Completion
from ...trl import ExGRPOTrainer
from ...trl.demonstrations import Demonstration, Demonstrations
from ...trl.quiet import quiet_host
from .recipe_regime import RecipeRegime
from .regime import Budget, Regime

Progress = Callable[[dict[str, Any]], None]

EVALUATION_SEED = 1_000_003  # of the samples; not that of any training
SURPLUS_STEPS = (
    4  # an arm ends by its tokens; one that has come to write nothing ends after this many times the on-policy steps
)
ENDLESS = 10**9
BANK_BATCH = 256  # demonstrations of a bank in one forward
UNSAVED: dict[str, Any] = {
    "eval_strategy": "no",
    "save_strategy": "no",
    "experience_log": "none",
    "logging_steps": 1,
    "report_to": "none",
    "disable_tqdm": True,
}
"""Nothing of an arm is kept but its figures, unless its own options say so."""


def unsaved(given: Mapping[str, Any]) -> dict[str, Any]:
    """`UNSAVED` for an arm of these options: one that starts from other experience keeps a log, which goes with its folder."""
    return {**UNSAVED, "experience_log": None} if given.get("experience_from") else UNSAVED


HISTORY_PREFIXES = ("fresh/", "replay/")
TIMES = "replay/time/"
HISTORY_FIELDS = ("loss", "grad_norm", "entropy")


@dataclass(frozen=True)
class Prepared:
    """A prepared run of `exgrpo train`: settings, questions, rewards and held-out questions; no trainer yet."""

    regime: Regime | RecipeRegime
    settings: Settings
    inputs: RunInputs
    held_out: Any

    @property
    def deciding(self) -> int:
        """Index of the reward function that decides."""
        names = [getattr(function, "__name__", "") for function in self.inputs.rewards]
        return correctness_index(names, self.settings.args.correctness_function)

    def evaluate(self, trainer: ExGRPOTrainer) -> EvaluationResult:
        """Measure the trainer's policy on the held-out questions."""
        args, task = self.settings.args, self.inputs.task
        assert args.max_completion_length is not None
        return evaluate_policy(
            trainer.accelerator.unwrap_model(trainer.model),
            trainer.processing_class,
            self.held_out,
            self.inputs.rewards[self.deciding],
            num_samples=self.regime.num_samples,
            temperature=self.regime.eval_temperature,
            max_new_tokens=args.max_completion_length,
            batch_size=self.regime.eval_batch_size,
            seed=EVALUATION_SEED,
            is_valid=task.is_valid if isinstance(task, Family) else None,
            correctness_threshold=args.correctness_threshold,
        )


def prepare(
    regime: Regime | RecipeRegime, seed: int, preset: str, options: Mapping[str, Any], output_dir: str, max_steps: int
) -> Prepared:
    """Read and check what an arm trains with; nothing of its model yet."""
    given = {**regime.recipe_of(seed), "preset": preset, **options}
    own = {**unsaved(given), "preset": preset, **options, "max_steps": max_steps, "output_dir": output_dir}
    settings = parse({**regime.recipe_of(seed), **own}, [])
    inputs = load_inputs(settings, held_out=True)
    check_inputs(settings, inputs)
    held_out = inputs.eval
    if inputs.task is None and len(held_out) > regime.eval_questions:
        held_out = held_out.shuffle(seed=EVALUATION_SEED).select(range(regime.eval_questions))
    return Prepared(regime, settings, replace(inputs, eval=None), held_out)


def evaluate_start(seed: int, regime: Regime | RecipeRegime) -> dict[str, Any]:
    """Evaluate the common start on held-out questions: the first point of every arm's curve."""
    with tempfile.TemporaryDirectory() as output_dir, quiet_host():
        prepared = prepare(regime, seed, "on-policy", {}, output_dir, max_steps=1)
        result = prepared.evaluate(make_trainer(prepared.settings, prepared.inputs))
    return {"seed": seed, "step": 0, "at": 0, "tokens": 0, **figures(result)}


def run_arm(
    preset: str,
    seed: int = 0,
    regime: Regime | RecipeRegime | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    token_budget: int | None = None,
    budget_factor: float = 1.0,
    demonstrations: int = 0,
    on_progress: Progress | None = None,
) -> dict[str, Any]:
    """Train one preset and measure it on held-out questions.

    Training is drawn from `seed`, and of the built-in policy the questions and the start too, so that arms with the same seed
    are pairs. In a `Regime` replay starts at once (`start_pass_at_1=0`) unless `options` says otherwise: the start is far below
    the default gate.

    Args:
        preset: a name of `exgrpo.PRESETS`.
        seed: see above.
        regime: what is trained on, and how much; `Regime()` is the demo's.
        options: of `exgrpo train`, over those of preset and regime.
        token_budget: completion tokens to generate, in place of the regime's budget.
        budget_factor: times that; evaluations are as far apart as without it.
        demonstrations: right answers of so many training questions, the first ones, that are there as experience when it
            starts; of built-in tasks only.
        on_progress: called after every step with a small dictionary.

    Returns:
        JSON values: `final` (held-out figures), `curve` (the same over the budget), `history` (the log, one row a step),
        `tokens`, `steps`, and what came of the questions and of what was stored; `seconds` apart, as time on the wall and as
        time of the processor. All but `seconds` is the same for the same arguments, unless the budget is one of time.
    """
    started = time.perf_counter()
    regime, options = regime or Regime(), options or {}
    budget = regime.budget(seed, budget_factor, token_budget)
    of_preset = PRESETS[preset_name(preset)].host
    most = most_steps(budget, {**of_preset, **options}.get("num_iterations", 1))
    with tempfile.TemporaryDirectory() as output_dir, quiet_host():
        limits = {"max_generated_tokens": int(budget.size)} if budget.kind == "tokens" else {}
        if demonstrations:
            assert isinstance(regime, Regime)
            options = {
                **options,
                "experience_from": write_bank(regime, seed, preset, options, demonstrations, output_dir),
            }
        prepared = prepare(regime, seed, preset, {**options, **limits}, output_dir, most)
        solved = SolvedQuestions(
            prepared.inputs.rewards[prepared.deciding], prepared.settings.args.correctness_threshold
        )
        rewards = [*prepared.inputs.rewards]
        rewards[prepared.deciding] = solved.reward_function
        trainer = make_trainer(prepared.settings, replace(prepared.inputs, rewards=rewards))
        stored = StoredAnswers(trainer, prepared.inputs.task)
        watch = Watch(trainer, prepared, budget, on_progress)
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(watch)
        trainer.train()
    planner = trainer.planner
    return {
        "preset": preset,
        "seed": seed,
        "options": {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in (asdict(trainer.args.replay) | asdict(trainer.args.objective)).items()
        },
        "token_budget": int(budget.size) if budget.kind == "tokens" else None,
        "tokens": trainer.generated_tokens,
        "steps": trainer.state.global_step,
        "ended_by": "steps" if trainer.state.global_step == trainer.args.max_steps else budget.kind,
        "final": watch.curve[-1],
        "questions_solved": len(solved.questions),
        "retired": planner.buffer.num_retired if planner else None,
        "replay_share": watch.mean("replay/share") if planner else None,
        "experience": stored.figures(),
        "curve": watch.curve,
        "history": watch.history,
        "seconds": watch.seconds | {"all": time.perf_counter() - started},
    }


def write_bank(regime: Regime, seed: int, preset: str, options: Mapping[str, Any], number: int, folder: str) -> str:
    """Import right answers of the first training questions, as `exgrpo experience import` does, for an arm to start from.

    Returns:
        The path of their log.
    """
    into = Path(folder) / "bank.db"
    prepared = prepare(regime, seed, preset, options, str(into.with_suffix("")), max_steps=1)
    task = prepared.inputs.task
    assert isinstance(task, Family)
    answers = [task.solution(question) for question in task.draw("train", regime.train_questions, seed)[:number]]
    trainer = make_trainer(prepared.settings, prepared.inputs)
    made = Demonstrations(
        trainer, [Demonstration(f"question {row}", row, Completion(text)) for row, text in enumerate(answers)]
    )
    if made.left_out:
        raise ConfigurationError(f"Of {number} demonstrations not all can be stored: {dict(made.left_out)}.")
    source = made.source("the task's solutions", forward=True, rows=BANK_BATCH)
    import_source(source, made.context.tokenizer(), into)
    return str(into)


def most_steps(budget: Budget, updates: int) -> int:
    """Return the optimizer steps after which an arm ends in any case."""
    if budget.kind == "steps":
        return int(budget.size)
    return ENDLESS if budget.steps is None else SURPLUS_STEPS * budget.steps * updates


def figures(result: EvaluationResult) -> dict[str, Any]:
    """Return the figures of an evaluation that are kept."""
    row = result.as_row()
    kept = ("greedy_accuracy", "valid_share", "distinct_right", "mean_length", "cut_share")
    return {f"pass_at_{k}": value for k, value in result.pass_at_k.items()} | {name: row[name] for name in kept}


class SolvedQuestions:
    """A reward function that also remembers which training questions were ever answered rightly."""

    def __init__(self, function: Callable[..., Any], threshold: float):
        self.questions: set[str] = set()

        def remember(prompts: Sequence[Any], rewards: Sequence[float | None]) -> None:
            right = (reward is not None and reward > threshold for reward in rewards)
            self.questions |= {repr(prompt) for prompt, is_right in zip(prompts, right, strict=True) if is_right}

        @functools.wraps(function)
        def reward_function(prompts: list[Any], **columns: Any) -> Any:
            rewards = function(prompts=prompts, **columns)
            remember(prompts, rewards)
            return rewards

        @functools.wraps(function)
        async def async_reward_function(prompts: list[Any], **columns: Any) -> Any:
            rewards = await function(prompts=prompts, **columns)
            remember(prompts, rewards)
            return rewards

        is_async = inspect.iscoroutinefunction(function)
        self.reward_function: Callable[..., Any] = async_reward_function if is_async else reward_function


class StoredAnswers:
    """Statistics of stored and replayed trajectories.

    Whether they are right by right reasoning, and how often the same one is taken.
    """

    def __init__(self, trainer: ExGRPOTrainer, task: Task | None):
        self.valid: dict[int, bool] = {}
        self.picks: list[int] = []
        self._task, self._decode = task if isinstance(task, Family) else None, trainer.processing_class.decode
        if trainer.experience is not None and trainer.questions is not None:
            self._questions = trainer.questions
            trainer.experience.listeners.append(one_by_one(self._see))

    def figures(self) -> dict[str, Any]:
        """Return `stored_valid`, `replayed_valid` and `distinct_picks`.

        Shares of valid reasoning, where the task can tell; different trajectories over all picks.
        """
        picks, told = len(self.picks), self._task is not None
        return {
            "stored": len(self.valid),
            "stored_valid": sum(self.valid.values()) / len(self.valid) if self.valid and told else None,
            "replayed": picks,
            "replayed_valid": sum(self.valid[serial] for serial in self.picks) / picks if picks and told else None,
            "distinct_picks": len(set(self.picks)) / picks if picks else None,
        }

    def _see(self, event: Event) -> None:
        if isinstance(event, Admitted):
            trajectory = event.trajectory
            text = self._decode(trajectory.completion_ids.tolist(), skip_special_tokens=True)
            prompt = self._questions.row(trajectory.question)["prompt"]
            self.valid[event.serial] = trajectory.correct and (self._task is None or self._task.is_valid(prompt, text))
        elif isinstance(event, Replayed):
            self.picks.append(event.serial)


class Watch(TrainerCallback):
    """Keeps the log, evaluates at even distances of the budget, ends the run by time, and reports every step."""

    def __init__(self, trainer: ExGRPOTrainer, prepared: Prepared, budget: Budget, on_progress: Progress | None):
        self.trainer, self.prepared, self.budget = trainer, prepared, budget
        self.on_progress = on_progress or (lambda progress: None)
        self.history: list[dict[str, Any]] = []
        self.curve: list[dict[str, Any]] = []
        self.seconds: dict[str, Any] = {"train": 0.0, "evaluate": 0.0, "cpu": [], "wall": []}
        self.seconds["clock"] = "cpu" if trainer.accelerator.device.type == "cpu" else "wall"
        self._since, self._cpu = 0.0, 0.0
        self._evaluated = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._since, self._cpu = time.perf_counter(), time.process_time()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        kept = {
            name: value
            for name, value in {**self.trainer.last_metrics, **logs}.items()
            if (name in HISTORY_FIELDS or name.startswith(HISTORY_PREFIXES)) and not name.startswith(TIMES)
        }
        if "fresh/generated_tokens" in kept:
            finite = {name: value if math.isfinite(value) else None for name, value in kept.items()}
            self.history.append({"step": state.global_step, "tokens": self.trainer.generated_tokens, **finite})
            self._report()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        used = self._used(state.global_step)
        due = int(used / self.budget.spacing)
        if used >= self.budget.size:
            control.should_training_stop = True
        elif due > self._evaluated:
            self._evaluate(state.global_step, due)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._evaluate(state.global_step, self.budget.size / self.budget.spacing)
        self.seconds["train"] = time.perf_counter() - self._since - self.seconds["evaluate"]

    def mean(self, name: str) -> float:
        return math.fsum(row.get(name) or 0.0 for row in self.history) / max(1, len(self.history))

    def _used(self, step: int) -> float:
        """Return the used share of the budget; of time, the longest of all processes, so that they end together."""
        if self.budget.kind == "tokens":
            return self.trainer.generated_tokens
        if self.budget.kind == "steps":
            return step
        accelerator = self.trainer.accelerator
        trained = time.perf_counter() - self._since - self.seconds["evaluate"]
        return float(accelerator.gather(torch.tensor([trained], device=accelerator.device)).max())

    def _evaluate(self, step: int, number: float) -> None:
        """Evaluate.

        `at` is the evaluation's place in the budget, the same for all arms; `tokens` is what was generated.
        """
        self._evaluated = number
        began, cpu = time.perf_counter(), time.process_time()
        self.seconds["cpu"].append(cpu - self._cpu)
        self.seconds["wall"].append(began - self._since - self.seconds["evaluate"])
        result = self.prepared.evaluate(self.trainer)
        at = round(self.budget.spacing * number)
        self.curve.append({"step": step, "at": at, "tokens": self.trainer.generated_tokens, **figures(result)})
        self.seconds["evaluate"] += time.perf_counter() - began
        self._cpu += time.process_time() - cpu
        self._report()

    def _report(self) -> None:
        last = self.history[-1] if self.history else {}
        self.on_progress(
            {
                "step": self.trainer.state.global_step,
                "tokens": self.trainer.generated_tokens,
                "budget": self.budget.size,
                "pass_at_1": last.get("fresh/pass_at_1"),
                "replay_share": last.get("replay/share"),
                "retired": last.get("replay/retired"),
                "idle": self.trainer.idle_reason,
                "evaluations": len(self.curve),
                "held_out": self.curve[-1]["pass_at_1"] if self.curve else None,
            }
        )


def set_up_worker() -> None:
    """Set up a process that trains arms: its threads, and no output between the lines of the display.

    No bars for weights that load in a millisecond; why replay is idle is in the progress of an arm.
    """
    from transformers.utils import logging as host_logging

    if threads := os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))
    host_logging.disable_progress_bar()
    logging.getLogger("exgrpo.trl").setLevel(logging.ERROR)  # alarms too
