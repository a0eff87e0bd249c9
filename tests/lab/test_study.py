"""Study files: what they mean, what is wrong with them, and which of their values decide a result."""

import copy
import json
from dataclasses import asdict, fields, replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.config import ObjectiveConfig, ReplayConfig
from exgrpo.errors import ConfigurationError
from exgrpo.lab.studies.regime import Regime
from exgrpo.lab.studies.study import SHORT, START, Arm, Cell, Setting
from exgrpo.lab.studies.study_file import HOST_OPTIONS, load_study, make_study
from exgrpo.presets import OBJECTIVE_FIELDS, PRESETS, REPLAY_FIELDS

from ..support.tiny import TINY, tiny


def raw(**changes):
    return {"settings": {"chains": {"task": "chains"}}, "seeds": 2,
            "arms": {"on-policy": {"preset": "on-policy"}, "exgrpo": {"preset": "exgrpo"}}, **changes}  # fmt: skip


def of_setting(**values):
    return raw(settings={"chains": {"task": "chains", **values}})


def of_arm(**values):
    return raw(arms={"on-policy": {"preset": "on-policy"}, "exgrpo": {"preset": "exgrpo", **values}})


def test_numbers_and_names_as_users_write_them():
    """To YAML 1.1 `8e-4` is text; hyphens and underscores are alike."""
    raw = {
        "settings": {"s": {"task": "free-order", "learning_rate": "8e-4"}},
        "arms": {"a": {"preset": "on_policy"}, "b": {"preset": "exgrpo", "grid": {"sigma": ["1e-1", 0.2]}}},
    }
    (setting,) = make_study(raw, "s").settings
    assert (setting.regime.task, setting.regime.learning_rate) == ("free_order", 8e-4)
    assert [arm.preset for arm in setting.arms] == ["on-policy", "exgrpo", "exgrpo"]
    assert [arm.options.get("sigma") for arm in setting.arms] == [None, 0.1, 0.2]


# What a file means ------------------------------------------------------------------------------------------------------


def test_a_file_with_everything(tmp_path):
    path = tmp_path / "main.yaml"
    path.write_text(
        """\
title: Does it help?
seeds: {first: 3, count: 2}
baseline: grpo
contrasts: [[rescue, exgrpo]]
settings:
  chains: {task: chains, steps: 7, learning_rate: 4.0e-4, overrides: {exgrpo: {sigma: 0.5, tried: 9}}}
  sums: {task: sums, arms: [exgrpo, grpo]}
arms:
  grpo: {preset: on-policy, tried: 4}
  exgrpo: {preset: exgrpo, sigma: 0.25, rho: 0.5}
  rescue: {preset: rescue, budget: 2}
""".replace(", rho: 0.5", "")
    )
    study = load_study(path)
    assert (study.name, study.title, study.seeds) == ("main", "Does it help?", (3, 4))
    assert (study.baseline, study.contrasts) == ("grpo", (("rescue", "exgrpo"),))
    chains, sums = study.settings
    assert chains.regime == Regime("chains", steps=7, learning_rate=4e-4)
    assert chains.arms == (
        Arm("grpo", "on-policy", {}, 1.0, 4), Arm("exgrpo", "exgrpo", {"sigma": 0.5}, 1.0, 9), Arm("rescue", "rescue", {}, 2.0),
    )  # fmt: skip
    assert [arm.name for arm in sums.arms] == ["exgrpo", "grpo"]  # in the setting's order
    assert sums.arms[0] == Arm("exgrpo", "exgrpo", {"sigma": 0.25})
    assert [cell.key for cell in study.cells()][:6] == [
        "chains/(start)/3", "chains/grpo/3", "chains/exgrpo/3", "chains/rescue/3", "sums/(start)/3", "sums/exgrpo/3",
    ]  # fmt: skip
    assert len(study.cells()) == 14


def test_what_is_left_out():
    study = make_study({"settings": {"a": {"task": "chains"}}, "arms": {"x": {"preset": "rescue"}}}, "some name")
    assert (study.title, study.seeds, study.baseline) == ("some name", tuple(range(8)), "x")
    assert study.settings[0].regime == Regime()


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [
        (3, (0, 1, 2)),
        ([7, 5], (7, 5)),
        ({"count": 2}, (0, 1)),
        ({"first": 50, "count": 3}, (50, 51, 52)),
    ],
)
def test_seeds(seeds, expected):
    assert make_study(raw(seeds=seeds), "s").seeds == expected


