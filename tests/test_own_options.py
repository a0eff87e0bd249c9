"""What a user's function may answer, and what is said when it answers otherwise; what it may ask for."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

import exgrpo
from exgrpo import ReplayConfig
from exgrpo.config import ADMISSIONS, EVICTIONS, QUESTION_SAMPLERS, SCHEDULES, TRAJECTORY_CHOICES
from exgrpo.errors import ConfigurationError
from tests.support.lab import Lab, replayed

REGISTRIES = (ADMISSIONS, EVICTIONS, QUESTION_SAMPLERS, SCHEDULES, TRAJECTORY_CHOICES)


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    for registry in REGISTRIES:
        assert all(registry.values())  # the built-in ones are there before
    before = [(dict(r._rules), set(r._quality)) for r in REGISTRIES]
    yield
    for registry, (entries, quality) in zip(REGISTRIES, before, strict=True):
        registry._rules, registry._quality = entries, quality


def stored_lab(**options):
    lab = Lab(
        questions=8, k=4, **{"replay_share": 0.5, "replay_probability": 1.0, "trajectory_choice": "newest"} | options
    )
    for question in range(6):
        lab.store(question, 1, 2, successes=1 + question % 3, scorable=4)
    return lab


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda s: np.zeros((len(s.accuracy), 1)), "shape"),
        (lambda s: np.zeros(len(s.accuracy) - 1), "shape"),
        (lambda s: 0.0, "shape"),
        (lambda s: None, "numbers|shape"),
        (lambda s: "much", "numbers"),
        (lambda s: np.full(len(s.accuracy), np.inf), "below infinity"),
        (lambda s: np.where(s.accuracy > 0.4, np.nan, 0.0), "without NaN"),
    ],
)
def test_a_sampler_that_answers_otherwise(answer, says):
    exgrpo.register_question_sampler("mine", answer)
    with pytest.raises(ConfigurationError, match=f"question_choice 'mine'.*(?:{says})"):
        stored_lab(question_choice="mine").plan(4)


def test_a_sampler_may_answer_in_float32():
    exgrpo.register_question_sampler("mine", lambda s: -np.abs(s.accuracy - 0.3).astype(np.float32))
    assert stored_lab(question_choice="mine").plan(4).num_replayed == 2


@pytest.mark.parametrize("answer", [lambda c: 0.0, lambda c: c.age[0], lambda c: None, lambda c: "young"])
def test_a_choice_that_answers_otherwise(answer):
    exgrpo.register_trajectory_choice("mine", answer)
    with pytest.raises(ConfigurationError, match="trajectory_choice 'mine'"):
        stored_lab(trajectory_choice="mine").plan(4)


@pytest.mark.parametrize("place", [-1, 2, 0.0, True, None])
def test_an_eviction_that_answers_otherwise(place):
    exgrpo.register_eviction("mine", lambda c: place)
    lab = Lab(questions=4, k=4, eviction="mine", capacity_per_question=2)
    with pytest.raises(ConfigurationError, match="eviction 'mine' must return a place from 0 to 1"):
        lab.store(0, 1, 2, 3)
    assert len(lab.buffer) == lab.buffer.live_slots().size == 2  # what raised left nothing behind


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan, None, "half"])
@pytest.mark.parametrize("mixing", ["share", "coin"])
def test_a_schedule_that_answers_otherwise(share, mixing):
    exgrpo.register_schedule("mine", lambda given, epoch, config: share)
    with pytest.raises(ConfigurationError, match="schedule 'mine'"):
        stored_lab(schedule="mine", mixing=mixing).plan(4)


@pytest.mark.parametrize("kind", [name for name in exgrpo.__all__ if name.startswith("register_")])
def test_a_decorator_without_its_name_and_what_is_no_function(kind):
    register = getattr(exgrpo, kind)
    with pytest.raises(ConfigurationError, match="Write the decorator with a name"):
        register(lambda *given: None)
    with pytest.raises(ConfigurationError, match="must be a function, but is 5"):
        register("mine", 5)


# Quality ----------------------------------------------------------------------------------------------------------------


def by_quality(candidates):
    return -candidates.quality


def test_what_needs_quality_is_known_however_it_is_named():
    assert not ReplayConfig().uses_quality
    for options in (
        dict(admission="quality"), dict(admission="exgrpo.experience.options.admission.quality"),
        dict(eviction="lowest_quality"),
        dict(trajectory_choice="quality_tiers"), dict(trajectory_choice="exgrpo.replay.options.choices.in_quality_tier"),
    ):  # fmt: skip
        assert ReplayConfig(**options).uses_quality, options
    assert not ReplayConfig(admission="exgrpo.experience.options.admission.correct").uses_quality


def test_one_s_own_can_ask_for_quality():
    exgrpo.register_admission("good", lambda c: not c.quality <= 0.5, needs_quality=True)
    exgrpo.register_trajectory_choice("best", by_quality, needs_quality=True)
    exgrpo.register_eviction("worst", lambda c: 0, needs_quality=True)
    exgrpo.register_admission("any", lambda c: True)
    for options in (dict(admission="good"), dict(trajectory_choice="best"), dict(eviction="worst")):
        assert ReplayConfig(**options).uses_quality
    assert ReplayConfig(trajectory_choice=f"{__name__}.by_quality").uses_quality  # registered above
    assert not ReplayConfig(admission="any").uses_quality


def test_a_function_that_was_not_registered_asks_by_an_attribute(monkeypatch):
    path = f"{__name__}.by_quality"
    assert not ReplayConfig(trajectory_choice=path).uses_quality
    monkeypatch.setattr(by_quality, "needs_quality", True, raising=False)
    assert ReplayConfig(trajectory_choice=path).uses_quality


# Parameters --------------------------------------------------------------------------------------------------------------


def test_a_sampler_with_a_parameter_takes_fifteen_lines():
    page = (Path(__file__).parents[1] / "docs" / "replay.md").read_text()
    (snippet,) = [part for part in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "rule_option(" in part]
    assert len(snippet.splitlines()) <= 15
    names = {}
    exec(snippet, names)
    assert names["config"].rule_option("width") == 0.05
    lab = stored_lab(question_choice="peak", rule_options={"width": 1e-3})
    for question in range(6):
        lab.store(question, 3, 4, successes=2 if question in (2, 4) else 1, scorable=4)
    assert set(replayed(lab.plan(4))) == {2, 4}


def test_the_host_takes_parameters_as_a_mapping_or_as_json(tmp_path):
    from exgrpo.trl import ExGRPOConfig

    for given in ({"width": 0.1}, '{"width": 0.1}'):
        args = ExGRPOConfig(output_dir=str(tmp_path), rule_options=given, bf16=False, report_to="none")
        assert args.replay.rule_option("width") == args.objective.rule_option("width") == 0.1


@pytest.mark.parametrize("given", [3, ["width"], {1: 2}])
def test_parameters_that_are_no_mapping_are_refused(given):
    with pytest.raises(ConfigurationError, match="rule_options must be a mapping"):
        ReplayConfig(rule_options=given)


# Numbers ----------------------------------------------------------------------------------------------------------------


def test_numbers_of_numpy_are_taken_as_python_s():
    config = ReplayConfig(
        replay_share=np.float32(0.5), cooldown=np.int64(3), sigma=np.float64(0.25), tier_shares=np.array([0.5, 0.5])
    )
    assert (config.replay_share, config.cooldown, config.sigma, config.tier_shares) == (0.5, 3, 0.25, (0.5, 0.5))
    assert [type(v) for v in (config.replay_share, config.cooldown, config.sigma)] == [float, int, float]
    with pytest.raises(ConfigurationError, match="cooldown must be an integer"):
        ReplayConfig(cooldown=np.float64(3))
