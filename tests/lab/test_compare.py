"""`exgrpo compare`: the figures of the lab on the built-in policy, budgets, what is refused, and going on after a kill."""

import importlib.util
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from exgrpo.cli.main import main
from exgrpo.errors import ConfigurationError
from exgrpo.lab import compare
from exgrpo.lab.studies import page, probe, running
from exgrpo.lab.studies.cells import run_cell
from exgrpo.lab.studies.recipe_regime import RecipeRegime
from exgrpo.lab.studies.results import Results
from exgrpo.lab.studies.study import Cell, Setting
from exgrpo.lab.studies.summary import load_findings
from exgrpo.lab.studies.workers import find

from ..support.tiny import tiny

RECIPE = """\
env: {OMP_NUM_THREADS: 1}
task: chains
task_knobs: {lengths: [1], shares: [1.0]}
task_questions: 16
warm_up_batches: 40
start_pass_at_1: 0.0
num_generations: 4
per_device_train_batch_size: 32
max_completion_length: 2
learning_rate: 8e-4
lr_scheduler_type: constant
adam_beta2: 0.95
max_grad_norm: 1.0
max_steps: 6
output_dir: outputs/unused
save_strategy: steps
use_cpu: true
bf16: false
gradient_checkpointing: false
dataloader_pin_memory: false
"""
"""The lab's tiny study as a recipe."""
SIZES = ("--eval_questions", "16", "--num_samples", "2", "--evaluations", "2")
PRESETS = ("--presets", "on-policy", "exgrpo", "rescue positive_weight=2")


class Crash(BaseException):
    """The machine stops here."""


class Jobs:
    """In place of worker processes: each job once in this process, later from memory; stops at the event that it is told."""

    def __init__(self):
        self.known, self.stop_at, self.events, self.ran = {}, None, 0, []

    def __call__(self, jobs, workers, setup, environment=None):
        for job in jobs:
            yield from self._tick("start", job, None)
            self.ran.append(job.name)
            key = repr(replace(job, after=()))  # what was done before a crash is not waited for
            if key not in self.known:
                progress = {"on_progress": lambda state: None} if job.reports else {}
                self.known[key] = find(job.function)(**job.arguments, **progress)
            yield from self._tick("done", job, self.known[key])

    def _tick(self, *event):
        for when in ("before", "after"):
            if self.stop_at == self.events:
                raise Crash
            self.events += 1
            if when == "before":
                yield event


@pytest.fixture(scope="module")
def jobs():
    return Jobs()


@pytest.fixture
def in_process(jobs, monkeypatch, tmp_path):
    monkeypatch.setattr(running, "run_jobs", jobs)
    monkeypatch.setattr(probe, "run_jobs", jobs)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    jobs.stop_at, jobs.events, jobs.ran = None, 0, []
    return jobs


def go(*words, presets=PRESETS):
    return main(["compare", "tiny.yaml", *presets, *SIZES, *words])


@pytest.mark.slow
def test_the_figures_are_those_of_the_lab_bit_for_bit():
    """Whole rows but for the name of the setting and the fingerprint."""
    study = tiny()
    lab = study.settings[0]
    recipe = yaml.safe_load(RECIPE) | {"learning_rate": 8e-4}
    regime = RecipeRegime(recipe, {"right_answers": 6}, eval_questions=16, num_samples=2, evaluations=2)
    ours = Setting("chains", regime, lab.arms)
    for arm in (None, lab.arms[1]):
        rows = [run_cell(Cell(setting, arm, 1), lambda state: None)[0] for setting in (lab, ours)]
        assert rows[0].pop("fingerprint") != rows[1].pop("fingerprint")
        assert rows[0] == rows[1]


