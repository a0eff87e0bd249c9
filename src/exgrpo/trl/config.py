"""`ExGRPOConfig`: TRL's `GRPOConfig` with the options of experience replay, flat."""

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from trl import GRPOConfig

from ..config import ObjectiveConfig, ReplayConfig
from ..errors import ConfigurationError
from ..log import FILE_NAME, PRIVATE_NAME
from ..presets import OBJECTIVE_FIELDS, PRESETS, REPLAY_FIELDS, preset_name, resolve
from ..runtime.run_options import check_run_options

CORE_FIELDS = tuple(dict.fromkeys((*REPLAY_FIELDS, *OBJECTIVE_FIELDS)))
_CORE = {f.name: f for f in (*fields(ReplayConfig), *fields(ObjectiveConfig))}

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo")
NOT_UPLOADED = ("_", "checkpoint-")
"""Beginnings of names in `output_dir` that the host does not push to the hub with the model."""
GENERATION_OPTIONS = {
    "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p",
    "repetition_penalty": "repetition_penalty", "max_new_tokens": "max_completion_length",
    "max_tokens": "max_completion_length", "cache_implementation": "cache_implementation",
}  # fmt: skip
"""Names in `generation_kwargs` for which there is an option."""
_ONE_EACH = "the trainer repeats each prompt itself and takes one completion of each row. Set num_generations"
_SAMPLED = (
    "completions must be sampled, or the log-probs of their tokens are not those they were drawn with. Leave it out"
)
NOT_IN_GENERATION: dict[str, tuple[Any, str]] = {
    "num_return_sequences": (1, _ONE_EACH),
    "n": (1, _ONE_EACH),
    "best_of": (1, _ONE_EACH),
    "do_sample": (True, _SAMPLED),
    "num_beams": (1, _SAMPLED),
    "stop_strings": (
        None,
        "generation gets no tokenizer to find them with. Leave it out: a completion ends with an end token, and a reward "
        "function may read the text up to a mark of its own. With use_vllm=True, set 'stop'",
    ),
    "stop": (None, "transformers has no such option. Leave it out, or set use_vllm=True"),
    "max_length": (None, "it would count the prompt too. Set max_completion_length"),
    "return_dict_in_generate": (False, "the trainer takes token ids alone. Leave it out"),
}
"""Names in `generation_kwargs` with the one value that they may have, and why no other."""
HOST_DEFAULTS = {
    name: GRPOConfig.__dataclass_fields__[name].default for preset in PRESETS.values() for name in preset.host
}
"""Options of the host that a preset may set, with the host's defaults."""
METHOD_DEFAULTS = {"loss_type": "dr_grpo", "scale_rewards": "none", "disable_dropout": True, "skip_rows": None}
"""Options of the trainer whose default is the method's, or ours, unless `keep_trl_defaults`."""
TRL_DEFAULTS = {f.name: f.default for f in fields(GRPOConfig) if f.name in METHOD_DEFAULTS} | {"skip_rows": False}
MIXED_LOSS_TYPES = ("dr_grpo", "grpo", "dapo", "cispo")
NOT_MIXED = {
    "bnpo": "it is normalised by the tokens of a micro-batch, so the loss would depend on how a batch is cut",
    "luspo": "it lets a completion weigh by its length, and the replayed term has no such weight",
    "sapo": "its gate is made of the ratio to the policy that samples now, which did not sample stored completions",
    "vespo": "its weight of a completion is made of the ratio to the policy that samples now, which did not sample stored ones",
}
"""Loss types that cannot be combined with replay, and why."""


def _core(name: str) -> Any:
    """Declare the flat copy of a core option; None means the value of the preset."""
    core = _CORE[name]
    text = f"{core.metadata['help']} Default: that of the preset ({core.default!r} where it has none)."
    return field(default=None, metadata={"help": text.replace("%", "%%")})


