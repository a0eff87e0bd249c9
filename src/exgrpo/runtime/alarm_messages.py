"""Messages of alarms: the observation, its usual meaning, and what to set instead."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..config import ReplayConfig
from ..replay import expected_count

Values = Mapping[str, float]
"""A training log, without values that are not finite numbers."""

EMPTY = "no replayable question stored"
"""Why nothing is replayed, as a plan says it, where there is nothing that could be."""

MORE = "take more or harder questions, a larger num_generations, retirement='never', or review_every."
ADVICE = {
    "all retired": f"For a run that goes on, {MORE}",
    "nothing right yet": "Look at the reward function and correctness_threshold first; then take easier questions.",
    "all cut": "Raise max_completion_length, or set store_truncated=True.",
    "none admitted": "Loosen admission.",
    "all evicted": "Raise max_age, max_uses or capacity.",
}
"""Advice for each beginning of a reason."""


_DEFAULTS = ReplayConfig()


@dataclass(frozen=True)
class WatchedRun:
    """The facts about a run that alarms need.

    Args:
        mixing, replay_share, start_step, start_epoch, start_size, start_pass_at_1, start_completions, retired_in_stream: its
            options of these names.
        num_questions: in the data; None: not known, and retired ones do not count as right.
        completions: of a generation; None: not known.
        num_generations: completions of a question in it.
        updates: optimizer steps of a generation.
    """

    mixing: str = _DEFAULTS.mixing
    replay_share: float = _DEFAULTS.replay_share
    start_step: int = _DEFAULTS.start_step
    start_epoch: float = _DEFAULTS.start_epoch
    start_size: int = _DEFAULTS.start_size
    start_pass_at_1: float = _DEFAULTS.start_pass_at_1
    start_completions: int = _DEFAULTS.start_completions
    retired_in_stream: bool = _DEFAULTS.retired_in_stream
    num_questions: int | None = None
    completions: int | None = None
    num_generations: int = 1
    updates: float = 1.0


def lacks_trajectories(run: WatchedRun, values: Values) -> bool:
    """Return whether the gate waits for more stored trajectories."""
    return values.get("replay/size", 0.0) <= run.start_size if run.start_size else False


def has_judged(run: WatchedRun, step: int) -> bool:
    """Return whether `start_completions` can have been reached by a step."""
    if run.completions is None or not run.start_pass_at_1:
        return True
    return bool(run.completions * step / run.updates >= run.start_completions)


def is_by_the_coin(run: WatchedRun) -> bool:
    """Return whether an iteration replays less than one question, so that a coin decides."""
    if run.completions is None:
        return False
    return 0 < expected_count(run.completions // run.num_generations, run.replay_share) < 1


def of_collapse(
    early: tuple[float, float], now: tuple[float, float], window: int, flat: int, run: WatchedRun, step: int
) -> str:
    """Describe a collapse of entropy.

    early, now: mean entropy and Pass@1 of the first and the last window. flat: steps without a rise of Pass@1.
    """
    (entropy, pass_at_1), (entropy_now, pass_at_1_now) = early, now
    replay = ", a smaller replay_share, trajectory_choice='random'" if run.mixing != "none" else ""
    return (
        f"Entropy has collapsed at step {step}: fresh/entropy is {entropy_now:.3g} nats over the last {window} steps, "
        f"{100 * entropy_now / entropy:.2g} % of the {entropy:.3g} it began with, while Pass@1 went from {pass_at_1:.2f} to "
        f"{pass_at_1_now:.2f} and has not risen for {flat} steps. The completions of a question are nearly alike, right or "
        "wrong: groups have no variance, and nothing new is tried. Go back to an earlier checkpoint, and set a lower "
        f"learning_rate, entropy_coef=0.001, a lower positive_weight where it is above 1{replay}."
    )


def of_ess(values: Values, bound: float, steps: int, step: int) -> str:
    """Describe a low effective sample size; bound: what `replay/ess` was below for so many steps."""
    names = ("replay/log_ratio_mean", "replay/age_mean", "replay/clamped_share")
    seen = "".join(f", {name} {values[name]:.3g}" for name in names if values.get(name))
    return (
        f"Replayed tokens are far from the policy at step {step}: replay/ess has been below {bound:g} for {steps} steps with "
        f"replay (now {values['replay/ess']:.3g}{seen}). Were tokens weighted by their ratio, a few would carry all of it. "
        "Usually trajectories are too old, or the policy moves too fast. Set max_age or max_drift, or "
        "trajectory_choice='newest'; or a lower learning_rate."
    )


def of_gate(values: Values, steps: int, run: WatchedRun, step: int, reason: str | None = None) -> str:
    """Describe a gate that does not open.

    steps: for which nothing but Pass@1, or the number of stored trajectories, kept the gate closed. reason: of the
    latest iteration.
    """
    size, needed = run.start_size, run.start_pass_at_1
    pass_at_1 = values.get("fresh/pass_at_1")
    if lacks_trajectories(run, values):
        return (
            f"Replay has not started at step {step}, and may never: {values.get('replay/size', 0.0):.0f} trajectories are "
            f"stored, for {steps} steps not more, and start_size={size} must be exceeded. Meanwhile this is plain GRPO. "
            "Set start_size lower; or raise capacity or capacity_per_question, where they are the limit."
        )
    came = "was not measured" if pass_at_1 is None else f"is {pass_at_1:.2f}"
    advice = "Set start_pass_at_1=0 to start at once, or a value below the Pass@1 of this run."
    if pass_at_1 == 0:
        advice = f"No completion was right: look at the reward function and correctness_threshold first. {advice}"
    return (
        f"Replay has not started at step {step}, and may never: for {steps} steps it waited for Pass@1 alone, which {came} and "
        f"must exceed start_pass_at_1={needed:g}{f' ({reason})' if reason else ''}. Meanwhile this is plain GRPO. {advice}"
    )


def of_idle(values: Values, steps: int, reason: str | None, step: int) -> str:
    """Describe missing replay.

    steps: without replay, though the gate was open. reason: that of the latest iteration.
    """
    nothing = reason is None or reason.startswith(EMPTY)
    known = next((text for kind, text in ADVICE.items() if reason is not None and reason.startswith(kind)), None)
    if known is not None:
        advice = known
    elif nothing and values.get("replay/size") == 0 and values.get("replay/retired"):
        advice = f"{values['replay/retired']:.0f} questions have retired, and of the others nothing is stored: {MORE}"
    elif nothing and values.get("replay/size") == 0:
        advice = (
            f"Nothing is stored, at a Pass@1 of {values.get('fresh/pass_at_1', math.nan):.2f}: look at the reward function, "
            "correctness_threshold, admission and capacity."
        )
    else:
        advice = (
            "Loosen what keeps stored trajectories back: max_age, max_uses, cooldown, max_drift, the range of question_choice; "
            "or raise replay_share."
        )
    return (
        f"Replay is on, but nothing was replayed for {steps} steps, at step {step}{f' ({reason})' if reason else ''}. "
        f"Meanwhile this is plain GRPO. {advice}"
    )
