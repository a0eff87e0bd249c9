"""Configuration: frozen dataclasses with the method's defaults. Standard library only.

`ReplayConfig` says what is remembered and when it is replayed, `ObjectiveConfig` how it is trained on. A host keeps the
same names flat in its own configuration (`exgrpo.trl.ExGRPOConfig`); a test keeps names and defaults in step.
Defaults are those of ExGRPO [ExGRPO, sec. 3 and 4]; where paper and released code disagree,
`docs/paper-against-code.md` says which one they follow.
"""

import math
import numbers
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from .conditions import (
    BY_ACCURACY,
    DRAWING,
    LAZY,
    LEARNING,
    MEASURING,
    PREFIXING,
    REPLAYING,
    RETIRING,
    SKIPPING,
    STORING,
    Condition,
    always,
    every,
    one_of,
    unless,
)  # fmt: skip
from .errors import ConfigurationError
from .registry import Registry
from .spelling import did_you_mean, spelled

DIFFICULTIES = ("latest", "window", "spread")
ENTROPY_REFRESHES = ("lazy", "exact", "stored")
LOGP_DTYPES = ("float32", "float16")
PREFIX_LENGTHS = ("fraction", "annealed", "controlled")
ADVANTAGES = ("birth", "current")

MIXINGS = Registry(
    "mixing",
    {
        "share": "exgrpo.replay.counts",
        "coin": "exgrpo.replay.options.coin",
        **dict.fromkeys(("added", "prompt"), "exgrpo.replay.counts"),
        **dict.fromkeys(("rescue", "none"), "exgrpo.replay.options.rescue"),
        "prefix": "exgrpo.replay.options.prefix",
    },
    traits={"trajectories": True, "stage": "plan", "rescue": None, "begin": None, "continued": None},
    open_to_users=False,
)
SKIPS = Registry("skip", dict.fromkeys(("none", "zero_variance"), "exgrpo.replay.options.skip"), open_to_users=False)
SCHEDULES = Registry("schedule", dict.fromkeys(("constant", "curriculum"), "exgrpo.replay.options.schedules"))
QUESTION_SAMPLERS = Registry(
    "question_choice",
    {
        "gaussian": "exgrpo.replay.sampling",
        **dict.fromkeys(
            ("uniform", "range", "variance", "linear", "tiers", "headroom"), "exgrpo.replay.options.samplers"
        ),
    },
    traits={
        "by_accuracy": False,
        "eligible": None,
        "per_question": None,
        "uniform": None,
    },  # the last two are for samplers of the old form
)
TRAJECTORY_CHOICES = Registry(
    "trajectory_choice",
    {
        "lowest_entropy": "exgrpo.replay.choice",
        **dict.fromkeys(
            (
                "random", "newest", "lowest_nll", "lowest_confidence_variance", "entropy_percentile", "highest_quality",
                "quality_tiers", "highest_entropy", "headroom", "advantage",
            ),
            "exgrpo.replay.options.choices",
        ),
    },
    traits={"measured": False, "eligible": None},
    quality=("highest_quality", "quality_tiers"),
)  # fmt: skip
ADMISSIONS = Registry(
    "admission",
    dict.fromkeys(("correct", "all", "single_success", "quality", "none"), "exgrpo.experience.options.admission"),
    traits={"frozen": False},
    quality=("quality",),
)
RETIREMENTS = Registry(
    "retirement", dict.fromkeys(("solved", "threshold", "never"), "exgrpo.experience.options.retirement")
)
EVICTIONS = Registry(
    "eviction",
    dict.fromkeys(
        ("oldest", "highest_entropy", "lowest_quality", "quality_tiers"), "exgrpo.experience.options.eviction"
    ),
    traits={"of_oldest_question": False},
    quality=("lowest_quality", "quality_tiers"),
)
CORRECTIONS = Registry(
    "correction",
    {
        "shaped": "exgrpo.objective.loss",
        **dict.fromkeys(("clip", "truncated", "none", "likelihood"), "exgrpo.objective.options.corrections"),
        **dict.fromkeys(("second_moment", "topr", "asymre", "veto"), "exgrpo.objective.options.sequence_corrections"),
    },
    traits={"clamped": None},
)
BASELINES = Registry(
    "baseline",
    {
        "group": "exgrpo.objective.advantage",
        **dict.fromkeys(("fresh", "split"), "exgrpo.objective.options.baselines"),
    },
    traits={"apart": False},
)