def test_a_grid_gives_every_combination():
    study = make_study(
        of_arm(
            tried=12, sigma=0.5, grid={"learning_rate": [4e-4, 1.6e-3], "positive_weight": [1, 8.0], "mixing": ["none"]}
        ),
        "s",
    )
    arms = study.settings[0].arms[1:]
    assert [arm.name for arm in arms] == [
        "exgrpo learning_rate=0.0004, positive_weight=1, mixing=none",
        "exgrpo learning_rate=0.0004, positive_weight=8, mixing=none",
        "exgrpo learning_rate=0.0016, positive_weight=1, mixing=none",
        "exgrpo learning_rate=0.0016, positive_weight=8, mixing=none",
    ]
    assert arms[1].options == {"sigma": 0.5, "learning_rate": 4e-4, "positive_weight": 8.0, "mixing": "none"}
    assert {arm.tried for arm in arms} == {12}
    assert len({Cell(study.settings[0], arm, 0).fingerprint for arm in arms}) == 4


def test_a_grid_may_be_over_presets_and_budgets():
    study = make_study(raw(arms={"a": {"grid": {"preset": ["rescue", "exgrpo"], "budget": [1, 2]}}}), "s")
    assert [(arm.preset, arm.budget) for arm in study.settings[0].arms] == [
        ("rescue", 1.0), ("rescue", 2.0), ("exgrpo", 1.0), ("exgrpo", 2.0),
    ]  # fmt: skip


LARGE = dict(steps=500, train_questions=2048, eval_questions=512, num_samples=8, evaluations=6, warm_up_batches=None)


def test_a_shortened_study():
    study = tiny(**LARGE)
    short = study.shortened()
    assert short.seeds == study.seeds[:1]
    assert short.settings[0].regime == replace(study.settings[0].regime, **SHORT, train_questions=4 * 8)
    assert len({a.fingerprint for a in short.cells()} & {b.fingerprint for b in study.cells()}) == 0
    assert [cell.key for cell in short.cells()] == [cell.key for cell in study.cells()][:4]


def test_demonstrations_decide_a_result_and_a_start_has_none():
    """Arms without any keep the fingerprints that they had before there were any."""
    without, eight, nine = (
        make_study(of_arm(**given), "s").settings[0] for given in ({}, {"demonstrations": 8}, {"demonstrations": 9})
    )
    prints = [Cell(setting, setting.arms[1], 0).fingerprint for setting in (without, eight, nine)]
    assert len(set(prints)) == 3
    assert Cell(without, replace(eight.arms[1], demonstrations=0), 0).fingerprint == prints[0]
    assert len({Cell(setting, None, 0).fingerprint for setting in (without, eight, nine)}) == 1
    many = make_study(of_arm(demonstrations=2000), "s").shortened().settings[0]
    assert many.arms[1].demonstrations == many.regime.train_questions == 256


def test_shortening_makes_nothing_longer():
    """A study that is small already keeps its sizes."""
    assert tiny().shortened().settings == tiny().settings
    assert tiny(**LARGE | {"evaluations": 1}).shortened().settings[0].regime.evaluations == 1


def test_only_some():
    study = tiny()
    keys = [cell.key for cell in study.only(["chains/rescue/1", "*/exgrpo/0"])]
    assert keys == ["chains/(start)/0", "chains/exgrpo/0", "chains/(start)/1", "chains/rescue/1"]
    assert study.only([]) == study.cells()
    assert [cell.key for cell in study.only(["*/(start)/?"])] == ["chains/(start)/0", "chains/(start)/1"]
    with pytest.raises(ConfigurationError, match=r"nothing matches 'rescue' or 'x'\. Keys look like 'chains/rescue/1'"):
        study.only(["rescue", "x"])


def test_only_takes_a_key_as_it_is_printed():
    """Also one with brackets, which stand for a set of characters elsewhere."""
    study = make_study(of_arm(grid={"tier_shares": [[0.5, 0.5], [1.0, 2.0]]}), "s")
    key = "chains/exgrpo tier_shares=[0.5, 0.5]/1"
    assert key in [cell.key for cell in study.cells()]
    assert [cell.key for cell in study.only([key])] == ["chains/(start)/1", key]


# What is wrong with a file: where it is, what came, what to write instead ----------------------------------------------

