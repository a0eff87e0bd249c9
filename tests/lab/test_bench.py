"""`exgrpo bench`: what it takes, what it writes, and that docs/cost.md says what was measured. No test looks at a time."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from exgrpo import PRESETS, __version__
from exgrpo.cli.main import UsageError, main
from exgrpo.lab import bench
from exgrpo.lab.bench import buffer as bench_buffer
from exgrpo.lab.bench import log as bench_log
from exgrpo.lab.bench import machine as bench_machine
from exgrpo.lab.bench import step as bench_step
from exgrpo.lab.bench.arms import ArmInputs, Script, Setting
from exgrpo.lab.bench.process import in_a_process
from exgrpo.lab.studies.workers import WorkerError

SMALL = Setting("tiny", ("stock", "exgrpo"), 4, 4, None, "half", True, 1, 1, 2)


@pytest.fixture
def _untrained(monkeypatch):
    """The tiny policy without its warm-up."""
    from exgrpo.tasks import tiny_policy

    def policy(task, seed):
        tokenizer = tiny_policy.make_tokenizer(task)
        return tiny_policy.make_policy(tokenizer), tokenizer

    monkeypatch.setattr(tiny_policy, "warm_policy", policy)


# Arguments --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [("--help",), ("step", "--help"), ("buffer", "--help"), ("log", "--help")], ids=str
)
def test_help_imports_nothing_heavy(arguments):
    code = (
        "import sys; from exgrpo.cli.main import main; code = main(['bench', *sys.argv[1:]]);"
        "heavy = {'torch', 'transformers', 'trl', 'datasets', 'accelerate', 'rich', 'torchrl'};"
        "print(sorted(heavy & sys.modules.keys()), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "[]")
    assert "example" in done.stdout or len(arguments) == 1


@pytest.mark.parametrize(
    "arguments",
    [["fly"], ["step", "--arms", "fly"], ["step", "--rounds", "0"], ["step", "--variance", "none"],
     ["buffer", "--sizes", "10"], ["buffer", "--sizes", "1e3.5"], ["log", "--sizes", "1500.5"]],
    ids=str,
)  # fmt: skip
def test_wrong_usage_is_2(arguments, capsys):
    assert main(["bench", *arguments]) == 2
    assert "error" in capsys.readouterr().err


def test_sizes_may_be_written_short():
    args = bench.parser().parse_args(["buffer", "--sizes", "1e4", "2000"])
    assert args.sizes == [10_000, 2000]


def test_a_model_is_a_directory(tmp_path):
    with pytest.raises(UsageError, match=r"no config\.json"):
        ArmInputs(setting_of("--model", str(tmp_path)))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="--variance own is for the tiny"):
        ArmInputs(setting_of("--model", str(tmp_path), "--variance", "own"))


def setting_of(*arguments):
    return bench_step.setting_of(bench.parser().parse_args(["step", *arguments]))


def test_sizes_suit_the_model():
    tiny = setting_of()
    assert (tiny.questions, tiny.generations, tiny.variance, tiny.steps, tiny.warm_up) == (64, 4, "own", 10, 20)
    assert tiny.arms == ("stock", "on-policy", "exgrpo", "rescue")
    model = setting_of("--model", "somewhere", "--skip_rows", "off", "--arms", "stock", "rescue", "stock")
    assert (model.questions, model.generations, model.variance, model.steps, model.warm_up) == (8, 8, "all", 1, 2)
    assert model.arms == ("stock", "rescue")
    assert not model.skip_rows
    presets = setting_of("--presets").arms
    assert presets[0] == "on-policy"
    assert set(presets) == set(PRESETS)


def test_results_do_not_say_where_things_lie_here():
    for given, told in (
        (["step", "--model", "/me/m", "--rounds", "1", "--out", "/x.json"], "step --model DIRECTORY --rounds 1"),
        (["step", "--model=/me/m", "--json", "--rounds=1", "--out=/x.json"], "step --model DIRECTORY --rounds 1"),
        (["step", "--model", "tiny", "--arms", "exgrpo"], "step --model tiny --arms exgrpo"),
        (["log", "--folder", "/mnt/disk", "--sizes", "1e4", "2e4"], "log --sizes 1e4 2e4"),
    ):
        assert bench.command_of(given) == f"exgrpo bench {told}"


def test_options_are_written_out():
    with pytest.raises(SystemExit):
        bench.parser().parse_args(["step", "--mod", "/me/m"])


# Parts ------------------------------------------------------------------------------------------------------------------


def scripted(variance, kinds):
    script = Script(variance, 4)
    names = {(1.0,) * 4: "right", (0.0,) * 4: "wrong", (1.0, 0.0, 1.0, 0.0): "mixed"}
    return [names[tuple(script.rewards_of(kind == "r"))] for kind in kinds]


def test_rewards_by_script():
    assert scripted("all", "ffrr") == ["mixed"] * 4
    assert scripted("half", "ffff") == ["mixed", "wrong", "mixed", "right"]
    assert scripted("half", "rrr") == ["right", "mixed", "right"]
    assert scripted("half", "fr") == ["mixed", "right"]
    assert scripted("half", "rfrf") == ["right", "mixed", "mixed", "wrong"]


def test_the_script_sees_which_groups_hold_a_stored_completion():
    script = Script("half", 2)
    script.trainer = SimpleNamespace(
        _iteration=SimpleNamespace(batch=SimpleNamespace(stored={3: ("choice", "replayed")}))
    )
    assert script(prompts=[""] * 4, completions=[""] * 4) == [1.0, 0.0, 1.0, 1.0]
    script.trainer = SimpleNamespace(_iteration=None)
    assert script(prompts=[""] * 4, completions=[""] * 4) == [0.0, 0.0, 1.0, 0.0]


def test_a_phase_is_its_own_time():
    now = iter([0.0, 1.0, 4.0, 9.0])  # outer from 0 to 9, inner from 1 to 4
    clock = bench_step.Clock(lambda: next(now))
    inner = clock.timed(lambda: "done", "inner")
    assert clock.timed(lambda: inner(), "outer")() == "done"
    assert clock.own == {"inner": 3.0, "outer": 6.0}


def test_a_phase_that_raises_is_counted():
    now = iter([0.0, 2.0])
    clock = bench_step.Clock(lambda: next(now))
    with pytest.raises(ZeroDivisionError):
        clock.timed(lambda: 1 / 0, "loss")()
    assert clock.own == {"loss": 2.0}
    assert clock._stack == []


def test_ratios_are_of_the_same_round():
    def turn(seconds, phase):
        return {"seconds": seconds, "wall": 2 * seconds, "phases": phase, "seen": {"replayed": seconds}}

    rounds = [
        {"stock": turn(1.0, {"loss": 1.0}), "exgrpo": turn(1.5, {"loss": 0.5, "plan": 0.3})},
        {"stock": turn(2.0, {"loss": 2.0}), "exgrpo": turn(1.0, {"loss": 0.7})},
        {"stock": turn(4.0, {"loss": 4.0}), "exgrpo": turn(4.8, {"loss": 0.9, "plan": 0.1})},
    ]
    row = bench_step.row_of("exgrpo", "stock", rounds)
    assert row["ratio"] == pytest.approx(1.2)  # of 1.5, 0.5 and 1.2; the medians of the times would give 0.75
    assert row["ratio_range"] == pytest.approx([0.5, 1.5])
    assert (row["seconds"], row["wall_seconds"], row["wall_ratio"]) == (1.5, 3.0, pytest.approx(1.2))
    assert row["phases"] == {"loss": 0.7, "plan": 0.1}
    assert row["replayed"] == pytest.approx(7.3 / 3)


def test_memory_of_this_process():
    now = bench_machine.resident()
    assert bench_machine.peak() >= now > 1 << 20


def test_the_machine():
    found = bench_machine.describe("no-such-package")
    assert found["versions"]["exgrpo"] == __version__
    assert found["versions"]["no-such-package"] is None
    assert json.loads(json.dumps(found)) == found


def test_in_a_process_of_its_own():
    with pytest.raises(WorkerError, match="ended with exit code 1: TypeError"):
        in_a_process("exgrpo.lab.bench.machine:resident", size=3)
    assert in_a_process("exgrpo.lab.bench.machine:resident") > 1 << 20


# The commands -----------------------------------------------------------------------------------------------------------


def bench_to(tmp_path, *arguments):
    out = tmp_path / "new" / "result.json"
    assert main(["bench", *arguments, "--out", str(out)]) == 0
    return json.loads(out.read_text())


@pytest.mark.slow
@pytest.mark.usefixtures("_untrained")
def test_a_small_bench_of_steps(tmp_path, capsys):
    result = bench_to(
        tmp_path, "step", "--arms", "stock", "on-policy", "exgrpo", "--questions", "4", "--variance", "half", "--rounds", "1",
        "--steps", "2", "--warm_up", "2", "--no_memory",
    )  # fmt: skip
    assert result["machine"]["versions"]["trl"]
    assert result["setting"]["model"] == "tiny"
    arms = result["arms"]
    assert list(arms) == ["stock", "on-policy", "exgrpo"]
    for row in arms.values():
        assert sum(row["phases"].values()) == pytest.approx(row["seconds"])
        assert row["without_variance"] == pytest.approx(0.5)
        assert {"generate", "loss forward", "backward", bench_step.REST} <= row["phases"].keys()
    assert arms["stock"]["ratio"] == 1.0
    assert "skipped" not in arms["stock"]
    assert arms["on-policy"]["skipped"] == pytest.approx(0.5)
    assert arms["exgrpo"]["replayed"] == pytest.approx(0.5)
    assert {"plan", "observe", "admit", "log"} <= arms["exgrpo"]["phases"].keys()
    told = capsys.readouterr()
    assert "over stock" in told.out
    assert "round 1 of 1" in told.err


@pytest.mark.usefixtures("_untrained")
def test_all_rows_can_be_computed():
    arms = bench_step.turns(Setting("tiny", ("on-policy",), 4, 4, None, "half", False, 1, 1, 1))
    assert arms["on-policy"]["without_variance"] == pytest.approx(0.5)
    assert not arms["on-policy"].get("skipped")


@pytest.mark.usefixtures("_untrained")
def test_memory_of_an_arm():
    row = bench_step.peak_of(vars(SMALL), "exgrpo")
    assert row["peak_mb"] >= row["before_mb"] > 10


def test_what_was_quiet_is_loud_again():
    import logging

    from exgrpo.lab.bench.arms import quietly

    logger, level = logging.getLogger("exgrpo"), logging.getLogger("exgrpo").level
    with quietly():
        assert logger.level == logging.ERROR
    assert logger.level == level


def test_memory_is_over_that_of_the_first_arm(monkeypatch):
    sizes = {"stock": 200.0, "exgrpo": 210.0}
    monkeypatch.setattr(bench_step, "in_a_process", lambda f, setting, arm: {"before_mb": 1.0, "peak_mb": sizes[arm]})
    assert bench_step.peaks(SMALL)["exgrpo"]["peak_over"] == pytest.approx(1.05)


@pytest.mark.slow
def test_a_small_bench_of_the_buffer(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bench_buffer, "PACKAGES", ("no_such_package",))
    result = bench_to(tmp_path, "buffer", "--sizes", "1e3", "2000", "--repeats", "3")
    rows = result["rows"]
    assert [(row["trajectories"], row["choice"]) for row in rows] == [
        (size, choice) for size in (1000, 2000) for choice in ("lowest_entropy", "random")
    ]
    assert "against" not in result
    assert all(row[name] > 0 for row in rows for name in ("plan_ms", "observe_ms", "admit_ms", "append_us"))
    assert "With torchrl installed" in capsys.readouterr().out


def test_a_step_of_the_buffer_is_what_it_says():
    rng = np.random.default_rng(0)
    planner = bench_buffer.planner_of(1000, "random")
    buffer, _ = bench_buffer.filled(planner, rng)
    assert buffer is planner.buffer
    assert len(buffer) == 1000
    plan = planner.plan(64, 1, 0.0, lambda trajectories: [bench_buffer.SAME] * len(trajectories))
    assert plan.num_replayed == 64
    groups, new = bench_buffer.outcome_of(plan, rng, 1)
    assert all(len(group.outcomes) == 7 and not group.outcomes.all() for group in groups)
    planner.observe(plan, groups)
    assert planner.admit(new) == len(new) == 128


@pytest.mark.slow
def test_a_small_bench_of_the_log(tmp_path, capsys):
    result = bench_to(tmp_path, "log", "--sizes", "1e3", "--repeats", "3", "--folder", str(tmp_path))
    [row] = result["rows"]
    assert row["trajectories"] == 1000
    assert min(row["written_ms"], row["commit_ms"]) > 0
    assert list(tmp_path.glob("*.db")) == []
    assert "until written ms" in capsys.readouterr().out


def test_a_log_that_is_measured_holds_what_was_appended(tmp_path):
    from exgrpo.log import LogReader

    path = tmp_path / "experience.db"
    bench_log.fill(str(path), 1000, 8)
    bench_log.steps(str(path), 1000, 8, 2)
    with LogReader(path) as reader:
        [[stored]] = reader.rows("SELECT count(*) FROM trajectory")
        [[observed]] = reader.rows("SELECT count(*) FROM observation")
    assert stored == 1000 + 2 * bench_log.NEW
    assert observed == 100 + 2 * 64


def test_against_torchrl():
    row = {"trajectories": 1000, "plan_ms": 1.0, "admit_ms": 2.0}
    found = {"sample_ms": 0.25, "extend_ms": 0.5, "update_ms": 0.1, "sample_and_extend_ms": 0.75}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_buffer, "in_a_process", lambda function, size, repeats: found)
        result = bench_buffer.against(row, 3)
    assert result["ratio"] == 4.0
    assert result["ours"] == {"sample_ms": 1.0, "extend_ms": 2.0, "sample_and_extend_ms": 3.0}


def test_torchrl_s_buffer():
    pytest.importorskip("torchrl")
    assert bench_buffer.theirs(1000, 3)["sample_and_extend_ms"] > 0


def test_json_to_stdout(capsys):
    assert main(["bench", "buffer", "--sizes", "1e3", "--repeats", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"]
