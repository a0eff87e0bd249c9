"""A real vLLM, on CPUs, in the trainer's processes and as a server: its log-probs are the trainer's at every step."""

from collections import Counter
from importlib.util import find_spec

import pytest

from tests.support import engine
from tests.support.launch import launch_all
from tests.support.runs import COMMON, SAVING

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

CLOSE = 1e-4
ROWS = 32
SAMPLED = {
    **COMMON, "scripted": False, "learning_rate": 1e-2, "use_vllm": True, "vllm_mode": "colocate",
    "vllm_max_model_length": 64, "per_device_train_batch_size": ROWS,
}  # fmt: skip
LIKELIEST = {**SAMPLED, "temperature": 0.01, "learning_rate": 0.0, "admission": "all", "retirement": "never"}
FEW = {"rare": True, "questions": 8, "retirement": "never", "learning_rate": 1e-3, "max_steps": 8}
"""The same few questions again, most of them failed: whatever is sampled, something is replayed."""
RESCUED = {**FEW, "preset": "rescue"}
HALF = {**SAMPLED, "per_device_train_batch_size": ROWS // 2}


@pytest.fixture(scope="session", autouse=True)
def installed():
    if find_spec("vllm") is None:
        pytest.fail("vLLM is not installed: run these tests by `make test-vllm`, which installs it")


@pytest.fixture(scope="session")
def around(tmp_path_factory):
    """A model's folder, and what processes need in their environment."""
    folder = tmp_path_factory.mktemp("vllm")
    return engine.policy(folder / "model"), engine.environment(folder / "metadata")


def launched(folder, world, jobs, around):
    """What each rank says of each job, by its name."""
    model, variables = around
    named = [{"model": model, **job} for job in jobs.values()]
    ranks = launch_all(folder / "out", world, named, **variables)
    return {name: [results[place] for results in ranks] for place, name in enumerate(jobs)}


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory, around):
    folder = tmp_path_factory.mktemp("one")
    saving = {**SAMPLED, **SAVING, "run": f"{folder}/run"}
    jobs = {
        "not synced": {**SAMPLED, "synced": False},  # first: the engine begins with the weights of its folder
        "exgrpo": saving,
        "resumed": {**saving, "resume": f"{folder}/run/checkpoint-4"},
        "rescue": {**SAMPLED, **RESCUED},
        "rehearsal": {**SAMPLED, "preset": "rehearsal"},
    }
    sure = engine.policy(folder / "sure", certainty=30.0)
    jobs["generate"] = {**LIKELIEST, "use_vllm": False, "model": sure}
    jobs["vLLM as generate"] = {**LIKELIEST, "model": sure}
    return {name: result for name, [result] in launched(folder, 1, jobs, around).items()}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory, around):
    folder = tmp_path_factory.mktemp("two")
    saving = {**HALF, **SAVING, "run": f"{folder}/run", "backend": "fsdp full"}
    jobs = {
        "not synced": {**HALF, "synced": False},
        "exgrpo": HALF,
        "rescue": {**HALF, **RESCUED},
        "FSDP2": saving,
        "FSDP2, resumed": {**saving, "resume": f"{folder}/run/checkpoint-4"},
        "LoRA": {**HALF, "lora": True},
        # everything is replayed: one completion of a pair is fresh, and where two ranks share a pair one has none
        "nothing to generate": {
            **HALF, "per_device_train_batch_size": 1, "num_generations": 2, "replay_share": 1.0, "max_steps": 12,
            "questions": 4, "retirement": "never",
        },
    }  # fmt: skip
    return launched(folder, 2, jobs, around)


@pytest.fixture(scope="module")
def served(tmp_path_factory, around):
    """What a server samples depends on when requests arrive: no two runs are alike."""
    folder = tmp_path_factory.mktemp("served")
    own = engine.policy(folder / "model")  # it is written to
    with engine.serving(own, folder / "server.txt", around[1]) as address:
        run = {
            **HALF, "vllm_mode": "server", "vllm_server_base_url": address, "vllm_server_timeout": 60.0,
        }  # fmt: skip
        jobs = {
            "not synced": {**run, "synced": False},
            "exgrpo": {**run, **FEW},
            "rescue": {**run, **RESCUED},
            "FSDP2": {**run, **FEW, "backend": "fsdp full"},
        }
        return launched(folder, 2, jobs, around)


