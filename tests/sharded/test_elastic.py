"""Resume on another number of processes, under FSDP2: from what was saved whole, and from what was saved in parts."""

import pytest

from tests.support.launch import launch_all
from tests.support.runs import COMMON

pytestmark = [pytest.mark.slow, pytest.mark.sharded]

STATES = ("full", "sharded")
RUN = {**COMMON, "max_steps": 8, "save_strategy": "steps", "save_steps": 4, "scripted": True}


def saved(folder, world) -> list[dict]:
    size = {"per_device_train_batch_size": 32 // world}
    return [{**RUN, **size, "backend": f"fsdp {state}", "run": f"{folder}/{world}-{state}"} for state in STATES]


def resumed(folder, before, world) -> list[dict]:
    size = {"per_device_train_batch_size": 32 // world}
    return [
        {**job, **size, "resume": f"{job['run']}/checkpoint-4", "run": f"{folder}/{before}-{world}-{state}",
         "experience_log": f"{job['run']}/experience.db"}
        for state, job in zip(STATES, saved(folder, before), strict=True)
    ]  # fmt: skip


def test_another_number_of_processes_goes_on_alike(tmp_path):
    """Completions are scripted: what happens after the checkpoint is what happened without a break."""
    two = launch_all(tmp_path / "a", 2, saved(tmp_path, 2))
    [one] = launch_all(tmp_path / "b", 1, [*saved(tmp_path, 1), *resumed(tmp_path, 2, 1)])
    back = launch_all(tmp_path / "c", 2, resumed(tmp_path, 1, 2))
    assert two[0][0]["events"] == one[0]["events"]
    for place in range(len(STATES)):
        for again in (one[len(STATES) + place], *(results[place] for results in back)):
            assert again["held"] == "DTensor"
            assert again["step"] == 8
            assert again["generated_tokens"] == one[place]["generated_tokens"]
        for again in (one[len(STATES) + place], back[0][place]):
            tail = [event for event in again["events"] if event[0] != "Began"]
            assert len(tail) > 30
            whole = [event for event in one[place]["events"] if event[0] != "Began"]
            assert tail == whole[-len(tail) :]
