"""Processes that hold no tokens follow the main one by its events: the same index, for less than 100 bytes a row."""

import pickle  # events reach other processes by it

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.config import ReplayConfig
from exgrpo.experience.events import Admitted, Stored
from exgrpo.experience.policy_stats import PolicyStats
from exgrpo.experience.replayed import snapshot_of
from exgrpo.experience.trajectory import Trajectory
from exgrpo.replay import FreshStream, ReplayPlanner
from exgrpo.runtime.following import follow, told
from exgrpo.runtime.shared_store import heads_of

QUESTIONS, ROWS = 12, 128


def planner(**options):
    config = ReplayConfig(**{"capacity": 40, "capacity_per_question": 4, **options})
    return ReplayPlanner(config, FreshStream(lambda p: np.arange(QUESTIONS), QUESTIONS), 4, 0, listener=[].append)


def trajectory(rng):
    """One of few, with values that a table rounds."""
    length = int(rng.integers(1, 4))
    return Trajectory(
        int(rng.integers(QUESTIONS)), rng.integers(0, 3, length), -rng.exponential(9.0, length), [1.0, np.nan],
        int(rng.integers(9)), entropy=float(rng.choice([np.nan, rng.exponential()])), advantage=float(rng.normal() * 1e6),
        correct=bool(rng.integers(2)),
    )  # fmt: skip


@given(seed=st.integers(0, 2**32 - 1), rounds=st.integers(1, 5))
def test_who_follows_has_the_same_index(seed, rounds):
    rng, main, other = np.random.default_rng(seed), planner(), planner()
    for number in range(rounds):
        with told(main) as events:
            main.admit([trajectory(rng) for _ in range(20)])
            slots = main.buffer.live_slots()[:3]
            main.buffer.update_stats(slots, [PolicyStats(*rng.exponential(1.0, 5)) for _ in slots], number)
        follow(other, pickle.loads(pickle.dumps(events)))
        ours, theirs = snapshot_of(main.buffer), snapshot_of(other.buffer)
        for name, values in ours.items():
            np.testing.assert_array_equal(theirs[name], values, err_msg=name, strict=True)


def test_another_process_gets_less_than_100_bytes_a_row():
    rng = np.random.default_rng(0)
    new = [
        Trajectory(i % QUESTIONS, rng.integers(0, 9, 50), -rng.exponential(1, 50), [1.0, 0.5], 3) for i in range(ROWS)
    ]
    main = planner(capacity=ROWS, capacity_per_question=ROWS)
    with told(main) as events:
        main.admit(new)
    assert [type(event) for event in events] == [Stored]
    assert len(pickle.dumps(events)) < 70 * ROWS
    assert len(pickle.dumps(heads_of(new))) < 70 * ROWS
    assert not any(isinstance(event, Admitted) for event in events)
