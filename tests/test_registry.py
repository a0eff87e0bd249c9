"""Options by name: built in, registered by a user, or given as a dotted path."""

import subprocess
import sys
import textwrap
import warnings

import numpy as np
import pytest

from exgrpo.config import (
    ADMISSIONS,
    BASELINES,
    CORRECTIONS,
    EVICTIONS,
    QUESTION_SAMPLERS,
    RETIREMENTS,
    SCHEDULES,
    TRAJECTORY_CHOICES,
    ObjectiveConfig,
    ReplayConfig,
)
from exgrpo.errors import ConfigurationError
from exgrpo.registry import (
    register,
    register_admission,
    register_eviction,
    register_question_sampler,
    register_retirement,
    register_schedule,
    register_trajectory_choice,
    resolve_rules,
)
from tests.support.lab import Lab, name_of, replayed, trajectory

ALL = (
    SCHEDULES, QUESTION_SAMPLERS, TRAJECTORY_CHOICES, ADMISSIONS, RETIREMENTS, EVICTIONS, CORRECTIONS, BASELINES,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _forget():
    """What a test registers is gone after it."""
    kept = [(registry, dict(registry._rules)) for registry in ALL]
    yield
    for registry, entries in kept:
        for name in set(registry._rules) - set(entries) - set(registry.builtin):
            del registry._rules[name]


@pytest.mark.parametrize("registry", ALL, ids=lambda r: r.option)
def test_what_is_built_in_is_there(registry):
    """Names that a configuration takes are exactly those that the home module registers."""
    assert all(registry[name] is not None for name in registry.builtin)
    assert list(registry) == list(registry.builtin)
    assert len(registry) == len(registry.builtin)
    assert set(registry._rules) == set(registry.builtin)


def test_a_configuration_is_checked_without_numpy_or_torch():
    code = """
    import sys
    from exgrpo.config import ObjectiveConfig, ReplayConfig
    ReplayConfig(question_choice="range"), ObjectiveConfig(correction="clip")
    assert not {"numpy", "torch"} & set(sys.modules), "imported"
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


@pytest.mark.parametrize("registry", ALL, ids=lambda r: r.option)
def test_a_name_is_taken_once(registry):
    for name in registry.builtin:
        with pytest.raises(ConfigurationError, match="already"):
            registry.register(name, print)
    registry.register("mine", print)
    with pytest.raises(ConfigurationError, match=f"a {registry.option} 'mine' already"):
        registry.register("mine", print)
    assert list(registry)[-1] == "mine"
    assert len(registry) == len(registry.builtin) + 1


@pytest.mark.parametrize("name", ["", "my choice", "a.b", "1st", None, 3])
def test_a_name_is_an_identifier(name):
    with pytest.raises(ConfigurationError, match="letters, digits and underscores"):
        SCHEDULES.register(name, print)


def test_an_unknown_name_is_told_with_the_known_ones():
    with pytest.raises(
        ConfigurationError, match=r"'gaussian', 'uniform'.*or a dotted path to your own, but is 'gausian'"
    ):
        ReplayConfig(question_choice="gausian")
    with pytest.raises(ConfigurationError, match=r"question_choice 'gausian' is none of 'gaussian', 'uniform'"):
        QUESTION_SAMPLERS["gausian"]


def test_a_builtin_s_name_cannot_be_taken_before_its_home_is_imported():
    code = """
    from exgrpo.config import SCHEDULES
    from exgrpo.errors import ConfigurationError
    try:
        SCHEDULES.register("constant", print)
    except ConfigurationError:
        raise SystemExit(7)
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False).returncode == 7


# Dotted paths -------------------------------------------------------------------------------------------------------

