"""Launch several processes of `worker.py`, on one node or on several, and read what each of them says.

Jobs of one kind go into one launch: starting a process takes longer than most jobs.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORKER = ROOT / "tests" / "support" / "worker.py"
LIMIT = 1200
"""Seconds without a step after which a launch counts as hung; before, every process writes where it stands to its stderr."""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def environment(**more: str) -> dict[str, str]:
    return {
        **os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "MASTER_ADDR": "127.0.0.1", "DUMP_TRACEBACK_AFTER": str(LIMIT - 60), **more,
    }  # fmt: skip


def start(output: Path, jobs: list[dict], world: int, nodes: int = 1, node: int = 0, port: int = 0, **more: str):
    """Start the processes of one node; `world` of them."""
    output.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(world), "--nnodes", str(nodes),
        "--node_rank", str(node), "--master_addr", "127.0.0.1", "--master_port", str(port or free_port()), str(WORKER),
        str(output), json.dumps(jobs),
    ]  # fmt: skip
    return subprocess.Popen(
        command, env=environment(**more), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def finish(run: subprocess.Popen, output: Path) -> str:
    """Wait for processes to end; what they wrote to stderr. All that hang are ended, and it is said where they stood."""
    began = time.time()
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return run.communicate(timeout=10)[1]
            latest = max([began, *(file.stat().st_mtime for file in output.glob("alive-*"))])
            if time.time() - latest > LIMIT:
                run.terminate()  # torchrun ends its workers, which are no members of its group
                said = run.communicate(timeout=90)[1]
                raise AssertionError(f"no step for {LIMIT} s:\n{said[-12000:]}")
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)


def results(output: Path, world: int) -> list[list[dict]]:
    ranks = [json.loads((output / f"rank-{rank}.json").read_text()) for rank in range(world)]
    assert all(result["world"] == world for jobs in ranks for result in jobs)
    return ranks


def launch_all(output: Path, world: int, jobs: list[dict], **more: str) -> list[list[dict]]:
    """Jobs one after the other in the same processes; what each rank says of each."""
    run = start(output, jobs, world, **more)
    said = finish(run, output)
    assert run.returncode == 0, said[-6000:]
    return results(output, world)


def launch_nodes(output: Path, jobs_of_node: list[list[dict]]) -> tuple[list[list[dict]], list[str]]:
    """One process on each of several nodes, every node with jobs of its own (it sees other folders, say).

    Returns:
        What each rank says of each job, none where they failed; and what each node wrote to stderr.
    """
    port, nodes = free_port(), len(jobs_of_node)
    runs = [start(output, jobs, 1, nodes, node, port) for node, jobs in enumerate(jobs_of_node)]
    said = [finish(run, output) for run in runs]
    ended = all(run.returncode == 0 for run in runs)
    return (results(output, nodes) if ended else []), said