@pytest.mark.slow
def test_a_comparison_killed_at_any_of_20_instants_ends_with_the_same_files(in_process, monkeypatch, capsys):
    assert go("--seeds", "2", "--output_dir", "whole") == 0
    said = capsys.readouterr().out
    assert "3 presets x 2 seeds, each the tokens of 6 steps, as if all answers were right" in said
    assert "and the start of each seed: 8 jobs, 8 to do" in said
    assert "Fewer than 5 seeds give no interval" in said
    assert "With fewer than 5 pairs there is no interval" in said
    whole = {name: Path(f"whole/{name}").read_bytes() for name in ("results.jsonl", "times.jsonl", "report.json")}
    monkeypatch.setattr(page, "draw_setting", lambda found, setting, path: Path("whole/tiny.png"))  # it takes long
    events, in_process.events = in_process.events, 0
    assert events == 4 * 9  # the probe, and eight runs
    for instant in [round(i * (events - 1) / 19) for i in range(20)]:
        folder = f"killed-{instant}"
        in_process.stop_at, in_process.events, in_process.ran = instant, 0, []
        with pytest.raises(Crash):
            go("--seeds", "2", "--output_dir", folder)
        in_process.stop_at = None
        assert go("--seeds", "2", "--output_dir", folder) == 0
        for name, data in whole.items():
            assert Path(f"{folder}/{name}").read_bytes() == data, (instant, name)
        assert len(in_process.ran) <= 10, "what is done is not done again"
    html = Path("whole/report.html").read_text()
    assert "rescue positive_weight=2" in html
    assert "data:image/png;base64," in html
    found = load_findings("whole")
    assert found.study.settings[0].arms[2].options == {"positive_weight": 2}
    figures = json.loads(whole["report.json"])["settings"]["tiny"]["differences"][0]["figures"]
    assert set(figures) >= {"equal_tokens:pass_at_1", "equal_time:pass_at_2", "equal_steps:pass_at_1"}
    assert all(len(figure["by_pair"]) == 2 and figure["interval"] is None for figure in figures.values())


@pytest.mark.slow
def test_at_equal_steps_and_in_other_presets_runs_end_together(in_process):
    assert (
        go("--steps", "3", "--output_dir", "steps", presets=("--presets", "on-policy", "exgrpo num_iterations=2")) == 0
    )
    rows = Results("steps").rows()
    assert [row.get("steps") for row in rows.values()] == [None, 3, 3]
    assert [row.get("ended_by") for row in rows.values()] == [None, "steps", "steps"]
    assert [point["at"] for point in rows["tiny/on-policy/0"]["curve"]] == [2, 3]


@pytest.mark.slow
def test_presets_are_compared_each_at_its_own_learning_rate(in_process, capsys):
    presets = ("--presets", "on-policy", "rescue", "--learning_rates", "4e-4", "3.2e-3")
    assert go("--seeds", "2", presets=presets) == 0
    said = capsys.readouterr().out
    assert "2 presets x 2 learning rates x 2 seeds" in said
    report = json.loads(Path("exgrpo-compare/tiny/report.json").read_text())["settings"]["tiny"]
    assert [(row["arm"], set(row) & {"0.0004", "0.0032"}) for row in report["learning_rates"]] == [
        ("on-policy", {"0.0004", "0.0032"}), ("rescue", {"0.0004", "0.0032"}),
    ]  # fmt: skip
    pairs = [(row["arm"], row["against"]) for row in report["differences"]]
    assert pairs == [
        (f"rescue learning_rate={rate}", f"on-policy learning_rate={rate}") for rate in ("0.0004", "0.0032")
    ]
    assert "rescue against on-policy, each at its own rate: " in said
    assert "<h3>Learning rates</h3>" in Path("exgrpo-compare/tiny/report.html").read_text()


def test_time_ends_a_run(in_process):
    assert go("--hours", "1e-4", "--output_dir", "time", presets=("--presets", "on-policy")) == 0
    row = Results("time").rows()["tiny/on-policy/0"]
    assert row["ended_by"] == "seconds"
    assert row["token_budget"] is None
    (seconds,) = (times["seconds"] for key, times in Results("time").times().items() if "on-policy" in key)
    assert seconds["wall"][-1] >= 0.36


