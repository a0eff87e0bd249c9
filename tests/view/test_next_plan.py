"""What the page says of the next plan, against plans that are drawn from the rebuilt buffer."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from exgrpo.log import LogReader
from exgrpo.replay.sampling import draw_questions
from exgrpo.view.history import History
from exgrpo.view.next_plan import NextPlan
from exgrpo.view.objective_table import table_of
from tests.support.logs import ORIGIN, Run

DRAWS = 6000


@pytest.mark.parametrize("sampler", ["gaussian", "uniform", "range", "tiers", "linear", "variance"])
def test_chances_are_those_of_drawn_plans(tmp_path, sampler):
    options = {"question_choice": sampler, "replay_share": 1 / 6, "sigma": 0.4, "cooldown": 1, "range_low": 0.2}
    origin = replace(ORIGIN, options=json.dumps({"preset": "exgrpo", **options}))
    run = Run(tmp_path / "experience.db", origin=origin, capacity=60, **options)
    run.log.begin(origin, None, 0)
    run.generations(14)
    run.close()
    with LogReader(run.path) as reader:
        plan = NextPlan(History(reader))
        buffer = run.planner.buffer
        buffer.advance(run.step)
        buffer.num_types = 1  # the helper's runs have several, which only by_problem_type tells apart
        number_of = run.log.question_map.question_of
        numbers = {number_of(int(n)): int(n) for n in np.flatnonzero(np.isfinite(plan.chance))}
    assert plan.why is None
    assert plan.wanted == 1
    assert numbers
    drawn = Counter(
        q
        for seed in range(DRAWS)
        for q in draw_questions(buffer, 1, buffer.config, np.random.default_rng(seed), run.step)
    )
    assert set(drawn) <= set(numbers)
    for index, number in numbers.items():
        chance = plan.chance[number]
        assert abs(drawn[index] / DRAWS - chance) < 5 * np.sqrt(chance * (1 - chance) / DRAWS) + 1e-9


@pytest.mark.parametrize(("mixing", "why"), [("none", "replays nothing"), ("rescue", "when its fresh group fails")])
def test_runs_whose_plans_replay_nothing_say_so(tmp_path, mixing, why):
    origin = replace(ORIGIN, options=json.dumps({"mixing": mixing}))
    run = Run(tmp_path / "experience.db", origin=origin)
    run.log.begin(origin, None, 0)
    run.generations(2)
    run.close()
    with LogReader(run.path) as reader:
        history = History(reader)
        assert json.loads(history.origin.options)["mixing"] == mixing
        assert why in NextPlan(history).why


def test_the_table_of_the_objective_is_the_objective():
    table = table_of({"correction": "shaped", "shaping_beta": 0.1}, 8)
    assert table["advantages"]["7,0,1,0"] == [None, -0.125, 0.875, None]
    assert table["advantages"]["8,8,0,0"] == [0.0, None, None, None]
    for ratio, weight in zip(table["log_ratios"], table["up"], strict=True):
        w = np.exp(ratio)
        assert abs(weight - 0.1 * w / (w + 0.1) ** 2) < 1e-5
