"""Every option is checked and says what is wrong with it; presets are data; the flat configuration is the same one."""

import math
import pickle  # configurations travel to other processes by it
from dataclasses import FrozenInstanceError, fields

import pytest

import exgrpo
from exgrpo import PRESETS, ObjectiveConfig, ReplayConfig, errors, resolve
from exgrpo.errors import ConfigurationError, ExGRPOError, HostVersionError, MissingExtraError
from exgrpo.presets import OBJECTIVE_FIELDS, REPLAY_FIELDS

NOT_A_CHOICE = ["", "Share", None, 1, True, ["share"]]
NOT_A_FLAG = [0, 1, None, "true"]
NOT_A_NUMBER = ["0.5", None, True, False, math.nan, math.inf, -math.inf, [0.5], 0.5j]
NOT_AN_INTEGER = [1.0, "1", None, True, False, math.nan, [1]]

_BAD = [
    (("mixing", "question_choice", "trajectory_choice", "entropy_refresh", "retirement", "eviction", "correction",
      "logp_dtype", "schedule", "difficulty", "admission", "baseline", "prefix_length", "advantage", "skip"), NOT_A_CHOICE),
    (("store_truncated", "clip_fresh", "range_adapts", "by_problem_type", "retired_in_stream", "prefix_before_answer",
      "admit_prefixed"), NOT_A_FLAG),
    (("replay_share", "mu", "replay_probability", "on_policy_start", "on_policy_step", "on_policy_floor", "range_low",
      "range_high", "min_quality", "success_weight", "prefix_max_accuracy", "skip_explore", "skip_floor_solved",
      "skip_floor_hopeless"), [*NOT_A_NUMBER, -0.01, 1.01]),
    (("prefix_range",), [None, 0.5, (0.2,), (0.8, 0.2), (-0.1, 0.5), (0.5, 1.1), ("a", "b"), (False, True)]),
    (("prefix_aim",), [*NOT_A_NUMBER, 0.0, 1.0]),
    (("veto_ratio",), [*NOT_A_NUMBER, 0.0, 1.01]),
    (("age_decay", "moment_limit", "asymmetry"), [*NOT_A_NUMBER, -0.1]),
    (("prefix_steps", "retest_passes"), [*NOT_AN_INTEGER, 0, -1]),
    (("retirement_threshold", "review_share"), [*NOT_A_NUMBER, 0.0, 1.01]),
    (("entropy_percentile",), [*NOT_A_NUMBER, 0, 100.5]),
    (("max_drift",), [*NOT_A_NUMBER, -1e-9]),
    (("tier_shares", "quality_tier_shares"), [None, 0.5, (), (0.0, 0.0), (0.5, -0.1), (True,), ("a",), (math.nan,)]),
    (("start_pass_at_1",), [*NOT_A_NUMBER, -0.01, 1.0, 1.01]),
    (("rule_options",), [3, "width", ["width"], {1: 2}]),
    (("sigma", "shaping_beta", "truncation", "positive_weight", "likelihood_clamp"), [*NOT_A_NUMBER, 0, 0.0, -1.0]),
    (("start_epoch",), [*NOT_A_NUMBER, -0.5]),
    (("max_entropy_age", "start_step", "capacity", "start_size", "review_every", "max_age", "max_uses", "cooldown"),
     [*NOT_AN_INTEGER, -1]),
    (("entropy_candidates", "capacity_per_question", "replays_per_group", "difficulty_window", "start_completions"),
     [*NOT_AN_INTEGER, 0, -1]),
]  # fmt: skip
BAD = {name: values for names, values in _BAD for name in names}
GOOD = {
    "mixing": ["share", "coin", "added", "prompt", "rescue", "none", "prefix"],
    "prefix_length": ["fraction", "annealed", "controlled"],
    "prefix_range": [(0.0, 1.0), (0.5, 0.5)],
    "prefix_steps": [1, 500],
    "prefix_aim": [0.01, 0.9],
    "prefix_max_accuracy": [0, 1],
    "prefix_before_answer": [True, False],
    "admit_prefixed": [True, False],
    "age_decay": [0, 12.5],
    "advantage": ["birth", "current"],
    "skip": ["none", "zero_variance"],
    "skip_explore": [0, 1],
    "skip_floor_solved": [0, 1],
    "skip_floor_hopeless": [0, 1],
    "retest_passes": [1, 20],
    "moment_limit": [0, 0.04],
    "asymmetry": [0, 0.5],
    "veto_ratio": [1e-4, 1],
    "replay_probability": [0, 0.3, 1],
    "replays_per_group": [1, 100],
    "schedule": ["constant", "curriculum"],
    "on_policy_start": [0.5, 1],
    "on_policy_step": [0, 0.25],
    "on_policy_floor": [0, 0.7],
    "range_low": [0, 0.69],
    "range_high": [0.31, 1],
    "range_adapts": [True, False],
    "tier_shares": [(1.0,), (0.0, 2.0, 1.0)],
    "difficulty": ["latest", "window", "spread"],
    "difficulty_window": [1, 1000],
    "by_problem_type": [True, False],
    "entropy_percentile": [0.1, 100],
    "quality_tier_shares": [(1.0, 0.0, 0.0, 0.0)],
    "start_size": [0, 1000],
    "admission": ["correct", "all", "single_success", "quality", "none", "math.isclose"],
    "min_quality": [0, 1],
    "success_weight": [0, 1],
    "retirement_threshold": [0.01, 1],
    "retired_in_stream": [True, False],
    "review_every": [0, 50],
    "review_share": [0.001, 1],
    "max_age": [0, 20],
    "max_uses": [0, 3],
    "cooldown": [0, 5],
    "max_drift": [0, 1e-3],
    "likelihood_clamp": [0.5, 5],
    "baseline": ["group", "fresh", "split"],
    "replay_share": [0, 1, 0.0, 1.0, 0.29],
    "question_choice": ["gaussian", "uniform", "range", "variance", "linear", "tiers", "headroom"],
    "mu": [0, 1, 0.3],
    "sigma": [1e-9, 1, 2.5],
    "trajectory_choice": [
        "lowest_entropy",
        "random",
        "newest",
        "lowest_nll",
        "lowest_confidence_variance",
        "entropy_percentile",
        "highest_quality",
        "quality_tiers",
        "highest_entropy",
        "headroom",
        "advantage",
    ],
    "entropy_refresh": ["lazy", "exact", "stored"],
    "max_entropy_age": [0, 10**6],
    "entropy_candidates": [1, 8],
    "start_pass_at_1": [0, 0.99],
    "start_completions": [1, 256],
    "start_step": [0, 500],
    "start_epoch": [0, 0.5, 10],
    "retirement": ["solved", "threshold", "never"],
    "capacity": [0, 1, 10**7],
    "capacity_per_question": [1, 64],
    "eviction": ["oldest", "highest_entropy", "lowest_quality", "quality_tiers"],
    "store_truncated": [True, False],
    "logp_dtype": ["float32", "float16"],
    "correction": [
        "shaped",
        "clip",
        "truncated",
        "none",
        "likelihood",
        "second_moment",
        "topr",
        "asymre",
        "veto",
    ],
    "shaping_beta": [1e-6, 1],
    "truncation": [0.5, 5],
    "clip_fresh": [True, False],
    "positive_weight": [0.5, 1, 8.0],
    "rule_options": [None, {}, {"width": 0.1}],
}
CONFIGS = {f.name: cls for cls in (ReplayConfig, ObjectiveConfig) for f in fields(cls)}


