"""What `benchmarks/gpu.py` runs: a policy and questions, an arm of a preset, and checks of precision and of resuming.

The task: a few digits, of which the largest is asked for. Always answering 9 is right for 4 of 9 questions of four digits, so a
policy that gets beyond that reads them.
"""

import argparse
import gc
import math
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from jinja2 import TemplateError
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback

from exgrpo import resolve
from exgrpo.errors import ConfigurationError
from exgrpo.evaluation import evaluate_policy
from exgrpo.experience.replayed import fingerprint_of
from exgrpo.lab.bench.arms import AT_ONCE, letters
from exgrpo.tasks import get_task
from exgrpo.tasks.base import completion_text, split_of
from exgrpo.tasks.tiny_policy import warm_policy
from exgrpo.trl import ExGRPOConfig, ExGRPOTrainer

if TYPE_CHECKING:
    from gpu import Sizes

REPLAY = ("replay/share", "replay/ratio_mean", "replay/ess")
KEPT = ("loss", "grad_norm", "fresh/pass_at_1", "fresh/generated_tokens", *REPLAY, "replay/age_mean")
EVALUATION_SEED = 1_000_003
WARM_UP_BATCHES = 300  # of the tiny policy: some seconds, for a Pass@1 of a quarter
ALLOWED = {"fp32": 1e-3, "bf16": 0.05}  # how far the mean ratio of a policy that does not change may be from 1


# Questions --------------------------------------------------------------------------------------------------------------


def largest_reward(prompts: Any, completions: list[Any], answer: list[str], **kwargs: Any) -> list[float]:
    """1 where the first line of a completion is the answer and nothing else but a full stop, else 0."""
    lines = [completion_text(completion).strip().partition("\n")[0] for completion in completions]
    return [float(line.strip(" .") == right) for line, right in zip(lines, answer, strict=True)]


@dataclass(frozen=True)
class Largest:
    """Questions `3 7 5 1` with the answer `7`: so many different numbers of so many digits."""

    numbers: int
    digits: int
    tokenizer: Any

    def draw(self, split: str, size: int, seed: int) -> list[dict[str, Any]]:
        """Distinct rows of a split; which one a question is in is decided by its text alone."""
        rng, found = random.Random(f"largest/{split}/{seed}"), {}
        for _ in range(200 * size):
            question, right = self._question(rng)
            if split_of(question) == split:
                found[question] = right
            if len(found) == size:
                return [{"prompt": self.prompt(question), "answer": right} for question, right in found.items()]
        raise ConfigurationError(
            f"There are not {size} different {split} questions of {self.numbers} numbers. Set --digits or --numbers higher."
        )

    def prompt(self, question: str) -> Any:
        """Two examples with different answers, and the question: messages, or a text where the model has no chat template."""
        rng = random.Random(0)
        shots = [self._question(rng), self._question(rng)]
        while shots[0][1] == shots[1][1]:
            shots[1] = self._question(rng)
        if self.tokenizer.chat_template is None:
            return "".join(f"Largest of {q}: {a}\n" for q, a in shots) + f"Largest of {question}:"
        turns = [m for q, a in shots for m in ({"role": "user", "content": q}, {"role": "assistant", "content": a})]
        told, asked = "Reply with the largest number.", {"role": "user", "content": question}
        messages = [{"role": "system", "content": told}, *turns, asked]
        try:
            self.tokenizer.apply_chat_template(messages, tokenize=False)
        except TemplateError:  # a template without a system message
            messages = [{**turns[0], "content": f"{told}\n{turns[0]['content']}"}, *turns[1:], asked]
        return messages

    def _question(self, rng: random.Random) -> tuple[str, str]:
        drawn = rng.sample(range(10 ** (self.digits - 1), 10**self.digits), self.numbers)
        return " ".join(map(str, drawn)), str(max(drawn))


# The start, and trainers from it ----------------------------------------------------------------------------------------


