"""`ReplayAlarm`: a callback that says when a run goes wrong in a way that its loss does not show, and can stop it.

Four kinds of alarm, each raised once until what it saw is over:

    collapse  the policy has become sure of itself without having become right
    ess       replayed tokens are so far from the policy that few of them count
    gate      replay has not started, and only Pass@1 (or the number of stored trajectories) stands in its way
    idle      replay has started, and nothing is replayed

What they see is the training log alone, so a resumed run sees what the uninterrupted one saw: the host's
`state.log_history` is read again, silently, when training begins. Figures in the log are of all processes (TRL reduces its
own, ours come from gathered rewards and harvests), so that all processes see the same; a decision to stop is the main
process's all the same, and is sent to the others.
"""

import logging
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback

from ..errors import ConfigurationError
from .alarm_messages import (
    EMPTY,
    Values,
    has_judged,
    is_by_the_coin,
    lacks_trajectories,
    of_collapse,
    of_ess,
    of_gate,
    of_idle,
    option,
)  # fmt: skip

logger = logging.getLogger(__name__)

ACTIONS = ("warn", "stop")
STOPPING = ("collapse", "ess")
"""Kinds that end training with `action="stop"`. A run that replays nothing is plain GRPO: sound, and it may start yet."""

ON_POLICY = "on-policy"
"""How the reason begins when a generation replays nothing because a coin said so."""