MODULE = """
import numpy as np
from exgrpo import register_question_sampler, register_trajectory_choice

NUMBER = 3

def plain(candidates):
    return np.zeros(len(candidates.accuracy))

plain.eligible = lambda candidates: candidates.accuracy > 0.6

@register_question_sampler("odd_ones", eligible=lambda candidates: candidates.questions % 2 == 1)
def odd(candidates):
    return np.zeros(len(candidates.questions))

@register_trajectory_choice("low_serial", eligible=lambda c: c.serial < 2)
def highest_below_two(candidates):
    return -candidates.serial.astype(float)

"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "my_options.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_options"
    sys.modules.pop("my_options", None)


def test_a_dotted_path_names_a_function(module):
    lab = Lab(8, question_choice="my_options.plain", trajectory_choice="newest", replay_share=1.0)
    for question, right in enumerate((1, 4, 6, 7)):
        lab.store(question, 1, successes=right)
    assert set(replayed(lab.plan(4))) == {2, 3}


@pytest.mark.parametrize("path", ["my_options.odd", "odd_ones"])
def test_what_a_function_was_registered_with_goes_with_its_path(module, path):
    if path == "odd_ones":
        __import__(module)
    assert QUESTION_SAMPLERS[path].traits["eligible"] is not None
    lab = Lab(8, question_choice=path, trajectory_choice="newest", replay_share=1.0)
    for question in range(5):
        lab.store(question, 1)
    assert set(replayed(lab.plan(4))) == {1, 3}


def test_a_rule_of_eligibility_goes_with_its_path(module):
    assert TRAJECTORY_CHOICES["my_options.highest_below_two"].traits["eligible"] is not None
    lab = Lab(8, trajectory_choice="my_options.highest_below_two", replay_share=1.0)
    lab.store(0, 1, 2, 3)
    lab.store(1, 4)
    (choice,) = lab.plan(4).choices
    assert name_of(choice.trajectory) == 2


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module.mine", "there is no module 'no_such_module'"),
        ("my_options.sub.mine", "there is no module"),
        ("my_options.nothing", "has no such attribute"),
        ("my_options.NUMBER", "has it as int, not a function"),
    ],
)
@pytest.mark.parametrize("option", ["question_choice", "admission", "schedule"])
def test_a_path_that_leads_nowhere_says_what_is_missing(module, option, path, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        resolve_rules(ReplayConfig(**{option: path}))
    assert option in str(caught.value)
    assert repr(path) in str(caught.value)


@pytest.mark.parametrize("path", [".mine", "..mine", "my_options.", "my options.mine"])
@pytest.mark.parametrize("option", ["question_choice", "admission", "schedule"])
def test_what_is_no_path_is_refused_by_the_configuration(option, path):
    with pytest.raises(ConfigurationError, match=f"{option} must be one of .* or a dotted path to your own"):
        ReplayConfig(**{option: path})


def test_an_option_or_a_trait_that_is_none_is_refused():
    with pytest.raises(ConfigurationError, match="no rule can be registered for 'mixing'"):
        register("mixing", "mine", print)
    with pytest.raises(ConfigurationError, match="a schedule has no 'uniform'; it has needs_quality"):
        register("schedule", "mine", print, uniform=True)


def test_a_missing_import_of_the_user_s_own_module_is_shown_as_it_is(tmp_path, monkeypatch):
    (tmp_path / "my_broken.py").write_text("import no_such_thing\ndef mine(x): return x\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_thing"):
        resolve_rules(ObjectiveConfig(correction="my_broken.mine"))


# Each kind, a user's own --------------------------------------------------------------------------------------------


def test_a_question_sampler_of_one_s_own():
    @register_question_sampler("hardest")
    def hardest(candidates):
        return -50.0 * candidates.accuracy

    lab = Lab(8, question_choice="hardest", trajectory_choice="newest", replay_share=0.25)
    for question, right in enumerate((6, 1, 4)):
        lab.store(question, 1, successes=right)
    assert [replayed(lab.plan(4)) for _ in range(5)] == [[1]] * 5


def never_and_last(names, old):
    for name in names:
        for seed in range(10):
            lab = Lab(20, seed=seed, question_choice=name, trajectory_choice="newest", replay_share=1.0)
            for question, right in enumerate((0, 1, 4, 4, 7, 8)):
                lab.store(question, 1, successes=right)
            with (
                warnings.catch_warnings()
                if not old
                else pytest.warns(FutureWarning, match=f"{name!r} answers per stratum")
            ):
                assert set(replayed(lab.plan(2))) == {2, 3}, name
                assert set(replayed(lab.plan(10))) == {2, 3, 4, 5}, name


def test_a_sampler_s_never_and_only_where_nothing_else_is_left():
    """Not eligible: never; -inf: last; asked per question and per bucket."""
    for name, by_accuracy in (("each", False), ("each_bucket", True)):
        register_question_sampler(
            name, lambda c: np.where(c.accuracy > 0.7, -np.inf, 0.0), eligible=lambda c: c.accuracy >= 0.3,
            by_accuracy=by_accuracy,
        )  # fmt: skip
    never_and_last(("each", "each_bucket"), old=False)


def test_samplers_of_the_old_form_are_translated_with_a_warning():
    """NaN: never; -inf: last; also where the others are all alike, and by each of the marks that the form is known by."""

    def rule(strata):
        return np.select([strata.accuracy < 0.3, strata.accuracy > 0.7], [np.nan, -np.inf], 0.0)

    register_question_sampler("plain_rule", rule)
    register_question_sampler("sized_rule", lambda s: rule(s) + np.log(np.maximum(s.sizes, 1)))
    register_question_sampler("alike_rule", lambda s: rule(s), uniform=True)
    register_question_sampler("single_rule", lambda s: rule(s), per_question=True)
    never_and_last(("plain_rule", "sized_rule", "alike_rule", "single_rule"), old=True)


def test_an_old_sampler_still_weighs_buckets_whatever_their_size():
    """One question of accuracy 1/4 beside nine of 3/4, weighed 1 to 1: half of the draws."""
    register_question_sampler("of_buckets", lambda strata: np.zeros(len(strata.accuracy)))
    lab = Lab(20, k=4, question_choice="of_buckets", trajectory_choice="newest", replay_share=0.05)
    for question in range(10):
        lab.store(question, 1, successes=1 if question == 0 else 3, scorable=4)
    with pytest.warns(FutureWarning):
        drawn = [replayed(lab.plan(20))[0] for _ in range(400)]
    assert abs(drawn.count(0) - 200) < 60


def test_a_trajectory_choice_of_one_s_own():
    @register_trajectory_choice("oldest_first")
    def oldest_first(candidates):
        return candidates.serial.astype(float)

    lab = Lab(8, trajectory_choice="oldest_first", replay_share=1.0)
    lab.store(0, 5, 6, 7)
    assert name_of(lab.plan(4).choices[0].trajectory) == 5


def test_a_schedule_of_one_s_own():
    register_schedule("halves", lambda share, epoch, config: share / 2**epoch)
    lab = Lab(40, schedule="halves", replay_share=0.8, trajectory_choice="newest")
    for question in range(20):
        lab.store(question, 1)
    assert [lab.plan(10, epoch=epoch).num_replayed for epoch in (0.0, 1.0, 2.0, 3.0)] == [8, 4, 2, 1]


def test_a_schedule_that_leaves_0_to_1_is_refused():
    register_schedule("doubles", lambda share, epoch, config: 2 * share)
    lab = Lab(40, schedule="doubles", replay_share=0.8, trajectory_choice="newest")
    lab.store(0, 1)
    with pytest.raises(ConfigurationError, match=r"share in \[0, 1\], but gave 1\.6"):
        lab.plan(10)


def test_an_admission_a_retirement_and_an_eviction_of_one_s_own():
    register_admission("cut_ones", lambda completion: completion.finish_reason == "length")
    register_retirement("half", lambda standing: 2 * standing.successes >= standing.completions)
    register_eviction("second", lambda candidates: min(1, candidates.valid.shape[1] - 1))
    lab = Lab(8, k=4, admission="cut_ones", retirement="half", eviction="second", capacity_per_question=3)
    plan = lab.plan(2)
    groups = lab.observe(plan, {int(plan.questions[0]): 1, int(plan.questions[1]): 2})
    assert lab.buffer.retired[plan.questions].tolist() == [False, True]
    assert [lab.planner.should_admit(groups[0], False, reason) for reason in ("stop", "length")] == [False, True]
    question = int(plan.questions[0])
    lab.planner.admit([trajectory(question, name) for name in (1, 2, 3, 4, 5)])
    assert [name_of(lab.buffer.get(slot)) for slot in lab.buffer.slots_of(question)[::-1]] == [1, 4, 5]
