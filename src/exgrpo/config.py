"""What can be chosen: frozen dataclasses with the method's defaults. Standard library only.

`ReplayConfig` says what is remembered and when it is replayed, `ObjectiveConfig` how it is learned from. A host keeps
the same names flat in its own configuration (`exgrpo.trl.ExGRPOConfig`); a test holds names and defaults together.
Defaults are those of ExGRPO [ExGRPO, sec. 3 and 4]; where paper and released code disagree,
`docs/paper-against-code.md` says which was taken.
"""

import math
import sys
from dataclasses import dataclass, field, fields
from typing import Any

from .errors import ConfigurationError

MIXINGS = ("share", "rescue", "none")
QUESTION_CHOICES = ("gaussian", "variance", "uniform")
TRAJECTORY_CHOICES = ("lowest_entropy", "random", "newest")
ENTROPY_REFRESHES = ("lazy", "exact")
RETIREMENTS = ("solved", "never")
EVICTIONS = ("oldest", "highest_entropy")
LOGP_DTYPES = ("float32", "float16")
CORRECTIONS = ("shaped", "clip", "truncated", "none")


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class ReplayConfig:
    """What is remembered, and what of it is replayed, when. Every field is checked at construction."""

    mixing: str = _option(
        "share",
        "How stored experience enters a batch. `share`: part of the questions of a batch are replayed, each with one "
        "stored trajectory as a member of its group. `rescue`: every question is fresh, and a group without success "
        "gets one stored success in place of a failure. `none`: no replay.",
    )
    replay_share: float = _option(
        0.5, "Share rho of the questions of a batch that are replayed, in [0, 1]. Used by `share` mixing."
    )
    question_choice: str = _option(
        "gaussian",
        "Which questions are replayed. `gaussian`: buckets weighted by a Gaussian of their accuracy; `variance`: "
        "questions weighted by p(1-p); `uniform`.",
    )
    mu: float = _option(0.5, "Centre of the Gaussian, in accuracy units.")
    sigma: float = _option(
        0.125,
        "Width of the Gaussian, in accuracy units; 1.0 is the paper's text (nearly uniform), 0.125 what its published "
        "numbers used at 8 generations.",
    )
    trajectory_choice: str = _option(
        "lowest_entropy",
        "Which stored trajectory of a question: `lowest_entropy` (mean token entropy under the current policy), "
        "`random` or `newest`.",
    )
    entropy_refresh: str = _option(
        "lazy",
        "`lazy`: cached entropies decide, the best few are measured again once they are older than `max_entropy_age`; "
        "`exact`: all candidates of a drawn question are measured at every draw (the paper).",
    )
    max_entropy_age: int = _option(10, "Optimizer steps after which a cached entropy is measured again.")
    entropy_candidates: int = _option(2, "How many of the best cached candidates compete, and are kept up to date.")
    start_pass_at_1: float = _option(
        0.35,
        "Replay starts once the mean correctness of the fresh completions of a step exceeds this; 0 opens the gate at "
        "once. Experience is collected before.",
    )
    start_step: int = _option(0, "Replay starts at this optimizer step at the earliest.")
    start_epoch: float = _option(0.0, "Replay starts after this many epochs at the earliest.")
    retirement: str = _option(
        "solved",
        "`solved`: a question whose fresh group is all correct leaves replay and the fresh stream; `never`.",
    )
    capacity: int = _option(100_000, "Trajectories kept in all.")
    capacity_per_question: int = _option(8, "Trajectories kept of one question.")
    eviction: str = _option("oldest", "What leaves when full: the `oldest`, or that of the `highest_entropy`.")
    store_truncated: bool = _option(True, "Whether successes that were cut at the length limit are stored.")
    logp_dtype: str = _option(
        "float32",
        "Precision in which behaviour log-probs are kept. `float16` saves a quarter of a trajectory's space; it rounds "
        "them once, when they are stored, by at most 0.05 % of their value.",
    )

    @property
    def active(self) -> bool:
        """Whether experience is collected at all."""
        return self.mixing != "none"

    def __post_init__(self) -> None:
        _one_of(self, "mixing", MIXINGS)
        _one_of(self, "question_choice", QUESTION_CHOICES)
        _one_of(self, "trajectory_choice", TRAJECTORY_CHOICES)
        _one_of(self, "entropy_refresh", ENTROPY_REFRESHES)
        _one_of(self, "retirement", RETIREMENTS)
        _one_of(self, "eviction", EVICTIONS)
        _one_of(self, "logp_dtype", LOGP_DTYPES)
        _number(self, "replay_share", 0.0, 1.0)
        _number(self, "mu", 0.0, 1.0)
        _number(self, "sigma", 0.0, math.inf, open_low=True)
        _number(self, "start_pass_at_1", 0.0, 1.0, open_high=True)
        _number(self, "start_epoch", 0.0, math.inf)
        for name, low in (
            ("max_entropy_age", 0),
            ("entropy_candidates", 1),
            ("start_step", 0),
            ("capacity", 0),
            ("capacity_per_question", 1),
        ):
            _integer(self, name, low)
        _boolean(self, "store_truncated")


@dataclass(frozen=True)
class ObjectiveConfig:
    """How fresh and replayed tokens are learned from."""

    correction: str = _option(
        "shaped",
        "Importance correction of replayed tokens, w = pi/pi_behaviour: `shaped` w/(w+beta) [ExGRPO, Eq. 4]; `clip` "
        "PPO's, with epsilon on both sides; `truncated` min(w, c) without gradient; `none`.",
    )
    shaping_beta: float = _option(0.1, "beta of the shaped ratio w/(w+beta).")
    truncation: float = _option(1.0, "Cap c of the truncated ratio min(w, c).")
    clip_fresh: bool = _option(True, "Whether fresh tokens keep PPO's clip; the paper's appendix removes it.")
    positive_weight: float = _option(1.0, "Factor on positive advantages.")

    def __post_init__(self) -> None:
        _one_of(self, "correction", CORRECTIONS)
        _number(self, "shaping_beta", 0.0, math.inf, open_low=True)
        _number(self, "truncation", 0.0, math.inf, open_low=True)
        _number(self, "positive_weight", 0.0, math.inf, open_low=True)
        _boolean(self, "clip_fresh")


def _refuse(config: object, name: str, required: str) -> None:
    came = getattr(config, name)
    default = next(f.default for f in fields(config) if f.name == name)  # type: ignore[arg-type]
    raise ConfigurationError(
        f"{type(config).__name__}.{name} must be {required}, but is {came!r}. The default is {default!r}."
    )


def _one_of(config: object, name: str, options: tuple[str, ...]) -> None:
    if getattr(config, name) not in options:
        _refuse(config, name, "one of " + ", ".join(repr(o) for o in options))


def _number(
    config: object, name: str, low: float, high: float, open_low: bool = False, open_high: bool = False
) -> None:
    value = getattr(config, name)
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if not number or not low <= value <= high or (open_low and value == low) or (open_high and value == high):
        _refuse(
            config,
            name,
            f"a number in {'(' if open_low else '['}{low:g}, {high:g}{')' if open_high or math.isinf(high) else ']'}",
        )


def _integer(config: object, name: str, low: int) -> None:
    value = getattr(config, name)
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        _refuse(config, name, f"an integer of at least {low}")


def _boolean(config: object, name: str) -> None:
    if not isinstance(getattr(config, name), bool):
        _refuse(config, name, "True or False")
