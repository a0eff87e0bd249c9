"""Rows of a batch in verl's transfer queue: which is which, and how a stored trajectory becomes one.

A row's key is `{uid}_{session}_{index}`; a group of the plan has one uid, a member of it one session. A stored trajectory takes
over the columns of a fresh row, so that all rows of a batch have the same, and its tokens replace that row's.
"""

import copy
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from tensordict import TensorDict
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.padding_utils import build_padding_position_ids
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from ..errors import ConfigurationError
from ..experience.trajectory import Trajectory
from ..objective import weight_positive
from .checks import finite
from .rewards import UNSCORABLE

PARTITION = "train"


@dataclass
class Layout:
    """The map from keys of a batch to rows of the plan.

    Args:
        num_generations: K.
        uids: of the groups, in the order of the plan.
        row_of: global row of each key; those that fill up are not in it.
    """

    num_generations: int
    uids: list[str] = field(default_factory=list)
    row_of: dict[str, int] = field(default_factory=dict)

    def place(self, keys: Sequence[str]) -> None:
        """Add the keys of fresh rows.

        Raises:
            ConfigurationError: a completion in several parts.
        """
        group_of = {uid: group for group, uid in enumerate(self.uids)}
        for key in keys:
            uid, session, index = key.rsplit("_", 2)
            if int(index):
                raise ConfigurationError(
                    "a completion came in several parts, as of an agent with several turns, which cannot be stored. Set "
                    "actor_rollout_ref.rollout.agent.default_agent_loop=single_turn_agent, or exgrpo.preset=on-policy."
                )
            self.row_of[key] = group_of[uid] * self.num_generations + int(session)

    def key(self, row: int) -> str:
        """Name a stored trajectory's row: another than that of a completion in its place, which a rescue replaces."""
        group, member = divmod(row, self.num_generations)
        return f"{self.uids[group]}_{member}_1" if group < len(self.uids) else f"{uuid.uuid4()}_0_1"


