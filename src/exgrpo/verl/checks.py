"""Refuse what verl cannot do beside replay: by name, before any worker starts."""

import math
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

from packaging.version import Version

from ..errors import ConfigurationError, HostVersionError
from .options import VerlOptions

SUPPORTED_VERL = (Version("0.9.1"), Version("0.10"))
LOSS_MODE = "exgrpo"
NORMED = "seq-mean-token-sum-norm"
OF_SEQUENCES = ("seq-mean-token-mean", "seq-mean-token-sum", NORMED)
"""Aggregations of the loss that are means over completions."""
DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
_WITHOUT = "or exgrpo.preset=on-policy to train without replay"


def check_host_version(installed: str | None = None) -> None:
    """Refuse a verl that was not tested: the trainer extends methods that change between minor versions."""
    installed = installed or version("verl")
    low, high = SUPPORTED_VERL
    if not low <= Version(installed) < high:
        raise HostVersionError(
            f"exgrpo supports verl>={low},<{high}, but verl {installed} is installed. Run: pip install 'verl>={low},<{high}'"
        )


def select(config: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """Return the value at a dotted path of a configuration, or `default`."""
    node: Any = config
    for name in path.split("."):
        if not isinstance(node, Mapping) or name not in node or node[name] is None:
            return default
        node = node[name]
    return node


def updates_of_step(config: Mapping[str, Any]) -> int:
    """Return how many mini-batches a training batch is cut into."""
    return int(config["data"]["train_batch_size"] // config["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"])


def check_config(config: Mapping[str, Any], options: VerlOptions) -> None:
    """Refuse options of verl that have no meaning, or a wrong one, together with replay.

    Args:
        config: verl's, resolved.
        options: of the run.

    Raises:
        ConfigurationError: the first of them, what it would do, and what to set instead.
    """
    if not options.replay.active:
        return
    for what, why, instead in _refused(config, options):
        raise ConfigurationError(
            f"{what} cannot be combined with replay (exgrpo.preset={options.preset}, mixing={options.replay.mixing}): {why}. "
            f"Set {instead}, {_WITHOUT}."
        )
    if options.skip_rows and (reason := why_rows_stay(config)) is not None:
        raise ConfigurationError(
            f"exgrpo.skip_rows=True leaves completions with advantage 0 out of the update, but {reason}. Leave it unset (they "
            "are left out where that changes nothing), or set it to False."
        )


def _refused(config: Mapping[str, Any], options: VerlOptions) -> Iterator[tuple[str, str, str]]:
    """Yield each refused setting: what, why, and what to set instead."""
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"

    def is_set(path: str) -> bool:
        return bool(select(config, path))

    for path, why in (
        ("algorithm.use_kl_in_reward", "its penalty would change rewards token by token, and stored ones are one number"),
        (f"{actor}.use_kl_loss", "its mean is over samples of the policy, which stored completions are not"),
        ("algorithm.filter_groups.enable", "it throws groups away and fetches others, which the plan of a batch does not know"),
        ("trainer.v1.sampler.sync_refill_failed_groups", "it fetches questions that the plan of a batch does not know"),
        ("algorithm.rollout_correction.bypass_mode", "log-probs and entropies would not be computed, which are stored"),
        (f"{rollout}.multi_turn.enable", "a trajectory with tool results between its tokens cannot be stored"),
        ("distillation.enabled", "a stored completion has no log-probs of the teacher"),
        ("skip.rollout_tq.enable", "it repeats the completions of another batch than the planned one"),
    ):  # fmt: skip
        if is_set(path):
            yield f"{path}={select(config, path)}", why, f"{path}=False"
    if is_set("trainer.v1.sampler.custom_sampler.path"):
        yield (
            "trainer.v1.sampler.custom_sampler",
            "it may choose other groups than the planned ones",
            "it to null",
        )
    agent = select(config, f"{rollout}.agent.default_agent_loop", "single_turn_agent")
    if agent != "single_turn_agent":
        path = f"{rollout}.agent.default_agent_loop"
        yield (
            f"{path}={agent}",
            "what it puts between the policy's tokens cannot be stored",
            f"{path}=single_turn_agent",
        )
    if (estimator := select(config, "algorithm.adv_estimator")) != "grpo":
        yield (
            f"algorithm.adv_estimator={estimator}",
            "advantages of mixed groups are rewards compared inside the group",
            "algorithm.adv_estimator=grpo",
        )
    if (mode := select(config, f"{actor}.policy_loss.loss_mode", "vanilla")) not in ("vanilla", LOSS_MODE):
        yield (
            f"{actor}.policy_loss.loss_mode={mode}",
            "fresh tokens are trained on with PPO's clip, replayed ones with exgrpo.correction",
            f"{actor}.policy_loss.loss_mode={LOSS_MODE}",
        )
    strategy = select(config, f"{actor}.strategy")
    if (replayed := select(config, f"{actor}.{strategy}.router_replay.mode", "disabled")) != "disabled":
        path = f"{actor}.{strategy}.router_replay.mode"
        yield f"{path}={replayed}", "a stored completion has no routes", f"{path}=disabled"
    yield from _refused_aggregation(config, options)
    if options.replay.mixing == "prefix":
        yield (
            "exgrpo.mixing=prefix",
            "verl's agent loop begins no completion inside a stored one",
            "exgrpo.mixing=share or added",
        )
    if options.objective.baseline == "split" and _has_single_stored_member(options):
        yield (
            "exgrpo.baseline=split with a single stored completion in a group",
            "centred by itself it always has the advantage 0, and would teach nothing",
            "exgrpo.baseline=group or fresh",
        )


def _has_single_stored_member(options: VerlOptions) -> bool:
    replay = options.replay
    return replay.mixing == "rescue" or (replay.mixing in ("share", "coin") and replay.replays_per_group == 1)


def _refused_aggregation(config: Mapping[str, Any], options: VerlOptions) -> Iterator[tuple[str, str, str]]:
    """Yield why a loss is not a sum over completions with a known normaliser."""
    path = "actor_rollout_ref.actor.loss_agg_mode"
    mode = select(config, path)
    factor = "actor_rollout_ref.actor.loss_scale_factor"
    if mode == NORMED and select(config, factor) is None:
        yield (
            f"{path}={mode} without loss_scale_factor",
            "it is then the longest completion of a micro-batch, so that the loss depends on how a batch is cut",
            f"{factor}=${{data.max_response_length}}",
        )
    if mode == "token-mean" and options.replay.mixing == "added" and updates_of_step(config) > 1:
        yield (
            f"{path}={mode} with several mini-batches a step and mixing='added'",
            "the tokens that are added would count in the mean of the fresh ones",
            f"{path}={NORMED}",
        )


def why_rows_stay(config: Mapping[str, Any]) -> str | None:
    """Return why leaving out rows without gradient would change the update; None where it would not."""
    actor = config["actor_rollout_ref"]["actor"]
    mode = actor["loss_agg_mode"]
    for holds, why in (
        (updates_of_step(config) > 1, "a batch is cut into several mini-batches, and other rows would share one"),
        (bool(actor.get("entropy_coeff")), "entropy_coeff gives every row a gradient"),
        (actor.get("shuffle") or select(config, "actor_rollout_ref.actor.ppo_epochs", 1) > 1, "epochs are drawn from all rows"),
        (mode == "token-sum", "loss_agg_mode=token-sum has no mean that could be put right"),
    ):  # fmt: skip
        if holds:
            return why
    return None


def check_no_dropout(model_config: Mapping[str, Any]) -> None:
    """Refuse dropout: verl updates in training mode, and its log-probs would not be those of the policy that generated.

    Args:
        model_config: of transformers, as a dictionary.
    """
    for name, value in model_config.items():
        is_dropout = name.endswith(("dropout", "dropout_prob")) or name in DROPOUTS
        if is_dropout and not name.startswith(("classifier", "summary")) and isinstance(value, float) and value > 0:
            raise ConfigurationError(
                f"the model has {name}={value}: log-probs under dropout are not the behaviour policy's, and importance ratios "
                f"of replayed tokens would be noise. Set +actor_rollout_ref.model.override_config.{name}=0.0."
            )


def finite(value: Any) -> float:
    """Return a reward as a number; NaN where it is none, or infinite."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return math.nan
    return number if math.isfinite(number) else math.nan