def test_every_field_is_tried():
    assert set(CONFIGS) == set(BAD) == set(GOOD)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_is_refused_by_name_value_and_default(name):
    cls = CONFIGS[name]
    default = next(f.default for f in fields(cls) if f.name == name)
    for value in BAD[name]:
        with pytest.raises(ConfigurationError) as caught:
            cls(**{name: value})
        message = str(caught.value)
        assert f"{name} must be" in message
        assert f"is {value!r}" in message
        assert f"default is {default!r}" in message
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, ExGRPOError)


@pytest.mark.parametrize("name", GOOD)
def test_a_good_value_is_taken(name):
    for value in GOOD[name]:
        taken = getattr(CONFIGS[name](**{name: value}), name)
        assert taken == value
        assert type(taken) is type(value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(range_low=0.7, range_high=0.3), "range_low must be below range_high"),
        (dict(range_low=0.5, range_high=0.5), "range_low must be below range_high"),
        (dict(on_policy_floor=0.8), "on_policy_floor must be at most on_policy_start"),
        (
            dict(mixing="rescue", schedule="curriculum"),
            "schedule must be 'constant' with mixing='rescue', where no share changes, but is 'curriculum'",
        ),
        (dict(mixing="prompt", start_size=5), "start_size must be 0 with mixing='prompt'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        ReplayConfig(**options)


def test_a_list_of_shares_is_kept_as_a_tuple():
    assert ReplayConfig(tier_shares=[1, 2]).tier_shares == (1.0, 2.0)
    assert ReplayConfig(range_low=0.5, range_high=0.5, range_adapts=True).range_adapts


def test_defaults_are_the_method_s():
    replay, objective = ReplayConfig(), ObjectiveConfig()
    assert (replay.mixing, replay.replay_share, replay.mu, replay.sigma) == ("share", 0.5, 0.5, 0.125)
    assert (replay.start_pass_at_1, replay.start_step, replay.start_epoch) == (0.35, 0, 0.0)
    assert (replay.question_choice, replay.trajectory_choice) == ("gaussian", "lowest_entropy")
    assert (replay.entropy_refresh, replay.max_entropy_age, replay.entropy_candidates) == ("lazy", 10, 2)
    assert (replay.retirement, replay.capacity, replay.capacity_per_question) == ("solved", 100_000, 8)
    assert replay.store_truncated
    assert (objective.correction, objective.shaping_beta, objective.clip_fresh) == ("shaped", 0.1, True)
    assert objective.positive_weight == 1.0


def test_every_option_has_a_help_text_and_none_can_be_changed_later():
    for config in (ReplayConfig(), ObjectiveConfig()):
        for f in fields(config):
            assert len(f.metadata["help"]) > 10
            with pytest.raises(FrozenInstanceError):
                setattr(config, f.name, f.default)


# Presets ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_its_options_over_the_defaults(name):
    preset = PRESETS[name]
    replay, objective = resolve(name)
    assert preset.summary
    assert preset.source
    for config in (replay, objective):
        for f in fields(config):
            assert getattr(config, f.name) == preset.options.get(f.name, f.default)
    assert set(preset.options) <= set(CONFIGS)


def test_what_the_presets_stand_for():
    assert resolve() == resolve("exgrpo") == (ReplayConfig(), ObjectiveConfig())
    assert not resolve("on-policy")[0].active
    assert not resolve("positive-weight")[0].active
    assert resolve("positive-weight")[1].positive_weight == 8.0
    replay, objective = resolve("rescue")
    assert (replay.mixing, replay.trajectory_choice, replay.start_pass_at_1) == ("rescue", "random", 0.0)
    assert (objective.correction, objective.truncation, objective.positive_weight) == ("truncated", 1.0, 8.0)


def test_options_beside_a_preset_override_it_and_none_is_not_given():
    replay, objective = resolve("rescue", positive_weight=4.0, capacity=10, trajectory_choice=None)
    assert (objective.positive_weight, replay.capacity, replay.trajectory_choice) == (4.0, 10, "random")


def test_unknown_names_are_told_with_the_known_ones():
    with pytest.raises(ConfigurationError, match=r"'exgrp'.*exgrpo, .*on-policy"):
        resolve("exgrp")
    with pytest.raises(ConfigurationError, match=r"'replay_shar'.*replay_share"):
        resolve(replay_shar=0.1)


def test_presets_cannot_be_changed():
    with pytest.raises(TypeError):
        PRESETS["mine"] = PRESETS["exgrpo"]
    with pytest.raises(TypeError):
        PRESETS["rescue"].options["positive_weight"] = 1.0


def test_one_name_is_in_both_configurations():
    assert set(REPLAY_FIELDS) & set(OBJECTIVE_FIELDS) == {"rule_options"}


@pytest.mark.parametrize("kind", [c for c in vars(errors).values() if isinstance(c, type)], ids=lambda c: c.__name__)
def test_every_error_goes_through_pickle(kind):
    """As launchers, data loaders and process pools send what a worker raised."""
    error = kind("torch", "trl", "Training") if kind is MissingExtraError else kind("what was wrong")
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), back.args) == (kind, str(error), error.args)


