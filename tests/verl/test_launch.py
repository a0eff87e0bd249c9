"""verl's own entry point, on a CPU: Ray, the transfer queue, FSDP2 over gloo, agent and reward loops, and checkpoints.

A launch takes over a minute before its first step, so each is made once and looked at by several tests.
"""

import os
import signal
import time

import pytest
import torch

from exgrpo.log import LogReader
from tests.verl.support import launch, logged, start

RANKS = 2
RUN = {
    "reward__custom_reward_function__name": "lucky", "actor_rollout_ref__actor__optim__lr": 1e-2,
    "trainer__total_training_steps": 5, "trainer__save_freq": 2,
}  # fmt: skip


def ran(done, folder):
    assert done == 0, folder.with_suffix(".log").read_text()[-4000:]
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("verl")


@pytest.fixture(scope="module")
def still(root):
    """At learning rate 0."""
    done = launch(root / "still", RANKS, **RUN | {"actor_rollout_ref__actor__optim__lr": 0.0})
    return ran(done, root / "still")


@pytest.fixture(scope="module")
def whole(root):
    return ran(launch(root / "whole", RANKS, **RUN), root / "whole")


@pytest.fixture(scope="module")
def killed(root):
    """Killed after its third step, which no checkpoint holds, and resumed."""
    folder = root / "killed"
    process, log = start(folder, RANKS, **RUN)
    try:
        while process.poll() is None and len(logged(folder)) < 3:
            time.sleep(0.5)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.close()
    assert (folder / "latest_checkpointed_iteration.txt").read_text() == "2"
    deadline = time.monotonic() + 120
    while not _is_free(folder) and time.monotonic() < deadline:
        time.sleep(1)
    return ran(launch(folder, RANKS, **RUN), folder)


def _is_free(folder) -> bool:
    """Whether the driver, which was killed with everything else, has let go of the log."""
    from exgrpo.log.connection import WriterLock

    lock = WriterLock(folder / "experience.db")
    try:
        lock.acquire()
    except OSError:
        return False
    lock.release()
    return True


def events(folder):
    with LogReader(folder / "experience.db") as reader:
        position = reader.position()
        found = {}
        for table in ("observation", "replay", "retirement"):
            spans = reader.lineage(position)
            columns = [row[1] for row in reader.rows(f"PRAGMA table_info({table})")]
            wanted = [
                c for c in ("step", "question", "successes", "scorable", "unscorable", "replayed") if c in columns
            ]
            found[table] = [
                row
                for span in spans
                for row in reader.rows(
                    f"SELECT {', '.join(wanted)} FROM {table} WHERE branch = ? AND seq <= ? ORDER BY seq",
                    (span.branch, span.last),
                )
            ]
        found["experience"] = list(reader.rows("SELECT key, step, length, rewards FROM experience ORDER BY id"))
        return found


def test_at_learning_rate_0_replayed_tokens_have_a_ratio_of_1_at_every_step(still):
    rows = [row["data"] for row in logged(still)]
    assert len(rows) == 5
    replayed = [row for row in rows if row.get("replay/injected")]
    assert len(replayed) >= 2
    for row in replayed:
        assert row["replay/ratio_mean"] == pytest.approx(1.0, abs=1e-5)
        assert row.get("replay/log_ratio_mean", 0.0) == pytest.approx(0.0, abs=1e-5)
        assert row["replay/ess"] == pytest.approx(1.0, abs=1e-5)


def test_every_group_is_k_rows_and_k_minus_1_fresh_ones_where_it_is_replayed(whole):
    found = events(whole)["observation"]
    assert len(found) == 8 * 5
    for _, _, _, scorable, unscorable, replayed in found:
        assert scorable + unscorable == (3 if replayed else 4)
    assert any(row[-1] for row in found)


def test_a_killed_and_resumed_run_has_the_events_of_an_uninterrupted_one(whole, killed):
    assert events(killed) == events(whole)
    ours, theirs = ({row["step"]: row["data"] for row in logged(folder)} for folder in (killed, whole))
    for step in (3, 4, 5):  # the resumed run logs anew
        for name in ("reward", "fresh/entropy", "replay/size", "fresh/generated_tokens"):
            assert ours[step][name] == pytest.approx(theirs[step][name], rel=1e-5), (step, name)


def test_without_replay_the_parameters_are_those_of_stock_verl(root):
    size = {**RUN, "trainer__total_training_steps": 3, "trainer__save_freq": 3}
    nothing = {
        "exgrpo__start_pass_at_1": None, "trainer__v1__sampler__custom_sampler__path": "pkg://tests.verl.ordered",
        "trainer__v1__sampler__custom_sampler__name": "Ordered",
    }  # fmt: skip
    ran(launch(root / "ours", 1, **size, **nothing, exgrpo__preset="on-policy"), root / "ours")
    stock = {**nothing, "exgrpo__replay_metrics": None, "trainer__v1__trainer_mode": "sync"}
    ran(launch(root / "stock", 1, **size, **stock), root / "stock")
    parameters = [  # DTensors, which weights_only refuses; the files are those that this test has just made
        torch.load(root / name / "global_step_3" / "actor" / "model_world_size_1_rank_0.pt", weights_only=False)
        for name in ("ours", "stock")
    ]
    for name, value in parameters[0].items():
        ours, theirs = (getattr(v, "to_local", lambda v=v: v)() for v in (value, parameters[1][name]))
        assert torch.equal(ours, theirs), name
