"""One arm of a comparison: train the tiny policy with one preset, from a given start, on a budget of generated tokens."""

import functools
import logging
import math
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from transformers import PrinterCallback, TrainerCallback

from ...evaluation import EvaluationResult, evaluate_policy
from ...experience.events import Admitted, Event, Replayed, one_by_one
from ...tasks import Family, get_task
from ...tasks.tiny_policy import warm_policy
from ...trl import ExGRPOConfig, ExGRPOTrainer
from ...trl.quiet import quiet_host
from .regime import Regime, tokens_of

Progress = Callable[[dict[str, Any]], None]

EVALUATION_SEED = 1_000_003  # of the samples; not that of any training
SURPLUS_STEPS = (
    4  # an arm ends by its tokens; one that has come to write nothing ends after this many times the on-policy steps
)
HISTORY_PREFIXES = ("fresh/", "replay/")
TIMES = "replay/time/"
HISTORY_FIELDS = ("loss", "grad_norm", "entropy")


def tiny_policy(task: Family, seed: int, warm_up_batches: int | None = None) -> tuple[Any, Any]:
    """The built-in policy after its warm-up, and its tokenizer; `warm_up_batches` in place of the task's own number."""
    return warm_policy(
        task, seed, warm_up=replace(task.warm_up, batches=warm_up_batches) if warm_up_batches else task.warm_up
    )


def warm_start(seed: int, regime: Regime) -> tuple[Any, Any, Family]:
    """The policy that every arm of this seed starts from, its tokenizer and the task."""
    task = get_task(regime.task, **regime.knobs)
    assert isinstance(task, Family)
    with quiet_host():
        return *tiny_policy(task, seed, regime.warm_up_batches), task


def evaluate_start(seed: int, regime: Regime) -> dict[str, Any]:
    """Held-out figures of the common start; the first point of every arm's curve."""
    model, tokenizer, task = warm_start(seed, regime)
    held_out = task.make("eval", regime.eval_questions, seed)
    return {
        "seed": seed,
        "step": 0,
        "at": 0,
        "tokens": 0,
        **figures(_evaluate(model, tokenizer, held_out, task, regime)),
    }


def run_arm(
    preset: str,
    seed: int = 0,
    regime: Regime | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    token_budget: int | None = None,
    budget_factor: float = 1.0,
    on_progress: Progress | None = None,
) -> dict[str, Any]:
    """Train one preset and measure it on held-out questions.

    Questions, start and training are drawn from `seed`, so that arms with the same seed are pairs. Replay starts at once
    (`start_pass_at_1=0`) unless `options` says otherwise: the start is far below the default gate.

    Args:
        preset: a name of `exgrpo.PRESETS`.
        seed: of the questions, the warm-up, and the training.
        regime: sizes and learning rate; `Regime()` is the demo's.
        options: fields of `ExGRPOConfig` over those of preset and regime.
        token_budget: completion tokens to generate; default: what on-policy training generates in `regime.steps` steps,
            were every completion as long as a right one.
        budget_factor: times that default; evaluations are as far apart as without it.
        on_progress: called after every step with a small dictionary.

    Returns:
        JSON values: `final` (held-out figures), `curve` (the same over tokens), `history` (the log, one row a step),
        `tokens`, `steps`, and what came of the questions and of what was stored; `seconds` apart, as time on the wall and as
        time of the processor. All but `seconds` is the same for the same arguments.
    """
    started = time.perf_counter()
    regime = regime or Regime()
    model, tokenizer, task = warm_start(seed, regime)
    unit = token_budget or tokens_of(task, seed, regime)
    budget = round(unit * budget_factor)
    solved = SolvedQuestions(task.reward_function)
    with tempfile.TemporaryDirectory() as output_dir, quiet_host():
        trainer = ExGRPOTrainer(
            model=model,
            reward_funcs=solved.reward_function,
            args=_arguments(preset, seed, regime, task, budget, budget_factor, output_dir, options or {}),
            train_dataset=task.make("train", regime.train_questions, seed),
            processing_class=tokenizer,
        )
        stored = StoredAnswers(trainer, task)
        held_out = task.make("eval", regime.eval_questions, seed)
        watch = Watch(trainer, task, held_out, regime, budget, unit, on_progress)
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
        "token_budget": budget,
        "tokens": trainer.generated_tokens,
        "steps": trainer.state.global_step,
        "ended_by": "steps" if trainer.state.global_step == trainer.args.max_steps else "tokens",
        "final": watch.curve[-1],
        "questions_solved": len(solved.questions),
        "retired": planner.buffer.num_retired if planner else None,
        "replay_share": watch.mean("replay/share") if planner else None,
        "experience": stored.figures(),
        "curve": watch.curve,
        "history": watch.history,
        "seconds": watch.seconds | {"all": time.perf_counter() - started},
    }


def figures(result: EvaluationResult) -> dict[str, Any]:
    """What of an evaluation is kept."""
    row = result.as_row()
    kept = ("greedy_accuracy", "valid_share", "distinct_right", "mean_length", "cut_share")
    return {f"pass_at_{k}": value for k, value in result.pass_at_k.items()} | {name: row[name] for name in kept}


def _evaluate(model: Any, tokenizer: Any, held_out: Any, task: Family, regime: Regime) -> EvaluationResult:
    return evaluate_policy(
        model,
        tokenizer,
        held_out,
        task.reward_function,
        num_samples=regime.num_samples,
        max_new_tokens=task.max_completion_length,
        batch_size=2048,
        seed=EVALUATION_SEED,
        is_valid=task.is_valid,
    )


