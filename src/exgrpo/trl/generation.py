"""Decide which rows a process generates: the fresh ones, and what its backend needs for all processes to stay in step."""

from trl import GRPOTrainer

from ..runtime.batch import ReplayBatch


def is_sharded(trainer: GRPOTrainer) -> bool:
    """Return whether every forward involves all processes, because none holds all parameters."""
    plugin = trainer.accelerator.state.deepspeed_plugin
    return bool(trainer.is_fsdp_enabled or (plugin is not None and plugin.zero_stage == 3))


def gathers_prompts(trainer: GRPOTrainer) -> bool:
    """Return whether several processes generate as one, from equally many prompts each.

    So do vLLM's server and tensor parallelism.
    """
    if not trainer.use_vllm:
        return False
    return bool(trainer.vllm_mode == "server" or trainer.args.vllm_tensor_parallel_size > 1)


def rows_to_generate(trainer: GRPOTrainer, batch: ReplayBatch, world_size: int) -> list[int]:
    """Return the local rows of this process to generate, ascending.

    Completions of stored rows among them are dropped.

    Every process derives the same from the plan, without communication.

    - One model on each process (DDP, ZeRO 1 and 2): the fresh rows, which may be none.
    - A sharded model, or a vLLM engine on each process: at least one, since all processes run the forwards, or send the
      weights, together. `generate` continues until the longest row of all has ended, however many there are.
    - Where the prompts of several processes are gathered: as many as the process with the most fresh rows.
    - Continuous batching of a sharded model: all, as the host does.
    """
    stored, size = batch.local(), batch.size
    if not batch.stored or (is_sharded(trainer) and trainer.use_transformers_continuous_batching):
        return list(range(size))
    fresh = [row for row in range(size) if row not in stored]
    wanted = len(fresh)
    if gathers_prompts(trainer):
        wanted = max(_fresh_rows(batch, rank) for rank in range(world_size))
    if trainer.use_vllm or is_sharded(trainer):
        wanted = max(1, wanted)
    return sorted(fresh + sorted(stored)[: wanted - len(fresh)])


def _fresh_rows(batch: ReplayBatch, rank: int) -> int:
    rows = range(rank * batch.size, (rank + 1) * batch.size)
    return len(rows) - sum(row in rows for row in batch.stored)