ARM, SETTING = r"Study s, arm 'exgrpo'.*", r"Study s, setting 'chains'.*"
MISTAKES = {
    "not a mapping": ("text", r"^Study s: a mapping is required, but 'text' came"),
    "empty file": (None, r"^Study s: a mapping is required, but None came"),
    "no settings": ({"arms": {}}, r"^Study s lacks 'settings'. Keys: settings, arms, title"),
    "unknown key": (raw(seed=3), r"^Study s has no 'seed'. Did you mean 'seeds'\? Keys: settings, arms, title, seeds"),
    "no arms": (raw(arms={}), r"^Study s.*mappings from names, but \{\} came"),
    "arms without names": (raw(arms=[3]), r"^Study s.*mappings from names, but \[3\] came"),
    "an arm that is none": (raw(arms={"a": 3}), r"arm 'a': must be a mapping with at least `preset`, but 3 came"),
    "a name with a slash": (
        raw(arms={"a/b": {"preset": "rescue"}}),
        r"arm 'a/b': an arm's name must not contain a slash",
    ),
    "the start's name": (raw(arms={START: {"preset": "rescue"}}), r"must not contain a slash, nor be '\(start\)'"),
    "a setting with a slash": (raw(settings={"a/b": {"task": "chains"}}), r"setting 'a/b': a setting's name must not"),
    "a setting that is none": (raw(settings={"a": 3}), r"setting 'a': a mapping is required, but 3 came"),
    "no task": (raw(settings={"a": {}}), r"setting 'a' lacks 'task'"),
    "two arms of a name": (
        raw(arms={"a sigma=0.5": {"preset": "exgrpo"}, "a": {"preset": "exgrpo", "grid": {"sigma": [0.5]}}}),
        r"^Study s: two arms are called 'a sigma=0.5'",
    ),
    "a value twice in a grid": (of_arm(grid={"sigma": [0.5, 0.5]}), r"two arms are called 'exgrpo sigma=0.5'"),
    "baseline": (raw(baseline="grpo"), r"^Study s: there is no arm 'grpo'. Arms: on-policy, exgrpo"),
    "contrast of unknown arms": (raw(contrasts=[["exgrpo", "x"]]), r"there is no arm 'x'. Arms: on-policy, exgrpo"),
    "contrast of three": (
        raw(contrasts=[["exgrpo"] * 3]),
        r"^Study s: contrasts is a list of pairs \[arm, arm\], but \[\['exgrpo', ",
    ),
    # arms
    "no preset": (raw(arms={"exgrpo": {"sigma": 1.0}}), ARM + r"`preset` must be one of exgrpo, .*, but is None"),
    "preset": (of_arm(preset="fly"), ARM + r"`preset` must be one of exgrpo, .*rescue.*, but is 'fly'"),
    "option": (
        of_arm(sigmaa=1),
        ARM
        + r"unknown option 'sigmaa'. Did you mean 'sigma'\? An arm has preset, .*, demonstrations, grid, .*learning_rate",
    ),
    "encoder": (of_arm(preset="quality-tiers"), ARM + r"no encoder"),
    "encoder by option": (of_arm(trajectory_choice="highest_quality"), ARM + r"no encoder"),
    "budget 0": (of_arm(budget=0), ARM + r"`budget` is a factor above 0 .*, but is 0"),
    "budget text": (of_arm(budget="2x"), ARM + r"`budget`.*, but is '2x'"),
    "budget nan": (of_arm(budget=float("nan")), ARM + r"`budget`.*, but is nan"),
    "budget true": (of_arm(budget=True), ARM + r"`budget`.*, but is True"),
    "tried 0": (of_arm(tried=0), ARM + r"`tried` must be a whole number of at least 1, but is 0"),
    "tried half": (of_arm(tried=1.5), ARM + r"`tried`.*, but is 1.5"),
    "tried true": (of_arm(tried=True), ARM + r"`tried`.*, but is True"),
    "demonstrations 0.5": (of_arm(demonstrations=0.5), ARM + r"`demonstrations` must be a whole number .*, but is 0.5"),
    "demonstrations true": (of_arm(demonstrations=True), ARM + r"`demonstrations`.*, but is True"),
    "demonstrations for nothing": (
        of_arm(preset="on-policy", demonstrations=8),
        ARM + r"replays no completions, so that 8",
    ),
    "demonstrations of questions alone": (
        of_arm(preset="prompt-replay", demonstrations=8),
        ARM + r"replays no completions",
    ),
    "more demonstrations than questions": (
        raw(
            settings={"chains": {"task": "chains", "train_questions": 64}},
            arms={"exgrpo": {"preset": "exgrpo", "demonstrations": 65}},
        ),
        SETTING + r"arm 'exgrpo' has 65 demonstrations, but there are 64 training questions",
    ),
    "demonstrations of a recipe": (
        raw(
            settings={"chains": {"recipe": {"task": "chains"}, "budget": {"steps": 3}}},
            arms={"exgrpo": {"preset": "exgrpo", "demonstrations": 8}},
        ),
        SETTING + r"With a recipe import them",
    ),
    "demonstrations of a setting": (
        of_setting(overrides={"exgrpo": {"demonstrations": 3}}),
        SETTING + r"`demonstrations` belongs to the arm",
    ),
    "grid list": (of_arm(grid=[1]), ARM + r"`grid` maps options to lists of values, but \[1\] came"),
    "grid value": (of_arm(grid={"sigma": 1}), ARM + r"`grid` maps options to lists of values"),
    "grid empty": (of_arm(grid={"sigma": []}), ARM + r"`grid` maps options to lists of values"),
    "grid unknown": (of_arm(grid={"sigmaa": [1]}), ARM + r"unknown option 'sigmaa'"),
    # settings
    "task": (of_setting(task="fly"), SETTING + r"There is no task 'fly'. Tasks: chains, "),
    "task without warm-up": (
        of_setting(task="reasoning_gym"),
        SETTING + r"cannot be warmed up on the task 'reasoning_gym'",
    ),
    "knob": (of_setting(knobs={"fly": 1}), SETTING + r"has no knob 'fly'. Knobs: modulus, "),
    "knob's value": (of_setting(knobs={"modulus": -1}), SETTING + r"modulus must be .*, got -1"),
    "size": (of_setting(stepz=3), SETTING + r"has no 'stepz'. Did you mean 'steps'\? Keys: task, knobs, "),
    "steps words": (of_setting(steps="8"), SETTING + r"steps must be an integer of at least 1, but is '8'"),
    "steps 0": (of_setting(steps=0), SETTING + r"steps .*but is 0"),
    "too few questions": (of_setting(train_questions=8), SETTING + r"train_questions \(8\).*questions_per_step"),
    "arm of a setting": (of_setting(arms=["x"]), SETTING + r"there is no arm 'x'. Arms: on-policy, exgrpo"),
    "overrides for nobody": (of_setting(overrides={"x": {}}), SETTING + r"there is no arm 'x'"),
    "overrides unknown": (
        of_setting(overrides={"exgrpo": {"sigmaa": 1}}),
        SETTING + r"overrides of 'exgrpo'.*'sigmaa'",
    ),
    # seeds
    **{
        f"seeds {seeds!r}": (
            raw(seeds=seeds),
            r"^Study s: seeds must be a number of them, a list, or \{first: F, count: N\}",
        )
        for seeds in (0, -1, "8", 8.0, None, [], [-1], [1.5], ["a"], {"first": -2, "count": 3}, {"count": 0})
    },
    "seeds twice": (raw(seeds=[1, 2, 1]), r"^Study s: a seed occurs twice in \[1, 2, 1\]"),
    "seeds key": (raw(seeds={"number": 3}), r"^Study s, seeds lacks 'count'. Keys: count, first"),
    "seeds first text": (raw(seeds={"first": "a", "count": 3}), r"^Study s: seeds must be"),
    # numbers that YAML reads as text, and other values that a worker would stumble over
    "rate text": (of_setting(learning_rate="fast"), SETTING + r"learning_rate.*number.*'fast'"),
    "rate of an arm": (of_arm(learning_rate="fast"), ARM + r"learning_rate.*'fast'"),
    "rate of a grid": (of_arm(grid={"learning_rate": ["fast"]}), r"Study s, arm 'exgrpo.*learning_rate.*'fast'"),
    "rate of overrides": (
        of_setting(overrides={"exgrpo": {"learning_rate": "fast"}}),
        SETTING + r"learning_rate.*'fast'",
    ),
    "rate below 0": (of_setting(learning_rate=-1.0), SETTING + r"learning_rate.*-1\.0"),
    "rate none": (of_setting(learning_rate=None), SETTING + r"learning_rate.*None"),
    "steps true": (of_setting(steps=True), SETTING + r"steps.*True"),
    "warm-up text": (of_setting(warm_up_batches="x"), SETTING + r"warm_up_batches.*'x'"),
    "warm-up below 0": (of_setting(warm_up_batches=-3), SETTING + r"warm_up_batches.*-3"),
    "one completion": (of_setting(num_generations=1), SETTING + r"num_generations.*1"),
    "iterations text": (of_arm(num_iterations="two"), ARM + r"num_iterations.*'two'"),
    # values of options
    "value": (of_arm(sigma=-1), ARM + r"sigma must be a number in \(0, inf\), but is -1"),
    "number as text": (of_arm(positive_weight="ten"), ARM + r"positive_weight must be a number .*, but is 'ten'"),
    "choice": (of_arm(mixing="mixed"), ARM + r"mixing must be one of 'share', .* but is 'mixed'"),
    "overrides": (of_setting(overrides={"exgrpo": {"sigma": -1}}), SETTING + r"'exgrpo'.*sigma must be"),
    # shapes
    "knobs list": (of_setting(knobs=[1]), SETTING + r"knobs.*\[1\]"),
    "knob's type": (of_setting(knobs={"lengths": 3}), SETTING + r"lengths.*3"),
    "task list": (of_setting(task=["a"]), SETTING + r"task.*\['a'\]"),
    "preset list": (of_arm(preset=["a"]), ARM + r"`preset` must be one of .*\['a'\]"),
    "arms none": (of_setting(arms=None), SETTING + r"arms.*None"),
    "arms text": (of_setting(arms="exgrpo"), SETTING + r"arms.*list.*'exgrpo'"),
    "overrides number": (of_setting(overrides={"exgrpo": 3}), SETTING + r"'exgrpo'.*3"),
    "baseline list": (raw(baseline=["x"]), r"^Study s.*\['x'\]"),
    "contrasts none": (raw(contrasts=None), r"^Study s.*contrast.*None"),
    "contrasts flat": (raw(contrasts=["exgrpo", "on-policy"]), r"^Study s.*contrast.*pair"),
    "an arm twice": (of_setting(arms=["exgrpo", "exgrpo"]), SETTING + r"'exgrpo'"),
    "no arm": (of_setting(arms=[]), SETTING + r"arms"),
    "overrides of an absent arm": (
        of_setting(arms=["on-policy"], overrides={"exgrpo": {"sigma": 1.0}}),
        SETTING + "exgrpo",
    ),
    "tried": (of_setting(overrides={"exgrpo": {"tried": "many"}}), SETTING + r"`tried`.*'many'"),
    "budget infinite": (of_arm(budget=float("inf")), ARM + r"`budget`.*inf"),
    "seeds true": (raw(seeds=True), r"^Study s: seeds must be .*True"),
    "seeds of booleans": (raw(seeds=[True, False]), r"^Study s: seeds must be .*True"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name):
    given_, message = MISTAKES[name]
    with pytest.raises(ConfigurationError, match=f"(?s){message}"):
        make_study(copy.deepcopy(given_), "s")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigurationError, match=r"The study .*missing\.yaml cannot be read: No such file"):
        load_study(tmp_path / "missing.yaml")
    with pytest.raises(ConfigurationError, match=r"cannot be read: Is a directory"):
        load_study(tmp_path)
    (tmp_path / "broken.yaml").write_text("a: [1")
    with pytest.raises(ConfigurationError, match=r"broken\.yaml is not YAML"):
        load_study(tmp_path / "broken.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match=r"bytes\.yaml is not YAML"):
        load_study(tmp_path / "bytes.yaml")
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(ConfigurationError, match=r"Study empty: a mapping is required"):
        load_study(tmp_path / "empty.yaml")


def test_8e_4_in_a_file_is_a_number(tmp_path):
    """YAML 1.1 takes it for text, since it wants a point."""
    path = tmp_path / "s.yaml"
    path.write_text(TINY.replace("task: chains", "task: chains\n    learning_rate: 8e-4"))
    assert load_study(path).settings[0].regime.learning_rate == 8e-4


def test_a_name_twice_in_a_file_is_refused(tmp_path):
    """YAML would keep the last and forget the first."""
    path = tmp_path / "s.yaml"
    path.write_text(TINY + "  exgrpo: {preset: exgrpo, sigma: 0.5}\n")
    with pytest.raises(ConfigurationError, match=r"The study .*s\.yaml: 'exgrpo' occurs twice in one mapping"):
        load_study(path)
    path.write_text(TINY.replace("steps: 6", "steps: 6\n    steps: 7"))
    with pytest.raises(ConfigurationError, match=r"'steps' occurs twice"):
        load_study(path)


def test_yaml_s_merge_is_no_repetition(tmp_path):
    """`<<` brings what a mapping then may replace, also where the anchor's own mapping is a merge, deeper in the file."""
    path = tmp_path / "s.yaml"
    path.write_text(
        """\
arms:
  base: &base {preset: exgrpo, sigma: 0.5, tried: 2}
  second: &second {<<: *base, sigma: 0.25}
  third: {<<: *second, sigma: 1.0}
  fourth: {<<: [*second, *base], replay_share: 0.25}
settings:
  one: {task: chains, overrides: {base: &deep {<<: *over, sigma: 0.125}, second: *deep}}
""".replace("*over", "{sigma: 2.0, tried: 7}")
    )
    study = load_study(path)
    arms = {arm.name: (arm.options, arm.tried) for arm in study.settings[0].arms}
    assert arms == {
        "base": ({"sigma": 0.125}, 7),
        "second": ({"sigma": 0.125}, 7),
        "third": ({"sigma": 1.0}, 2),
        "fourth": ({"sigma": 0.25, "replay_share": 0.25}, 2),
    }
    path.write_text("""\
settings:
  one: {task: chains, overrides: {base: &deep {<<: {sigma: 2.0, tried: 7}, sigma: 0.125}}}
arms:
  base: {preset: exgrpo}
  second: {preset: exgrpo, <<: *deep}
""")
    assert load_study(path).settings[0].arms[1].options == {"sigma": 0.125}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a b", "a-b"), r"setting 'a-b' and setting 'a b' would share the file a-b\.png: choose another name"),
        (("Chains", "chains"), r"setting 'chains' and setting 'Chains' would share the file chains\.png"),
        (("Differences",), r"setting 'Differences' and the picture of the differences would share"),
    ],
)
def test_no_two_settings_share_a_picture(names, message):
    with pytest.raises(ConfigurationError, match=f"^Study s: {message}"):
        make_study(raw(settings={name: {"task": "chains"} for name in names}), "s")