class Work:
    """A model to start from, and questions for it; the built-in tiny policy on chains where no model is given."""

    def __init__(self, options: argparse.Namespace, sizes: "Sizes"):
        self.sizes, self.seed, self.model_name = sizes, options.seed, options.model
        self.reward: Any
        self.gpu = torch.cuda.is_available()
        self.bf16 = self.gpu and torch.cuda.is_bf16_supported()
        if options.model is None:
            chains: Any = get_task("chains", lengths=(1, 2), shares=(0.5, 0.5))
            self.task, self.reward, self.new_tokens = chains, chains.reward_function, chains.max_completion_length
            self.train = chains.make("train", sizes.train, options.seed)
            self.held_out = list(chains.make("eval", sizes.held_out, options.seed))
        else:
            self.tokenizer = _tokenizer(options.model)
            task = Largest(options.numbers, options.digits, self.tokenizer)
            self.train = Dataset.from_list(task.draw("train", sizes.train, options.seed))
            self.held_out = task.draw("eval", sizes.held_out, options.seed)
            self.reward, self.new_tokens = largest_reward, 6 + options.digits

    def policy(self) -> tuple[Any, Any]:
        """The start, anew, in float32, and its tokenizer."""
        if self.model_name is None:
            return warm_policy(self.task, self.seed, warm_up=replace(self.task.warm_up, batches=WARM_UP_BATCHES))
        return AutoModelForCausalLM.from_pretrained(self.model_name, dtype=torch.float32), self.tokenizer

    def evaluate(self, model: Any, tokenizer: Any) -> dict[str, Any]:
        """Held-out figures, in the precision of training."""
        precision: AbstractContextManager[Any] = torch.autocast("cuda", torch.bfloat16) if self.bf16 else nullcontext()
        with precision:
            result = evaluate_policy(
                model, tokenizer, self.held_out, self.reward, num_samples=self.sizes.samples,
                max_new_tokens=self.new_tokens, batch_size=max(64, self.sizes.questions * self.sizes.generations),
                seed=EVALUATION_SEED,
            )  # fmt: skip
        return {"pass_at_1": result.pass_at_1, "greedy": result.greedy_accuracy, "mean_length": result.mean_length}

    def start(self) -> tuple[dict[str, Any], float]:
        """Held-out figures of the start, and the seconds that an evaluation takes."""
        with released(self.gpu):
            model, tokenizer = self.policy()
            model.to("cuda" if self.gpu else "cpu")
            began = time.monotonic()
            return self.evaluate(model, tokenizer), time.monotonic() - began

    def trainer(self, preset: str, folder: Path, **given: Any) -> ExGRPOTrainer:
        """A trainer of a preset, gates open from the first step on; `given` goes over all else."""
        sizes, questions = self.sizes, given.pop("train", self.train)
        rows = given.pop("questions", sizes.questions) * given.setdefault("num_generations", sizes.generations)
        gates = AT_ONCE if resolve(preset)[0].active else {}
        common: dict[str, Any] = dict(
            replay_metrics="all",
            output_dir=str(folder), preset=preset, seed=self.seed, max_steps=sizes.steps, learning_rate=sizes.learning_rate,
            lr_scheduler_type="constant", adam_beta2=0.95, max_grad_norm=1.0, max_completion_length=self.new_tokens,
            per_device_train_batch_size=rows, use_cpu=not self.gpu, bf16=self.bf16, alarms="off", report_to=[],
            gradient_checkpointing=False, dataloader_pin_memory=False, save_strategy="no", logging_steps=1,
            logging_nan_inf_filter=False, disable_tqdm=True,
        )  # fmt: skip
        config = ExGRPOConfig(**{**common, **gates, **given})
        more: dict[str, Any] = {"embedder": letters} if config.replay.uses_quality else {}
        model, tokenizer = self.policy()
        trainer = ExGRPOTrainer(
            model=model,
            reward_funcs=self.reward,
            args=config,
            train_dataset=questions,
            processing_class=tokenizer,
            **more,
        )
        trainer.remove_callback(PrinterCallback)
        return trainer


def _tokenizer(model: str) -> Any:
    try:
        return AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"--model {model}: no tokenizer could be loaded ({str(error).splitlines()[0]}). Give the directory of a model; "
            "benchmarks/smollm2_from_gguf.py makes one without the model hub."
        ) from error


@contextmanager
def released(gpu: bool) -> Iterator[None]:
    """The GPU's memory is given back before and after, and its peak counted from here."""

    def release() -> None:
        gc.collect()
        if gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    release()
    try:
        yield
    finally:
        release()


# A run ------------------------------------------------------------------------------------------------------------------


class Watch(TrainerCallback):
    """One row a step: its seconds, and what the trainer logged. Ends training before the deadline (of `time.monotonic`)."""

    def __init__(self, gpu: bool, deadline: float):
        self.gpu, self.deadline = gpu, deadline
        self.rows: list[dict[str, Any]] = []
        self.seconds: list[float] = []

    def _now(self) -> float:
        if self.gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._began = self._now()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seconds.append(self._now() - self._began)
        if time.monotonic() + max(self.seconds[-5:]) > self.deadline:
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "fresh/generated_tokens" in logs:
            replay = sum(value for name, value in logs.items() if name.startswith("replay/time/"))
            times = {"seconds": self.seconds[-1], "replay_seconds": replay}
            self.rows.append(
                {"step": state.global_step, **times, **{name: logs[name] for name in KEPT if name in logs}}
            )


def train(trainer: ExGRPOTrainer, work: Work, deadline: float = math.inf, **how: Any) -> list[dict[str, Any]]:
    """Train; one row a step."""
    watch = Watch(work.gpu, deadline)
    trainer.add_callback(watch)
    trainer.train(**how)
    return watch.rows


