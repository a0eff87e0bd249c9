"""DeepSpeed's ZeRO on two ranks: what one rank does, and bit-equal when resumed."""

from importlib.util import find_spec

import pytest

from tests.support.launch import launch_all
from tests.support.runs import SCRIPTED, check_alike, check_resumed, resumed_jobs, scripted_jobs

pytestmark = [pytest.mark.slow, pytest.mark.sharded]

STAGES = (1, 2, 3)
NOT_HERE = {1: {"LoRA", "evaluated", "nothing to generate"}}
"""Jobs that say nothing new of a stage: ZeRO 1 and 2 hold the parameters alike."""


@pytest.fixture(scope="module", autouse=True)
def installed():
    if find_spec("deepspeed") is None:
        pytest.fail("deepspeed is not installed: run these tests by `make test-sharded`, which installs it")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    jobs = {
        (stage, name): job
        for stage in STAGES
        for name, job in zip(SCRIPTED, scripted_jobs(2, backend=f"zero {stage}"), strict=True)
        if name not in NOT_HERE.get(stage, ())
    }
    ranks = launch_all(tmp_path_factory.mktemp("zero"), 2, list(jobs.values()))
    return {key: [results[place] for results in ranks] for place, key in enumerate(jobs)}


@pytest.mark.parametrize("name", SCRIPTED)
@pytest.mark.parametrize("stage", STAGES)
def test_two_ranks_do_what_one_does(one_rank, runs, stage, name):
    if (stage, name) not in runs:
        assert name in NOT_HERE[stage]
        return
    ranks = runs[stage, name]
    assert [result["held"] for result in ranks] == [f"ZeRO {stage}"] * 2
    check_alike(name, one_rank[name], ranks)


@pytest.mark.parametrize("stage", [2, 3])
def test_resuming_is_bit_equal(tmp_path, stage):
    check_resumed(launch_all(tmp_path / "out", 2, resumed_jobs(tmp_path, backend=f"zero {stage}")))
