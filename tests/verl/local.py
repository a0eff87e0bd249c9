"""verl's trainer in one process: no Ray, a transfer queue in memory, one worker with a plain model, scripts for rollouts.

The trainer, the loss of the workers, the batches, the advantages and the loop are verl's own and ours. Replaced is what
carries them: the queue, the workers, and the rollout engine.
"""

import os
from collections import defaultdict
from types import SimpleNamespace

import torch
import transfer_queue as tq
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from tensordict import NonTensorStack, TensorDict
from transfer_queue import KVBatchMeta
from transformers import AutoModelForCausalLM
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.utils.losses import ppo_loss

from exgrpo.experience.events import Event
from exgrpo.verl.trainer import ExGRPOTrainer
from tests.verl.support import letters


class MemoryQueue:
    """The transfer queue's functions, on dictionaries."""

    def __init__(self):
        self.fields, self.tags = defaultdict(dict), defaultdict(dict)

    def install(self, patch):
        for name in ("kv_batch_put", "kv_batch_get", "kv_list", "kv_clear"):
            patch.setattr(tq, name, getattr(self, name))

    def kv_batch_put(self, keys, partition_id, fields=None, tags=None, **more):
        columns = {} if fields is None else {name: _values(fields[name]) for name in fields.keys()}  # noqa: SIM118
        for place, key in enumerate(keys):
            if fields is not None:
                row = self.fields[partition_id].setdefault(key, {})
                row.update({name: values[place] for name, values in columns.items()})
            self.tags[partition_id].setdefault(key, {}).update(tags[place] if tags else {})
        return KVBatchMeta(keys=list(keys), tags=[self.tags[partition_id][k] for k in keys], partition_id=partition_id)

    def kv_batch_get(self, keys, partition_id, select_fields=None):
        rows = [self.fields[partition_id][key] for key in keys]
        everywhere = [name for name in rows[0] if all(name in row for row in rows)]  # as the queue does
        wanted = [name for name in (select_fields or everywhere) if name in everywhere]
        return TensorDict({name: _column([row[name] for row in rows]) for name in wanted}, batch_size=[len(rows)])

    def kv_list(self, partition_id=None):
        return {name: dict(tags) for name, tags in self.tags.items()}

    def kv_clear(self, keys, partition_id):
        for key in [keys] if isinstance(keys, str) else keys:
            self.fields[partition_id].pop(key, None)
            self.tags[partition_id].pop(key, None)


def _values(column):
    if isinstance(column, torch.Tensor):
        return [value.clone() for value in column.unbind(0)]
    return [getattr(value, "data", value) for value in column]


def _column(values):
    if all(isinstance(value, torch.Tensor) for value in values):
        if values[0].dim() == 0:
            return torch.stack(values)
        return torch.nested.as_nested_tensor(values, layout=torch.jagged)
    return NonTensorStack(*values)


class Workers:
    """verl's actor workers: one process with a plain model, verl's own loss, and plain gradient descent."""

    def __init__(self, queue, config, model):
        self.queue, self.model = queue, model
        self.actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        self.lr, self._dispatch_info = float(self.actor.optim.lr), {"actor": [0]}
        self.seen, self.divisors = [], []

    def compute_log_prob(self, meta):
        rows = [self.queue.fields[meta.partition_id][key] for key in meta.keys]
        with torch.no_grad():
            logps, entropies = zip(*(self._forward(row, meta.extra_info["temperature"]) for row in rows), strict=True)
        fields = TensorDict({"log_probs": _column(logps), "entropy": _column(entropies)}, batch_size=[len(rows)])
        self.queue.kv_batch_put(meta.keys, meta.partition_id, fields)
        return meta

    def _forward(self, row, temperature):
        """Of each token of a sequence the log-prob of the next one, and the entropy there; as verl's engines give them."""
        ids = row["input_ids"][None]
        logits = self.model(input_ids=ids).logits[0].float() / temperature
        logps = logits.log_softmax(-1)
        following = torch.roll(ids[0], -1)
        return logps.gather(1, following[:, None])[:, 0], -(logps.exp() * logps).sum(-1)

    def update_actor(self, meta):
        size = meta.extra_info["mini_batch_size"]
        assert len(meta) % size == 0
        metrics = defaultdict(list)
        for first in range(0, len(meta), size):
            keys = meta.keys[first : first + size]
            data = self.queue.kv_batch_get(keys, meta.partition_id)
            self.seen.append((keys, data))
            self.divisors.append(meta.extra_info["global_batch_size"])
            self.model.zero_grad()
            rows = [self.queue.fields[meta.partition_id][key] for key in keys]
            logps = _column([self._forward(row, meta.extra_info["temperature"])[0] for row in rows])
            about = {
                "dp_size": 1,
                "batch_num_tokens": int(data["loss_mask"].values().sum()),
                "global_batch_size": meta.extra_info["global_batch_size"],
            }
            for name, value in about.items():
                tu.assign_non_tensor_data(data, name, value)
            loss, _ = ppo_loss(self.actor, {"log_probs": logps}, data)
            loss.backward()
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter -= self.lr * parameter.grad
            metrics["loss"].append(float(loss.detach()))
        return {"metrics": {**metrics, "mfu": [0.0]}}

    def save_checkpoint(self, path, *args, **kwargs):
        self.model.save_pretrained(path)

    def load_checkpoint(self, local_path, **kwargs):
        self.model.load_state_dict(AutoModelForCausalLM.from_pretrained(local_path).state_dict())