def _arguments(
    preset: str,
    seed: int,
    regime: Regime,
    task: Family,
    budget: int,
    factor: float,
    output_dir: str,
    options: Mapping[str, Any],
) -> ExGRPOConfig:
    most = SURPLUS_STEPS * math.ceil(regime.steps * max(factor, 1.0)) * options.get("num_iterations", 1)
    given: dict[str, Any] = dict(
        preset=preset,
        start_pass_at_1=0.0,
        max_generated_tokens=budget,
        output_dir=output_dir,
        seed=seed,
        num_generations=regime.num_generations,
        per_device_train_batch_size=regime.questions_per_step * regime.num_generations,
        max_completion_length=task.max_completion_length,
        max_steps=most,
        learning_rate=regime.learning_rate,
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        max_grad_norm=1.0,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        save_strategy="no",
        experience_log="none",
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
    )
    return ExGRPOConfig(**{**given, **options})


class SolvedQuestions:
    """A task's reward function that also remembers which training questions were ever answered rightly."""

    def __init__(self, function: Callable[..., list[float | None]]):
        self.questions: set[str] = set()

        @functools.wraps(function)
        def reward_function(prompts: list[Any], **columns: Any) -> list[float | None]:
            rewards = function(prompts=prompts, **columns)
            self.questions |= {prompt for prompt, reward in zip(prompts, rewards, strict=True) if reward}
            return rewards

        self.reward_function = reward_function


class StoredAnswers:
    """Whether what is stored and replayed is right by right reasoning, and how often the same trajectory is taken."""

    def __init__(self, trainer: ExGRPOTrainer, task: Family):
        self.valid: dict[int, bool] = {}
        self.picks: list[int] = []
        self._task, self._decode = task, trainer.processing_class.decode
        if trainer.experience is not None and trainer.questions is not None:
            self._questions = trainer.questions
            trainer.experience.listeners.append(one_by_one(self._see))

    def figures(self) -> dict[str, Any]:
        """`stored_valid`, `replayed_valid`: shares; `distinct_picks`: different trajectories over all picks."""
        picks = len(self.picks)
        return {
            "stored": len(self.valid),
            "stored_valid": sum(self.valid.values()) / len(self.valid) if self.valid else None,
            "replayed": picks,
            "replayed_valid": sum(self.valid[serial] for serial in self.picks) / picks if picks else None,
            "distinct_picks": len(set(self.picks)) / picks if picks else None,
        }

    def _see(self, event: Event) -> None:
        if isinstance(event, Admitted):
            trajectory = event.trajectory
            text = self._decode(trajectory.completion_ids.tolist(), skip_special_tokens=True)
            prompt = self._questions.row(trajectory.question)["prompt"]
            self.valid[event.serial] = trajectory.correct and self._task.is_valid(prompt, text)
        elif isinstance(event, Replayed):
            self.picks.append(event.serial)


class Watch(TrainerCallback):
    """Keeps the log, evaluates at even distances of generated tokens, and reports every step."""

    def __init__(
        self,
        trainer: ExGRPOTrainer,
        task: Family,
        held_out: Any,
        regime: Regime,
        budget: int,
        unit: int,
        on_progress: Progress | None,
    ):
        self.trainer, self.task, self.held_out, self.regime, self.budget = trainer, task, held_out, regime, budget
        self.spacing = unit / regime.evaluations
        self.on_progress = on_progress or (lambda progress: None)
        self.history: list[dict[str, Any]] = []
        self.curve: list[dict[str, Any]] = []
        self.seconds: dict[str, Any] = {"train": 0.0, "evaluate": 0.0, "cpu": []}
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
        tokens = self.trainer.generated_tokens
        due = int(tokens / self.spacing)
        if tokens < self.budget and due > self._evaluated:
            self._evaluate(state.global_step, due)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._evaluate(state.global_step, self.budget / self.spacing)
        self.seconds["train"] = time.perf_counter() - self._since - self.seconds["evaluate"]

    def mean(self, name: str) -> float:
        return math.fsum(row.get(name) or 0.0 for row in self.history) / max(1, len(self.history))

    def _evaluate(self, step: int, number: float) -> None:
        """`at` is the evaluation's place on the token axis, the same for all arms; `tokens` is what was generated."""
        self._evaluated = number
        began, cpu = time.perf_counter(), time.process_time()
        self.seconds["cpu"].append(cpu - self._cpu)
        result = _evaluate(self.trainer.model, self.trainer.processing_class, self.held_out, self.task, self.regime)
        at = round(self.spacing * number)
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
                "budget": self.budget,
                "pass_at_1": last.get("fresh/pass_at_1"),
                "replay_share": last.get("replay/share"),
                "retired": last.get("replay/retired"),
                "idle": self.trainer.idle_reason,
                "evaluations": len(self.curve),
                "held_out": self.curve[-1]["pass_at_1"] if self.curve else None,
            }
        )


def set_up_worker() -> None:
    """What a process that trains arms does first: one thread, and nothing that would write between the lines of the display.

    No bars for weights that load in a millisecond; why replay is idle is in the progress of an arm.
    """
    import torch
    from transformers.utils import logging as host_logging

    torch.set_num_threads(1)
    host_logging.disable_progress_bar()
    logging.getLogger("exgrpo.trl").setLevel(logging.ERROR)  # alarms too