def arm(work: Work, preset: str, folder: Path, deadline: float) -> dict[str, Any]:
    """Train a preset until its steps or its time are over, and measure it; the peak is that of training alone."""
    trainer = work.trainer(preset, folder)
    rows = train(trainer, work, deadline)
    peak = torch.cuda.max_memory_allocated() / 1e6 if work.gpu else None
    return figures(rows, work.sizes) | {
        "precision": trainer.accelerator.mixed_precision, "peak_gpu_mb": peak,
        "held_out": work.evaluate(trainer.model, trainer.processing_class), "history": rows,
    }  # fmt: skip


def figures(rows: list[dict[str, Any]], sizes: "Sizes") -> dict[str, Any]:
    """What the rows of an arm come to: times without the warm-up steps, replay as means over the steps that tell it."""
    timed = rows[sizes.warm_up :] or rows[-1:]
    before = rows[-len(timed) - 1]["fresh/generated_tokens"] if len(timed) < len(rows) else 0.0
    solved = [row["fresh/pass_at_1"] for row in rows if "fresh/pass_at_1" in row]
    edge = max(1, min(5, len(rows) // 4))
    known = {name: [row[name] for row in rows if name in row] for name in REPLAY}
    return {
        "steps": len(rows),
        "stopped_by": "steps" if len(rows) == sizes.steps else "time",
        "timed_steps": len(timed),
        "seconds_per_step": statistics.median(row["seconds"] for row in timed),
        "replay_seconds_per_step": statistics.median(row["replay_seconds"] for row in timed),
        "tokens_per_second": (timed[-1]["fresh/generated_tokens"] - before) / sum(row["seconds"] for row in timed),
        "first_pass_at_1": statistics.fmean(solved[:edge]) if solved else None,
        "last_pass_at_1": statistics.fmean(solved[-edge:]) if solved else None,
        "loss_finite": all(math.isfinite(row["loss"]) for row in rows),
        **{name: statistics.fmean(values) if values else None for name, values in known.items()},
    }


# Checks -----------------------------------------------------------------------------------------------------------------


def small(work: Work) -> dict[str, Any]:
    """Of a check: so few questions that replay begins with the third generation at the latest; none retires."""
    questions = min(8, work.sizes.questions)
    few = work.train.select(range(2 * questions))
    return {"questions": questions, "num_generations": 4, "train": few, "retirement": "never", "max_steps": 4}


def check_precision(work: Work, folder: Path, name: str) -> dict[str, Any]:
    """At learning rate 0 the policy stays as it is: losses must be finite, and log-probs recomputed as they were stored."""
    if name == "bf16" and work.gpu and not work.bf16:
        return {"holds": None, "why": "this GPU has no bf16"}
    trainer = work.trainer("exgrpo", folder, bf16=name == "bf16", learning_rate=0.0, **small(work))
    rows = train(trainer, work)
    told = [row for row in rows if "replay/ratio_mean" in row]
    finite = all(math.isfinite(row["loss"]) and math.isfinite(row["grad_norm"]) for row in rows)
    found = {"precision": trainer.accelerator.mixed_precision, "loss_finite": finite}
    if not told:
        return {"holds": None if finite else False, "why": "no completion was right: nothing was replayed", **found}
    off = max(abs(row["replay/ratio_mean"] - 1.0) for row in told)
    return {
        "holds": finite and off <= ALLOWED[name], **found, "ratio_off_by": off, "allowed": ALLOWED[name],
        "first_age": told[0]["replay/age_mean"], "ess": min(row["replay/ess"] for row in told),
    }  # fmt: skip


def check_resume(work: Work, folder: Path) -> dict[str, Any]:
    """Four steps, and the last two again from the checkpoint between them.

    Bit-equal on a CPU. Some of a GPU's kernels add in any order: there the first step must be of the same completions, and
    weights may differ by what two steps of Adam can make of it.
    """
    options = {"save_strategy": "steps", "save_steps": 2, **small(work)}
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        whole = work.trainer("exgrpo", folder, **options)
        rows = train(whole, work)[2:]
        weights = {name: value.detach().cpu().clone() for name, value in whole.model.named_parameters()}
        stored = fingerprint_of(whole.planner.buffer) if whole.planner else None
        del whole
        resumed = work.trainer("exgrpo", folder, **options)
        again = train(resumed, work, resume_from_checkpoint=str(folder / "checkpoint-2"))
    finally:
        torch.use_deterministic_algorithms(before)
    apart = max(float((weights[n] - v.detach().cpu()).abs().max()) for n, v in resumed.model.named_parameters())
    figures_told = [[{name: row[name] for name in KEPT if name in row} for row in part] for part in (rows, again)]
    same = figures_told[0] == figures_told[1]
    experience = resumed.planner is not None and stored == fingerprint_of(resumed.planner.buffer)
    first = ("fresh/generated_tokens", "fresh/pass_at_1", "replay/share")
    close = all(rows[0].get(n) == again[0].get(n) for n in first) and apart <= 4 * work.sizes.learning_rate
    equal = same and experience and apart == 0.0
    return {"holds": equal or (work.gpu and close), "bit_equal": equal, "same_figures": same, "weights_apart": apart}
