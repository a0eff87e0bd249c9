"""What processes send each other over gloo: arrays to the main one and from it, in pieces, whatever each has; errors to all."""

import os
import socket

import numpy as np
import pytest
import torch.multiprocessing as mp
from accelerate import Accelerator

from exgrpo.errors import CheckpointError
from exgrpo.experience.trajectory import Trajectory
from exgrpo.runtime.shared_store import SharedStore, hold
from exgrpo.trl.comm import AccelerateComm

pytestmark = pytest.mark.slow

WORLD = 3
PIECE = 1 << 12
"""Bytes of a piece; what is sent takes several."""


def arrays_of(rank):
    """Something else of each process: more pieces than one, one, nothing."""
    n = (5000, 40, 0)[rank]
    if not n:
        return {}
    return {"ids": np.arange(n, dtype=np.int32) + rank, "right": np.arange(n) % 2 == 0, "none": np.zeros(0, np.float16)}


def same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, strict=True)


def trajectories():
    sizes = (3000, 1, 700, 2)
    return [
        Trajectory(i, np.arange(n) % 50 + i, np.linspace(-2, -1, n), [1.0, np.nan], 7 - i, "length" if i == 1 else "stop")
        for i, n in enumerate(sizes)
    ]  # fmt: skip


class Kept:
    """A store of the main process."""

    def get_many(self, serials):
        return [trajectories()[serial] for serial in serials]


def exchange(rank, port):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    comm = AccelerateComm(Accelerator(cpu=True), at_once=PIECE * WORLD)
    for turned in range(WORLD):  # whoever has nothing, or the most
        parts = comm.to_main(arrays_of((rank + turned) % WORLD))
        assert len(parts) == (0 if rank else WORLD)
        for of_rank, part in enumerate(parts):
            same(part, arrays_of((of_rank + turned) % WORLD))
        dealt = comm.deal(lambda turned=turned: [arrays_of((of_rank + turned) % WORLD) for of_rank in range(WORLD)])
        same(dealt, arrays_of((rank + turned) % WORLD))

    def refuse():
        raise CheckpointError("not today")

    with pytest.raises(CheckpointError, match="not today"):
        comm.deal(refuse)
    hold_what_is_needed(rank, comm)


def hold_what_is_needed(rank, comm):
    """Every process knows of all, and has the tokens of those that it computes."""
    held = SharedStore(comm, None if rank else Kept()).get_many([0, 1, 2, 3])
    wanted = [[0], [3, 0], [2]]
    hold(comm, held, wanted)
    for place, (found, whole) in enumerate(zip(held, trajectories(), strict=True)):
        for name in ("question", "step", "finish_reason", "correct", "measured_at"):
            assert getattr(found, name) == getattr(whole, name), name
        assert len(found) == len(whole)
        np.testing.assert_array_equal(found.rewards, whole.rewards)
        if rank == 0 or place in wanted[rank]:
            np.testing.assert_array_equal(found.completion_ids, whole.completion_ids)
            np.testing.assert_array_equal(found.behaviour_logps, whole.behaviour_logps)
        else:
            with pytest.raises(AttributeError, match="does not hold 'completion_ids'"):
                found.completion_ids  # noqa: B018


def test_what_is_sent_arrives_at_those_who_need_it():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(exchange, (port,), nprocs=WORLD)