# The fingerprint --------------------------------------------------------------------------------------------------------

CELL = Cell(Setting("a", Regime("chains"), ()), Arm("x", "exgrpo"), 0)
OTHER = {
    "task": "sums", "knobs": {"modulus": 7}, "train_questions": 100, "eval_questions": 100, "num_generations": 8,
    "questions_per_step": 32, "learning_rate": 1e-3, "steps": 10, "num_samples": 4, "evaluations": 3, "warm_up_batches": 10,
}  # fmt: skip


def with_arm(**options):
    return replace(CELL, arm=replace(CELL.arm, options=options))


def test_every_field_of_a_regime_decides():
    assert set(OTHER) == {f.name for f in fields(Regime)}
    prints = {CELL.fingerprint}
    for name, value in OTHER.items():
        setting = replace(CELL.setting, regime=replace(CELL.setting.regime, **{name: value}))
        prints.add(replace(CELL, setting=setting).fingerprint)
    assert len(prints) == 1 + len(OTHER)


def different(config, name):
    """Another value that this field may have, found by trying."""
    current = getattr(config, name)
    values = [not current] if isinstance(current, bool) else []
    if isinstance(current, int | float) and not isinstance(current, bool):
        values = [type(current)(v) for v in (current / 2, current + 1, 1, 0.4, 2) if type(current)(v) != current]
    if isinstance(current, tuple):
        values = [[0.5, 0.5], [0.4, 0.3, 0.2, 0.1]]
    values += ["rescue", "window", "float16", "stored", "random", "uniform", "correct", "all", "solved", "never", "newest",
               "oldest", "highest_entropy", "clip", "fresh", "curriculum", {"width": 1}]  # fmt: skip
    values += ["annealed", "current", "zero_variance"]
    for value in values:
        try:
            replace(config, **{name: tuple(value) if isinstance(value, list) else value})
        except (ConfigurationError, TypeError):
            continue
        if value != current:
            return value
    raise AssertionError(name)


