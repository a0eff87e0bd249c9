"""FSDP2 on two ranks, its parameters asserted to be DTensor: what one rank does, and bit-equal when resumed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from exgrpo.runtime.checkpoint import how_to_take_weights
from tests.support.launch import launch_all
from tests.support.runs import SCRIPTED, check_alike, check_resumed, resumed_jobs, scripted_jobs

pytestmark = [pytest.mark.slow, pytest.mark.sharded]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    jobs = scripted_jobs(2, backend="fsdp full")
    return launch_all(tmp_path_factory.mktemp("fsdp"), 2, jobs)


@pytest.mark.parametrize("name", SCRIPTED)
def test_two_ranks_do_what_one_does(one_rank, runs, name):
    ranks = [results[list(SCRIPTED).index(name)] for results in runs]
    assert [result["held"] for result in ranks] == ["DTensor"] * 2
    check_alike(name, one_rank[name], ranks)


@pytest.mark.parametrize("state", ["full", "sharded"])
def test_resuming_is_bit_equal(tmp_path, state):
    ranks = launch_all(tmp_path / "out", 2, resumed_jobs(tmp_path, backend=f"fsdp {state}"))
    assert all(result["held"] == "DTensor" for results in ranks for result in results[:-1])
    check_resumed(ranks)
    if state == "sharded":
        parameters = ranks[0][0]["parameters"]
        weights_start_another_run(tmp_path / "run-0" / "checkpoint-8", tmp_path / "merged", parameters)


def weights_start_another_run(checkpoint, folder, parameters) -> None:
    """What the messages say of sharded weights is true: merged, they are those of the run."""
    said = how_to_take_weights(str(checkpoint))
    command = re.search("`(.*) FOLDER`", said).group(1).split()
    assert command[:2] == ["accelerate", "merge-weights"]
    tool = Path(sys.executable).with_name("accelerate")
    subprocess.run([tool, *command[1:], str(folder)], check=True, capture_output=True)
    found = load_file(folder / "model.safetensors")
    assert found.keys() == parameters.keys()
    for name, values in parameters.items():
        assert found[name].flatten().tolist() == values, name