def replayed(result) -> Counter:
    """Stored completions, by generation."""
    return Counter(event[1] for event in result["events"] if event[0] == "replayed")


def check_close(result):
    """The engine's log-probs are the trainer's at every step, those of replayed completions are no part of it."""
    said = result["engine"]
    assert len(said["difference"]) == len(said["calls"]) == result["step"]
    assert max(said["difference"]) < CLOSE
    assert max(abs(ratio - 1) for ratios in said["ratio"] for ratio in ratios) < 10 * CLOSE
    assert sum(replayed(result).values()) >= 3


def check_asked(ranks, filled=False):
    """Only fresh rows were asked for, and what was generated was counted."""
    taken = replayed(ranks[0])
    for generation in range(ranks[0]["step"]):
        calls = [result["engine"]["calls"][generation] for result in ranks]
        rows = sum(call["rows"] for call in calls)
        assert rows >= ROWS - taken[generation] if filled else rows == ROWS - taken[generation]
        assert {call["together"] for call in calls} == ({1} if taken[generation] and filled else {4})
    tokens = sum(sum(call["tokens"]) for result in ranks for call in result["engine"]["calls"])
    assert ranks[0]["generated_tokens"] <= tokens if filled else ranks[0]["generated_tokens"] == tokens


def check_same(ranks):
    for result in ranks:
        assert result["fingerprint"] == ranks[0]["fingerprint"]
        assert result["generated_tokens"] == ranks[0]["generated_tokens"]
        assert result["parameters"] == ranks[0]["parameters"]


def check_unsynced(result):
    """Without the weights the same figure says so: these tests can fail."""
    assert result["engine"]["difference"][0] < CLOSE  # the weights that both began with
    assert max(result["engine"]["difference"]) > 100 * CLOSE


def check_resumed(whole, again):
    for what in ("fingerprint", "parameters", "optimizer", "generated_tokens", "rng", "step"):
        assert whole[what] == again[what], what
    calls = again["engine"]["calls"]
    assert calls == whole["engine"]["calls"][-len(calls) :]
    assert len(calls) == 4


@pytest.mark.parametrize("name", ["exgrpo", "rescue", "rehearsal"])
def test_colocated_log_probs_are_the_trainers(one_rank, name):
    check_close(one_rank[name])


def test_without_the_weights_they_are_not(one_rank, two_ranks):
    check_unsynced(one_rank["not synced"])
    check_unsynced(two_ranks["not synced"][0])


def test_only_fresh_rows_are_generated(one_rank):
    check_asked([one_rank["exgrpo"]])


def test_vllm_does_what_generate_does(one_rank):
    """Close to greedy, so that a completion follows from its prompt: the same events, and tokens counted alike."""
    plain, engine = one_rank["generate"], one_rank["vLLM as generate"]
    assert engine["events"] == plain["events"]
    assert engine["generated_tokens"] == plain["generated_tokens"]
    assert sum(replayed(plain).values()) >= 3


def test_resuming_gives_the_whole_run(one_rank, two_ranks):
    check_resumed(one_rank["exgrpo"], one_rank["resumed"])
    for whole, again in zip(two_ranks["FSDP2"], two_ranks["FSDP2, resumed"], strict=True):
        check_resumed(whole, again)


@pytest.mark.parametrize("name", ["exgrpo", "rescue", "FSDP2", "LoRA", "nothing to generate"])
def test_two_ranks_colocated(two_ranks, name):
    ranks = two_ranks[name]
    check_same(ranks)
    check_close(ranks[0])
    assert {result["held"] for result in ranks} == {"DTensor" if name == "FSDP2" else "whole"}
    if name in ("exgrpo", "FSDP2", "LoRA"):
        check_asked(ranks)


@pytest.mark.parametrize("name", ["exgrpo", "rescue", "FSDP2"])
def test_served(served, name):
    ranks = served[name]
    check_same(ranks)
    check_close(ranks[0])
    if name != "rescue":
        check_asked(ranks, filled=True)


def test_served_without_the_weights(served):
    check_unsynced(served["not synced"][0])
