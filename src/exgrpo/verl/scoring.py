"""Stored trajectories under the current policy, measured by verl's actor workers."""

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.utils.padding import response_from_nested

from ..experience.policy_stats import PolicyStats
from ..experience.trajectory import Trajectory
from .columns import StoredRow, tokens_of

PARTITION = "exgrpo"
NEEDED = ("prompts", "responses", "input_ids", "position_ids", "response_mask", "loss_mask")


def measure(
    workers: Any, model: Any, prompts: Sequence[Sequence[int]], trajectories: Sequence[Trajectory]
) -> list[PolicyStats]:
    """Measure trajectories after their prompts under the policy that the workers hold.

    Means over each completion's own tokens; the entropy in nats over the full vocabulary.

    Args:
        workers: the actor's worker group; it must not be rolling out.
        model: verl's `actor_rollout_ref`.
        prompts: token ids of each.
        trajectories: to measure.
    """
    if not trajectories:
        return []
    ranks = workers._dispatch_info.get("actor") or workers._query_dispatch_info("actor")
    workers._dispatch_info["actor"] = ranks
    micro = 1 if model.actor.use_dynamic_bsz else model.rollout.log_prob_micro_batch_size_per_gpu
    multiple = (max(ranks) + 1) * (micro or 1)
    count = -(-len(trajectories) // multiple) * multiple
    name = uuid.uuid4().hex
    samples, tags = [], []
    for place in range(count):  # the last ones repeat the first: every worker runs the same number of forwards
        at = place if place < len(trajectories) else 0
        row = StoredRow(f"{name}_{place}_0", prompts[at], trajectories[at], 0.0, {})
        columns = tokens_of(row)
        samples.append({column: columns[column] for column in NEEDED})
        tags.append({"seq_len": len(columns["input_ids"])})
    keys = [f"{name}_{place}_0" for place in range(count)]
    tq.kv_batch_put(keys=keys, partition_id=PARTITION, fields=list_of_dict_to_tensordict(samples), tags=tags)
    try:
        temperature = model.rollout.temperature
        about = {"calculate_entropy": True, "compute_loss": False, "temperature": temperature}
        workers.compute_log_prob(KVBatchMeta(keys=keys, tags=tags, partition_id=PARTITION, extra_info=about))
        fields = ["log_probs", "entropy", "response_mask"]
        data = tq.kv_batch_get(keys=keys[: len(trajectories)], partition_id=PARTITION, select_fields=fields)
        logps, entropies = (
            response_from_nested(data[column], data["response_mask"]).unbind(0) for column in ("log_probs", "entropy")
        )
    finally:
        tq.kv_clear(keys=keys, partition_id=PARTITION)
    return [
        replace(PolicyStats.of_tokens(now.float().numpy(), t.behaviour_logps), entropy=float(entropy.float().mean()))
        for now, entropy, t in zip(logps, entropies, trajectories, strict=True)
    ]
