"""Two nodes, one process each: with an output_dir that both see, and with one of its own each."""

import pytest

from tests.support.launch import launch_nodes
from tests.support.runs import SAVING

pytestmark = [pytest.mark.slow, pytest.mark.sharded]

RUN = {**SAVING, "preset": "exgrpo", "per_device_train_batch_size": 16}


def test_nodes_that_share_a_folder_resume_bit_equal(tmp_path):
    run = {**RUN, "run": str(tmp_path / "run")}
    jobs = [run, {**run, "resume": str(tmp_path / "run" / "checkpoint-3")}]
    ranks, said = launch_nodes(tmp_path / "out", [jobs, jobs])
    assert ranks, said
    for whole, again in ranks:
        assert whole["step"] == again["step"] == 8
        for what in ("fingerprint", "parameters", "optimizer", "generated_tokens", "rng"):
            assert whole[what] == again[what] != [], what
        assert whole["fingerprint"] == ranks[0][0]["fingerprint"]
    assert "nothing can resume from it" not in said[0]


def test_nodes_with_folders_of_their_own_refuse_together(tmp_path):
    """Node 1 would begin anew where node 0 resumes, and wait for it for ever."""
    folders = [str(tmp_path / "one"), str(tmp_path / "other")]
    jobs = []
    for folder, blind in zip(folders, (folders[1], folders[0]), strict=True):
        of_node = {**RUN, "run": folder, "blind_to": blind}
        checks = [
            {"resume": "last"},
            {"resume": f"{folder}/checkpoint-3"},
            {"resume": "nowhere"},
            {"save_on_each_node": True},
        ]
        jobs.append([{**of_node, "max_steps": 4}, *({**of_node, **check, "refused": True} for check in checks)])
    ranks, said = launch_nodes(tmp_path / "out", jobs)
    assert ranks, said
    assert ranks[0][0]["fingerprint"] == ranks[1][0]["fingerprint"]
    assert f"Processes [1] do not see {folders[0]}/checkpoint-1" in said[0]
    for results in ranks:
        last, explicit, nowhere, each = (result["refused"] for result in results[1:])
        assert f"processes [1] of 2 do not see {folders[0]}/checkpoint-4" in last
        assert "output_dir must lie on a file system that all nodes share" in explicit
        assert "the checkpoint nowhere does not exist" in nowhere
        assert "save_on_each_node=True with 2 nodes" in each