@pytest.mark.parametrize("name", REPLAY_FIELDS + OBJECTIVE_FIELDS)
def test_every_option_of_replay_and_objective_decides(name):
    config = ReplayConfig() if name in REPLAY_FIELDS else ObjectiveConfig()
    assert with_arm(**{name: different(config, name)}).fingerprint != CELL.fingerprint


@pytest.mark.parametrize("name", HOST_OPTIONS)
def test_every_option_of_the_host_decides(name):
    assert with_arm(**{name: 0.5}).fingerprint != CELL.fingerprint
    assert with_arm(**{name: 0.5}).fingerprint != with_arm(**{name: 0.25}).fingerprint


def test_a_preset_s_own_options_decide_though_its_name_does_not(monkeypatch):
    """A preset that is changed later gives other fingerprints; one that is only renamed, the same."""
    presets = dict(PRESETS)
    before = CELL.fingerprint
    presets["other"] = presets["exgrpo"]
    monkeypatch.setattr("exgrpo.presets.PRESETS", presets)
    assert replace(CELL, arm=replace(CELL.arm, preset="other")).fingerprint == before
    presets["exgrpo"] = replace(presets["exgrpo"], options={"sigma": 0.5})
    assert CELL.fingerprint != before
    assert len({replace(CELL, arm=replace(CELL.arm, preset=name)).fingerprint for name in PRESETS}) == len(PRESETS)


