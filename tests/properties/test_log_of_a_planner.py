"""A planner that is stopped and opened again from its log, anywhere and any number of times, plans as if it never had been."""

import random
from dataclasses import asdict

import pytest

from tests.logs import Run

GENERATIONS = 16
OPTIONS = {
    "mixing": ["share", "share", "rescue"],
    "question_choice": ["gaussian", "variance", "uniform"],
    "trajectory_choice": ["lowest_entropy", "lowest_entropy", "random", "newest"],
    "entropy_refresh": ["lazy", "exact"],
    "max_entropy_age": [0, 2],
    "retirement": ["solved", "never"],
    "eviction": ["oldest", "highest_entropy"],
    "capacity": [25, 1000, 4],
    "start_pass_at_1": [0.0, 0.0, 0.5],
    "logp_dtype": ["float32", "float16"],
}


@pytest.mark.parametrize("case", range(40))
def test_reopened_planners_plan_alike(tmp_path, case):
    """It stops at some generations; the last commit that counts then lies up to three before."""
    draw = random.Random(case)
    options = {name: draw.choice(values) for name, values in OPTIONS.items()}
    whole = Run(tmp_path / "whole.db", seed=case, **options)
    whole.generations(GENERATIONS)
    run, positions = Run(tmp_path / "run.db", seed=case, **options), []
    for stop in sorted(draw.sample(range(3, GENERATIONS), 3)):
        while run.planner.generation < stop:
            positions.append(run.generation(snapshot=draw.random() < 0.2))
        run.close()
        del positions[len(positions) - draw.randrange(3) :]
        run = Run(tmp_path / "run.db", seed=case, position=positions[-1], **options)
        assert run.planner.generation == len(positions)
    while run.planner.generation < GENERATIONS:
        run.generation()
    assert run.buffer.fingerprint() == whole.buffer.fingerprint()
    assert asdict(run.planner.state(run.step)) == asdict(whole.planner.state(whole.step))
    for each in (run, whole):
        each.close()