def test_only_public_names_are_listed():
    assert dir(exgrpo) == sorted(exgrpo.__all__)


def test_errors_are_the_standard_ones_they_replace():
    assert issubclass(HostVersionError, ImportError)
    error = MissingExtraError("matplotlib", "report", "Plotting")
    assert isinstance(error, ImportError)
    assert "pip install 'exgrpo[report]'" in str(error)


# The flat twin ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flat(tmp_path_factory):
    trl = pytest.importorskip("exgrpo.trl")

    def make(**options):
        return trl.ExGRPOConfig(
            output_dir=str(tmp_path_factory.mktemp("run")), report_to=[], use_cpu=True, bf16=False,
            gradient_checkpointing=False, **options,
        )  # fmt: skip

    return make


def test_the_flat_configuration_has_the_same_names(flat):
    names = {f.name: f for f in fields(type(flat()))}
    for name in CONFIGS:
        assert names[name].default is None  # not given: the preset's
        assert names[name].metadata["help"].replace("%%", "%").startswith(
            next(f.metadata["help"] for f in fields(CONFIGS[name]) if f.name == name)
        )  # fmt: skip


@pytest.mark.parametrize("preset", PRESETS)
def test_the_flat_configuration_resolves_to_the_same_values(flat, preset):
    for options in ({}, {"positive_weight": 3.0, "capacity": 7, "start_step": 2, "sigma": 0.5}):
        config = flat(preset=preset, **options)
        replay, objective = resolve(preset, **options)
        assert config.replay == replay
        assert config.objective == objective
        for name in CONFIGS:
            assert getattr(config, name) == getattr(replay if name in REPLAY_FIELDS else objective, name)


def test_the_flat_configuration_refuses_what_the_core_refuses(flat):
    with pytest.raises(ConfigurationError, match=r"replay_share must be .* is 2"):
        flat(replay_share=2)
    with pytest.raises(ConfigurationError, match="no preset 'mine'"):
        flat(preset="mine")
