"""Which options have an effect beside the others: what was set in vain is told, not ignored."""

from collections.abc import Callable
from dataclasses import fields

from .config import QUESTION_SAMPLERS, TRAJECTORY_CHOICES, ObjectiveConfig, ReplayConfig
from .presets import resolve

OF_TRAJECTORIES = frozenset(
    {
        "trajectory_choice", "entropy_percentile", "quality_tier_shares", "entropy_refresh", "max_entropy_age",
        "entropy_candidates", "admission", "min_quality", "success_weight", "max_age", "max_drift", "capacity",
        "capacity_per_question", "eviction", "store_truncated", "logp_dtype",
    }
)  # fmt: skip
OF_QUESTIONS = frozenset(
    {"question_choice", "mu", "sigma", "range_low", "range_high", "range_adapts", "tier_shares", "by_problem_type"}
)
OF_SHARES = frozenset(
    {"replay_share", "replay_probability", "schedule", "on_policy_start", "on_policy_step", "on_policy_floor"}
)
OF_REPLAYED_TOKENS = frozenset({"correction", "shaping_beta", "truncation", "likelihood_clamp", "baseline"})
MEASURED = ("lowest_entropy", "lowest_nll", "lowest_confidence_variance", "highest_entropy", "headroom")

Holds = Callable[[ReplayConfig, ObjectiveConfig], bool]


def _own(replay: ReplayConfig) -> tuple[bool, bool]:
    """Whether question and trajectory choice are the user's own: these may read any option."""
    return (
        replay.question_choice not in QUESTION_SAMPLERS.builtin,
        replay.trajectory_choice not in TRAJECTORY_CHOICES.builtin,
    )


def _asks(*choices: str) -> Holds:
    return lambda replay, objective: replay.question_choice in choices or _own(replay)[0]


def _measures(replay: ReplayConfig, objective: ObjectiveConfig) -> bool:
    return replay.trajectory_choice in MEASURED or replay.max_drift > 0 or _own(replay)[1]


def _looks_at_accuracy(replay: ReplayConfig) -> bool:
    asks = replay.replays_questions and replay.question_choice not in ("uniform", "headroom")
    return asks or replay.retirement not in ("solved", "never")


HOLDS: dict[str, Holds] = {
    "replay_share": lambda r, o: r.mixing in ("share", "prompt", "added") and r.schedule != "curriculum",
    "replay_probability": lambda r, o: r.mixing == "coin" and r.schedule != "curriculum",
    "replays_per_group": lambda r, o: r.mixing in ("share", "coin"),
    "on_policy_start": lambda r, o: r.schedule != "constant",
    "on_policy_step": lambda r, o: r.schedule != "constant",
    "on_policy_floor": lambda r, o: r.schedule != "constant",
    "mu": _asks("gaussian", "linear"),
    "sigma": _asks("gaussian"),
    "range_low": _asks("range"),
    "range_high": _asks("range"),
    "range_adapts": _asks("range"),
    "tier_shares": _asks("tiers"),
    "difficulty": lambda r, o: _looks_at_accuracy(r),
    "difficulty_window": lambda r, o: r.difficulty == "window" and _looks_at_accuracy(r),
    "entropy_percentile": lambda r, o: r.trajectory_choice == "entropy_percentile" or _own(r)[1],
    "quality_tier_shares": lambda r, o: r.trajectory_choice == "quality_tiers" or _own(r)[1],
    "entropy_refresh": _measures,
    "max_entropy_age": lambda r, o: _measures(r, o) and r.entropy_refresh == "lazy",
    "entropy_candidates": lambda r, o: _measures(r, o) and r.entropy_refresh == "lazy",
    "min_quality": lambda r, o: r.admission not in ("correct", "all", "single_success"),
    "success_weight": lambda r, o: r.uses_quality,
    "start_completions": lambda r, o: r.start_pass_at_1 > 0,
    "retirement_threshold": lambda r, o: r.retirement not in ("solved", "never"),
    "retired_in_stream": lambda r, o: r.retirement != "never",
    "review_every": lambda r, o: r.retirement != "never",
    "review_share": lambda r, o: r.review_every > 0 and r.retirement != "never",
    "baseline": lambda r, o: r.mixing != "added",
    "shaping_beta": lambda r, o: o.correction not in ("clip", "truncated", "none", "likelihood"),
    "truncation": lambda r, o: o.correction not in ("shaped", "clip", "none", "likelihood"),
    "likelihood_clamp": lambda r, o: o.correction not in ("shaped", "clip", "truncated", "none"),
}
"""What each option needs to have an effect, beside what its mixing leaves of it."""

IDLE: dict[str, frozenset[str]] = {
    "none": frozenset(f.name for f in fields(ReplayConfig) if f.name != "mixing") | OF_REPLAYED_TOKENS,
    "prompt": OF_TRAJECTORIES | OF_REPLAYED_TOKENS,
    "rescue": OF_QUESTIONS | OF_SHARES,
}
"""Options without effect under a mixing, whatever the others are."""


def without_effect(preset: str, replay: ReplayConfig, objective: ObjectiveConfig) -> list[str]:
    """Options that were set to something else than the preset's, and change nothing under the others."""
    preset_replay, preset_objective = resolve(preset)
    found = []
    for config, default in ((replay, preset_replay), (objective, preset_objective)):
        for f in fields(config):
            changed = getattr(config, f.name) != getattr(default, f.name)
            idle = f.name in IDLE.get(replay.mixing, ()) or not HOLDS.get(f.name, _always)(replay, objective)
            if changed and idle:
                found.append(f.name)
    return found


def _always(replay: ReplayConfig, objective: ObjectiveConfig) -> bool:
    return True
