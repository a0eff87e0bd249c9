"""`exgrpo demo`: one short run of the command, and what an arm is."""

import json
import os
import subprocess
import sys

import pytest

from exgrpo.errors import ConfigurationError
from exgrpo.lab import demo
from exgrpo.lab.studies.arm import evaluate_start, run_arm
from exgrpo.lab.studies.regime import REGIMES, Regime, tokens_of
from exgrpo.tasks import get_task

SMALL = Regime(
    train_questions=64, eval_questions=16, questions_per_step=8, steps=6, num_samples=2, evaluations=2, warm_up_batches=3,
    knobs={"lengths": (1, 2), "shares": (0.5, 0.5), "modulus": 10},
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EXGRPO_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """The real command, with two processes; returns (completed process, output folder)."""
    out = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [
            sys.executable, "-m", "exgrpo", "demo", "--output_dir", str(out), "--presets", "on-policy", "exgrpo",
            "--steps", "4", "--train_questions", "64", "--eval_questions", "16", "--questions_per_step", "8",
            "--evaluations", "2", "--warm_up_batches", "3", "--jobs", "2",
        ],
        capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "100"},
    )  # fmt: skip
    return done, out


@pytest.mark.slow
def test_the_command_writes_what_it_says(command):
    done, out = command
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert {path.name for path in out.iterdir()} == {
        "results.json",
        "learning-curve.png",
        "replay.png",
        "demo.html",
        "runs",
    }
    assert (out / "demo.html").resolve().as_uri() in done.stdout
    assert (out / "runs" / "exgrpo" / "experience.db").is_file()
    assert all((out / name).read_bytes().startswith(b"\x89PNG") for name in ("learning-curve.png", "replay.png"))
    assert "\x1b" not in done.stdout
    for text in ("warm-up of seed 0", "Pass@1", "Pass@8", "greedy", "retired", "replayed", "on-policy", "exgrpo"):
        assert text in done.stdout
    assert len(done.stdout.splitlines()) < 40


@pytest.mark.slow
def test_every_arm_has_the_same_start_and_the_same_tokens(command):
    _, out = command
    results = json.loads((out / "results.json").read_text())
    assert [arm["preset"] for arm in results["arms"]] == ["on-policy", "exgrpo"]
    assert results["versions"]["trl"]
    budget = results["arms"][0]["token_budget"]
    step = 8 * 4 * 9
    for arm in results["arms"]:
        assert arm["token_budget"] == budget
        assert budget <= arm["tokens"] < budget + step
        assert arm["curve"][-1] == arm["final"]
        assert [row["step"] for row in arm["history"]] == list(range(1, arm["steps"] + 1))
        assert arm["history"][-1]["tokens"] == arm["tokens"]
        assert arm["options"]["start_pass_at_1"] == 0.0
    assert results["arms"][0]["history"][0]["fresh/pass_at_1"] == results["arms"][1]["history"][0]["fresh/pass_at_1"]
    assert results["differences"] == []


def without_times(arm):
    return {name: value for name, value in arm.items() if name != "seconds"}


@pytest.mark.slow
def test_an_arm_is_the_same_whatever_ran_before():
    seen = []
    first = run_arm("exgrpo", 3, SMALL, on_progress=seen.append)
    run_arm("on-policy", 4, SMALL)
    assert without_times(run_arm("exgrpo", 3, SMALL)) == without_times(first)
    assert json.loads(json.dumps(first)) == first
    assert [state["evaluations"] for state in seen][-1] == len(first["curve"]) == 2
    assert [point["at"] for point in first["curve"]] == [round(first["token_budget"] / 2), first["token_budget"]]
    assert first["replay_share"] > 0
    assert first["questions_solved"] >= first["retired"]


def test_an_arm_s_budget_and_options():
    arm = run_arm("rescue", 3, SMALL, token_budget=300, options={"positive_weight": 2.0, "start_step": 10_000})
    assert 300 <= arm["tokens"] < 300 + 8 * 4 * 9
    assert arm["options"]["positive_weight"] == 2.0
    assert arm["replay_share"] == 0


def test_the_start_is_the_seed_s():
    assert evaluate_start(3, SMALL) == evaluate_start(3, SMALL)
    assert evaluate_start(3, SMALL)["tokens"] == 0


def test_the_budget_is_that_of_right_answers():
    task = get_task("chains", lengths=(2,), shares=(1.0,))
    regime = Regime(knobs={"lengths": (2,), "shares": (1.0,)}, steps=10, questions_per_step=4, train_questions=16)
    assert tokens_of(task, 0, regime) == 10 * 4 * 4 * 3


def test_regimes_are_checked():
    assert REGIMES["chains"] == Regime()
    with pytest.raises(ConfigurationError, match=r"steps must be an integer of at least 1, but is 0"):
        Regime(steps=0)
    with pytest.raises(ConfigurationError, match="at least questions_per_step"):
        Regime(train_questions=8)
    with pytest.raises(ConfigurationError, match="no preset 'fly'"):
        demo.Comparison(presets=("fly",))


def test_jobs_of_several_seeds():
    jobs = demo.Comparison(("on-policy", "rescue"), SMALL, (5, 6)).jobs()
    assert [job.name for job in jobs] == [
        "warm-up of seed 5", "on-policy, seed 5", "rescue, seed 5", "warm-up of seed 6", "on-policy, seed 6", "rescue, seed 6",
    ]  # fmt: skip
    assert all(job.after == () or job.after[0].endswith(str(job.arguments["seed"])) for job in jobs)


def arm_of(preset, seed, value, share):
    final = {"pass_at_1": value, "pass_at_8": value + 0.1, "greedy_accuracy": value}
    return {
        "preset": preset, "seed": seed, "final": final, "tokens": 1000 + seed, "steps": 10, "seconds": {"train": 1.0},
        "questions_solved": 3, "retired": None if share is None else 2, "replay_share": share,
    }  # fmt: skip


def results_of(seeds):
    arms = [
        arm for seed in range(seeds) for arm in (
            arm_of("on-policy", seed, 0.1 + 0.01 * seed, None), arm_of("rescue", seed, 0.2 + 0.02 * seed, 0.25),
        )
    ]  # fmt: skip
    starts = [{"pass_at_1": 0.05, "pass_at_8": 0.1, "greedy_accuracy": 0.05}] * seeds
    return {"presets": ["on-policy", "rescue"], "seeds": list(range(seeds)), "arms": arms, "starts": starts,
            "regime": {"num_samples": 8}}  # fmt: skip


def test_differences_need_five_seeds_and_are_paired():
    assert demo.differences(results_of(4)) == []
    rows = demo.differences(results_of(5))
    assert [(row["preset"], row["figure"]) for row in rows] == [("rescue", figure) for figure in demo.COMPARED]
    assert rows[0]["difference"] == pytest.approx(0.12)
    assert rows[0]["bootstrap"][0] <= 0.12 <= rows[0]["bootstrap"][1]


def test_the_table_holds_means():
    start, on_policy, rescue = demo.summary(results_of(2))
    assert start["Pass@1"] == pytest.approx(0.05)
    assert on_policy["Pass@1"] == pytest.approx(0.105)
    assert on_policy["retired"] is None
    assert rescue["Pass@8"] == pytest.approx(0.31)
    assert rescue["replayed"] == "25.0%"


def test_a_preset_that_needs_an_encoder_is_refused():
    with pytest.raises(ConfigurationError, match="The demo has no encoder, which preset 'quality-tiers' needs"):
        demo.Comparison(presets=("on-policy", "quality-tiers"))
