"""A real vLLM on CPUs whose weights can be replaced, in the trainer's process or as a server; and what it was asked for.

Installed in vLLM's own way, as a plugin that every process of it loads: `metadata` writes the folder that names it.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from urllib.request import urlopen

from tests.support import launch

ROOT = Path(__file__).parents[2]
VERSION = "0.31.0+cpu"


def metadata(folder: Path) -> str:
    """A folder for PYTHONPATH that names `vllm`, which the package for CPUs calls otherwise, and the plugin."""
    info = folder / f"vllm-{VERSION}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nexgrpo_tests = tests.support.engine:keep_weights\n")
    return str(folder)


def environment(folder: Path) -> dict[str, str]:
    """What a process with vLLM needs in its environment."""
    return {
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1", "TORCHDYNAMO_DISABLE": "1", "VLLM_SERVER_DEV_MODE": "1", "VLLM_LOGGING_LEVEL": "WARNING",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), metadata(folder)]),
    }  # fmt: skip


def keep_weights() -> None:
    """Let linear layers keep their weights: on CPUs vLLM packs them at load, and nothing could be loaded after that."""
    from torch.nn.functional import linear
    from vllm.model_executor.layers import utils

    def dispatch(layer, remove_weight=False):
        layer.cpu_linear = linear

    utils.dispatch_cpu_unquantized_gemm = dispatch


def policy(folder: Path, certainty: float = 1.0) -> str:
    """Save a tiny model, its logits times `certainty`, and its tokenizer: an engine begins with a folder. Heads are of 32, the
    least that vLLM has."""
    from tests.support.policies import tiny_model, tiny_tokenizer

    model = tiny_model(width=64)
    model.lm_head.weight.data *= certainty
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


def on_cpus() -> None:
    """Let TRL's colocated engine compute as the trainer does, once for all trainers of a process; and its client of a server
    hand weights over by a file, since NCCL needs a GPU."""
    from safetensors.torch import save_file
    from trl.generation import vllm_client, vllm_generation

    if isinstance(vllm_generation.LLM, type):
        made = cache(vllm_generation.LLM)
        vllm_generation.LLM = lambda **options: made(dtype="float32", enforce_eager=True, **options)

    def send(client, metadata, named_params):
        folder = Path(client.model)
        tensors = {name: value.detach().clone().contiguous() for name, value in named_params}
        assert [name for name, *_ in metadata] == list(tensors)
        save_file(tensors, folder / "new", metadata={"format": "pt"})
        (folder / "new").rename(folder / "model.safetensors")
        client._post(f"{client.base_url}/collective_rpc", json={"method": "reload_weights"})

    vllm_client.VLLMClient.init_communicator = lambda client, device: None
    vllm_client.VLLMClient.update_named_params = send


def watch(trainer, synced: bool) -> list[dict]:
    """Note what the engine of a trainer is asked for, and what it answers; without `synced` it keeps its first weights."""
    engine, calls = trainer.vllm_generation, []
    generate = engine.generate

    def noted(prompts, images, num_generations, profiler=None):
        answer = generate(prompts, images, num_generations, profiler)
        tokens = [len(ids) for ids in answer[1]]
        assert len(tokens) == len(prompts)
        calls.append({"rows": len(prompts), "together": num_generations, "tokens": tokens})
        return answer

    engine.generate = noted
    if not synced:
        engine.sync_weights = lambda: None
    return calls


def said(trainer, calls: list[dict]) -> dict:
    """What is known of the engine after a run: its calls, and how far its log-probs were from the trainer's, by step."""
    logs = [log for log in trainer.state.log_history if "sampling/sampling_logp_difference/max" in log]
    return {
        "calls": calls,
        "difference": [log["sampling/sampling_logp_difference/max"] for log in logs],
        "ratio": [
            [log[f"sampling/importance_sampling_ratio/{name}"] for name in ("min", "mean", "max")] for log in logs
        ],
    }


@contextmanager
def serving(folder: str, output: Path, variables: dict[str, str], limit: float = 600) -> Iterator[str]:
    """A server of the model in a folder; its address. It takes its weights from there again when it is told."""
    port = launch.free_port()
    address = f"http://127.0.0.1:{port}"
    command = [
        sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", folder, "--host", "127.0.0.1", "--port", str(port),
        "--dtype", "float32", "--enforce-eager", "--max-model-len", "64", "--max-num-seqs", "32",
        "--logprobs-mode", "processed_logprobs", "--weight-transfer-config", '{"backend": "nccl"}',
    ]  # fmt: skip
    with open(output, "w") as log:
        run = subprocess.Popen(
            command, env=launch.environment(**variables), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            until = time.monotonic() + limit
            while not answers(address):
                if run.poll() is not None or time.monotonic() > until:
                    raise AssertionError(f"the server is not up:\n{output.read_text()[-6000:]}")
                time.sleep(1)
            yield address
        finally:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()


def answers(address: str) -> bool:
    try:
        return urlopen(f"{address}/health", timeout=5).status == 200
    except OSError:
        return False