@pytest.mark.slow
def test_a_script_s_runs_are_put_together(in_process, capsys):
    words = ["--steps", "2", "--output_dir", "parts"]
    assert go(*words, "--emit", "shell", "--launcher", "accelerate launch --num_processes 2 -m") == 0
    script = capsys.readouterr().out.splitlines()
    runs = [line for line in script if "--run" in line]
    assert len(runs) == 4
    assert all(
        line.startswith("accelerate launch --num_processes 2 -m exgrpo.cli.main compare tiny.yaml") for line in runs
    )
    assert script[-1].startswith("exgrpo compare tiny.yaml --presets on-policy exgrpo 'rescue positive_weight=2'")
    assert subprocess.run(["bash", "-n"], input="\n".join(script), text=True, check=False).returncode == 0
    assert go("--only", "tiny/exgrpo/0", "tiny/on-policy/0", *words, "--jobs", "2", "--emit", "shell") == 0
    again = capsys.readouterr().out.splitlines()
    assert again[-1] == script[-1]
    assert sum("--run" in line for line in again) == 3
    for key in ("tiny/(start)/0", "tiny/exgrpo/0"):
        assert go(*words, "--run", key) == 0
    assert go(*words) == 0
    assert in_process.ran == ["the probe", "tiny/on-policy/0", "tiny/rescue positive_weight=2/0"]
    assert go(*words, "--output_dir", "parts2", "--emit", "slurm") == 0
    assert "#SBATCH --array=0-3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("recipe", "words", "message"),
    [
        ({}, ("--presets", "on-polizy"), "Did you mean 'on-policy'"),
        ({}, ("--presets", "exgrpo replay_shar=0.5"), "unknown option 'replay_shar'"),
        ({}, ("--presets", "exgrpo replay_share=2"), "The arm 'exgrpo replay_share=2'"),
        ({}, ("--presets", "exgrpo seed=2"), "'seed' is the study's own"),
        ({}, ("--presets", "exgrpo", "exgrpo"), "names one twice"),
        ({}, ("--presets", "exgrpo x"), "NAME=VALUE"),
        ({}, ("--presets", "exgrpo learning_rate=1e-3", "--learning_rates", "1e-3"), "leave one of them out"),
        ({}, ("--presets", "exgrpo", "--learning_rates", "1e-3", "0.001"), "names one twice"),
        ({"lr_scheduler_type": "cosine"}, ("--presets", "exgrpo"), "Set lr_scheduler_type: constant"),
        ({"max_steps": -1}, ("--presets", "exgrpo"), "set --tokens, --steps or --hours"),
        ({"model_name_or_path": "x"}, ("--presets", "exgrpo", "--emit", "slurm"), "--emit needs --tokens"),
    ],
)
def test_what_cannot_be_compared_is_told_before_anything_runs(recipe, words, message, in_process, capsys):
    Path("tiny.yaml").write_text(yaml.safe_dump({**yaml.safe_load(RECIPE), **recipe}))
    assert main(["compare", "tiny.yaml", *words]) == 2
    assert message in capsys.readouterr().err
    assert in_process.ran == []
    assert not os.path.exists("exgrpo-compare")


def test_a_missing_matplotlib_is_told_before_anything_runs(in_process, monkeypatch, capsys):
    Path("tiny.yaml").write_text(RECIPE)
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else there(name))
    assert main(["compare", "tiny.yaml", *PRESETS]) == 1
    assert "A comparison's report needs `matplotlib`" in capsys.readouterr().err
    assert in_process.ran == []


def test_a_probe_tells_what_runs_cost():
    cost = probe.Probe(load=10, generate=4, update=2, updates=2, tokens=1000, evaluate=3)
    assert (cost.tokens_of(40), cost.steps_of(20_000)) == (20_000, 40)
    regime = RecipeRegime({"lr_scheduler_type": "constant"}, {"tokens": 20_000}, evaluations=5)
    study = compare.make_study(
        {"arms": {"a": {"preset": "on-policy"}, "b": {"preset": "on-policy", "num_iterations": 2}},
         "settings": {"s": {"recipe": {"lr_scheduler_type": "constant"}, "budget": {"tokens": 20_000}, "evaluations": 5}}},
        "s",
    )  # fmt: skip
    setting = study.settings[0]
    assert setting.regime == regime
    assert cost.seconds(Cell(setting, None, 0)) == 13
    tiny = replace(cost, warm_up=50.0)  # of the start of a seed; its arms find the policy made
    assert tiny.seconds(Cell(setting, None, 0)) == 63
    assert tiny.seconds(Cell(setting, setting.arms[0], 0)) == cost.seconds(Cell(setting, setting.arms[0], 0))
    assert cost.seconds(Cell(setting, setting.arms[0], 0)) == 10 + 20 * 6 + 15
    assert cost.seconds(Cell(setting, setting.arms[1], 0)) == 10 + 20 * 8 + 15
    by_steps = replace(setting, regime=replace(regime, budget_of={"steps": 8}))
    assert cost.seconds(Cell(by_steps, setting.arms[0], 0)) == 10 + 4 * 6 + 15


def test_a_budget_is_one_of_four():
    with pytest.raises(ConfigurationError, match="one of tokens, right_answers, steps, hours"):
        RecipeRegime({}, {"tokens": 1, "steps": 2})
    with pytest.raises(ConfigurationError, match="needs a built-in task"):
        RecipeRegime(
            {"model_name_or_path": "m", "task": "chains", "lr_scheduler_type": "constant"}, {"right_answers": 2}
        )
