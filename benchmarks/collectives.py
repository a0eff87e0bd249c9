"""What replay sends between processes in a step: bytes that each gets, time and memory, on gloo; and what follows for many.

Usage: python benchmarks/collectives.py [--ranks 2 4 8] [--rows 64] [--tokens 4096 32768] [--folder FOLDER]

A step of `rows` completions in groups of 8, of which a share is stored; half of the groups hold a replayed one. `to_all` is
what 0.2.0 did: objects gathered by every process, and broadcast to every process.
"""

import argparse
import json
import os
import pickle  # only to count bytes: it is what the hosts send objects by
import resource
import socket
import time
from pathlib import Path

import numpy as np
import torch.distributed as dist
import torch.multiprocessing as mp
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object

from exgrpo.experience.events import Admitted
from exgrpo.experience.trajectory import Trajectory
from exgrpo.runtime.batch import NewRows
from exgrpo.runtime.following import stored
from exgrpo.runtime.row_stats import RowStats
from exgrpo.runtime.shared_store import heads_of, hold, remote
from exgrpo.trl.comm import AccelerateComm

REPLAYED = 16  # one row in so many: half of the groups of 8


def trajectory(row: int, tokens: int) -> Trajectory:
    return Trajectory(row, np.arange(tokens) % 1000, np.full(tokens, -0.5, np.float32), [1.0], 0)


def step(comm: AccelerateComm, rows: int, tokens: int, share: float) -> dict[str, int]:
    """One step's exchange; bytes that this process gets."""
    per = rows // comm.world_size
    mine = range(comm.rank * per, (comm.rank + 1) * per)
    kept = list(mine)[: max(1, int(share * per))]
    stats, ids = RowStats(mine), np.arange(tokens, dtype=np.int32) % 1000
    stats.table["entropy_step"] = 0
    for row in kept:
        stats.add_logps(row, np.full(tokens, -0.5, np.float32))
    new = NewRows(dict.fromkeys(kept, "stop"), dict.fromkeys(kept, ids))
    parts = comm.to_main({**stats.arrays(known=True), **{f"new/{k}": v for k, v in new.arrays().items()}})
    to_main = sum(array.nbytes for part in parts for array in part.values())

    def tell() -> list:
        found = tuple(trajectory(row, 1) for row in range(len(kept) * comm.world_size))
        return [stored(Admitted(np.arange(len(found)), found))]

    events = comm.from_main(tell)
    replayed = [trajectory(row, tokens) for row in range(rows // REPLAYED)] if not comm.rank else []
    heads = comm.from_main(lambda: heads_of(replayed))
    held = replayed or remote(*heads)
    wanted = [
        [place for place in range(rows // REPLAYED) if REPLAYED * place // per == rank]
        for rank in range(comm.world_size)
    ]
    hold(comm, held, wanted)
    dealt = 8 * tokens * len(wanted[comm.rank]) if comm.rank else 0
    told, of_heads = (len(pickle.dumps(what)) if comm.rank else 0 for what in (events, heads))
    return {"to main": to_main, "told": told, "heads": of_heads, "dealt": dealt}


def step_to_all(comm: AccelerateComm, rows: int, tokens: int, share: float) -> dict[str, int]:
    """The same as 0.2.0 did it."""
    kept = max(1, int(share * (rows // comm.world_size)))
    got = gather_object([[trajectory(row, tokens) for row in range(kept)]])
    sent = [[trajectory(row, tokens) for row in range(rows // REPLAYED)] if not comm.rank else None]
    broadcast_object_list(sent)
    return {"to all": 8 * tokens * (sum(map(len, got)) + rows // REPLAYED)}


def work(rank: int, world: int, port: int, options: dict, folder: str) -> None:
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    comm = AccelerateComm(Accelerator(cpu=True))
    found = {}
    exchange = step_to_all if options["to_all"] else step
    exchange(comm, world * REPLAYED, 8, 1.0)  # connections are made once
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = []
    for _ in range(3):
        dist.barrier()
        begin = time.perf_counter()
        found = exchange(comm, options["rows"], options["tokens"], options["share"])
        times.append(time.perf_counter() - begin)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    row = {"rank": rank, "ms": 1e3 * min(times), "grown_mb": grown / 1024, **found}
    Path(folder, f"{rank}.json").write_text(json.dumps(row))
    dist.barrier()
    dist.destroy_process_group()


def measure(world: int, options: dict, folder: Path) -> dict:
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(work, (world, port, options, str(folder)), nprocs=world)
    ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]
    main, others = ranks[0], ranks[1:]
    most = {name: max(other[name] for other in others) for name in main if name != "rank"}
    return {"ranks": world, **options, "main": main, "others at most": most}


def model(ranks: int, rows: int, tokens: int, share: float, bytes_a_second: float) -> dict:
    """What a step comes to: the main process gets 8 bytes a stored token and 112 a row, and sends 8 a replayed token."""
    stored_bytes, replayed = 8 * tokens * rows * share + 112 * rows, 8 * tokens * rows / REPLAYED
    return {
        "ranks": ranks, "rows": rows, "tokens": tokens, "share": share,
        "main gets MB": stored_bytes / 2**20, "main sends MB": replayed / 2**20,
        "main s": (stored_bytes + replayed) / bytes_a_second,
        "another gets MB": (replayed / ranks + rows * (43 * share + 42 / REPLAYED)) / 2**20,
        "another got in 0.2.0, MB": (8 * tokens * rows * (share + 1 / REPLAYED)) / 2**20,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 32768])
    parser.add_argument("--share", type=float, nargs="+", default=[0.25])
    parser.add_argument(
        "--bandwidth", type=float, default=10.0, help="GB/s of the main process's network, for the model"
    )
    parser.add_argument("--folder", type=Path, default=Path("outputs/collectives"))
    args = parser.parse_args()
    rows = []
    for world in args.ranks:
        for tokens in args.tokens:
            for share in args.share:
                for to_all in (False, True):
                    options = {"rows": args.rows, "tokens": tokens, "share": share, "to_all": to_all}
                    rows.append(measure(world, options, args.folder))
                    print(json.dumps(rows[-1]))
    models = [
        model(ranks, 4096, tokens, share, args.bandwidth * 1e9)
        for ranks in (64, 512)
        for tokens in (8192, 32768)
        for share in (0.25, 1.0)
    ]
    for one in models:
        print(json.dumps({name: round(value, 3) for name, value in one.items()}))
    (args.folder / "collectives.json").write_text(json.dumps({"measured": rows, "model": models}, indent=1))


if __name__ == "__main__":
    main()