def _option(default: Any, text: str, used_if: Condition = always, **more: Any) -> Any:
    """Declare an option: its default, its help text, and the condition under which it matters."""
    return field(default=default, metadata={"help": text, "used_if": used_if}, **more)


@dataclass(frozen=True)
class ReplayConfig:
    """Options of the experience and of replay. Every field is checked at construction."""

    # How stored experience enters a batch

    mixing: str = _option(
        "share",
        "How stored experience enters a batch. `share`: some questions are replayed, each with one stored trajectory "
        "in its group. `coin`: per generation, replay all questions or none. `added`: stored trajectories join an "
        "all-fresh batch. `prompt`: some questions are replayed without a trajectory. `rescue`: a group without "
        "success gets a stored success in place of a failure. `prefix`: some groups continue the first tokens of a "
        "stored success and learn from the rest. `none`: no replay.",
    )
    replay_share: float = _option(
        0.5,
        "Share rho of a batch's questions to replay, in [0, 1]; with `added` mixing, trajectories to add per "
        "question, also above 1. If a batch is too small for one, rho times its questions is the probability of one. "
        "For `share`, `prompt`, `added` and `prefix` mixing.",
        used_if=every(one_of("mixing", "share", "prompt", "added", "prefix"), unless("schedule", "curriculum")),
    )
    replay_probability: float = _option(
        0.3,
        "Probability that a generation is a replay, for `coin` mixing.",
        used_if=every(one_of("mixing", "coin"), unless("schedule", "curriculum")),
    )
    replays_per_group: int = _option(
        1,
        "Most stored trajectories in a replayed group; the other members are fresh. For `share` and `coin` mixing.",
        used_if=one_of("mixing", "share", "coin"),
    )
    schedule: str = _option(
        "constant",
        "How the replayed share, or probability, changes. `constant`; `curriculum`: 1 minus the on-policy weight, "
        "which falls from `on_policy_start` by `on_policy_step` an epoch to `on_policy_floor`.",
        used_if=DRAWING,
    )
    on_policy_start: float = _option(
        0.7,
        "On-policy weight in the first epoch, for the `curriculum` schedule.",
        used_if=every(DRAWING, unless("schedule", "constant")),
    )
    on_policy_step: float = _option(
        0.1,
        "Fall of the on-policy weight after each epoch.",
        used_if=every(DRAWING, unless("schedule", "constant")),
    )
    on_policy_floor: float = _option(
        0.3,
        "Lowest on-policy weight.",
        used_if=every(DRAWING, unless("schedule", "constant")),
    )

    # Groups that begin with the first tokens of a stored success

    prefix_length: str = _option(
        "fraction",
        "How much of a stored success of T tokens a `prefix` group begins with. `fraction`: round(f T), f drawn from "
        "`prefix_range`. `annealed`: the range's upper end falls to 0 over `prefix_steps`; at 0 the question is asked "
        "plainly. `controlled`: f is drawn within 0.1 of a fraction that moves inside `prefix_range` so that "
        "`prefix_aim` of the continuations are right.",
        used_if=PREFIXING,
    )
    prefix_range: tuple[float, ...] = _option(
        (0.2, 0.8),
        "Lowest and highest fraction of a stored success in a prefix, in [0, 1].",
        used_if=PREFIXING,
    )
    prefix_steps: int = _option(
        200,
        "Optimizer steps over which `annealed` prefixes shrink to nothing.",
        used_if=every(PREFIXING, one_of("prefix_length", "annealed")),
    )
    prefix_aim: float = _option(
        0.5,
        "Share of right continuations that `controlled` prefixes aim at, in (0, 1).",
        used_if=every(PREFIXING, one_of("prefix_length", "controlled")),
    )
    prefix_max_accuracy: float = _option(
        1.0,
        "Give prefixes only to questions of at most this accuracy; 0: those whose latest fresh group had no success.",
        used_if=PREFIXING,
    )
    prefix_before_answer: bool = _option(
        True,
        "End a prefix before the last `\\boxed{`, `####` or `<answer>` of the stored success.",
        used_if=PREFIXING,
    )
    admit_prefixed: bool = _option(
        False,
        "Store right continuations, prefix included; the prefix keeps its stored log-probs.",
        used_if=PREFIXING,
    )

    # Which question

    question_choice: str = _option(
        "gaussian",
        "Which questions are replayed. `gaussian`: by a Gaussian of accuracy. `uniform`. `range`: accuracy between "
        "`range_low` and `range_high`. `variance`: by p(1-p). `linear`: by a weight that falls linearly from accuracy "
        "`mu`. `tiers`: equal tiers of accuracy with the shares `tier_shares`. `headroom`: those first whose best "
        "trajectory has the most headroom.",
        used_if=DRAWING,
    )
    mu: float = _option(
        0.5,
        "Accuracy at the centre of the Gaussian, or where the linear weight peaks.",
        used_if=every(DRAWING, one_of("question_choice", "gaussian", "linear")),
    )
    sigma: float = _option(
        0.125,
        "Width of the Gaussian, in units of accuracy. 1.0 is the paper's text (nearly uniform); 0.125 is what its "
        "published numbers used at 8 generations.",
        used_if=every(DRAWING, one_of("question_choice", "gaussian")),
    )
    range_low: float = _option(
        0.3,
        "Lower bound of `range`, exclusive; a quantile with `range_adapts`.",
        used_if=every(DRAWING, one_of("question_choice", "range")),
    )
    range_high: float = _option(
        0.7,
        "Upper bound of `range`: an accuracy, exclusive; with `range_adapts` a quantile.",
        used_if=every(DRAWING, one_of("question_choice", "range")),
    )
    range_adapts: bool = _option(
        False,
        "Read the bounds of `range` as quantiles (inclusive) of the accuracies of replayable questions.",
        used_if=every(DRAWING, one_of("question_choice", "range")),
    )
    tier_shares: tuple[float, ...] = _option(
        (0.2, 0.2, 0.2, 0.2, 0.2),
        "Shares of the `tiers`, from accuracy 0 to 1, relative to their sum; any number of tiers.",
        used_if=every(DRAWING, one_of("question_choice", "tiers")),
    )
    difficulty: str = _option(
        "latest",
        "Accuracy of a question. `latest`: of its latest fresh group. `window`: over its latest fresh groups, "
        "`difficulty_window` completions in all. `spread`, for continuous rewards: the standard deviation of its "
        "latest fresh group's rewards, scaled to 0 to 1 over the replayable questions.",
        used_if=BY_ACCURACY,
    )
    difficulty_window: int = _option(
        100,
        "Most completions in the window of `window` difficulty.",
        used_if=every(BY_ACCURACY, one_of("difficulty", "window")),
    )
    by_problem_type: bool = _option(
        False,
        "Draw questions for each value of the column `problem_type` separately, in proportion to the replayable ones. "
        "Adapting bounds then hold per value.",
        used_if=DRAWING,
    )

    # Which trajectory

    trajectory_choice: str = _option(
        "lowest_entropy",
        "Which stored trajectory of a question. `lowest_entropy`, `highest_entropy`: mean token entropy under the "
        "current policy. `random`. `newest`. `lowest_nll`. `lowest_confidence_variance`: of its tokens' "
        "probabilities. `entropy_percentile`: a random one at or below that percentile of all stored entropies. "
        "`highest_quality`: success and diversity. `quality_tiers`: a random one of a tier drawn by "
        "`quality_tier_shares`. `headroom`: 1-pi for a positive advantage, pi for a negative. `advantage`: the "
        "largest, of either sign.",
        used_if=STORING,
    )
    entropy_percentile: float = _option(
        25.0,
        "Percentile for the choice of that name, in (0, 100].",
        used_if=every(STORING, one_of("trajectory_choice", "entropy_percentile")),
    )
    quality_tier_shares: tuple[float, ...] = _option(
        (0.5, 0.3, 0.15, 0.05),
        "Probability of each quality tier of a question's trajectories, best tier first.",
        used_if=every(STORING, one_of("trajectory_choice", "quality_tiers")),
    )
    entropy_refresh: str = _option(
        "lazy",
        "`lazy`: cached values decide, and the best few are measured again once older than `max_entropy_age`. "
        "`exact`: measure all candidates of a drawn question at every draw (the paper). `stored`: never measure again "
        "for a choice.",
        used_if=MEASURING,
    )
    max_entropy_age: int = _option(
        10,
        "Optimizer steps after which a cached value is measured again.",
        used_if=LAZY,
    )
    entropy_candidates: int = _option(
        2,
        "How many of the best cached candidates compete and are kept up to date.",
        used_if=LAZY,
    )

    age_decay: float = _option(
        0.0,
        "Multiply a trajectory's priority within its question by exp(-age/this), in optimizer steps; 0: off. For "
        "`random` choice it weighs the probability.",
        used_if=STORING,
    )
    advantage: str = _option(
        "birth",
        "Advantage of an added trajectory. `birth`: the one it had in its group. `current`: its correctness (1 or 0) "
        "minus its question's accuracy now.",
        used_if=one_of("mixing", "added"),
    )

    # When

    start_pass_at_1: float = _option(
        0.35,
        "Start replay once the mean correctness of the latest `start_completions` fresh completions exceeds this; 0: "
        "at once. Experience is collected before.",
        used_if=REPLAYING,
    )
    start_completions: int = _option(
        256,
        "Scorable fresh completions that `start_pass_at_1` is judged over, in whole generations. Until there are as "
        "many, replay waits.",
        used_if=every(REPLAYING, unless("start_pass_at_1", 0)),
    )
    start_step: int = _option(
        0,
        "Earliest optimizer step at which replay starts.",
        used_if=REPLAYING,
    )
    start_epoch: float = _option(
        0.0,
        "Epochs after which replay starts at the earliest.",
        used_if=REPLAYING,
    )
    start_size: int = _option(
        0,
        "Start replay once more than this many trajectories are stored; 0: no such condition.",
        used_if=REPLAYING,
    )

    # What is remembered

    admission: str = _option(
        "correct",
        "Which scored completions are stored. `correct`; `all`; `single_success`: the only correct one of its group; "
        "`quality`: those with a quality above `min_quality`; `none`: only correct ones from `experience_from`.",
        used_if=STORING,
    )
    min_quality: float = _option(
        0.3,
        "`quality` admission stores what exceeds this.",
        used_if=every(STORING, one_of("admission", "quality")),
    )
    success_weight: float = _option(
        0.7,
        "Quality is this times success plus the rest times diversity. Where quality is used, an embedding model is "
        "needed.",
        used_if=every(STORING, one_of("uses_quality", True)),
    )
    retirement: str = _option(
        "solved",
        "When a question leaves replay and the fresh stream. `solved`: its fresh group is all correct. `threshold`: "
        "its accuracy reaches `retirement_threshold`. `never`.",
        used_if=REPLAYING,
    )
    retirement_threshold: float = _option(
        0.75,
        "Accuracy for `threshold` retirement, in (0, 1].",
        used_if=every(REPLAYING, one_of("retirement", "threshold")),
    )
    retired_in_stream: bool = _option(
        False,
        "Keep retired questions in the fresh stream; they are still neither stored nor replayed.",
        used_if=RETIRING,
    )
    review_every: int = _option(
        0,
        "Optimizer steps after which a share of the retired questions returns; 0: never.",
        used_if=RETIRING,
    )
    review_share: float = _option(
        0.1,
        "Share of the retired questions that returns at a review, in (0, 1].",
        used_if=every(RETIRING, unless("review_every", 0)),
    )
    max_age: int = _option(
        0,
        "Optimizer steps after which a trajectory leaves; 0: no limit.",
        used_if=STORING,
    )
    max_uses: int = _option(
        0,
        "Replays after which a trajectory leaves or, with `prompt` mixing, a question is no longer replayed; 0: no "
        "limit.",
        used_if=REPLAYING,
    )
    cooldown: int = _option(
        0,
        "Optimizer steps that a question rests after a replay; 0: none.",
        used_if=REPLAYING,
    )
    max_drift: float = _option(
        0.0,
        "Replay a trajectory only while the mean of (log pi - log pi_behaviour)^2 over its tokens is at most this; 0: "
        "no limit.",
        used_if=STORING,
    )
    capacity: int = _option(
        100_000,
        "Most trajectories kept in all.",
        used_if=STORING,
    )
    capacity_per_question: int = _option(
        8,
        "Most trajectories kept of one question.",
        used_if=STORING,
    )
    eviction: str = _option(
        "oldest",
        "What leaves when full: the `oldest`, that of `highest_entropy` or `lowest_quality`, or with `quality_tiers` "
        "the oldest of the lowest tier that holds more than 5 % of a question's trajectories.",
        used_if=STORING,
    )
    store_truncated: bool = _option(
        True,
        "Store completions that were cut at the length limit.",
        used_if=STORING,
    )
    logp_dtype: str = _option(
        "float32",
        "Precision of stored behaviour log-probs. `float16` saves a quarter of a trajectory's space and rounds them "
        "once, by at most 0.05 % of their value.",
        used_if=STORING,
    )

    # Questions that teach nothing

    skip: str = _option(
        "none",
        "Which questions of the fresh stream are skipped, also without replay. `none`; `zero_variance`: one whose "
        "last z fresh groups had no variance, with probability 1 - max(floor, `skip_explore`^z).",
    )
    skip_explore: float = _option(
        0.5,
        "Probability of asking a question after one group without variance; after z of them, this to the power z.",
        used_if=SKIPPING,
    )
    skip_floor_solved: float = _option(
        0.05,
        "Lowest probability of asking a question whose latest group was all right; 1: never skipped.",
        used_if=SKIPPING,
    )
    skip_floor_hopeless: float = _option(
        0.05,
        "Lowest probability of asking a question whose latest group was not all right.",
        used_if=SKIPPING,
    )
    retest_passes: int = _option(
        10,
        "Most passes in a row that skip a question.",
        used_if=SKIPPING,
    )

    # Parameters of rules of your own

    rule_options: Mapping[str, Any] | None = _option(
        None,
        "Parameters of your own rules, which read them with `config.rule_option(name, default)`. A mapping; JSON on "
        "the command line.",
        hash=False,
    )

    def rule_option(self, name: str, default: Any = None) -> Any:
        """Return a parameter of a user's rule, or the default where it is not set."""
        return (self.rule_options or {}).get(name, default)

    @property
    def replays(self) -> bool:
        """True if a batch can ever contain stored experience, or a question chosen for its sake."""
        return self.mixing != "none"

    @property
    def active(self) -> bool:
        """True if batches are planned and their outcomes kept: for replay, or to leave questions out."""
        return self.replays or self.skip != "none"

    @property
    def replays_questions(self) -> bool:
        """True if questions are replayed before generation, rather than groups mended after it."""
        return self.mixing in ("share", "coin", "added", "prompt", "prefix")

    @property
    def uses_quality(self) -> bool:
        """True if completions must be embedded."""
        registries = (TRAJECTORY_CHOICES, ADMISSIONS, EVICTIONS)
        return self.mixing not in ("prompt", "none") and any(
            registry.needs_quality(getattr(self, registry.option)) for registry in registries
        )

    def __post_init__(self) -> None:
        _one_of(self, "mixing", MIXINGS)
        _one_of(self, "difficulty", DIFFICULTIES)
        _one_of(self, "entropy_refresh", ENTROPY_REFRESHES)
        _one_of(self, "logp_dtype", LOGP_DTYPES)
        _one_of(self, "prefix_length", PREFIX_LENGTHS)
        _one_of(self, "advantage", ADVANTAGES)
        _one_of(self, "skip", SKIPS)
        for name, registry in (
            ("schedule", SCHEDULES),
            ("question_choice", QUESTION_SAMPLERS),
            ("trajectory_choice", TRAJECTORY_CHOICES),
            ("admission", ADMISSIONS),
            ("retirement", RETIREMENTS),
            ("eviction", EVICTIONS),
        ):
            _one_of(self, name, registry)
        for name in (
            "replay_probability", "on_policy_start", "on_policy_step", "on_policy_floor", "mu", "range_low", "range_high",
            "min_quality", "success_weight", "prefix_max_accuracy", "skip_explore", "skip_floor_solved",
            "skip_floor_hopeless",
        ):  # fmt: skip
            _number(self, name, 0.0, 1.0)
        _number(self, "replay_share", 0.0, math.inf if self.mixing == "added" else 1.0)
        _number(self, "prefix_aim", 0.0, 1.0, open_low=True, open_high=True)
        _number(self, "age_decay", 0.0, math.inf)
        _number(self, "sigma", 0.0, math.inf, open_low=True)
        _number(self, "start_pass_at_1", 0.0, 1.0, open_high=True)
        _number(self, "start_epoch", 0.0, math.inf)
        _number(self, "entropy_percentile", 0.0, 100.0, open_low=True)
        _number(self, "retirement_threshold", 0.0, 1.0, open_low=True)
        _number(self, "review_share", 0.0, 1.0, open_low=True)
        _number(self, "max_drift", 0.0, math.inf)
        for name, low in (
            ("replays_per_group", 1),
            ("difficulty_window", 1),
            ("max_entropy_age", 0),
            ("entropy_candidates", 1),
            ("start_completions", 1),
            ("start_step", 0),
            ("start_size", 0),
            ("review_every", 0),
            ("max_age", 0),
            ("max_uses", 0),
            ("cooldown", 0),
            ("capacity", 0),
            ("capacity_per_question", 1),
            ("prefix_steps", 1),
            ("retest_passes", 1),
        ):
            _integer(self, name, low)
        _shares(self, "tier_shares")
        _shares(self, "quality_tier_shares")
        _range(self, "prefix_range")
        for name in (
            "range_adapts", "by_problem_type", "retired_in_stream", "store_truncated", "prefix_before_answer",
            "admit_prefixed",
        ):  # fmt: skip
            _boolean(self, name)
        _mapping(self, "rule_options")
        self._check_together()

    def _check_together(self) -> None:
        """Check combinations of options that are valid by themselves."""
        if self.range_low > self.range_high or (self.range_low == self.range_high and not self.range_adapts):
            _refuse(self, "range_low", f"below range_high ({self.range_high!r})")
        if self.on_policy_floor > self.on_policy_start:
            _refuse(self, "on_policy_floor", f"at most on_policy_start ({self.on_policy_start!r})")
        if self.mixing in ("rescue", "none") and self.schedule != "constant":
            _refuse(self, "schedule", f"'constant' with mixing={self.mixing!r}, where no share changes")
        if self.mixing == "prompt" and self.question_choice == "headroom":
            _refuse(
                self,
                "question_choice",
                "another with mixing='prompt', where no trajectory is stored that has headroom",
            )
        if self.mixing == "prompt" and self.start_size:
            _refuse(self, "start_size", "0 with mixing='prompt', where no trajectory is stored")


