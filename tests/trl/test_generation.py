"""Which rows each process generates: fresh ones, and what its backend needs for all processes to stay in step."""

from types import SimpleNamespace

import numpy as np
import pytest

from exgrpo.replay import StepPlan
from exgrpo.runtime.batch import ReplayBatch
from exgrpo.trl.generation import rows_to_generate

K, WORLD = 4, 2
DDP = {}
SHARDED = {"is_fsdp_enabled": True}
ZERO_2, ZERO_3 = ({"zero": SimpleNamespace(zero_stage=stage)} for stage in (2, 3))
BATCHED = {"use_transformers_continuous_batching": True}
COLOCATE = {"use_vllm": True}
SERVER = {"use_vllm": True, "vllm_mode": "server"}
TENSOR_PARALLEL = {"use_vllm": True, "tensor_parallel": 2}

CASES = [
    # replayed groups of two on each rank -> rows of rank 0, rows of rank 1
    (DDP, (), ([0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7])),
    (SERVER, (), ([0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7])),
    (DDP, (0, 1, 2), ([0, 1, 2, 4, 5, 6], [0, 1, 2, 4, 5, 6, 7])),
    (BATCHED, (0, 1, 2), ([0, 1, 2, 4, 5, 6], [0, 1, 2, 4, 5, 6, 7])),
    (ZERO_2, (0, 1, 2), ([0, 1, 2, 4, 5, 6], [0, 1, 2, 4, 5, 6, 7])),
    (SHARDED, (0, 1, 2), ([0, 1, 2, 4, 5, 6], [0, 1, 2, 4, 5, 6, 7])),
    (ZERO_3, (0, 1, 2), ([0, 1, 2, 4, 5, 6], [0, 1, 2, 4, 5, 6, 7])),
    (COLOCATE, (0, 1, 2), ([0, 1, 2, 4, 5, 6], [0, 1, 2, 4, 5, 6, 7])),
    (SERVER, (0, 1, 2), ([0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 4, 5, 6, 7])),  # seven each
    (TENSOR_PARALLEL, (0, 1, 2), ([0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 4, 5, 6, 7])),
    (SHARDED | BATCHED, (0,), ([0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7])),
]


def trainer(zero=None, tensor_parallel=1, **attributes):
    host = {
        "is_fsdp_enabled": False, "use_transformers_continuous_batching": False, "use_vllm": False, "vllm_mode": "colocate",
        **attributes,
    }  # fmt: skip
    state = SimpleNamespace(deepspeed_plugin=zero)
    args = SimpleNamespace(vllm_tensor_parallel_size=tensor_parallel)
    return SimpleNamespace(accelerator=SimpleNamespace(state=state), args=args, **host)


def batch(rank, size, replayed, k=K):
    groups = WORLD * size // k
    replays = tuple(("stored",) if group in replayed else () for group in range(groups))
    plan = StepPlan(0, 0, np.arange(groups), replays, np.isin(np.arange(groups), replayed))
    return ReplayBatch.of_plan(plan, k, rank * size, size)


@pytest.mark.parametrize(("host", "replayed", "expected"), CASES)
def test_rows(host, replayed, expected):
    found = [rows_to_generate(trainer(**host), batch(rank, 8, replayed), WORLD) for rank in range(WORLD)]
    assert found == list(expected)


@pytest.mark.parametrize(
    ("host", "expected"),
    [(DDP, ([0], [])), (SHARDED, ([0], [0])), (COLOCATE, ([0], [0])), (SERVER, ([0], [0])), (ZERO_3, ([0], [0]))],
)
def test_a_process_without_fresh_rows(host, expected):
    """One group of two over two processes: the second holds the stored completion alone."""
    found = [rows_to_generate(trainer(**host), batch(rank, 1, (0,), k=2), WORLD) for rank in range(WORLD)]
    assert found == list(expected)
