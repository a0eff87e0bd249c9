"""What verl must be for the trainer to stand on it: every name that is overridden, called or read."""

import inspect

import pytest
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
from verl.trainer.ppo import core_algos, padding_utils
from verl.trainer.ppo.reward import get_custom_reward_fn
from verl.trainer.ppo.v1 import agent_loop_tq, trainer_base
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn
from verl.utils.import_utils import load_extern_object
from verl.utils.reward_score import get_default_compute_score
from verl.utils.tensordict_utils import get_tensordict, list_of_dict_to_tensordict
from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder
from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder
from verl.workers.config import ActorConfig
from verl.workers.utils import losses, padding

from exgrpo.verl.trainer import ExGRPOTrainer

OF_A_STEP = "(self, batch: transfer_queue.metadata.KVBatchMeta, metrics: dict) -> transfer_queue.metadata.KVBatchMeta"
PARAMETERS = {
    PPOTrainerSync._init_tokenizer: ["self"],
    PPOTrainerSync._init_dataloader: ["self"],
    PPOTrainerSync._load_checkpoint: ["self"],
    PPOTrainerSync._save_checkpoint: ["self"],
    PPOTrainerSync.on_init_end: ["self"],
    PPOTrainerSync.on_step_end: ["self"],
    PPOTrainerSync.fit: ["self", "agent_loop_manager"],
    PPOTrainerSync._fetch_one_gen_batch: ["self"],
    PPOTrainerSync._balance_batch: ["self", "batch", "metrics", "logging_prefix", "keep_minibatch"],
    PPOTrainerSync._get_required_batch_multiple: ["self", "dp_size"],
    PPOTrainerSync._step_once: ["self", "metrics", "timing_raw", "sample_batch_size"],
    collate_fn: ["data_list"],
    get_custom_reward_fn: ["config"],
    load_extern_object: ["module_path", "object_name"],
    padding.response_from_nested: ["tensor", "response_mask"],
    core_algos.compute_policy_loss_vanilla: [
        "old_log_prob", "log_prob", "advantages", "response_mask", "loss_agg_mode", "config", "rollout_is_weights",
    ],
    core_algos.agg_loss: [
        "loss_mat", "loss_mask", "loss_agg_mode", "dp_size", "batch_num_tokens", "global_batch_size", "loss_scale_factor",
    ],
    losses.ppo_loss: ["config", "model_output", "data", "dp_group"],
    padding_utils.build_padding_position_ids: ["source_position_ids", "attention_mask"],
    tq.kv_batch_put: ["keys", "partition_id", "fields", "tags", "data_parser"],
    tq.kv_batch_get: ["keys", "partition_id", "select_fields"],
    tq.kv_clear: ["keys", "partition_id"],
    get_tensordict: ["tensor_dict", "non_tensor_dict"],
    list_of_dict_to_tensordict: ["list_of_dicts"],
    get_default_compute_score: ["reward_name"],
    NaiveRewardManager.run_single: ["self", "data"],
    RLHFDataset._build_messages: ["self", "example", "key"],
    KVBatchMeta.select_keys: ["self", "keys_to_select"],
}  # fmt: skip


@pytest.mark.parametrize("name", ["_compute_old_log_prob", "_compute_advantage", "_update_actor"])
def test_phases_of_a_step_take_a_batch_and_metrics(name):
    assert str(inspect.signature(getattr(PPOTrainerSync, name))) == OF_A_STEP


@pytest.mark.parametrize("function", PARAMETERS, ids=lambda f: f.__qualname__)
def test_parameters_have_the_names_that_are_used(function):
    assert list(inspect.signature(function).parameters) == PARAMETERS[function]


def test_every_override_exists_on_the_host():
    ours = {name for name, value in vars(ExGRPOTrainer).items() if inspect.isfunction(value)}
    host = set(dir(PPOTrainerSync))
    own = ours - host
    assert own == {
        "_checkpoint_folder", "_folder_of_step", "_goes_on", "_epoch", "_rows_of_update", "_rows_to_learn_from",
        "_mini_batches_of", "_watch", "_watched", "_stop", "_report_idle",
    }  # fmt: skip


PHRASES = {
    trainer_base.PPOTrainer.fit: ("self.step(metrics", "_save_checkpoint()", "self.on_step_end()", "self._compute_metrics("),
    trainer_base.PPOTrainer._step_once: (
        "self._balance_batch(", "self._compute_old_log_prob(", "self._compute_advantage(", "self._update_actor(",
    ),
    trainer_base.PPOTrainer._next_train_batch: ("self._fetch_one_gen_batch()",),
    trainer_base.PPOTrainer._compute_old_log_prob: ('"entropy"', '"old_log_probs"'),
    trainer_base.PPOTrainer._balance_batch: ("_get_required_batch_multiple(dp_size)", '_dispatch_info[role]'),
    trainer_base.PPOTrainer._update_actor: ("actor.ppo_mini_batch_size", '"global_batch_size"', "rollout.n"),
    trainer_base.PPOTrainer._save_checkpoint: ('f"global_step_{self.global_steps}"', "latest_checkpointed_iteration.txt"),
    trainer_base.PPOTrainer.__init__: ("self.trainer_mode = ",),
    agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class._run_prompt: ('"__rollout_n__"',),
    losses.ppo_loss: ('"rollout_is_weights"', "config.global_batch_info", "get_policy_loss_fn(loss_mode)"),
}  # fmt: skip


@pytest.mark.parametrize("function", PHRASES, ids=lambda f: f.__qualname__)
def test_a_step_runs_in_the_order_that_the_hooks_rely_on(function):
    text = inspect.getsource(function)
    places = [text.find(phrase) for phrase in PHRASES[function]]
    assert -1 not in places, PHRASES[function]
    if function in (trainer_base.PPOTrainer.fit, trainer_base.PPOTrainer._step_once):
        assert places == sorted(places)


def test_what_is_read_of_objects_is_there():
    assert {"old_log_prob", "log_prob"} <= set(inspect.signature(core_algos.compute_policy_loss_vanilla).parameters)
    assert {"clip_ratio_low", "policy_loss", "global_batch_info", "loss_scale_factor"} <= set(
        ActorConfig.__dataclass_fields__
    )
    assert {"keys", "tags", "partition_id", "fields", "extra_info"} <= set(KVBatchMeta.__dataclass_fields__)
    assert {"prompt_ids", "response_ids", "response_mask", "reward_score", "extra_fields"} <= set(
        AgentLoopOutput.model_fields
    )
    assert callable(create_continuous_token_builder)
    assert list(inspect.signature(ContinuousTokenBuilder.build_initial_tokens).parameters)[:2] == ["self", "messages"]
    assert {"TRAINER_REGISTRY", "PPOTrainer", "register_trainer"} <= set(vars(trainer_base))
