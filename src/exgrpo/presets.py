"""Named recipes. A preset is data: option values over the defaults of `ReplayConfig` and `ObjectiveConfig`.

Any option given beside a preset overrides it. No code anywhere asks for a preset's name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from .config import ObjectiveConfig, ReplayConfig
from .errors import ConfigurationError
from .spelling import did_you_mean, spelled

REPLAY_FIELDS = tuple(f.name for f in fields(ReplayConfig))
OBJECTIVE_FIELDS = tuple(f.name for f in fields(ObjectiveConfig))


@dataclass(frozen=True)
class Preset:
    """A recipe: its description, its source, its options that differ from the defaults, and options of the host."""

    summary: str
    source: str
    options: Mapping[str, Any]
    host: Mapping[str, Any] = field(default_factory=dict)


def _preset(summary: str, source: str, host: Mapping[str, Any] | None = None, **options: Any) -> Preset:
    return Preset(summary, source, MappingProxyType(options), MappingProxyType(dict(host or {})))


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "exgrpo": _preset(
            "half of each batch replays questions near 50 % accuracy with their lowest-entropy success, shaped ratio",
            "arXiv 2510.02245, sigma as its released code",
        ),
        "exgrpo-paper-text": _preset(
            "the paper read literally: sigma 1, entropy of all candidates at every draw, no clipping anywhere",
            "arXiv 2510.02245, text",
            sigma=1.0,
            entropy_refresh="exact",
            clip_fresh=False,
        ),
        "on-policy": _preset("no replay: plain GRPO, the control", "control", mixing="none"),
        "positive-weight": _preset(
            "no replay, positive advantages times 8: the control for what replay seems to give",
            "control, this project",
            mixing="none",
            positive_weight=8.0,
        ),
        "two-updates": _preset(
            "positive-weight, and every batch is learned from twice: the strongest control",
            "control, this project",
            host={"num_iterations": 2},
            mixing="none",
            positive_weight=8.0,
        ),
        "skip": _preset(
            "no replay; questions whose latest groups had no variance are asked less often",
            "arXiv 2506.02177",
            mixing="none",
            skip="zero_variance",
        ),
        "rescue": _preset(
            "all questions fresh; a group without success gets one stored success in place of a failure",
            "this project",
            mixing="rescue",
            trajectory_choice="random",
            start_pass_at_1=0.0,
            correction="truncated",
            truncation=1.0,
            positive_weight=8.0,
        ),
        "rehearsal": _preset(
            "a whole fresh batch, and beside it a quarter as many successes of the last 20 steps, of questions neither "
            "solved nor hopeless now; positive advantages times 8",
            "this project",
            mixing="added",
            replay_share=0.25,
            question_choice="variance",
            trajectory_choice="random",
            start_pass_at_1=0.0,
            retirement="never",
            max_age=20,
            correction="none",
            positive_weight=8.0,
        ),
        "prefix": _preset(
            "a quarter of the questions are asked together with the first part of a stored success; only what follows is "
            "learned from",
            "arXiv 2601.18795",
            mixing="prefix",
            replay_share=0.25,
            question_choice="uniform",
            trajectory_choice="random",
            start_pass_at_1=0.0,
            retirement="never",
        ),
        "prefix-controlled": _preset(
            "prefixes for questions whose latest group had no success, so long that half of the continuations are right; "
            "positive advantages times 8",
            "this project",
            mixing="prefix",
            replay_share=0.25,
            prefix_length="controlled",
            prefix_range=(0.0, 1.0),
            prefix_max_accuracy=0.0,
            question_choice="uniform",
            trajectory_choice="random",
            start_pass_at_1=0.0,
            retirement="never",
            positive_weight=8.0,
        ),
        "uniform-fifo": _preset(
            "a whole fresh batch, and beside it any stored completions, right or wrong, first in first out",
            "arXiv 2604.08706",
            mixing="added",
            replay_share=2.2,
            question_choice="uniform",
            trajectory_choice="random",
            start_pass_at_1=0.0,
            admission="all",
            retirement="never",
            correction="asymre",
        ),
        "rlep": _preset(
            "two successes of a frozen bank (experience_from) in every group, learned from as if they were fresh",
            "arXiv 2507.07451",
            replay_share=1.0,
            replays_per_group=2,
            question_choice="uniform",
            trajectory_choice="random",
            start_pass_at_1=0.0,
            admission="none",
            retirement="never",
            correction="none",
        ),
        "repo": _preset(
            "half of the groups hold two recent completions, right or wrong; fresh and replayed ones are centred apart",
            "arXiv 2506.09340",
            replays_per_group=2,
            question_choice="uniform",
            trajectory_choice="newest",
            start_pass_at_1=0.0,
            admission="all",
            retirement="never",
            correction="clip",
            baseline="split",
        ),
        "arpo": _preset(
            "all questions fresh; a group without success gets one stored success in place of a failure, at weight 1",
            "arXiv 2505.16282",
            mixing="rescue",
            trajectory_choice="random",
            start_pass_at_1=0.0,
            retirement="never",
            correction="clip",
        ),
        "advantage-priority": _preset(
            "a whole fresh batch, and beside it half as many completions of the last 10 steps, of each drawn question the one "
            "with the largest advantage of either sign",
            "arXiv 2606.04560",
            mixing="added",
            question_choice="uniform",
            trajectory_choice="advantage",
            start_pass_at_1=0.0,
            admission="all",
            retirement="never",
            max_age=10,
            correction="clip",
        ),
        "fresh-per": _preset(
            "as advantage-priority, but a priority fades with age instead of ending at one",
            "arXiv 2604.16918",
            mixing="added",
            question_choice="uniform",
            trajectory_choice="advantage",
            age_decay=10.0,
            start_pass_at_1=0.0,
            admission="all",
            retirement="never",
            correction="clip",
        ),
        "self-imitation": _preset(
            "a whole fresh batch, and beside it a quarter as many successes, each with 1 minus its question's accuracy now",
            "arXiv 2509.22601",
            mixing="added",
            replay_share=0.25,
            question_choice="uniform",
            trajectory_choice="random",
            advantage="current",
            start_pass_at_1=0.0,
            retirement="never",
            correction="clip",
        ),
        "random-replay": _preset(
            "as exgrpo, but any question and any of its successes: what remains without both choices",
            "ablation of arXiv 2510.02245",
            question_choice="uniform",
            trajectory_choice="random",
        ),
        "prompt-replay": _preset(
            "half of each batch are questions near 50 % accuracy again, all completions fresh, at most 8 times each",
            "arXiv 2603.21177; control for whether it is the question or the trajectory",
            mixing="prompt",
            start_pass_at_1=0.0,
            cooldown=5,
            max_uses=8,
        ),
        "entropy-guided": _preset(
            "three of ten updates replay questions of medium accuracy only, with all their stored completions, right or wrong, "
            "whose entropy is in the lowest quarter; after 5 epochs and 1,000 trajectories",
            "recipe A (TrajectoryBuffer)",
            mixing="coin",
            replay_probability=0.3,
            replays_per_group=100,
            question_choice="range",
            difficulty="window",
            difficulty_window=100,
            trajectory_choice="entropy_percentile",
            entropy_percentile=25.0,
            start_pass_at_1=0.0,
            start_epoch=5.0,
            start_size=1000,
            admission="all",
            retirement="never",
            capacity_per_question=100,
            correction="clip",
        ),
        "quality-tiers": _preset(
            "stored by success and diversity, drawn by quality tier, weighted by likelihood over uniform; the replayed share "
            "grows from 0.3 to 0.7",
            "recipe B (ExperienceScorer)",
            schedule="curriculum",
            question_choice="uniform",
            trajectory_choice="quality_tiers",
            start_pass_at_1=0.0,
            admission="quality",
            retirement="never",
            eviction="quality_tiers",
            correction="likelihood",
        ),
        "headroom-drift": _preset(
            "an intact fresh batch, and beside it stored completions, right or wrong, that the policy has hardly moved away "
            "from, those with the most headroom first",
            "arXiv 2609.03941",
            mixing="added",
            question_choice="headroom",
            trajectory_choice="headroom",
            start_pass_at_1=0.0,
            admission="all",
            retirement="never",
            max_drift=1e-3,
            correction="clip",
        ),
        "hard-questions": _preset(
            "stores only the single success of a group, retires a question at 50 %, a quarter of the batch, entropies as "
            "stored, no shaping",
            "the simplification that a 30B model was trained with in 2026",
            replay_share=0.25,
            start_pass_at_1=0.0,
            entropy_refresh="stored",
            admission="single_success",
            retirement="threshold",
            retirement_threshold=0.5,
            correction="clip",
        ),
    }
)


def preset_name(name: Any) -> str:
    """Return the preset of this name as spelled here; raise ConfigurationError where there is none."""
    found = spelled(name, PRESETS)
    if found not in PRESETS:
        raise ConfigurationError(
            f"There is no preset {name!r}.{did_you_mean(name, PRESETS)} Presets: {', '.join(PRESETS)}."
        )
    return str(found)


def resolve(preset: str = "exgrpo", **options: Any) -> tuple[ReplayConfig, ObjectiveConfig]:
    """Return the configuration of a preset with `options` on top; an option that is None counts as not given."""
    preset = preset_name(preset)
    unknown = sorted(set(options) - set(REPLAY_FIELDS) - set(OBJECTIVE_FIELDS))
    if unknown:
        raise ConfigurationError(
            f"Unknown option {unknown[0]!r}.{did_you_mean(unknown[0], (*REPLAY_FIELDS, *OBJECTIVE_FIELDS))} Options: "
            f"{', '.join((*REPLAY_FIELDS, *OBJECTIVE_FIELDS))}."
        )
    values = {**PRESETS[preset].options, **{name: value for name, value in options.items() if value is not None}}
    return (
        ReplayConfig(**{name: value for name, value in values.items() if name in REPLAY_FIELDS}),
        ObjectiveConfig(**{name: value for name, value in values.items() if name in OBJECTIVE_FIELDS}),
    )