@dataclass(frozen=True)
class ObjectiveConfig:
    """Options of the objective for fresh and replayed tokens."""

    correction: str = _option(
        "shaped",
        "Importance correction of replayed tokens, with w = pi/pi_behaviour. `shaped`: w/(w+beta) [ExGRPO, Eq. 4]. "
        "`clip`: PPO's, epsilon on both sides. `truncated`: min(w, c), no gradient through it. `none`. `likelihood`: "
        "min(V pi, `likelihood_clamp`) for a vocabulary of V, no gradient through it. `second_moment`: w, without the "
        "tokens that keep the mean of (log w)^2 above `moment_limit`. `topr`: 1 for A > 0, the truncated ratio of the "
        "whole answer for A < 0. `asymre`: A + `asymmetry`, no ratio. `veto`: as `truncated`, but for A < 0 nothing "
        "after a token with w below `veto_ratio`.",
        used_if=LEARNING,
    )
    shaping_beta: float = _option(
        0.1,
        "beta of the shaped ratio w/(w+beta).",
        used_if=every(LEARNING, one_of("correction", "shaped")),
    )
    truncation: float = _option(
        1.0,
        "Cap c of the truncated ratio min(w, c).",
        used_if=every(LEARNING, one_of("correction", "truncated", "topr", "veto")),
    )
    likelihood_clamp: float = _option(
        5.0,
        "Cap of the likelihood over a uniform policy.",
        used_if=every(LEARNING, one_of("correction", "likelihood")),
    )
    moment_limit: float = _option(
        0.04,
        "Highest mean of (log w)^2 over an answer's tokens that `second_moment` keeps.",
        used_if=every(LEARNING, one_of("correction", "second_moment")),
    )
    asymmetry: float = _option(
        0.1,
        "How far `asymre` lowers the baseline.",
        used_if=every(LEARNING, one_of("correction", "asymre")),
    )
    veto_ratio: float = _option(
        0.1,
        "Ratio below which a token ends what `veto` learns from a failure, in (0, 1].",
        used_if=every(LEARNING, one_of("correction", "veto")),
    )
    clip_fresh: bool = _option(True, "Keep PPO's clip on fresh tokens; the paper's appendix removes it.")
    baseline: str = _option(
        "group",
        "What the rewards of a group with replayed members are compared with. `group`: the mean of all members. "
        "`fresh`: the mean of the fresh. `split`: fresh with the mean of the fresh, replayed with that of the "
        "replayed.",
        used_if=every(LEARNING, unless("mixing", "added")),
    )
    positive_weight: float = _option(1.0, "Factor on positive advantages.")
    rule_options: Mapping[str, Any] | None = _option(
        None,
        "Parameters of your own rules, which read them with `config.rule_option(name, default)`. A mapping; JSON on "
        "the command line.",
        hash=False,
    )

    def rule_option(self, name: str, default: Any = None) -> Any:
        """Return a parameter of a user's rule, or the default where it is not set."""
        return (self.rule_options or {}).get(name, default)

    def __post_init__(self) -> None:
        _one_of(self, "correction", CORRECTIONS)
        _one_of(self, "baseline", BASELINES)
        _number(self, "shaping_beta", 0.0, math.inf, open_low=True)
        _number(self, "truncation", 0.0, math.inf, open_low=True)
        _number(self, "likelihood_clamp", 0.0, math.inf, open_low=True)
        _number(self, "positive_weight", 0.0, math.inf, open_low=True)
        _number(self, "moment_limit", 0.0, math.inf)
        _number(self, "asymmetry", 0.0, math.inf)
        _number(self, "veto_ratio", 0.0, 1.0, open_low=True)
        _boolean(self, "clip_fresh")
        _mapping(self, "rule_options")


