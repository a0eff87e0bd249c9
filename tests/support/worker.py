"""One process of runs over one or more ranks, one after the other; prints nothing, writes what happened to
OUTPUT/rank-N.json.

Usage: torchrun --nproc_per_node N worker.py OUTPUT JSON-LIST-OF-OPTIONS

Options of a job are the trainer's, and: `scripted`, `questions`, `run` (output_dir), `stop` (at a step), `resume`, `backend`
(`sharded.options`), `lora`, `evaluate`, `script` (the name of one), `count_calls`, `refused` (it must be), `blind_to` (a
folder), `model` (a folder), `synced` (whether vLLM gets the weights), `rare` (success is).
"""

import faulthandler
import hashlib
import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
from accelerate import PartialState
from transformers import AutoModelForCausalLM, TrainerCallback

from exgrpo.errors import ExGRPOError
from exgrpo.experience.events import Admitted, Continued, Observed, Replayed, Retired, Skipped, Stored
from exgrpo.experience.replayed import fingerprint_of
from exgrpo.trl import resume
from exgrpo.trl.checkpoint import is_complete
from tests.support import engine, sharded
from tests.support import harness as h
from tests.support.threads import tokens_everywhere
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


def alike(generation: int, prompt: str, member: int) -> str:
    """No group has variance: all are wrong in one generation, all are right in the next."""
    i = int(prompt[1:].split("=")[0])
    return f"a{i}$" if generation % 2 else "z$"


SCRIPTS = {"scripted": scripted, "alike": alike}


def by_luck(prompts, completions, right, **kwargs):
    return [float("1" in c) for c in completions]


def by_first(prompts, completions, right, **kwargs):
    """Rarer than by luck: groups without any success are as frequent as others."""
    return [float(c[:1].isdigit()) for c in completions]


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
        return ["admitted", event.serial, t.question, t.step, t.digest, t.completion_ids.tolist(), t.finish_reason]
    if isinstance(event, Stored):  # how all but the main process hear of it
        return ["admitted", event.serial, event.question, event.step, event.digest]
    if isinstance(event, Replayed):
        return ["replayed", event.generation, event.question, event.serial, event.stage]
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
    show_life(output)
    torch.set_num_threads(1)
    sharded.fsdp_on_cpus()
    results = [refused(output, options) if options.pop("refused", False) else job(output, options) for options in jobs]
    rank = PartialState().process_index
    (output / f"rank-{rank}.json").write_text(json.dumps(results))
    if "vllm" in sys.modules:
        PartialState().wait_for_everyone()
        os._exit(0)  # its threads do not end by themselves


def show_life(output: Path) -> None:
    """Let whoever waits know that this process has not hung; said at its start and at every step."""
    faulthandler.dump_traceback_later(int(os.environ.get("DUMP_TRACEBACK_AFTER", "1140")))
    (output / f"alive-{os.environ.get('RANK', 0)}").touch()


def refused(output: Path, options: dict) -> dict:
    """A run that must be refused; why it was, on this process."""
    try:
        job(output, options)
    except ExGRPOError as error:
        return {"world": PartialState().num_processes, "refused": str(error)}
    raise AssertionError(f"not refused: {options}")


def job(output: Path, options: dict) -> dict:
    """One run; what is known of it afterwards."""
    sharded.forget()
    script = SCRIPTS[options.pop("script", "scripted")] if options.pop("scripted") else None
    GRPOTrainer._generate_single_turn = h.scripted_generation if script else GrpoGeneration
    n = options.pop("questions", 24)
    chance = by_first if options.pop("rare", False) else by_luck
    reward = h.right_reward if script else chance
    if options.pop("count_calls", False):
        GRPOTrainer._generate_single_turn = _counting(output)
    _see_all_but(options.pop("blind_to", None))
    run, stop, checkpoint = options.pop("run", str(output)), options.pop("stop", None), options.pop("resume", None)
    options |= sharded.options(backend) if (backend := options.pop("backend", None)) else {}
    more = {"peft_config": _lora()} if options.pop("lora", False) else {}
    if folder := options.pop("model", None):
        more["model"] = AutoModelForCausalLM.from_pretrained(folder)
    synced = options.pop("synced", True)
    if options.get("use_vllm"):
        engine.on_cpus()
    if options.pop("evaluate", False):
        options |= {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 8}
        more["eval_dataset"] = h.questions(8)
    torch.manual_seed(0)  # of what is drawn before the trainer seeds: the first values of an adapter
    args = h.config(run, ddp_find_unused_parameters=False, **options)
    trainer = h.trainer(
        args, h.questions(n), script=script, reward=reward, callbacks=[Stop(stop)] if stop else [],
        embedder=letters if args.replay.uses_quality else None, **more,
    )  # fmt: skip
    start, held = {}, Held(trainer, output)
    trainer.add_callback(AtStart(trainer, start))
    trainer.add_callback(held)
    calls = engine.watch(trainer, synced) if trainer.use_vllm else []
    trainer.train(resume_from_checkpoint=checkpoint)
    model = trainer.accelerator.unwrap_model(trainer.model)
    return {
        "world": trainer.accelerator.num_processes,
        "held": held.by,
        "engine": engine.said(trainer, calls),
        "events": [event_row(event) for event in trainer.events],
        "behaviour": [e.trajectory.behaviour_logps.tolist() for e in trainer.events.of(Admitted)],
        "fingerprint": _fingerprint(trainer),
        "generated_tokens": trainer.generated_tokens,
        "step": trainer.state.global_step,
        "experience_at_start": start,
        "optimizer": _optimizer(trainer),
        "rng": hashlib.sha256(torch.random.get_rng_state().numpy().tobytes()).hexdigest(),
        "parameters": {name: sharded.whole(p).flatten().tolist() for name, p in model.named_parameters()},
        "logs": [
            {
                k: v
                for k, v in log.items()
                if k.startswith(("replay/", "fresh/", "prefix/")) and not k.startswith("replay/time/")
            }
            for log in trainer.state.log_history
        ],
        "evaluated": [log["eval_reward"] for log in trainer.state.log_history if "eval_reward" in log],
    }


def _see_all_but(folder: str | None) -> None:
    """Let this process see no checkpoint in a folder, as if it lay on another machine's disk."""
    resume.is_complete = lambda path: is_complete(path) and not (folder and Path(path).is_relative_to(folder))


def _fingerprint(trainer) -> str | None:
    if trainer.planner is None:
        return None
    with tokens_everywhere(trainer.planner.buffer, trainer.comm):
        return fingerprint_of(trainer.planner.buffer)


def _lora():
    from peft import LoraConfig

    return LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=True)


def _optimizer(trainer) -> list[float]:
    """Sums of the optimizer's states; what DeepSpeed keeps is its own affair, and shows in the parameters."""
    if trainer.is_deepspeed_enabled:
        return []
    states = trainer.optimizer.state.values()
    return [float(sharded.whole(value).double().sum()) for state in states for value in state.values()]


class Held(TrainerCallback):
    """What held the parameters while they were trained."""

    def __init__(self, trainer, output: Path):
        self.trainer, self.output, self.by = trainer, output, None

    def on_step_end(self, args, state, control, **kwargs):
        show_life(self.output)
        self.by = sharded.sharded_by(self.trainer)


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
        with tokens_everywhere(buffer, self.trainer.comm):
            found = buffer.get_many(slots)
        self.found["trajectories"] = [
            [t.question, t.completion_ids.tolist(), t.behaviour_logps.tolist(), t.step] for t in found
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
