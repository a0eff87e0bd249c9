"""Continuous batching of transformers: only fresh rows are asked for, and each completion is of its own prompt."""

import pytest

from tests.support.launch import launch_all
from tests.support.runs import COMMON

pytestmark = [pytest.mark.slow, pytest.mark.sharded]

PAGES = {"num_blocks": 64, "max_batch_tokens": 256, "block_size": 32}
RUN = {**COMMON, "scripted": False, "temperature": 0.001, "max_steps": 4, "learning_rate": 0.0, "retirement": "never",
       "admission": "all"}  # fmt: skip
BATCHED = {"use_transformers_continuous_batching": True, "transformers_continuous_batching_config": PAGES}


@pytest.mark.parametrize("world", [1, 2])
def test_it_does_what_generate_does(tmp_path, world):
    """Close to greedy, so that a completion follows from its prompt (but for a tie): each is among those of its question."""
    run = {**RUN, "per_device_train_batch_size": 32 // world}
    [(plain, batched), *_] = ranks = launch_all(tmp_path / "out", world, [run, {**run, **BATCHED}])
    expected, found = completions_of(plain), completions_of(batched)
    assert expected.keys() == found.keys()
    assert len({ids for of_question in expected.values() for ids in of_question}) > 15  # another order would be seen
    strange = [question for question, of_question in found.items() if not of_question & expected[question]]
    assert len(strange) <= 1
    for of_rank in ranks:
        assert any(event[0] == "replayed" for event in of_rank[1]["events"])
        assert of_rank[1]["fingerprint"] == batched["fingerprint"]


def completions_of(result) -> dict[int, set[tuple[int, ...]]]:
    found: dict[int, set[tuple[int, ...]]] = {}
    for event in result["events"]:
        if event[0] == "admitted":
            found.setdefault(event[2], set()).add(tuple(event[5]))
    return found