def _refuse(config: object, name: str, required: str, hint: str = "") -> None:
    value = getattr(config, name)
    default = next(f.default for f in fields(config) if f.name == name)  # type: ignore[arg-type]
    raise ConfigurationError(f"{name} must be {required}, but is {value!r}.{hint} The default is {default!r}.")


def _one_of(config: object, name: str, options: Collection[str]) -> None:
    value = spelled(getattr(config, name), options)
    object.__setattr__(config, name, value)
    if value not in options:
        own = ", or a dotted path to your own" if getattr(options, "open_to_users", False) else ""
        required = "one of " + ", ".join(repr(o) for o in options) + own
        _refuse(config, name, required, did_you_mean(value, options))


def _plain(config: object, name: str, kind: type) -> Any:
    """Return the value of an option, with a number of another library (numpy) converted to Python's."""
    value = getattr(config, name)
    if isinstance(value, kind) and hasattr(value, "item"):
        value = value.item()
        object.__setattr__(config, name, value)
    return value


def _shares(config: object, name: str) -> None:
    """Check a sequence of shares, and keep it as a tuple: a recipe file gives a list."""
    value = getattr(config, name)
    value = value.tolist() if hasattr(value, "tolist") else value
    shares = isinstance(value, (list, tuple)) and all(
        isinstance(v, (int, float)) and not isinstance(v, bool) and 0 <= v <= sys.float_info.max for v in value
    )
    if not shares or not value or not 0 < math.fsum(value) <= sys.float_info.max:
        _refuse(config, name, "a list of numbers of at least 0 with a positive sum")
    object.__setattr__(config, name, tuple(float(v) for v in value))


