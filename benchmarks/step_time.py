"""Time of a training step of ExGRPO over that of TRL's GRPOTrainer, by phase, side by side in one run.

    python benchmarks/step_time.py tiny              # the demo's task: 64 questions of 4
    python benchmarks/step_time.py MODEL_DIRECTORY   # a real model: 4 questions of 4, 24 new tokens, gsm8k-like questions
    python benchmarks/step_time.py tiny --presets    # every preset over `on-policy`

Arms take turns, round after round (A B C A B C ...), each for a few steps of its own run; the learning rate is 0, so that
work does not drift. Figures are medians over rounds of a process's CPU time (`cpu_s`, one thread: unaffected by others on
the machine) and of wall time.
"""

import argparse
import re
import statistics
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from typing import Any

import numpy as np
import torch
from machine import save
from transformers import PrinterCallback, TrainerCallback

from exgrpo import PRESETS
from exgrpo.trl import ExGRPOConfig, ExGRPOTrainer
from trl import GRPOConfig, GRPOTrainer

ARMS = ("stock", "on-policy", "exgrpo", "rescue")
PRESET_ARMS = ("on-policy", *(name for name in PRESETS if name != "on-policy"))
AT_ONCE = dict(start_pass_at_1=0.0, start_epoch=0.0, start_size=0, retirement="never")
"""Over every preset: gates open, and nothing retires, so that the work of all arms is the same from the first step on."""


class Clock:
    """CPU seconds by phase; a phase's own time, without that of phases inside it."""

    def __init__(self):
        self.own: dict[str, float] = defaultdict(float)
        self._stack: list[list] = []

    def wrap(self, owner: Any, method: str, phase: str) -> None:
        inner = getattr(owner, method, None)
        if inner is None:
            return

        def timed(*args, **kwargs):
            self._stack.append([0.0])
            start = time.process_time()
            try:
                return inner(*args, **kwargs)
            finally:
                spent = time.process_time() - start
                [inside] = self._stack.pop()
                self.own[phase] += spent - inside
                if self._stack:
                    self._stack[-1][0] += spent

        setattr(owner, method, timed)


class Steps(TrainerCallback):
    """CPU and wall seconds of each step."""

    def __init__(self):
        self.cpu, self.wall, self._cpu, self._wall = [], [], 0.0, 0.0

    def on_step_begin(self, args, state, control, **kwargs):
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        self.cpu.append(time.process_time() - self._cpu)
        self.wall.append(time.perf_counter() - self._wall)


def tiny_material():
    from exgrpo.tasks import get_task
    from exgrpo.tasks.tiny_policy import warm_policy

    task = get_task("chains")

    def fresh():
        return warm_policy(task, 0)

    sizes = dict(per_device_train_batch_size=256, num_generations=4, max_completion_length=task.max_completion_length)
    return fresh, task.make("train", 2048, 0), task.reward_function, sizes


def model_material(path: str, rows_per_step: int):
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    def fresh():
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), AutoTokenizer.from_pretrained(path)

    def reward(prompts, completions, number, **kwargs):
        """Half of the completions of a question, by what they hold: groups have variance."""
        return [float(sum(map(ord, c[-1]["content"])) % 2) for c in completions]

    rows = [
        {
            "prompt": [{"role": "user", "content": f"A box holds {n} apples. {n // 3} are eaten. How many are left?"}],
            "number": n,
        }
        for n in range(10, 74)
    ]
    sizes = dict(per_device_train_batch_size=rows_per_step, num_generations=4, max_completion_length=24)
    return fresh, Dataset.from_list(rows), reward, sizes


def letters(texts: list[str]) -> np.ndarray:
    """An embedding that costs nothing: what an encoder costs, benchmarks/embedding.py measures."""
    return np.array([[1.0, *(text.count(chr(48 + i)) for i in range(10))] for text in texts])


