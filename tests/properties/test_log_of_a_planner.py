"""A planner that is stopped and opened again from its log, anywhere and any number of times, plans as if it never had been."""

import random
from dataclasses import asdict

import pytest

from exgrpo.experience.replayed import fingerprint_of
from tests.support.logs import Run

GENERATIONS = 16
OPTIONS = {
    "mixing": ["share", "share", "rescue", "coin", "added", "prompt"],
    "replays_per_group": [1, 1, 2, 4],
    "question_choice": ["gaussian", "variance", "uniform", "range", "linear", "tiers", "headroom"],
    "difficulty": ["latest", "latest", "window", "spread"],
    "difficulty_window": [100, 6],
    "by_problem_type": [False, False, True],
    "trajectory_choice": [
        "lowest_entropy", "lowest_entropy", "random", "newest", "lowest_nll", "lowest_confidence_variance",
        "entropy_percentile", "highest_quality", "quality_tiers", "headroom",
    ],
    "entropy_refresh": ["lazy", "exact", "stored"],
    "max_entropy_age": [0, 2],
    "admission": ["correct", "correct", "all", "single_success", "quality"],
    "retirement": ["solved", "threshold", "never"],
    "review_every": [0, 2],
    "review_share": [0.1, 0.6],
    "max_age": [0, 0, 3],
    "max_uses": [0, 0, 2],
    "cooldown": [0, 0, 2],
    "max_drift": [0.0, 0.0, 1e-3],
    "eviction": ["oldest", "highest_entropy", "lowest_quality", "quality_tiers"],
    "capacity": [25, 1000, 4],
    "start_pass_at_1": [0.0, 0.0, 0.5],
    "start_completions": [1, 9, 40],
    "logp_dtype": ["float32", "float16"],
}  # fmt: skip


@pytest.mark.parametrize("case", [*range(10), *(pytest.param(case, marks=pytest.mark.slow) for case in range(10, 50))])
def test_reopened_planners_plan_alike(tmp_path, case):
    """It stops at some generations; the last commit that counts then lies up to three before."""
    draw = random.Random(case)
    options = {name: draw.choice(values) for name, values in OPTIONS.items()}
    if options["mixing"] == "prompt" and options["question_choice"] == "headroom":  # refused: nothing is stored
        options["question_choice"] = "uniform"
    whole = Run(tmp_path / "whole.db", seed=case, **options)
    whole.generations(GENERATIONS)
    run, positions = Run(tmp_path / "run.db", seed=case, **options), []
    for stop in sorted(draw.sample(range(3, GENERATIONS), 3)):
        while run.planner.iteration < stop:
            positions.append(run.generation(snapshot=draw.random() < 0.2))
        run.close()
        del positions[len(positions) - draw.randrange(3) :]
        run = Run(tmp_path / "run.db", seed=case, position=positions[-1], **options)
        assert run.planner.iteration == len(positions)
    while run.planner.iteration < GENERATIONS:
        run.generation()
    assert fingerprint_of(run.buffer) == fingerprint_of(whole.buffer)
    assert asdict(run.planner.state(run.step)) == asdict(whole.planner.state(whole.step))
    for each in (run, whole):
        each.close()
