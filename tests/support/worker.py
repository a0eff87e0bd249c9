"""One process of runs over one or two ranks, one after the other; prints nothing, writes what happened to
OUTPUT/rank-N.json.

Usage: torchrun --nproc_per_node N worker.py OUTPUT JSON-LIST-OF-OPTIONS
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import torch
from accelerate import PartialState
from transformers import TrainerCallback

from exgrpo.experience.events import Admitted, Continued, Observed, Replayed, Retired, Skipped
from exgrpo.experience.replayed import fingerprint_of
from tests.support import harness as h
from trl import GRPOTrainer

GrpoGeneration = GRPOTrainer._generate_single_turn


def scripted(generation: int, prompt: str, member: int) -> str:
    """Keyed by (generation, question, member) alone, whatever the number of ranks."""
    i = int(prompt[1:].split("=")[0])
    draw = int(hashlib.sha256(f"{generation}|{i}|{member}".encode()).hexdigest(), 16)
    kind = i % 4
    if kind == 0 and generation > 1:
        return f"a{i}$"
    if kind == 1 and (generation > 1 or member):
        return "z" * (1 + draw % 9) + "$"
    if kind == 1:
        return f"a{i}$"
    return f"{'abcdefgh'[draw % 8]}{i}$" if draw % 3 == 0 else "y" * (1 + draw % 7) + "$"


def by_luck(prompts, completions, right, **kwargs):
    return [float("1" in c) for c in completions]


def letters(texts):
    return np.array([[1.0, *(text.count(chr(97 + i)) for i in range(26))] for text in texts])


def event_row(event) -> list:
    if isinstance(event, Observed):
        return [
            "observed",
            event.generation,
            event.step,
            event.question,
            event.successes,
            event.scorable,
            event.replayed,
        ]
    if isinstance(event, Admitted):
        t = event.trajectory
        return ["admitted", event.serial, t.question, t.completion_ids.tolist(), t.step, t.finish_reason]
    if isinstance(event, Replayed):
        return ["replayed", event.generation, event.question, event.serial, event.moment]
    if isinstance(event, Continued):
        counts = [event.successes, event.scorable, event.unscorable]
        return [
            "continued",
            event.generation,
            event.question,
            event.serial,
            event.length,
            *counts,
            repr(event.fraction),
        ]
    if isinstance(event, Skipped):
        return ["skipped", event.generation, event.question]
    return ["retired", event.generation, event.question] if isinstance(event, Retired) else [type(event).__name__]


def main() -> None:
    output, jobs = Path(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(1)
    results = [job(output, options) for options in jobs]
    rank = PartialState().process_index
    (output / f"rank-{rank}.json").write_text(json.dumps(results))


def job(output: Path, options: dict) -> dict:
    """One run; what is known of it afterwards."""
    GRPOTrainer._generate_single_turn = h.scripted_generation
    script = scripted if options.pop("scripted") else None
    n = options.pop("questions", 24)
    reward = h.right_reward if script else by_luck
    if options.pop("count_calls", False):
        GRPOTrainer._generate_single_turn = _counting(output)
    run, stop, resume = options.pop("run", str(output)), options.pop("stop", None), options.pop("resume", None)
    args = h.config(run, ddp_find_unused_parameters=False, **options)
    trainer = h.trainer(
        args, h.questions(n), script=script, reward=reward, callbacks=[Stop(stop)] if stop else [],
        embedder=letters if args.replay.uses_quality else None,
    )  # fmt: skip
    start = {}
    trainer.add_callback(AtStart(trainer, start))
    trainer.train(resume_from_checkpoint=resume)
    model = trainer.accelerator.unwrap_model(trainer.model)
    return {
        "world": trainer.accelerator.num_processes,
        "events": [event_row(event) for event in trainer.events],
        "behaviour": [e.trajectory.behaviour_logps.tolist() for e in trainer.events.of(Admitted)],
        "fingerprint": fingerprint_of(trainer.planner.buffer) if trainer.planner else None,
        "generated_tokens": trainer.generated_tokens,
        "step": trainer.state.global_step,
        "experience_at_start": start,
        "optimizer": [
            float(value.double().sum()) for state in trainer.optimizer.state.values() for value in state.values()
        ],
        "rng": hashlib.sha256(torch.random.get_rng_state().numpy().tobytes()).hexdigest(),
        "parameters": {name: p.detach().flatten().tolist() for name, p in model.named_parameters()},
        "logs": [
            {
                k: v
                for k, v in log.items()
                if k.startswith(("replay/", "fresh/", "prefix/")) and not k.startswith("replay/time/")
            }
            for log in trainer.state.log_history
        ],
    }


class Stop(TrainerCallback):
    """An interruption after a step."""

    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.step


class AtStart(TrainerCallback):
    """What is stored when training begins: added last, so that it comes after the trainer's own."""

    def __init__(self, trainer, found: dict):
        self.trainer, self.found = trainer, found

    def on_train_begin(self, args, state, control, **kwargs):
        if self.trainer.planner is None:
            return
        buffer = self.trainer.planner.buffer
        slots = sorted(buffer.live_slots().tolist(), key=lambda slot: buffer.column("serial")[slot])
        self.found["trajectories"] = [
            [t.question, t.completion_ids.tolist(), t.behaviour_logps.tolist(), t.step] for t in buffer.get_many(slots)
        ]
        self.found["accuracies"] = [
            buffer.questions.successes.tolist(),
            buffer.questions.scorable.tolist(),
            buffer.retired.tolist(),
        ]


def _counting(output: Path):
    def generate(self, prompt_ids, *args, **kwargs):
        with open(output / f"calls-{self.accelerator.process_index}.txt", "a") as file:
            file.write(f"{len(prompt_ids)}\n")
        return h.scripted_generation(self, prompt_ids, *args, **kwargs)

    return generate


if __name__ == "__main__":
    main()