@dataclass(frozen=True)
class Alarm:
    """What was raised: its kind, the optimizer step, and the message as logged."""

    kind: str
    step: int
    message: str


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
        trainer: Any = None,
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
            _refuse("action", f"one of {', '.join(map(repr, ACTIONS))}", action, "warn")
        _share("entropy_below", entropy_below, 0.1)
        _share("errors_above", errors_above, 0.5)
        _share("ess_below", ess_below, 0.05)
        if not _is_number(entropy_nats) or not 0 < entropy_nats < math.inf:
            _refuse("entropy_nats", "a positive number", entropy_nats, 0.05)
        for name, value, default in (
            ("entropy_window", entropy_window, 20),
            ("ess_steps", ess_steps, 10),
            ("idle_steps", idle_steps, 50),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                _refuse(name, "an integer of at least 1", value, default)
        self.action, self.trainer = action, trainer
        self.entropy_below, self.entropy_nats, self.errors_above = entropy_below, entropy_nats, errors_above
        self.entropy_window, self.ess_below, self.ess_steps = entropy_window, ess_below, ess_steps
        self.idle_steps = idle_steps
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.raised: list[Alarm] = []
        self._known: dict[str, float] = {}
        self._last_step = 0
        self._most_stored = -1.0
        self._confidence = _Confidence(self.entropy_window)
        lengths = {"collapse": 1, "ess": self.ess_steps, "gate": self.idle_steps, "idle": self.idle_steps}
        self._spells = {kind: _Spell(length) for kind, length in lengths.items()}

    # The host's events ------------------------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin anew; after a resume, know what was logged and raised before."""
        self._begin_anew()
        for row in state.log_history:
            if "loss" in row:
                self._look(args, row, row["step"], told=False)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Every process runs this at the same steps."""
        if not logs or "loss" not in logs:  # evaluation, the summary at the end, a user's own
            return
        hidden = getattr(self.trainer, "last_metrics", {})
        alarms = self._look(args, {**hidden, **logs}, state.global_step, told=self.trainer is not None)
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

    @staticmethod
    def _agreed(args: Any, stop: bool) -> bool:
        """The main process's decision, on all of them."""
        if getattr(args, "world_size", 1) == 1:
            return stop
        return bool(broadcast_object_list([stop])[0])

    # What is seen -----------------------------------------------------------------------------------------------

    def _look(self, args: Any, logs: Mapping[str, Any], step: int, told: bool) -> list[Alarm]:
        """Take one training log in; the alarms that it raises. told: whether to ask the trainer why nothing is replayed.

        A log without a generation (one that is learned from over several steps) says nothing of stores and shares: then
        what was last said of them holds.
        """
        values = {name: float(value) for name, value in logs.items() if _is_number(value) and math.isfinite(value)}
        self._known |= values
        steps, self._last_step = step - self._last_step, step
        empty = EMPTY if self._known.get("replay/questions") == 0 else None
        reason = self.trainer.idle_reason if told else empty
        held = {
            "collapse": self._collapsed(args, values, step),
            "ess": None if "replay/ess" not in values else values["replay/ess"] < self.ess_below,
            "gate": self._waits(args, self._known, step),
            "idle": self._is_idle(args, self._known, reason, told),
        }
        new = []
        for kind, spell in self._spells.items():
            if spell.reaches(held[kind], steps):
                new.append(Alarm(kind, step, self._message(kind, args, self._known, step, reason)))
        self.raised += new
        return new

    def _collapsed(self, args: Any, values: Values, step: int) -> bool | None:
        """None where nothing can be said; and between the bound and twice the bound, where an alarm is not over yet."""
        if "fresh/entropy" not in values or "fresh/pass_at_1" not in values:
            return None
        retired = 0.0
        if self.trainer is not None and not args.retired_in_stream:
            retired = self._known.get("replay/retired", 0.0) / self._num_questions()
        seen = self._confidence
        seen.take(step, values["fresh/entropy"], retired + (1 - retired) * values["fresh/pass_at_1"])
        if seen.early is None or not seen.early[0]:
            return None
        bound = min(self.entropy_below * seen.early[0], self.entropy_nats)
        wrong = 1 - seen.pass_at_1 > self.errors_above * (1 - seen.early[1])
        if seen.entropy > 2 * bound or not wrong:
            return False
        return True if seen.entropy <= bound and seen.steps_without_rise >= 2 * self.entropy_window else None

    def _num_questions(self) -> int:
        planner = self.trainer.planner
        return max(planner.stream.num_questions, 1) if planner is not None else 1

    def _waits(self, args: Any, values: Values, step: int) -> bool | None:
        """Whether the gate is closed and no more than a condition that may never hold stands in its way.

        `start_step` and `start_epoch` come by themselves; so do `start_completions`, and `start_size` as long as more is
        stored.
        """
        if "replay/gate_open" not in values:
            return None
        size = values.get("replay/size", 0.0)
        more, self._most_stored = size > self._most_stored, max(size, self._most_stored)
        if values["replay/gate_open"] or step < option(args, "start_step") or not has_judged(args, step):
            return False
        if values.get("epoch", math.inf) < option(args, "start_epoch"):
            return False
        return not (lacks_trajectories(args, values) and more)

    @staticmethod
    def _is_idle(args: Any, values: Values, reason: str | None, told: bool) -> bool | None:
        """Whether the gate is open and nothing was replayed; None where a coin decided against it.

        With `rescue` nothing replayed is what one hopes for: idle is only a store that is empty.
        """
        if "replay/gate_open" not in values or "replay/share" not in values:
            return None
        if not values["replay/gate_open"] or values["replay/share"] > 0:
            return False
        if option(args, "mixing") == "rescue":
            return values["replay/size"] == 0 if "replay/size" in values else None
        if reason is None and (option(args, "mixing") in ("prompt", "coin") or is_by_the_coin(args)):
            # no trajectory needed; not in this log
            return False if told else None
        return None if reason is not None and reason.startswith(ON_POLICY) else True

    # What is said -----------------------------------------------------------------------------------------------

    def _message(self, kind: str, args: Any, values: Values, step: int, reason: str | None) -> str:
        seen = self._confidence
        if kind == "collapse" and seen.early is not None:
            now = (seen.entropy, seen.pass_at_1)
            return of_collapse(seen.early, now, self.entropy_window, seen.steps_without_rise, args, step)
        if kind == "ess":
            return of_ess(values, self.ess_below, self.ess_steps, step)
        if kind == "gate":
            return of_gate(values, self.idle_steps, args, step, reason)
        return of_idle(values, self.idle_steps, reason, step)


def alarm_of(trainer: Any) -> ReplayAlarm | None:
    """The alarm that a trainer's option `alarms` asks for: "warn", "stop", or none for "off"."""
    action = trainer.args.alarms
    return None if action == "off" else ReplayAlarm(action, trainer)


class _Spell:
    """Steps for which something held without a break; reaches its length once, until it is over."""

    def __init__(self, length: int):
        self.length, self.steps, self.told = length, 0, False

    def reaches(self, held: bool | None, steps: int) -> bool:
        """Whether this is the moment. held: None where nothing is known; then nothing changes."""
        if held is None:
            return False
        if not held:
            self.steps, self.told = 0, False
            return False
        self.steps += steps
        if self.told or self.steps < self.length:
            return False
        self.told = True
        return True


class _Confidence:
    """Entropy and Pass@1 over the last `window` steps, and over the first.

    Attributes:
        early: mean entropy and Pass@1 of the first window; None until it is full.
        steps_without_rise: since the mean Pass@1 of a window was last higher than of all before it.
    """

    def __init__(self, window: int):
        self.window = window
        self.recent: deque[tuple[int, float, float]] = deque()
        self.early: tuple[float, float] | None = None
        self.entropy = self.pass_at_1 = math.nan
        self.steps_without_rise = 0
        self._last, self._best = 0, -math.inf

    def take(self, step: int, entropy: float, pass_at_1: float) -> None:
        self.recent.append((step, entropy, pass_at_1))
        while len(self.recent) > 1 and self.recent[0][0] <= step - self.window:
            self.recent.popleft()
        self.entropy, self.pass_at_1 = (
            math.fsum(column) / len(self.recent) for column in list(zip(*self.recent, strict=True))[1:]
        )
        steps, self._last = step - self._last, step
        if step < self.window:
            return
        if self.early is None:
            self.early = (self.entropy, self.pass_at_1)
        self.steps_without_rise = 0 if self.pass_at_1 > self._best else self.steps_without_rise + steps
        self._best = max(self._best, self.pass_at_1)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _share(name: str, value: float, default: float) -> None:
    if not _is_number(value) or not 0 < value < 1:
        _refuse(name, "a number in (0, 1)", value, default)


def _refuse(name: str, required: str, came: object, default: object) -> None:
    raise ConfigurationError(f"ReplayAlarm.{name} must be {required}, but is {came!r}. The default is {default!r}.")
