"""Output of `exgrpo train`: a line per log, a summary, and how to continue."""

import logging
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm
from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from ..log import log_in
from ..trl import ExGRPOTrainer, last_checkpoint

RESUME = "--resume_from_checkpoint"
PARTS = (
    ("fresh/pass_at_1", "Pass@1 {:.3f}"),
    ("reward", "reward {:.3f}"),
    ("replay/share", "replay {:.0%}"),
    ("replay/retired", "retired {:.0f}"),
)
EVALUATED = (
    ("eval_reward", "reward {:.3f}"),
    ("eval_completions/mean_length", "{:.0f} tokens a completion"),
    ("eval_runtime", "in {:.0f} s"),
)


class Lines(TrainerCallback):
    """One compact line a log, in place of the host's dictionary of all metrics."""

    def __init__(self, trainer: ExGRPOTrainer):
        self.trainer = trainer

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not logs:
            return
        values = {**self.trainer.last_metrics, **logs}
        if "loss" in values:
            tqdm.write(f"{_place(state)}  {short(self.trainer.generated_tokens)} tokens{_parts(values, PARTS)}")
        elif "eval_loss" in values:
            tqdm.write(f"{_place(state)}  evaluation{_parts(values, EVALUATED)}")


class Bar(ProgressCallback):
    """The host's bar, without its dictionary."""

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        pass


def _place(state: Any) -> str:
    return f"step {state.global_step}/{state.max_steps}"


def _parts(values: Mapping[str, Any], parts: Sequence[tuple[str, str]]) -> str:
    return "".join(f"  {text.format(values[name])}" for name, text in parts if values.get(name) is not None)


def short(number: float) -> str:
    """Format a count in about four characters: 812, 34k, 1.2M."""
    if number < 1000:
        return f"{number:.0f}"
    if number < 999_500:
        return f"{number / 1000:.{int(number < 9_950)}f}k"
    return f"{number / 1e6:.1f}M"


@contextmanager
def lines(trainer: ExGRPOTrainer) -> Iterator[None]:
    """Train with a line a log; a bar in a terminal, and messages on lines of their own beside it."""
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    bar = Bar()
    if not trainer.args.disable_tqdm and sys.stderr.isatty():
        trainer.add_callback(bar)
    trainer.add_callback(Lines(trainer))
    with logging_redirect_tqdm([logging.getLogger(), logging.getLogger("transformers")]):
        try:
            yield
        finally:
            if bar.training_bar is not None:  # it ended before its end
                bar.training_bar.close()


def summary(trainer: ExGRPOTrainer, seconds: float) -> str:
    """Summarise the run, and say what to do next."""
    args, counts = trainer.args, trainer.counts
    said = [
        f"{trainer.state.global_step} steps in {_time(seconds)}, {short(trainer.generated_tokens)} tokens generated"
    ]
    solved = [row["fresh/pass_at_1"] for row in trainer.state.log_history if row.get("fresh/pass_at_1") is not None]
    if solved:
        said.append(f"fresh Pass@1 {solved[0]:.3f} in the first log, {solved[-1]:.3f} in the last")
    if trainer.planner is not None:
        said.append(
            f"{counts['stored']} completions stored, {counts['replayed']} times one replayed, "
            f"{counts['retired']} questions retired"
        )
    said.append(f"The model is in {args.output_dir}.")
    if trainer.planner is not None and args.keeps_log:
        where = args.output_dir if log_in(Path(args.output_dir)) == args.experience_path else str(args.experience_path)
        said.append(f"Next: exgrpo experience stats {shlex.quote(where)}")
    return "\n".join(said)


def _time(seconds: float) -> str:
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {seconds % 60:.0f} s" if minutes else f"{seconds:.0f} s"


def how_to_go_on(trainer: ExGRPOTrainer, command: Sequence[str]) -> str:
    """Return the command that continues an interrupted run, in words.

    Args:
        trainer: of the run.
        command: the arguments of `exgrpo train` that it was started with.
    """
    args, step = trainer.args, trainer.state.global_step
    kept, arguments = [], iter(command)
    for argument in arguments:
        name = argument.partition("=")[0].replace("-", "_")
        if name != RESUME.replace("-", "_"):
            kept.append(argument)
        elif "=" not in argument:
            next(arguments, None)
    last = last_checkpoint(args.output_dir or ".") if args.output_dir else None
    if last is None:
        when = f"save_strategy={str(args.save_strategy.value)!r}, save_steps={args.save_steps:g}"
        return f"interrupted at step {step}, before the first checkpoint ({when}): there is nothing to go on from."
    again = shlex.join([*kept, RESUME, "last"])
    start = "exgrpo train" if args.world_size == 1 else "with the same launcher, -m exgrpo.cli.train"
    return f"interrupted at step {step}. To go on from {last}:\n  {start} {again}"