@dataclass(frozen=True)
class FreshRows:
    """Rolled out rows by global row; failed rows are absent.

    Args:
        ids: token ids of each row, (N*K,) of lists.
        rewards: (N*K, 1), NaN where there is none.
        finish: `stop` or `length`, (N*K,).
        prompts: of each question's group, for a check.
        tokens: how many were generated.
    """

    ids: list[Any]
    rewards: Tensor
    finish: list[str]
    prompts: dict[int, list[int]]
    tokens: int

    @classmethod
    def read(cls, batch: KVBatchMeta, layout: Layout, rows: int, longest: int, ends: set[int]) -> "FreshRows":
        """Read them from the transfer queue.

        Args:
            batch: of fresh rows, which are in the layout.
            layout: of the batch.
            rows: N*K.
            longest: tokens that a completion may have.
            ends: tokens that end one.
        """
        ids: list[Any] = [[] for _ in range(rows)]
        rewards = torch.full((rows, 1), torch.nan)
        finish, prompts, tokens = ["stop"] * rows, dict[int, list[int]](), 0
        if len(batch):
            names = ["prompts", "responses", "response_mask", "rm_scores", "extra_fields"]
            data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names)
            columns = (data[name].unbind(0) for name in names[:4])
            for key, prompt, ids_of, mask, scores, extra in zip(
                batch.keys, *columns, plain(data["extra_fields"]), strict=True
            ):
                row = layout.row_of[key]
                ids[row] = own = ids_of.numpy().astype(np.int32)
                if not bool(mask.all()):
                    raise ConfigurationError(
                        "a completion holds tokens that the policy did not write, and cannot be stored. Set "
                        "actor_rollout_ref.rollout.agent.default_agent_loop=single_turn_agent, or exgrpo.preset=on-policy."
                    )
                rewards[row, 0] = finite(scores.sum()) if not _is_unscorable(extra) else torch.nan
                was_cut = own.size >= longest and (not own.size or int(own[-1]) not in ends)
                finish[row] = "length" if was_cut else "stop"
                prompts.setdefault(row // layout.num_generations, prompt.tolist())
                tokens += own.size
        return cls(ids, rewards, finish, prompts, tokens)


def plain(column: Any) -> list[Any]:
    """Return the values of a column that holds no tensors."""
    return [getattr(value, "data", value) for value in (column.tolist() if hasattr(column, "tolist") else list(column))]


def _is_unscorable(extra: Any) -> bool:
    info = extra.get("reward_extra_info") if isinstance(extra, Mapping) else None
    return bool(isinstance(info, Mapping) and info.get(UNSCORABLE))


@dataclass(frozen=True)
class StoredRow:
    """A stored trajectory that becomes a row of a batch.

    Args:
        key: of the row.
        prompt_ids: of its question.
        trajectory: what was stored.
        reward: that it is shown with.
        columns: of verl's dataset.
    """

    key: str
    prompt_ids: Sequence[int]
    trajectory: Trajectory
    reward: float
    columns: Mapping[str, Any]


def put_stored(batch: KVBatchMeta, template: str, rows: Sequence[StoredRow]) -> KVBatchMeta:
    """Put stored trajectories into the transfer queue, after the rows of a batch.

    Args:
        batch: to which they are added.
        template: key of a fresh row, whose other columns they get.
        rows: to put.
    """
    if not rows:
        return batch
    source = tq.kv_batch_get(keys=[template], partition_id=batch.partition_id)[0]
    fields = {name: source[name] for name in source.keys()}  # noqa: SIM118 - no mapping
    tag = batch.tags[batch.keys.index(template)] if template in batch.keys else {}
    samples, tags = [], []
    for row in rows:
        sample = {name: v.clone() if isinstance(v, Tensor) else copy.deepcopy(v) for name, v in fields.items()}
        sample |= {name: value for name, value in row.columns.items() if name in sample}
        sample |= {name: value for name, value in tokens_of(row, fields).items() if name in sample}
        samples.append(sample)
        prompt, response = len(row.prompt_ids), len(row.trajectory)
        version = row.trajectory.step
        tags.append(
            {
                **tag, "status": "success", "prompt_len": prompt, "response_len": response, "seq_len": prompt + response,
                "min_global_steps": version, "max_global_steps": version,
            }
        )  # fmt: skip
    keys = [row.key for row in rows]
    tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=list_of_dict_to_tensordict(samples), tags=tags)
    return KVBatchMeta(
        keys=[*batch.keys, *keys], tags=[*batch.tags, *tags], partition_id=batch.partition_id, fields=batch.fields,
        extra_info=batch.extra_info,
    )  # fmt: skip


def tokens_of(row: StoredRow, like: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the columns of a row that follow from its tokens; `like`: those of a fresh row."""
    prompt = torch.tensor(list(row.prompt_ids), dtype=torch.int64)
    response = torch.as_tensor(row.trajectory.completion_ids.astype(np.int64))
    ids = torch.cat([prompt, response])
    own, seen = torch.ones_like(response), torch.ones_like(ids)
    scores = torch.zeros(len(response), dtype=torch.float32)
    scores[-1] = row.reward
    uid, session, _ = row.key.rsplit("_", 2)
    return {
        "prompts": prompt,
        "responses": response,
        "input_ids": ids,
        "attention_mask": seen,
        "position_ids": build_padding_position_ids((like or {}).get("position_ids"), seen),
        "response_mask": own,
        "loss_mask": own.clone(),
        "rm_scores": scores,
        "rollout_log_probs": torch.as_tensor(row.trajectory.behaviour_logps.copy()),
        "uid": uid,
        "session_id": int(session),
    }


def jagged(values: Sequence[Tensor]) -> Tensor:
    """Return rows of any lengths as verl keeps them."""
    return torch.nested.as_nested_tensor(list(values), layout=torch.jagged)


def columns(**values: Tensor) -> TensorDict:
    """Return columns of rows as the transfer queue takes them."""
    return TensorDict(values, batch_size=[values[next(iter(values))].size(0)])


def weight_positive_advantages(batch: KVBatchMeta, weight: float) -> None:
    """Multiply the positive advantages of a batch without replay."""
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["advantages"])
    weighted = jagged([weight_positive(one, weight) for one in data["advantages"].unbind(0)])
    tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=columns(advantages=weighted))
