"""Say when a run goes wrong in a way that its loss does not show.

Four kinds of alarm, each raised once until what it saw is over:

    collapse  the policy has become sure of itself without having become right
    ess       replayed tokens are so far from the policy that few of them count
    gate      replay has not started, and only Pass@1 (or the number of stored trajectories) stands in its way
    idle      replay has started, and nothing is replayed

What they see is the training log alone, so a resumed run that reads it again sees what the uninterrupted one saw. Where the
host keeps no log to read, a checkpoint keeps what was seen (`ReplayMonitor.state`).
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import ConfigurationError
from .alarm_messages import (
    EMPTY,
    Values,
    WatchedRun,
    has_judged,
    is_by_the_coin,
    lacks_trajectories,
    of_collapse,
    of_ess,
    of_gate,
    of_idle,
)  # fmt: skip

STOPPING = ("collapse", "ess")
"""Kinds that may end training. A run that replays nothing is plain GRPO: sound, and it may start yet."""

ON_POLICY = "on-policy"
"""Beginning of the reason when a coin decided against replay."""

Reason = Callable[[], str | None]


@dataclass(frozen=True)
class Alarm:
    """A raised alarm: its kind, the optimizer step, and the message as logged."""

    kind: str
    step: int
    message: str


class ReplayMonitor:
    """Watch the training log of a run, one log at a time.

    Args:
        entropy_below, entropy_nats, errors_above, entropy_window, ess_below, ess_steps, idle_steps: bounds and lengths, as
            `exgrpo.trl.ReplayAlarm` explains them.

    Attributes:
        run: what is known of the run that is watched.
        raised: alarms so far.

    Raises:
        ConfigurationError: an argument that is out of its range.
    """

    def __init__(
        self,
        entropy_below: float = 0.1,
        entropy_nats: float = 0.05,
        errors_above: float = 0.5,
        entropy_window: int = 20,
        ess_below: float = 0.05,
        ess_steps: int = 10,
        idle_steps: int = 50,
    ):
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
        self.entropy_below, self.entropy_nats, self.errors_above = entropy_below, entropy_nats, errors_above
        self.entropy_window, self.ess_below, self.ess_steps = entropy_window, ess_below, ess_steps
        self.idle_steps = idle_steps

        self.run = WatchedRun()
        self.begin()

    def begin(self) -> None:
        """Forget all earlier logs."""
        self.raised: list[Alarm] = []
        self._known: dict[str, float] = {}
        self._last_step = 0
        self._most_stored = -1.0
        self._confidence = _Confidence(self.entropy_window)
        lengths = {"collapse": 1, "ess": self.ess_steps, "gate": self.idle_steps, "idle": self.idle_steps}
        self._spells = {kind: _Spell(length) for kind, length in lengths.items()}

    def state(self) -> dict[str, Any]:
        """Return what was seen, as JSON holds it."""
        return {
            "raised": [asdict(alarm) for alarm in self.raised],
            "known": dict(self._known),
            "last_step": self._last_step,
            "most_stored": self._most_stored,
            "confidence": {**vars(self._confidence), "recent": [list(row) for row in self._confidence.recent]},
            "spells": {kind: [spell.steps, spell.told] for kind, spell in self._spells.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the observations in `state`; `run` and all bounds and lengths stay those of this monitor."""
        self.begin()
        self.raised = [Alarm(**alarm) for alarm in state["raised"]]
        self._known, self._last_step, self._most_stored = dict(state["known"]), state["last_step"], state["most_stored"]
        seen = dict(state["confidence"])
        seen |= {"recent": deque(map(tuple, seen["recent"])), "early": seen["early"] and tuple(seen["early"])}
        vars(self._confidence).update(seen | {"window": self.entropy_window})
        for kind, (steps, told) in state["spells"].items():
            self._spells[kind].steps, self._spells[kind].told = steps, told

    def update(self, metrics: Mapping[str, Any], step: int, why: Reason | None = None) -> list[Alarm]:
        """Process one training log; return the alarms that it raises.

        A log without a generation (one that is trained on over several steps) says nothing of stores and shares: then
        what was last said of them holds.

        Args:
            metrics: of the log.
            step: optimizer step of the log.
            why: says why the last generation replayed nothing; by default that is derived from the log.
        """
        values = {name: float(value) for name, value in metrics.items() if _is_number(value) and math.isfinite(value)}
        self._known |= values
        steps, self._last_step = step - self._last_step, step
        empty = EMPTY if self._known.get("replay/questions") == 0 else None
        reason = empty if why is None else why()
        held = {
            "collapse": self._collapsed(values, step),
            "ess": None if "replay/ess" not in values else values["replay/ess"] < self.ess_below,
            "gate": self._waits(self._known, step),
            "idle": self._is_idle(self._known, reason, why is not None),
        }
        new = []
        for kind, spell in self._spells.items():
            if spell.reaches(held[kind], steps):
                new.append(Alarm(kind, step, self._message(kind, self._known, step, reason)))
        self.raised += new
        return new

    def _collapsed(self, values: Values, step: int) -> bool | None:
        """Return whether entropy collapsed; None where unknown, or between the bound and twice it once raised."""
        if "fresh/entropy" not in values or "fresh/pass_at_1" not in values:
            return None
        retired = 0.0
        if self.run.num_questions is not None and not self.run.retired_in_stream:
            retired = self._known.get("replay/retired", 0.0) / max(self.run.num_questions, 1)
        seen = self._confidence
        seen.take(step, values["fresh/entropy"], retired + (1 - retired) * values["fresh/pass_at_1"])
        if seen.early is None or not seen.early[0]:
            return None
        bound = min(self.entropy_below * seen.early[0], self.entropy_nats)
        wrong = 1 - seen.pass_at_1 > self.errors_above * (1 - seen.early[1])
        if seen.entropy > 2 * bound or not wrong:
            return False
        return True if seen.entropy <= bound and seen.steps_without_rise >= 2 * self.entropy_window else None

    def _waits(self, values: Values, step: int) -> bool | None:
        """Return whether the gate is closed only by a condition that may never hold.

        `start_step` and `start_epoch` come by themselves; so do `start_completions`, and `start_size` as long as more is
        stored.
        """
        if "replay/gate_open" not in values or self.run.mixing == "none":
            return None
        run, size = self.run, values.get("replay/size", 0.0)
        more, self._most_stored = size > self._most_stored, max(size, self._most_stored)
        if values["replay/gate_open"] or step < run.start_step or not has_judged(run, step):
            return False
        if values.get("epoch", math.inf) < run.start_epoch:
            return False
        return not (lacks_trajectories(run, values) and more)

    def _is_idle(self, values: Values, reason: str | None, told: bool) -> bool | None:
        """Return whether the gate is open and nothing was replayed; None where a coin decided against it.

        With `rescue` nothing replayed is what one hopes for, and with `prefix` too, where only hard questions get one: idle is
        only a store that is empty.
        """
        if "replay/gate_open" not in values or "replay/share" not in values:
            return None
        if not values["replay/gate_open"] or values["replay/share"] > 0:
            return False
        mixing = self.run.mixing
        if mixing in ("rescue", "prefix"):
            return values["replay/size"] == 0 if "replay/size" in values else None
        if reason is None and (mixing in ("prompt", "coin") or is_by_the_coin(self.run)):
            # no trajectory needed; not in this log
            return False if told else None
        return None if reason is not None and reason.startswith(ON_POLICY) else True

    # What is said -----------------------------------------------------------------------------------------------

    def _message(self, kind: str, values: Values, step: int, reason: str | None) -> str:
        seen = self._confidence
        if kind == "collapse" and seen.early is not None:
            now = (seen.entropy, seen.pass_at_1)
            return of_collapse(seen.early, now, self.entropy_window, seen.steps_without_rise, self.run, step)
        if kind == "ess":
            return of_ess(values, self.ess_below, self.ess_steps, step)
        if kind == "gate":
            return of_gate(values, self.idle_steps, self.run, step, reason)
        return of_idle(values, self.idle_steps, reason, step)


class _Spell:
    """Steps for which something held without a break; reaches its length once, until it is over."""

    def __init__(self, length: int):
        self.length, self.steps, self.told = length, 0, False

    def reaches(self, held: bool | None, steps: int) -> bool:
        """Return whether the condition has now lasted long enough; held=None is unknown and changes nothing."""
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
