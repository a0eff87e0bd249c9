"""Two ranks under gloo: the same experience on each, and the same as one rank's; nothing hangs."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

WORKER = Path(__file__).with_name("worker.py")
HARNESS = Path(__file__).parents[1] / "trl"


def launch(output: Path, world: int, **options) -> list[dict]:
    output.mkdir(parents=True)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(HARNESS), "CUDA_VISIBLE_DEVICES": "",
        "MASTER_ADDR": "127.0.0.1",
    }  # fmt: skip
    run = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(world), "--master_addr", "127.0.0.1",
            "--master_port", str(port), str(WORKER), str(output), json.dumps(options),
        ],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-4000:]
    results = [json.loads((output / f"rank-{rank}.json").read_text()) for rank in range(world)]
    assert all(result["world"] == world for result in results)
    return results


def difference(a: dict, b: dict) -> float:
    return max(float(np.max(np.abs(np.subtract(a[name], b[name])))) for name in a)


COMMON = dict(max_steps=6, start_pass_at_1=0.0, learning_rate=1e-3, logging_steps=1)


@pytest.mark.parametrize(
    ("options", "one", "two"),
    [
        ({"preset": "exgrpo"}, {"per_device_train_batch_size": 32}, {"per_device_train_batch_size": 16}),
        ({"preset": "rescue"}, {"per_device_train_batch_size": 32}, {"per_device_train_batch_size": 16}),
        # groups of 8 over 12 rows a rank: the second group straddles the ranks
        (
            {"preset": "exgrpo", "num_generations": 8, "entropy_refresh": "exact"},
            {"per_device_train_batch_size": 24},
            {"per_device_train_batch_size": 12},
        ),
        (
            {"preset": "rescue", "num_generations": 8, "trajectory_choice": "lowest_entropy", "questions": 12},
            {"per_device_train_batch_size": 24},
            {"per_device_train_batch_size": 12},
        ),
        (
            {"preset": "exgrpo", "loss_type": "dapo"},
            {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4},
            {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2},
        ),
    ],
    ids=["exgrpo", "rescue", "straddling", "rescue-straddling", "dapo-accumulated"],
)
def test_two_ranks_do_what_one_does(tmp_path, options, one, two):
    """Scripted completions, one optimizer step a generation: the same events, the same parameters to float tolerance."""
    [single] = launch(tmp_path / "one", 1, scripted=True, **COMMON, **options, **one)
    first, second = launch(tmp_path / "two", 2, scripted=True, **COMMON, **options, **two)
    assert first["fingerprint"] == second["fingerprint"]
    assert first["parameters"] == second["parameters"]
    assert first["events"] == second["events"] == single["events"]
    assert any(event[0] == "replayed" for event in single["events"])
    assert any(event[0] == "retired" for event in single["events"])
    assert first["generated_tokens"] == single["generated_tokens"]
    for a, b in zip(single["behaviour"], first["behaviour"], strict=True):
        np.testing.assert_allclose(a, b, atol=2e-4)
    assert difference(single["parameters"], first["parameters"]) < 2e-4
    for a, b in zip(single["logs"], first["logs"], strict=True):
        assert a.keys() == b.keys()
        for name, value in a.items():
            assert value == pytest.approx(b[name], abs=1e-3, nan_ok=True), name


@pytest.mark.parametrize("preset", ["exgrpo", "rescue"])
def test_real_sampling_leaves_both_ranks_alike(tmp_path, preset):
    first, second = launch(
        tmp_path / "two", 2, scripted=False, preset=preset, per_device_train_batch_size=16, **COMMON,
    )  # fmt: skip
    assert first["fingerprint"] == second["fingerprint"]
    assert first["parameters"] == second["parameters"]
    assert first["events"] == second["events"]
    assert any(event[0] == "admitted" for event in first["events"])


def test_a_rank_with_nothing_to_generate_does_not_hang(tmp_path):
    """K = 2 with one row a rank, everything replayed: the second rank holds only stored trajectories [FAULTS 28]."""
    options = {**COMMON, "num_generations": 2, "per_device_train_batch_size": 1, "replay_share": 1.0, "max_steps": 12}
    first, second = launch(
        tmp_path / "two", 2, scripted=True, count_calls=True, questions=4, retirement="never", **options
    )
    assert first["events"] == second["events"]
    replays = sum(event[0] == "replayed" for event in first["events"])
    assert replays >= 3
    calls = [len((tmp_path / "two" / f"calls-{rank}.txt").read_text().split()) for rank in (0, 1)]
    assert calls == [12, 12 - replays]
