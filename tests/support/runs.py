"""The runs that every way of distributing a model must do alike: scripted ones, equal to one rank's, and resumed ones."""

import numpy as np
import pytest

COMMON = dict(max_steps=6, start_pass_at_1=0.0, learning_rate=1e-3, logging_steps=1)
SAVING = dict(COMMON, max_steps=8, save_strategy="steps", save_steps=1, learning_rate=1e-2, scripted=False)

SCRIPTED = {
    "exgrpo": ({"preset": "exgrpo"}, 32, 1),
    "rescue": ({"preset": "rescue"}, 32, 1),
    "rehearsal": ({"preset": "rehearsal"}, 32, 1),
    # groups of 8 over 12 rows a rank: the second group straddles the ranks
    "straddling": ({"num_generations": 8, "entropy_refresh": "exact"}, 24, 1),
    "added, accumulated": (
        {
            "mixing": "added", "replay_share": 0.25, "question_choice": "uniform", "trajectory_choice": "random",
            "admission": "all", "max_drift": 0.0,
        },
        8, 4,
    ),
    "LoRA": ({"lora": True}, 32, 1),
    "checkpointed activations": ({"gradient_checkpointing": True}, 32, 1),
    "bf16": ({"bf16": True}, 32, 1),
    "evaluated": ({"evaluate": True}, 32, 1),
    "nothing to learn": ({"script": "alike", "retirement": "never", "admission": "all"}, 32, 1),
    # everything is replayed: on two ranks the second has nothing to generate
    "nothing to generate": (
        {"num_generations": 2, "replay_share": 1.0, "max_steps": 12, "questions": 4, "retirement": "never"}, 2, 1,
    ),
}  # fmt: skip
"""Options, rows of a micro-batch over all ranks, accumulation on one rank. One optimizer step a generation."""

TOLERANCE = {"bf16": 2e-2, "straddling": 2e-4}
LOGS = {"bf16": 0.1}


def scripted_jobs(world: int, **more) -> list[dict]:
    """Jobs that do the same on any number of ranks; accumulation becomes ranks, or rows are dealt to them."""
    jobs = []
    for options, rows, accumulation in SCRIPTED.values():
        per_device = rows if accumulation > 1 else rows // world
        sizes = {
            "per_device_train_batch_size": per_device,
            "gradient_accumulation_steps": max(1, accumulation // world),
        }
        jobs.append({"scripted": True, **COMMON, **options, **sizes, **more})
    return jobs


def difference(a: dict, b: dict) -> float:
    return max(float(np.max(np.abs(np.subtract(a[name], b[name])))) for name in a)


def without_tokens(events: list) -> list:
    """What processes beside the main one hear."""
    return [event[:5] if event[0] == "admitted" else event for event in events]


def check_alike(name: str, single: dict, ranks: list[dict]) -> None:
    """Several ranks did what one does: the same events and counts, and parameters to float tolerance."""
    first = ranks[0]
    for other in ranks:
        assert other["fingerprint"] == first["fingerprint"]
        assert other["generated_tokens"] == single["generated_tokens"]
        assert difference(other["parameters"], first["parameters"]) == 0
        assert without_tokens(other["events"]) == without_tokens(first["events"])
    assert first["events"] == single["events"]
    assert any(event[0] == "replayed" for event in single["events"]) or name == "nothing to learn"
    assert difference(single["parameters"], first["parameters"]) < TOLERANCE.get(name, 2e-5)
    others = {"fresh/rows_skipped"}  # all processes compute as many rows as the one with the most
    for a, b in zip(single["logs"], first["logs"], strict=True):
        assert a.keys() - others == b.keys() - others
        for metric in a.keys() - others:
            assert a[metric] == pytest.approx(b[metric], abs=LOGS.get(name, 1e-3), nan_ok=True), metric
    if name == "evaluated":
        assert len(first["evaluated"]) == 3


RESUMED = {
    "exgrpo": (3, {"preset": "exgrpo", "per_device_train_batch_size": 16}),
    "rescue over an epoch": (5, {"preset": "rescue", "per_device_train_batch_size": 16, "questions": 20}),
    "inside a block": (
        3, {"per_device_train_batch_size": 4, "steps_per_generation": 4, "gradient_accumulation_steps": 1},
    ),
    "inside a block, straddling": (4, {"per_device_train_batch_size": 12, "num_generations": 8, "num_iterations": 3}),
}  # fmt: skip
"""The step at which a run is resumed, and its options; completions are sampled."""


def resumed_jobs(folder, **more) -> list[dict]:
    """Of each a whole run, one that resumes from a checkpoint of it, and one that begins at its end."""
    jobs = []
    for number, (at, options) in enumerate(RESUMED.values()):
        run = {**SAVING, **options, **more, "run": f"{folder}/run-{number}"}
        jobs += [run, {**run, "resume": f"{folder}/run-{number}/checkpoint-{at}"}]
    return [*jobs, {**jobs[0], "resume": "last"}]


def check_resumed(ranks: list[list[dict]]) -> None:
    """Whoever resumed became what the whole run was, to the bit."""
    for results in ranks:
        for number in range(len(RESUMED)):
            whole, again = results[2 * number], results[2 * number + 1]
            for what in ("fingerprint", "parameters", "optimizer", "generated_tokens", "rng", "step"):
                assert whole[what] == again[what], (list(RESUMED)[number], what)
            assert whole["fingerprint"] == ranks[0][2 * number]["fingerprint"]
        ended = results[-1]  # a finished run that is begun again trains nothing, and has all of it
        for what in ("fingerprint", "parameters", "generated_tokens", "step"):
            assert ended[what] == results[0][what], what