def _range(config: object, name: str) -> None:
    """Check two fractions, the lower one first, and keep them as a tuple."""
    value = getattr(config, name)
    value = value.tolist() if hasattr(value, "tolist") else value
    numbers_only = isinstance(value, (list, tuple)) and all(
        isinstance(v, (int, float)) and not isinstance(v, bool) for v in value
    )
    if not numbers_only or len(value) != 2 or not 0 <= value[0] <= value[1] <= 1:
        _refuse(config, name, "two numbers in [0, 1], the lower one first")
    object.__setattr__(config, name, tuple(float(v) for v in value))


def _number(
    config: object, name: str, low: float, high: float, open_low: bool = False, open_high: bool = False
) -> None:
    value = _plain(config, name, numbers.Real)
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if not number or not low <= value <= high or (open_low and value == low) or (open_high and value == high):
        _refuse(
            config,
            name,
            f"a number in {'(' if open_low else '['}{low:g}, {high:g}{')' if open_high or math.isinf(high) else ']'}",
        )


def _integer(config: object, name: str, low: int) -> None:
    value = _plain(config, name, numbers.Integral)
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        _refuse(config, name, f"an integer of at least {low}")


def _boolean(config: object, name: str) -> None:
    if not isinstance(getattr(config, name), bool):
        _refuse(config, name, "True or False")


def _mapping(config: object, name: str) -> None:
    value = getattr(config, name)
    if value is not None and not (isinstance(value, Mapping) and all(isinstance(key, str) for key in value)):
        _refuse(config, name, "a mapping with names as keys, or None")
