"""What a training step costs over TRL's own trainer in one process, with DDP, FSDP2, ZeRO, LoRA and vLLM; on CPUs.

Usage: python benchmarks/combinations.py [COMBINATION ...] [--rounds 3] [--steps 8] [--warm-up 3]

A tiny Llama, 8 questions of 8 completions of at most 32 tokens, rewards by place: all groups have variance. Both arms take
turns in the same processes, in the other order every other round. A figure is of `steps` steps after `warm_up` ones. ZeRO and
vLLM need the environments of `make test-sharded` and `make test-vllm`: run it with each one's Python. The result of a
combination replaces that of an earlier run.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import RESULTS, save

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.support import engine, launch  # noqa: E402

NAME = "combinations"
COMBINATIONS: dict[str, tuple[int, dict[str, Any]]] = {
    "one process": (1, {}),
    "DDP": (2, {}),
    "FSDP2": (2, {"backend": "fsdp full"}),
    "ZeRO 2": (2, {"backend": "zero 2"}),
    "ZeRO 3": (2, {"backend": "zero 3"}),
    "LoRA, DDP": (2, {"lora": True}),
    "vLLM colocate": (1, {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 64}),
}
"""Processes, and options of `tests/support/worker.py`'s kind."""
ARMS = ("stock", "exgrpo")
ROWS, GENERATIONS, TOKENS, QUESTIONS = 64, 8, 32, 32


# In each process --------------------------------------------------------------------------------------------------------


def by_place(prompts, completions, **kwargs):
    """Half of each group is right, whatever was generated."""
    return [float(place % 2) for place in range(len(prompts))]


def peak() -> int:
    """The most memory that was resident since `forget_peak`, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def run(arm: str, world: int, options: dict[str, Any], model: str, steps: int, warm_up: int) -> dict[str, Any]:
    """Train one arm; processor and wall seconds of its steps, and its peak of memory."""
    import torch
    from tests.support import harness, sharded
    from transformers import AutoModelForCausalLM, TrainerCallback

    from exgrpo.trl import ExGRPOConfig, ExGRPOTrainer
    from trl import GRPOConfig, GRPOTrainer

    class Measured(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            forget_peak()

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == warm_up:
                self.began = time.process_time(), time.perf_counter()
            if state.global_step == warm_up + steps:
                self.cpu, self.wall = (
                    now - then for now, then in zip((time.process_time(), time.perf_counter()), self.began, strict=True)
                )

    sharded.forget()
    options = dict(options)
    options |= sharded.options(backend) if (backend := options.pop("backend", None)) else {}
    more = {}
    if options.pop("lora", False):
        from peft import LoraConfig

        more["peft_config"] = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    if options.get("use_vllm"):
        engine.on_cpus()
    cls, config = (ExGRPOTrainer, ExGRPOConfig) if arm == "exgrpo" else (GRPOTrainer, GRPOConfig)
    options |= {"preset": "exgrpo", "start_pass_at_1": 0.0} if arm == "exgrpo" else {}
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        args = harness.config(
            folder, config, max_steps=warm_up + steps, per_device_train_batch_size=ROWS // world, num_generations=GENERATIONS,
            max_completion_length=TOKENS, ddp_find_unused_parameters=False, **options,
        )  # fmt: skip
        trainer = harness.trainer(
            args, harness.questions(QUESTIONS), AutoModelForCausalLM.from_pretrained(model), reward=by_place, cls=cls, **more
        )  # fmt: skip
        measured = Measured()
        trainer.add_callback(measured)
        trainer.train()
    logs = [log for log in trainer.state.log_history if "loss" in log][warm_up:]
    return {
        "arm": arm,
        "cpu": measured.cpu,
        "wall": measured.wall,
        "peak": peak(),
        "held": sharded.sharded_by(trainer),
        "without_variance": max(log["frac_reward_zero_std"] for log in logs),
        "replayed": statistics.mean(log.get("replay/share", 0.0) for log in logs),
    }


def process(output: Path, world: int, options: dict[str, Any], model: str, rounds: int, steps: int, warm_up: int):
    """All rounds, in this process of several."""
    import torch
    from accelerate import PartialState
    from tests.support import sharded

    torch.set_num_threads(1)
    sharded.fsdp_on_cpus()
    found = []
    for turn in range(rounds):
        for arm in ARMS if turn % 2 == 0 else ARMS[::-1]:
            found.append({"round": turn, **run(arm, world, options, model, steps, warm_up)})
    rank = PartialState().process_index
    (output / f"rank-{rank}.json").write_text(json.dumps(found))
    PartialState().wait_for_everyone()


# The whole --------------------------------------------------------------------------------------------------------------


def measure(name: str, rounds: int, steps: int, warm_up: int) -> dict[str, Any]:
    """Launch the processes of a combination; its figures a step, over all processes (of memory: of the one with the most)."""
    world, options = COMBINATIONS[name]
    with tempfile.TemporaryDirectory() as folder:
        output, model = Path(folder), engine.policy(Path(folder) / "model")
        variables = engine.environment(output / "metadata") if options.get("use_vllm") else {}
        about = json.dumps([str(output), world, options, model, rounds, steps, warm_up])
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(world), "--master_port",
            str(launch.free_port()), __file__, "--process", about,
        ]  # fmt: skip
        done = subprocess.run(command, env=launch.environment(**variables), capture_output=True, text=True, check=False)
        files = [output / f"rank-{rank}.json" for rank in range(world)]
        if not all(file.is_file() for file in files):
            raise SystemExit(f"{name} did not end:\n{done.stderr[-4000:]}")
        ranks = [json.loads(file.read_text()) for file in files]
    arms = {arm: [[row for row in rank if row["arm"] == arm] for rank in ranks] for arm in ARMS}
    cpu = {arm: [sum(row["cpu"] for row in rows) / steps for rows in zip(*arms[arm], strict=True)] for arm in ARMS}
    wall = {arm: [max(row["wall"] for row in rows) / steps for rows in zip(*arms[arm], strict=True)] for arm in ARMS}
    found: dict[str, Any] = {"processes": world, "held": ranks[0][0]["held"], "rounds": rounds, "steps": steps}
    for arm in ARMS:
        rows = [row for rank in arms[arm] for row in rank]
        found[arm] = {
            "cpu": statistics.median(cpu[arm]),
            "wall": statistics.median(wall[arm]),
            "peak": max(row["peak"] for row in rows),
            "without_variance": max(row["without_variance"] for row in rows),
            "replayed": statistics.mean(row["replayed"] for row in rows),
        }
    for what, seconds in (("cpu", cpu), ("wall", wall)):
        over = [ours / theirs for theirs, ours in zip(seconds["stock"], seconds["exgrpo"], strict=True)]
        found[f"{what}_over_stock"] = [statistics.median(over), min(over), max(over)]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="COMBINATION", help=f"of {', '.join(COMBINATIONS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--process", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.process:
        output, *more = json.loads(args.process)
        process(Path(output), *more)
        return 0
    if unknown := set(args.names) - COMBINATIONS.keys():
        parser.error(f"{sorted(unknown)} are none of {', '.join(COMBINATIONS)}")
    path = RESULTS / f"{NAME}.json"
    known = json.loads(path.read_text())["combinations"] if path.is_file() else {}
    for name in args.names or COMBINATIONS:
        known[name] = measure(name, args.rounds, args.steps, args.warm_up)
        save(NAME, "python benchmarks/combinations.py", {"combinations": known})
    return 0


if __name__ == "__main__":
    sys.exit(main())