@dataclass
class ExGRPOConfig(GRPOConfig):
    r"""
    Configuration of [`ExGRPOTrainer`]: everything of TRL's `GRPOConfig`, and the options of experience replay.

    An option that is not given takes the value of the `preset`; after construction every option has a value. A copy with
    another preset (`dataclasses.replace(args, preset="rescue")`) takes that preset's values for all options that still
    have those of the first. Three of TRL's own options default to the method's values: `loss_type="dr_grpo"`,
    `scale_rewards="none"` and `disable_dropout=True` (so that stored log-probs are those of the policy that generated).
    `keep_trl_defaults=True` leaves them at TRL's defaults.

    Meaning and defaults of the replay options are documented at [`~exgrpo.ReplayConfig`] and [`~exgrpo.ObjectiveConfig`].
    """

    _VALID_DICT_FIELDS = [*GRPOConfig._VALID_DICT_FIELDS, "rule_options"]

    loss_type: str | None = field(
        default=None,
        metadata={
            "default": METHOD_DEFAULTS["loss_type"],
            "help": "TRL's loss. With replay: 'dr_grpo' (the method's: sum over tokens, divided by completions times "
            "max_completion_length), 'grpo', 'dapo' or 'cispo'; without: any of TRL's.",
        },
    )
    scale_rewards: str | None = field(
        default=None,
        metadata={
            "default": METHOD_DEFAULTS["scale_rewards"],
            "help": "'none' (the method's: no division by the standard deviation) or 'group'. TRL's option.",
        },
    )
    disable_dropout: bool | None = field(
        default=None,
        metadata={
            "default": METHOD_DEFAULTS["disable_dropout"],
            "help": "Disable dropout. Replay needs it: log-probs under dropout are not the policy's.",
        },
    )
    keep_trl_defaults: bool = field(
        default=False,
        metadata={
            "help": "Keep TRL's defaults for `loss_type`, `scale_rewards` and `disable_dropout`, and compute all rows as "
            "TRL does (`skip_rows`). Replay under dropout is still refused."
        },
    )

    num_iterations: int | None = field(  # type: ignore[assignment]
        default=None,
        metadata={
            "default": 1,
            "help": "TRL's: optimizer updates per batch. Default: that of the preset (two-updates: 2), else TRL's 1.",
        },
    )

    preset: str = field(
        default="exgrpo",
        metadata={"help": f"Named recipe that fills every option not given: {', '.join(PRESETS)}."},
    )
    mixing: str | None = _core("mixing")
    replay_share: float | None = _core("replay_share")
    replay_probability: float | None = _core("replay_probability")
    replays_per_group: int | None = _core("replays_per_group")
    schedule: str | None = _core("schedule")
    on_policy_start: float | None = _core("on_policy_start")
    on_policy_step: float | None = _core("on_policy_step")
    on_policy_floor: float | None = _core("on_policy_floor")
    prefix_length: str | None = _core("prefix_length")
    prefix_range: list[float] | None = _core("prefix_range")  # noqa: RUF009
    prefix_steps: int | None = _core("prefix_steps")
    prefix_aim: float | None = _core("prefix_aim")
    prefix_max_accuracy: float | None = _core("prefix_max_accuracy")
    prefix_before_answer: bool | None = _core("prefix_before_answer")
    admit_prefixed: bool | None = _core("admit_prefixed")
    question_choice: str | None = _core("question_choice")
    mu: float | None = _core("mu")
    sigma: float | None = _core("sigma")
    range_low: float | None = _core("range_low")
    range_high: float | None = _core("range_high")
    range_adapts: bool | None = _core("range_adapts")
    tier_shares: list[float] | None = _core("tier_shares")  # noqa: RUF009
    difficulty: str | None = _core("difficulty")
    difficulty_window: int | None = _core("difficulty_window")
    by_problem_type: bool | None = _core("by_problem_type")
    trajectory_choice: str | None = _core("trajectory_choice")
    entropy_percentile: float | None = _core("entropy_percentile")
    quality_tier_shares: list[float] | None = _core("quality_tier_shares")  # noqa: RUF009
    entropy_refresh: str | None = _core("entropy_refresh")
    max_entropy_age: int | None = _core("max_entropy_age")
    entropy_candidates: int | None = _core("entropy_candidates")
    age_decay: float | None = _core("age_decay")
    advantage: str | None = _core("advantage")
    start_pass_at_1: float | None = _core("start_pass_at_1")
    start_completions: int | None = _core("start_completions")
    start_step: int | None = _core("start_step")
    start_epoch: float | None = _core("start_epoch")
    start_size: int | None = _core("start_size")
    admission: str | None = _core("admission")
    min_quality: float | None = _core("min_quality")
    success_weight: float | None = _core("success_weight")
    retirement: str | None = _core("retirement")
    retirement_threshold: float | None = _core("retirement_threshold")
    retired_in_stream: bool | None = _core("retired_in_stream")
    review_every: int | None = _core("review_every")
    review_share: float | None = _core("review_share")
    max_age: int | None = _core("max_age")
    max_uses: int | None = _core("max_uses")
    cooldown: int | None = _core("cooldown")
    max_drift: float | None = _core("max_drift")
    capacity: int | None = _core("capacity")
    capacity_per_question: int | None = _core("capacity_per_question")
    eviction: str | None = _core("eviction")
    store_truncated: bool | None = _core("store_truncated")
    logp_dtype: str | None = _core("logp_dtype")
    skip: str | None = _core("skip")
    skip_explore: float | None = _core("skip_explore")
    skip_floor_solved: float | None = _core("skip_floor_solved")
    skip_floor_hopeless: float | None = _core("skip_floor_hopeless")
    retest_passes: int | None = _core("retest_passes")
    correction: str | None = _core("correction")
    shaping_beta: float | None = _core("shaping_beta")
    truncation: float | None = _core("truncation")
    likelihood_clamp: float | None = _core("likelihood_clamp")
    moment_limit: float | None = _core("moment_limit")
    asymmetry: float | None = _core("asymmetry")
    veto_ratio: float | None = _core("veto_ratio")
    clip_fresh: bool | None = _core("clip_fresh")
    baseline: str | None = _core("baseline")
    positive_weight: float | None = _core("positive_weight")
    rule_options: dict[str, Any] | str | None = _core("rule_options")  # noqa: RUF009

    correctness_function: str | None = field(
        default=None,
        metadata={
            "help": "Name of the reward function that decides whether a completion is right. Default: the first."
        },
    )
    correctness_threshold: float = field(
        default=0.5, metadata={"help": "A completion is right if that function's reward is above this."}
    )
    max_generated_tokens: int | None = field(
        default=None,
        metadata={
            "help": "Stop after the step in which this many completion tokens were generated, over all processes. Prompts "
            "and replayed completions do not count."
        },
    )

    experience_log: str | None = field(
        default=None,
        metadata={
            "help": "File of the experience, relative to `output_dir`; resuming and `exgrpo experience` read it. 'none': "
            "memory only, no resume. Default: 'experience.db', or with `push_to_hub` '_experience.db', which is "
            "not uploaded, since it holds all prompts and completions; set 'experience.db' to upload it."
        },
    )
    experience_from: str | None = field(
        default=None,
        metadata={
            "help": "Start from the experience of another run: its `output_dir`, its log, or an export of `exgrpo "
            "experience export`. Questions are matched by content; the rest is reported and left out. No effect "
            "when resuming."
        },
    )
    keep_retired: bool = field(
        default=False,
        metadata={
            "help": "With `experience_from`: questions that had retired there stay retired, as for a policy that learned "
            "them. By default, and always under other reward functions, they are fresh again."
        },
    )

    embedding_model: str | None = field(
        default=None,
        metadata={
            "help": "Encoder of completions (any of transformers', by name or path), needed by the rules that use "
            "quality: `quality` admission, `highest_quality` and `quality_tiers` choice, `lowest_quality` and "
            "`quality_tiers` eviction. Runs in a thread beside the loss."
        },
    )
    embedding_device: str = field(
        default="cpu",
        metadata={
            "help": "Device of the encoder. A GPU is far faster and takes its memory; on the CPU an embedding does not "
            "depend, to the bit, on what else is embedded."
        },
    )
    alarms: str = field(
        default="warn",
        metadata={
            "help": "When entropy collapses, the effective sample size stays low or replay is idle: 'warn', 'stop' or "
            "'off'."
        },
    )

    replay_metrics: str = field(
        default="basic",
        metadata={
            "help": "Which metrics of this package are logged: 'basic' (about a dozen) or 'all'. Alarms always see all."
        },
    )

    skip_rows: bool | None = field(
        default=None,
        metadata={
            "help": "Leave completions with advantage 0 out of forward and backward; the gradient is the same. Default: "
            "wherever that is exact. True: refuse where it is not. False: compute all rows, as TRL does."
        },
    )

    resolved_preset: str | None = field(
        default=None,
        metadata={"help": "Written by the configuration: the preset that filled in the options."},
    )

    def __post_init__(self) -> None:
        self.preset = preset_name(self.preset)
        self._fill_in_host_options()
        if self.resolved_preset is not None and self.steps_per_generation is not None:
            self.generation_batch_size = None  # a copy: the host would reuse the steps that it derived for the first
        for name, value in (TRL_DEFAULTS if self.keep_trl_defaults else METHOD_DEFAULTS).items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        try:
            super().__post_init__()
        except ValueError as error:
            raise ConfigurationError(f"{error}{self._nearest_batches()}") from error
        given = {name: getattr(self, name) for name in CORE_FIELDS}
        if self.resolved_preset is not None:  # a copy: what the earlier preset filled in was not given
            filled = {f.name: getattr(core, f.name) for core in resolve(self.resolved_preset) for f in fields(core)}
            given = {
                name: None if (tuple(value) if isinstance(value, list) else value) == filled[name] else value
                for name, value in given.items()
            }
        replay, objective = resolve(self.preset, **given)
        for core in (replay, objective):
            for f in fields(core):
                setattr(self, f.name, getattr(core, f.name))
        self.resolved_preset = self.preset
        if self.loss_type not in LOSS_TYPES:
            raise ConfigurationError(f"There is no loss_type {self.loss_type!r}. TRL has: {', '.join(LOSS_TYPES)}.")
        check_run_options(self)
        self._refuse_what_generation_cannot()
        if replay.active:
            self._refuse_what_replay_cannot()

    def _fill_in_host_options(self) -> None:
        """Fill in host options that presets may set: the preset's value where it has one, else the host's."""
        before = PRESETS[self.resolved_preset].host if self.resolved_preset is not None else None
        for name, default in HOST_DEFAULTS.items():
            is_filled = before is not None and getattr(self, name) == before.get(name, default)
            if is_filled or getattr(self, name) is None:
                setattr(self, name, PRESETS[self.preset].host.get(name, default))

    own_trainer = False
    """True once an `ExGRPOTrainer` has taken this configuration; another trainer would not replay."""

    @property
    def place_model_on_device(self) -> Any:
        """The host's property; every trainer of the host reads it when it is constructed."""
        if not self.own_trainer and (self.replay.active or self.positive_weight != 1.0):
            raise ConfigurationError(
                f"an ExGRPOConfig with preset={self.preset!r} was given to a trainer that neither replays nor weighs "
                "advantages. Replace GRPOTrainer(...) by exgrpo.trl.ExGRPOTrainer(...), which takes the same arguments; or "
                "set preset='on-policy'."
            )
        return super().place_model_on_device

    @property
    def keeps_log(self) -> bool:
        """True if experience is kept in a file."""
        return (self.experience_log or "").lower() != "none"

    @property
    def experience_path(self) -> Path:
        """The file that experience is kept in."""
        name = self.experience_log or (PRIVATE_NAME if self.push_to_hub else FILE_NAME)
        return Path(self.output_dir or ".").expanduser() / Path(name).expanduser()

    @property
    def uploads_log(self) -> bool:
        """True if a push of `output_dir` to the hub uploads the experience too."""
        path, folder = self.experience_path.resolve(), Path(self.output_dir or ".").expanduser().resolve()
        if not self.keeps_log or not path.is_relative_to(folder):
            return False
        return not str(path.relative_to(folder)).startswith(NOT_UPLOADED)

    @property
    def replay(self) -> ReplayConfig:
        return ReplayConfig(**{name: getattr(self, name) for name in REPLAY_FIELDS})

    @property
    def objective(self) -> ObjectiveConfig:
        return ObjectiveConfig(**{name: getattr(self, name) for name in OBJECTIVE_FIELDS})

    @property
    def changed_options(self) -> dict[str, tuple[Any, Any]]:
        """Options that differ from the preset: their value and the preset's."""
        of_preset = {name: value for core in resolve(self.preset) for name, value in asdict(core).items()}
        chosen = asdict(self.replay) | asdict(self.objective)
        return {name: (value, of_preset[name]) for name, value in chosen.items() if value != of_preset[name]}

    def _nearest_batches(self) -> str:
        """Suggest the nearest sizes where batch and group size do not fit."""
        batch, k = self.generation_batch_size, self.num_generations
        if not isinstance(batch, int) or not isinstance(k, int) or k < 2 or batch % k == 0:
            return ""
        below, above = batch // k * k, (batch // k + 1) * k
        nearest = f"{below} or {above}" if below else f"{above}"
        sizes = [n for n in range(2, batch + 1) if batch % n == 0]
        groups = f", or num_generations to one of {sizes}" if sizes else ""
        return (
            f" A generation batch is per_device_train_batch_size ({self.per_device_train_batch_size}) x processes "
            f"({self.world_size}) x steps_per_generation ({self.steps_per_generation}) = {batch} completions, in groups of "
            f"num_generations = {k}. Set these to a product of {nearest}{groups}."
        )

    def _refuse_what_generation_cannot(self) -> None:
        """Refuse `generation_kwargs` that contradict the sampling that the trainer asks for."""
        given = self.generation_kwargs or {}
        if not isinstance(given, dict):
            raise ConfigurationError(f"generation_kwargs must be a dictionary, but is {given!r}.")
        for name, value in given.items():
            option = GENERATION_OPTIONS.get(name)
            if option is not None and value != getattr(self, option):
                raise ConfigurationError(
                    f"generation_kwargs has {name}={value!r}, but {option}={getattr(self, option)!r}: completions would be "
                    f"sampled under one and scored under the other. Set {option}={value!r} instead, and leave it out of "
                    "generation_kwargs."
                )
            needed, instead = NOT_IN_GENERATION.get(name, (value, ""))
            if value != needed and not (self.use_vllm and name in ("stop", "stop_strings")):
                raise ConfigurationError(f"generation_kwargs cannot have {name}={value!r}: {instead}.")

    def _refuse_what_replay_cannot(self) -> None:
        """Refuse host options that have no meaning, or a wrong one, together with replay."""
        refusals = [
            (
                self.loss_type not in MIXED_LOSS_TYPES,
                f"loss_type={self.loss_type!r}",
                NOT_MIXED.get(str(self.loss_type), ""),
                f"loss_type to one of {', '.join(MIXED_LOSS_TYPES)}",
            ),
            (
                self.scale_rewards not in ("none", "group"),
                f"scale_rewards={self.scale_rewards!r}",
                "advantages of mixed groups are centred (and scaled) inside the group",
                "scale_rewards='none' (the method's) or 'group'",
            ),
            (
                self.multi_objective_aggregation != "sum_then_normalize",
                f"multi_objective_aggregation={self.multi_objective_aggregation!r}",
                "it normalises over the whole batch, replayed completions included",
                "multi_objective_aggregation='sum_then_normalize'",
            ),
            (
                self.top_entropy_quantile < 1.0,
                f"top_entropy_quantile={self.top_entropy_quantile}",
                "the quantile would be taken over fresh and replayed tokens together",
                "top_entropy_quantile=1.0",
            ),
            (
                bool(self.mask_truncated_completions)
                and self.mixing not in ("prefix", "none")
                and (self.mixing == "rescue" or bool(self.store_truncated)),
                "mask_truncated_completions=True",
                "a stored completion that was cut at the length limit would be replayed and masked out",
                "mask_truncated_completions=False" + ("" if self.mixing == "rescue" else ", or store_truncated=False"),
            ),
            (
                self.mixing == "added" and self.beta != 0,
                f"beta={self.beta:g} with mixing='added'",
                "the reference model is not asked about completions that are added to a batch",
                "beta=0",
            ),
            (
                self.baseline == "split"
                and (self.mixing == "rescue" or (self.mixing in ("share", "coin") and self.replays_per_group == 1)),
                "baseline='split' with a single stored completion in a group",
                "centred by itself it always has the advantage 0, and would teach nothing",
                "baseline='group' or 'fresh'"
                + (", or replays_per_group to 2 or more" if self.mixing != "rescue" else ""),
            ),
        ]
        for refused, what, why, instead in refusals:
            if refused:
                raise ConfigurationError(
                    f"{what} cannot be combined with replay (preset={self.preset!r}, mixing={self.mixing!r}, "
                    f"skip={self.skip!r}): {why}. Set {instead}, or preset='on-policy' to train without replay."
                )
