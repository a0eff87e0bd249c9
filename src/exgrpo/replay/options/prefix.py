"""Prefix mixing: a group continues the first tokens of a stored success (PrefixRL, arXiv 2601.18795).

All K members go on from the same h tokens, and only the tokens that the policy writes itself are trained on.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...config import MIXINGS, ReplayConfig
from ...experience.events import Continued
from ...experience.trajectory import Group
from ..counts import by_share
from ..drawing import mark
from ..plan import Prefix, ReplayedTrajectory, StepPlan
from ..rng import PREFIX, generator_for

if TYPE_CHECKING:
    from ..planner import ReplayPlanner

SPREAD = 0.1
"""Variation of a controlled fraction, to either side."""
GAIN = 0.1
"""Change of the controlled fraction in one iteration, per unit of error in the share of right continuations."""


def prefix(config: ReplayConfig, batch_size: int, epoch: float, seed: int, iteration: int) -> tuple[int, str | None]:
    """Replay a number of questions as groups that begin inside a stored success."""
    return by_share(config, batch_size, epoch, seed, iteration)


def bounds(config: ReplayConfig, step: int, fraction: float) -> tuple[float, float]:
    """Return the fractions of a trajectory between which prefix lengths are drawn now.

    Args:
        config: the options.
        step: optimizer steps done.
        fraction: that the run aims at, where lengths are controlled.
    """
    low, high = config.prefix_range
    if config.prefix_length == "controlled":
        return max(low, fraction - SPREAD), min(high, fraction + SPREAD)
    if config.prefix_length == "annealed":
        high *= max(0.0, 1 - step / config.prefix_steps)
    return min(low, high), high


def aim(planner: "ReplayPlanner") -> float:
    """Return the fraction that controlled lengths aim at: at first the middle of `prefix_range`."""
    return sum(planner.config.prefix_range) / 2 if planner.prefix_fraction is None else planner.prefix_fraction


def begin(planner: "ReplayPlanner", slots: Sequence[Sequence[int]], iteration: int, step: int) -> list[Prefix | None]:
    """Cut a prefix off the chosen trajectory of each question, and count its use.

    None where nothing is left to begin with: then the question is asked without a prefix.
    """
    config, buffer = planner.config, planner.buffer
    chosen = np.array([slot for (slot,) in slots], np.int64)
    low, high = bounds(config, step, aim(planner))
    fractions = generator_for(planner.seed, iteration, PREFIX).uniform(low, high, len(chosen))
    trajectories = buffer.get_many(chosen)
    longest = planner.longest_prefix(trajectories) if len(chosen) else ()
    lengths = [
        min(max(round(fraction * len(trajectory)), 0 if config.prefix_length == "annealed" else 1), most)
        for fraction, trajectory, most in zip(fractions.tolist(), trajectories, longest, strict=True)
    ]
    records = buffer.table.records[chosen]  # a copy: uses before this one
    used = chosen[np.array(lengths, np.int64) > 0]
    if len(used):
        mark(planner, used, iteration, step, "prefix")
    found = map(ReplayedTrajectory, records["serial"].tolist(), trajectories, records["uses"].tolist())
    return [Prefix(choice, length) if length else None for choice, length in zip(found, lengths, strict=True)]


def continued(planner: "ReplayPlanner", plan: StepPlan, groups: Sequence[Group | None]) -> None:
    """Report the outcomes of continuations, and move the fraction that controlled lengths aim at."""
    config = planner.config
    seen = [(plan.prefixes[place], group) for place, group in enumerate(groups) if group is not None and group.prefix]
    scorable = sum(group.scorable for _, group in seen)
    if config.prefix_length == "controlled" and scorable:
        low, high = config.prefix_range
        right = sum(group.successes for _, group in seen) / scorable
        planner.prefix_fraction = min(max(aim(planner) - GAIN * (right - config.prefix_aim), low), high)
    if seen:
        rows = [(g.question, p.choice.serial, p.length, g.successes, g.scorable, g.unscorable) for p, g in seen]
        fraction = aim(planner) if config.prefix_length == "controlled" else float("nan")
        question, serial, length, *counts = np.array(rows, np.int64).T
        successes, scorable_each, unscorable = counts
        told = Continued(
            plan.iteration, plan.step, question, serial, length, successes, scorable_each, unscorable, fraction
        )
        planner.listener(told)


MIXINGS.register("prefix", prefix, stage="prefix", begin=begin, continued=continued)