def test_budget_seed_and_arm_decide():
    cells = [CELL, replace(CELL, seed=1), replace(CELL, arm=replace(CELL.arm, budget=2.0)), replace(CELL, arm=None),
             replace(CELL, arm=None, seed=1), replace(CELL, arm=replace(CELL.arm, preset="on-policy"))]  # fmt: skip
    assert len({cell.fingerprint for cell in cells}) == len(cells)


def test_the_gate_that_the_lab_opens_decides():
    """Given or not, the gate's value is in the fingerprint as it is in the run: the lab opens it where nothing is said."""
    closed = ReplayConfig().start_pass_at_1
    assert with_arm(start_pass_at_1=closed).fingerprint != CELL.fingerprint
    assert with_arm(start_pass_at_1=closed).fingerprint != with_arm(start_pass_at_1=0.0).fingerprint


def test_title_tried_and_names_do_not_decide():
    study = tiny()
    other = yaml.safe_load(TINY)
    other["title"], other["seeds"] = "Another title", [1, 0]
    other["settings"]["renamed"] = other["settings"].pop("chains")
    other["arms"] = {
        "first": {"preset": "on-policy", "tried": 5},
        "second": {"preset": "exgrpo"},
        "third": {"preset": "rescue"},
    }
    same = make_study(other, "other")
    assert {c.fingerprint for c in same.cells()} == {c.fingerprint for c in study.cells()}
    assert {c.key for c in same.cells()}.isdisjoint({c.key for c in study.cells()})