class Rollouts:
    """verl's agent loops: what a script says, at once. script: (iteration, prompt, member) -> text, `$` for the end."""

    def __init__(self, trainer, script):
        self.trainer, self.script = trainer, script

    def generate_sequences(self, batch):
        trainer, queue = self.trainer, self.trainer.queue
        for place in range(len(batch)):
            row = {name: _values(batch[name])[place] for name in batch.keys() if name != "global_steps"}  # noqa: SIM118
            row["global_steps"] = trainer.global_steps
            n = int(row.pop("__rollout_n__", trainer.config.actor_rollout_ref.rollout.n))
            samples = [self._sample(row, session) for session in range(n)]
            keys = [f"{row['uid']}_{session}_0" for session in range(n)]
            tags = [
                {
                    "status": "success", "prompt_len": len(s["prompts"]), "response_len": len(s["responses"]),
                    "seq_len": len(s["input_ids"]), "global_steps": trainer.global_steps,
                    "min_global_steps": trainer.global_steps - 1, "max_global_steps": trainer.global_steps - 1,
                }
                for s in samples
            ]  # fmt: skip
            if keys:
                queue.kv_batch_put(keys, "train", list_of_dict_to_tensordict(samples), tags)
            queue.kv_batch_put([row["uid"]], "train", tags=[{"status": "finished"}])

    def _sample(self, row, session):
        trainer = self.trainer
        tokenizer, step = trainer.tokenizer, trainer.global_steps - 1
        prompt = trainer.prompt_ids(row["raw_prompt"])
        text = self.script(step, tokenizer.decode(prompt), session)
        ids = tokenizer(text.removesuffix("$"), add_special_tokens=False)["input_ids"]
        ids = [*ids, tokenizer.eos_token_id] if text.endswith("$") else ids
        answer = letters(None, tokenizer.decode(ids, skip_special_tokens=True), row["reward_model"]["ground_truth"])
        output = AgentLoopOutput(
            prompt_ids=prompt, response_ids=ids, response_mask=[1] * len(ids), response_logprobs=[-1.0] * len(ids),
            reward_score=answer["score"], num_turns=2, metrics={}, extra_fields={"reward_extra_info": answer},
        )  # fmt: skip
        sample = {**output.as_dict(), **row, "session_id": session}
        sample["loss_mask"] = sample["response_mask"]
        sample["input_ids"] = torch.cat([sample["prompts"], sample["responses"]])
        sample["position_ids"] = torch.arange(len(sample["input_ids"]))
        return sample


class Silent:
    """Stands for what only moves weights about."""

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


class LocalTrainer(ExGRPOTrainer):
    """`ExGRPOTrainer` on these parts.

    Attributes:
        events: what happened, on the driver.
        logs: metrics of each step.
    """

    def _setup(self):
        self._init_tokenizer()
        self._init_dataloader()
        self._init_dump_executor()
        self.replay_buffer.poll_interval = 0.0
        path = self.config.actor_rollout_ref.model.path
        self.actor_rollout_wg = Workers(self.queue, self.config, AutoModelForCausalLM.from_pretrained(path))
        self.checkpoint_manager = Silent()
        self.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[])
        self.llm_server_manager = None
        self.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 1)
        self.ref_in_actor = False
        self.events, self.logs = [], []
        self._load_checkpoint()

    def prompt_ids(self, messages):
        from exgrpo.verl.data import PromptTokenizer

        return PromptTokenizer(self.tokenizer, self.config, "llama")([messages])[0]

    def _load_checkpoint(self):
        super()._load_checkpoint()
        if self.replay is not None:
            self.replay.session.listeners.append(self._hear)

    def _hear(self, event: Event):
        self.events.extend(event.each())

    def _compute_metrics(self, batch, metrics, *args, **kwargs):
        super()._compute_metrics(batch, metrics, *args, **kwargs)
        self.logs.append(dict(metrics))


def configuration(options):
    """verl's configuration with options on its command line."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", options)
    OmegaConf.resolve(config)
    return config


def run(monkeypatch, options, script, trainer_cls=LocalTrainer):
    """Train; return the trainer."""
    queue = MemoryQueue()
    queue.install(monkeypatch)
    monkeypatch.setattr(trainer_cls, "queue", queue, raising=False)
    config = configuration(options)
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", os.devnull)
    trainer = trainer_cls(config)
    trainer.init()
    trainer.fit(Rollouts(trainer, script))
    return trainer
