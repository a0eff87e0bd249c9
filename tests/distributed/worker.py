"""One process of a run over one or two ranks; prints nothing, writes what happened to OUTPUT/rank-N.json.

Usage: torchrun --nproc_per_node N worker.py OUTPUT JSON-OPTIONS
"""

import hashlib
import json
import sys
from pathlib import Path

import harness as h
import torch

from exgrpo.experience.events import Admitted, Observed, Replayed, Retired
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
    return ["retired", event.generation, event.question] if isinstance(event, Retired) else [type(event).__name__]


def main() -> None:
    output, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(1)
    GRPOTrainer._generate_single_turn = h.scripted_generation
    script = scripted if options.pop("scripted") else None
    n = options.pop("questions", 24)
    reward = h.right_reward if script else by_luck
    if options.pop("count_calls", False):
        GRPOTrainer._generate_single_turn = _counting(output)
    args = h.config(output, ddp_find_unused_parameters=False, **options)
    trainer = h.trainer(args, h.questions(n), script=script, reward=reward)
    trainer.train()
    rank = trainer.accelerator.process_index
    parameters = {
        n: p.detach().flatten().tolist() for n, p in trainer.accelerator.unwrap_model(trainer.model).named_parameters()
    }
    result = {
        "world": trainer.accelerator.num_processes,
        "events": [event_row(event) for event in trainer.events],
        "behaviour": [e.trajectory.behaviour_logps.tolist() for e in trainer.events.of(Admitted)],
        "fingerprint": trainer.planner.buffer.fingerprint(),
        "generated_tokens": trainer.generated_tokens,
        "parameters": parameters,
        "logs": [
            {k: v for k, v in log.items() if k.startswith(("replay/", "fresh/"))} for log in trainer.state.log_history
        ],
    }
    (output / f"rank-{rank}.json").write_text(json.dumps(result))


def _counting(output: Path):
    def generate(self, prompt_ids, *args, **kwargs):
        with open(output / f"calls-{self.accelerator.process_index}.txt", "a") as file:
            file.write(f"{len(prompt_ids)}\n")
        return h.scripted_generation(self, prompt_ids, *args, **kwargs)

    return generate


if __name__ == "__main__":
    main()
