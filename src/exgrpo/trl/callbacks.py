"""Callbacks of the host: the alarms, the metrics file, and the end of a run whose tokens are spent."""

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback

from ..errors import ConfigurationError
from ..replay import ReplayPlanner
from ..runtime.alarm_messages import WatchedRun
from ..runtime.alarms import STOPPING, Alarm, ReplayMonitor

logger = logging.getLogger(__name__)

ACTIONS = ("warn", "stop")
OPTIONS = (
    "mixing", "replay_share", "start_step", "start_epoch", "start_size", "start_pass_at_1", "start_completions",
    "retired_in_stream",
)  # fmt: skip
"""Arguments that the alarms read; the arguments may be those of a host without these options."""


class Watched(Protocol):
    """The attributes of an `ExGRPOTrainer` that the alarms read."""

    args: Any
    planner: ReplayPlanner | None
    idle_reason: str | None
    last_metrics: dict[str, float]


class ReplayAlarm(TrainerCallback):
    """
    Watches the training log and warns, or stops.

    All lengths are in optimizer steps, whatever `logging_steps` is: a log of ten steps counts as ten.

    Args:
        action (`str`, *optional*, defaults to `"warn"`):
            `"warn"`; or `"stop"`: alarms of `collapse` and `ess` also end training after the step of that log, with a
            checkpoint unless `save_strategy="no"`. `gate` and `idle` never do: such a run is plain GRPO.
        trainer (`ExGRPOTrainer`, *optional*):
            Where the callback asks why nothing is replayed and how many questions there are. Without it reasons are
            derived from the options and the log, and retired questions are not counted as right.
        entropy_below (`float`, *optional*, defaults to `0.1`):
            Collapse: the mean of `fresh/entropy` over the last `entropy_window` steps is at most this share of its mean over
            the first. Tenfold is more than a policy loses that only becomes surer of what it can do already.
        entropy_nats (`float`, *optional*, defaults to `0.05`):
            And at most this, in nats: 99 % on one token, at every token. A start at high entropy may fall far and be sound.
        errors_above (`float`, *optional*, defaults to `0.5`):
            And more than this share of the early errors is left, 1 - Pass@1 now over then (retired questions count as
            right). Where entropy fell tenfold and errors halved, the policy has become rightly confident.
        entropy_window (`int`, *optional*, defaults to `20`):
            Steps that are averaged. And Pass@1, so averaged, was not at its highest in the last two windows: a policy that
            still learns is left alone. So the first alarm of this kind can come after three windows.
        ess_below (`float`, *optional*, defaults to `0.05`):
            `replay/ess` is under this. Were log-ratios normal, 0.05 is a standard deviation of 1.7 nats: the typical
            token is off by a factor above 5. One token that was sampled by luck can do it for a step.
        ess_steps (`int`, *optional*, defaults to `10`):
            For so many steps with replay on end; single steps below the bound are common on small batches.
        idle_steps (`int`, *optional*, defaults to `50`):
            Steps without any replay until it is said: later than a pool needs to fill, sooner than an epoch of most data.

    Attributes:
        raised (`list[Alarm]`): alarms of this run so far, those before the checkpoint that it resumed from included.

    Raises:
        ConfigurationError: an argument that is out of its range.
    """

    def __init__(
        self,
        action: str = "warn",
        trainer: Watched | None = None,
        *,
        entropy_below: float = 0.1,
        entropy_nats: float = 0.05,
        errors_above: float = 0.5,
        entropy_window: int = 20,
        ess_below: float = 0.05,
        ess_steps: int = 10,
        idle_steps: int = 50,
    ):
        if action not in ACTIONS:
            raise ConfigurationError(
                f"ReplayAlarm.action must be one of {', '.join(map(repr, ACTIONS))}, but is {action!r}. The default is 'warn'."
            )
        self.action, self.trainer = action, trainer
        self._monitor = ReplayMonitor(
            entropy_below=entropy_below, entropy_nats=entropy_nats, errors_above=errors_above,
            entropy_window=entropy_window, ess_below=ess_below, ess_steps=ess_steps, idle_steps=idle_steps,
        )  # fmt: skip

    @property
    def raised(self) -> list[Alarm]:
        return self._monitor.raised

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Reset the monitor; after a resume, restore earlier logs and alarms."""
        self._monitor.begin()
        self._monitor.run = self._watched(args)
        for row in state.log_history:
            if "loss" in row:
                self._monitor.update(row, row["step"])

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Raise and clear alarms.

        Every process runs this at the same steps; all follow the decision of the main one.
        """
        if not logs or "loss" not in logs:  # evaluation, the summary at the end, a user's own
            return
        trainer = self.trainer
        hidden: Mapping[str, float] = getattr(trainer, "last_metrics", {})
        why = None if trainer is None else lambda: trainer.idle_reason
        self._monitor.run = self._watched(args)
        alarms = self._monitor.update({**hidden, **logs}, state.global_step, why)
        stop = self.action == "stop" and self._agreed(args, any(alarm.kind in STOPPING for alarm in alarms))
        if state.is_world_process_zero:
            for alarm in alarms:
                logger.warning("%s", alarm.message)
            if stop:
                logger.warning("Training stops at step %d because of this alarm (action='stop').", state.global_step)
        if stop:
            control.should_training_stop = True
            if getattr(args, "save_strategy", "no") != "no":
                control.should_save = True

    def _watched(self, args: Any) -> WatchedRun:
        """Read what the alarms must know out of the host's arguments, which may lack the options of this package."""
        options = {name: getattr(args, name) for name in OPTIONS if hasattr(args, name)}
        questions = None
        if self.trainer is not None:
            planner = self.trainer.planner
            questions = planner.stream.num_questions if planner is not None else 1
        completions = getattr(args, "generation_batch_size", None)
        if completions is None:
            return WatchedRun(**options, num_questions=questions)
        updates = args.steps_per_generation * args.num_iterations / args.gradient_accumulation_steps
        return WatchedRun(
            **options,
            num_questions=questions,
            completions=completions,
            num_generations=args.num_generations,
            updates=updates,
        )

    @staticmethod
    def _agreed(args: Any, stop: bool) -> bool:
        """Return the main process's decision, on all of them."""
        if getattr(args, "world_size", 1) == 1:
            return stop
        return bool(broadcast_object_list([stop])[0])


