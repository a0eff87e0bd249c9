"""Options under verl have the names, values and refusals that they have on TRL. Needs no verl."""

import copy
import importlib
import importlib.util
import re
from pathlib import Path

import pytest

from exgrpo.config import MIXINGS
from exgrpo.errors import ConfigurationError, HostVersionError
from exgrpo.presets import PRESETS, resolve
from exgrpo.verl import checks
from exgrpo.verl.options import OPTIONS, VerlOptions

CONFIG = {
    "actor_rollout_ref": {
        "actor": {
            "ppo_mini_batch_size": 8, "loss_agg_mode": checks.NORMED, "loss_scale_factor": 12, "entropy_coeff": 0,
            "policy_loss": {"loss_mode": "vanilla"}, "strategy": "fsdp2", "ppo_epochs": 1,
        },
        "rollout": {"n": 4, "agent": {"default_agent_loop": "single_turn_agent"}},
    },
    "algorithm": {"adv_estimator": "grpo"},
    "data": {"train_batch_size": 8},
}  # fmt: skip


def changed(path, value):
    config = copy.deepcopy(CONFIG)
    *outer, last = path.split(".")
    node = config
    for name in outer:
        node = node.setdefault(name, {})
    node[last] = value
    return config


@pytest.mark.parametrize("host", ["exgrpo.trl.config"] * bool(importlib.util.find_spec("trl")))
def test_every_option_of_a_run_on_trl_is_one_here(host):
    trl = importlib.import_module(host)
    own = {"resolved_preset", "keep_trl_defaults"}
    of_trl = set(trl.ExGRPOConfig.__dataclass_fields__) - set(trl.GRPOConfig.__dataclass_fields__) - own
    assert of_trl == set(OPTIONS)
    for name in of_trl - {"preset"} - set(trl.CORE_FIELDS):
        assert getattr(VerlOptions.of({}), name) == trl.ExGRPOConfig.__dataclass_fields__[name].default, name


REFUSED_PRESETS = {
    "two-updates": "sets num_iterations=2, an option of TRL",
    "prefix": "begins no completion inside a stored one",
    "prefix-controlled": "begins no completion inside a stored one",
}


@pytest.mark.parametrize("preset", REFUSED_PRESETS)
def test_presets_that_verl_cannot_run_are_refused_by_name(preset):
    with pytest.raises(ConfigurationError, match=REFUSED_PRESETS[preset]):
        checks.check_config(CONFIG, VerlOptions.of({"preset": preset}))


@pytest.mark.parametrize("preset", sorted(PRESETS.keys() - REFUSED_PRESETS))
def test_every_other_preset_runs_with_its_own_values(preset):
    options = VerlOptions.of({"preset": preset, "mu": None, "max_age": 3})
    assert (options.replay, options.objective) == resolve(preset, max_age=3)
    assert options.replay.mixing in MIXINGS
    if options.replay.mixing == "prefix":
        with pytest.raises(ConfigurationError, match="mixing=prefix"):
            checks.check_config(CONFIG, options)
    else:
        checks.check_config(CONFIG, options)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"presett": "exgrpo"}, r"There is no option exgrpo.presett. Did you mean 'preset'"),
        ({"preset": "exgrp"}, r"There is no preset 'exgrp'. Did you mean 'exgrpo'"),
        ({"replay_share": 1.5}, r"replay_share must be a number in \[0, 1\], but is 1.5"),
        ({"alarms": "loud"}, r"alarms must be one of 'warn', 'stop', 'off', but is 'loud'"),
        ({"correctness_threshold": "0.5"}, r"correctness_threshold must be a finite number, but is '0.5'"),
        ({"max_generated_tokens": 0}, r"max_generated_tokens must be at least 1, but is 0"),
        (
            {"preset": "on-policy", "experience_from": "x"},
            r"experience_from='x' has no effect where nothing is replayed",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_name(given, message):
    with pytest.raises(ConfigurationError, match=message):
        VerlOptions.of(given)


ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
REFUSED = [
    ("algorithm.use_kl_in_reward", True, {}),
    (f"{ACTOR}.use_kl_loss", True, {}),
    ("algorithm.filter_groups.enable", True, {}),
    ("trainer.v1.sampler.sync_refill_failed_groups", True, {}),
    ("trainer.v1.sampler.custom_sampler.path", "mine.py", {}),
    ("algorithm.rollout_correction.bypass_mode", True, {}),
    (f"{ROLLOUT}.multi_turn.enable", True, {}),
    (f"{ROLLOUT}.agent.default_agent_loop", "tool_agent", {}),
    ("distillation.enabled", True, {}),
    ("skip.rollout_tq.enable", True, {}),
    ("algorithm.adv_estimator", "gae", {}),
    (f"{ACTOR}.policy_loss.loss_mode", "gspo", {}),
    (f"{ACTOR}.fsdp2.router_replay.mode", "R2", {}),
    (f"{ACTOR}.loss_scale_factor", None, {}),
    (f"{ACTOR}.entropy_coeff", 0.001, {"skip_rows": True}),
    (f"{ACTOR}.ppo_mini_batch_size", 4, {"skip_rows": True}),
    (f"{ACTOR}.shuffle", False, {"baseline": "split"}),
]


@pytest.mark.parametrize(("path", "value", "given"), REFUSED)
def test_what_verl_cannot_do_beside_replay_is_refused_before_any_worker_starts(path, value, given):
    config = changed(path, value)
    with pytest.raises(ConfigurationError, match=r"(S|s)et (it|exgrpo|actor|algorithm|trainer|distillation|skip)"):
        checks.check_config(config, VerlOptions.of(given))
    checks.check_config(config, VerlOptions.of({"preset": "on-policy"}))


def test_added_trajectories_need_a_mean_over_completions_where_a_step_has_several_updates():
    config = changed(f"{ACTOR}.loss_agg_mode", "token-mean")
    checks.check_config(config, VerlOptions.of({"preset": "rehearsal"}))
    config["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"] = 4
    with pytest.raises(ConfigurationError, match="the tokens that are added would count in the mean of the fresh ones"):
        checks.check_config(config, VerlOptions.of({"preset": "rehearsal"}))


@pytest.mark.parametrize("installed", ["0.9.0", "0.10.0", "1.0"])
def test_another_version_of_verl_is_refused(installed):
    with pytest.raises(HostVersionError, match=r"exgrpo supports verl>=0.9.1,<0.10, but verl .* is installed"):
        checks.check_host_version(installed)


def test_dropout_is_refused_with_the_option_that_removes_it():
    checks.check_no_dropout({"attention_dropout": 0.0, "classifier_dropout": 0.1, "hidden_size": 8})
    with pytest.raises(ConfigurationError, match=r"\+actor_rollout_ref.model.override_config.resid_pdrop=0.0"):
        checks.check_no_dropout({"resid_pdrop": 0.1})


ROOT = Path(__file__).parents[2]


def test_options_that_the_page_names_exist():
    named = re.findall(r"exgrpo\.(\w+)=", (ROOT / "docs" / "verl.md").read_text())
    assert named
    assert set(named) <= set(OPTIONS)