def build(arm: str, material, directory: str):
    fresh, dataset, reward, sizes = material
    model, tokenizer = fresh()
    common = dict(
        output_dir=directory, learning_rate=0.0, max_steps=10_000, logging_steps=1000, save_strategy="no", report_to=[],
        use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True, dataloader_pin_memory=False, seed=1, **sizes,
    )  # fmt: skip
    if arm == "stock":
        config, cls = GRPOConfig(loss_type="dr_grpo", scale_rewards="none", **common), GRPOTrainer
    else:
        config, cls = ExGRPOConfig(preset=arm, alarms="off", **AT_ONCE, **common), ExGRPOTrainer
    more = {"embedder": letters} if arm != "stock" and config.replay.uses_quality else {}
    trainer = cls(
        model=model, reward_funcs=reward, args=config, train_dataset=dataset, processing_class=tokenizer, **more
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


class Turn(TrainerCallback):
    """Ends `train()` after n steps, so that the next arm has its turn."""

    def __init__(self):
        self.left = 0

    def on_step_end(self, args, state, control, **kwargs):
        self.left -= 1
        control.should_training_stop = self.left <= 0


def measure(material, arms, rounds: int, steps: int, warm: int) -> dict[str, Any]:
    trainers, watches = {}, {}
    with tempfile.TemporaryDirectory() as directory:
        for arm in arms:
            trainer = trainers[arm] = build(arm, material, f"{directory}/{arm}")
            watches[arm] = clock, timer, turn = Clock(), Steps(), Turn()
            for method, phase in (
                ("_plan", "plan"), ("_scores", "measuring candidates"), ("_observe", "observe"), ("_admit", "admit"),
                ("compute_loss", "loss forward"), ("training_step", "backward and rest of the step"),
                ("_generate_and_score_completions", "rest of generation: the host's padding, tables, metrics"),
            ):  # fmt: skip
                clock.wrap(trainer, method, phase)
            clock.wrap(trainer.model, "generate", "generate")
            clock.wrap(getattr(trainer, "experience", None), "commit", "log")
            for i, function in enumerate(trainer.reward_funcs):
                box = type("Box", (), {"call": staticmethod(function)})
                clock.wrap(box, "call", "reward function")
                box.call.__name__ = function.__name__
                trainer.reward_funcs[i] = box.call
            trainer.add_callback(timer)
            trainer.add_callback(turn)
        cpu, wall, phases = defaultdict(list), defaultdict(list), defaultdict(lambda: defaultdict(list))
        for number in range(-1, rounds):
            for arm in arms if number % 2 else reversed(arms):
                clock, timer, turn = watches[arm]
                timer.cpu.clear(), timer.wall.clear(), clock.own.clear()
                turn.left = warm if number < 0 else steps
                trainers[arm].train()
                if number >= 0:
                    cpu[arm].append(statistics.median(timer.cpu))
                    wall[arm].append(statistics.median(timer.wall))
                    for phase, seconds in clock.own.items():
                        phases[arm][phase].append(seconds / len(timer.cpu))
    table = {}
    for arm in arms:
        ratios = [a / b for a, b in zip(cpu[arm], cpu[arms[0]], strict=True)]
        table[arm] = {
            "cpu_s": statistics.median(cpu[arm]),
            "wall_s": statistics.median(wall[arm]),
            f"cpu_over_{arms[0]}": statistics.median(ratios),
            f"cpu_over_{arms[0]}_range": [min(ratios), max(ratios)],
            "phases_cpu_s": {phase: statistics.median(values) for phase, values in phases[arm].items()},
            "metrics": {
                name: trainers[arm]._metrics["train"][name][-1]
                for name in ("replay/share", "replay/size", "frac_reward_zero_std")
                if trainers[arm]._metrics["train"].get(name)
            },
        }
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="`tiny`, or the directory of a model")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=None, help="steps of a turn (tiny: 10, else 2)")
    parser.add_argument("--rows", type=int, default=16, help="completions of a step of a real model, in groups of 4")
    parser.add_argument("--arms", nargs="+", default=list(ARMS))
    parser.add_argument("--presets", action="store_true", help="all presets over `on-policy`, in place of --arms")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=FutureWarning)
    tiny = options.model == "tiny"
    material = tiny_material() if tiny else model_material(options.model, options.rows)
    arms = list(PRESET_ARMS) if options.presets else options.arms
    table = measure(material, arms, options.rounds, options.steps or (10 if tiny else 2), 20 if tiny else 2)
    for arm, row in table.items():
        print(
            f"{arm:18s} cpu {row['cpu_s']:.4f} s  over {arms[0]} {row[f'cpu_over_{arms[0]}']:.3f}  {row[f'cpu_over_{arms[0]}_range']}"
        )
        for phase, seconds in sorted(row["phases_cpu_s"].items(), key=lambda item: -item[1]):
            print(f"    {phase:55s} {1e3 * seconds:9.2f} ms")
    name = "tiny" if tiny else re.sub(r"[^a-z0-9]+", "-", options.model.rstrip("/").rsplit("/", 1)[-1].lower())
    command = "python benchmarks/step_time.py " + " ".join(["tiny" if tiny else "MODEL_DIRECTORY", *sys.argv[2:]])
    print("saved", save(f"step_time_{name}{'_presets' * options.presets}", command, {"arms": table}))


if __name__ == "__main__":
    main()