def alarm_of(trainer: Watched) -> ReplayAlarm | None:
    """Make the alarm that a trainer's option `alarms` asks for: "warn", "stop", or none for "off"."""
    action = trainer.args.alarms
    return None if action == "off" else ReplayAlarm(action, trainer)


class MetricsFile(TrainerCallback):
    """Write every training log as a line of `metrics.jsonl` beside the experience log, for `exgrpo view`.

    The file has all metrics of this package, also those that `replay_metrics` leaves out.

    Args:
        trainer: whose metrics.
        path: of the file; a run that resumes goes on in it, and what it logged beyond its checkpoint is passed over in reading.
    """

    def __init__(self, trainer: Watched, path: Path):
        self.trainer, self.path = trainer, path

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if not logs or not state.is_world_process_zero:
            return
        values = {**self.trainer.last_metrics, **logs}
        row = {name: value for name, value in values.items() if isinstance(value, int | float) and math.isfinite(value)}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": state.global_step, **row}) + "\n")
        except OSError as error:  # not worth losing a run over
            if not self._said:
                logger.warning("%s cannot be written (%s); `exgrpo view` will lack these metrics.", self.path, error)
            self._said = True

    _said = False


class Spending(Protocol):
    """An object that counts the tokens a trainer has generated."""

    generated_tokens: int


class StopAtGeneratedTokens(TrainerCallback):
    """End training after the step in which the budget of generated tokens was reached."""

    def __init__(self, trainer: Spending):
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer.generated_tokens >= args.max_generated_tokens:
            control.should_training_stop = True