def test_an_override_is_as_good_as_an_option():
    one = make_study(of_setting(overrides={"exgrpo": {"sigma": 0.5}}), "s").settings[0]
    two = make_study(of_arm(sigma=0.5), "s").settings[0]
    assert Cell(one, one.arms[1], 0).fingerprint == Cell(two, two.arms[1], 0).fingerprint


@given(
    first=st.fixed_dictionaries({}, optional={
        "sigma": st.floats(0.01, 2), "positive_weight": st.floats(0.5, 9), "max_age": st.integers(0, 50),
        "learning_rate": st.floats(1e-5, 1e-2),
    }),
    second=st.fixed_dictionaries({}, optional={
        "sigma": st.floats(0.01, 2), "positive_weight": st.floats(0.5, 9), "max_age": st.integers(0, 50),
        "learning_rate": st.floats(1e-5, 1e-2),
    }),
)  # fmt: skip
def test_equal_options_equal_fingerprints_and_only_those(first, second):
    reordered = dict(reversed(first.items()))
    assert with_arm(**first).fingerprint == with_arm(**reordered).fingerprint
    assert (with_arm(**first).fingerprint == with_arm(**second).fingerprint) == (first == second)


def test_a_fingerprint_is_of_what_json_can_hold():
    """Tuples of a knob and lists from YAML are the same; so is a study that went through JSON."""
    again = make_study(json.loads(json.dumps(yaml.safe_load(TINY))), "tiny")
    assert again == tiny()
    knobs = tiny().settings[0].regime.knobs
    as_tuples = tiny(knobs={name: tuple(value) for name, value in knobs.items()})
    assert [c.fingerprint for c in as_tuples.cells()] == [c.fingerprint for c in tiny().cells()]
    assert asdict(tiny().settings[0].regime)["knobs"] == {"lengths": [1], "shares": [1.0]}
