"""Continuous batching of transformers: only fresh rows are asked for, and each completion is of its own prompt."""

import pytest

from tests.support.launch import launch_all
from tests.support.runs import COMMON

pytestmark = [pytest.mark.slow, pytest.mark.sharded]

PAGES = {"num_blocks": 64, "max_batch_tokens": 256, "block_size": 32}
RUN = {**COMMON, "scripted": False, "temperature": 0.01, "max_steps": 4, "learning_rate": 0.0}
BATCHED = {"use_transformers_continuous_batching": True, "transformers_continuous_batching_config": PAGES}


@pytest.mark.parametrize("world", [1, 2])
def test_it_does_what_generate_does(tmp_path, world):
    """Close to greedy, so that a completion follows from its prompt."""
    run = {**RUN, "per_device_train_batch_size": 32 // world}
    ranks = launch_all(tmp_path / "out", world, [run, {**run, **BATCHED}])
    for plain, batched in ranks:
        assert batched["events"] == plain["events"]
        assert batched["generated_tokens"] == plain["generated_tokens"]
        assert any(event[0] == "replayed" for event in batched["events"])
