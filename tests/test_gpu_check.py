"""`benchmarks/gpu.sh`, as a user runs it: on a CPU with `--smoke`, and where packages are missing."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "gpu.sh"
PRESETS = ("on-policy", "positive-weight", "exgrpo", "rescue")
LINES = {
    "torch": "2.9",
    "numpy": "2.0",
    "filelock": "3.20",
    "transformers": "5.21",
    "accelerate": "1.12",
    "datasets": "4.4",
}

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="gpu.sh needs bash")


def gpu(*options: object, **environment: str) -> subprocess.CompletedProcess:
    """One thread and no GPU, whatever there is."""
    told = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **environment}
    return subprocess.run(["bash", SCRIPT, *map(str, options)], capture_output=True, text=True, check=False, env=told)


def module(name: str):
    """A file of benchmarks/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made  # dataclasses look there
    try:
        spec.loader.exec_module(made)
    finally:
        del sys.modules[name]
    return made


@pytest.mark.slow
def test_smoke(tmp_path):
    done = gpu("--smoke", "--output", tmp_path / "out" / "gpu.json")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out" / "gpu.json").read_text())
    assert result["complete"]
    assert result["command"].startswith("benchmarks/gpu.sh")
    assert "--smoke" in result["command"]
    assert result["machine"]["gpu"] is None
    assert result["machine"]["versions"]["torch"]
    assert (result["model"], result["seed"]) == ("tiny", 0)
    assert 0.0 < result["start"]["pass_at_1"] < 1.0  # else there is nothing to learn, or nothing to learn from
    assert {name: check["holds"] for name, check in result["checks"].items()} == dict(fp32=True, bf16=True, resume=True)
    assert result["checks"]["resume"]["bit_equal"]
    assert result["checks"]["bf16"]["precision"] == "bf16"
    assert result["checks"]["fp32"]["first_age"] >= 1
    assert tuple(result["presets"]) == PRESETS
    for name, row in result["presets"].items():
        assert (row["steps"], row["stopped_by"], row["timed_steps"]) == (6, "steps", 5), name
        assert [step["step"] for step in row["history"]] == [1, 2, 3, 4, 5, 6], name
        assert row["seconds_per_step"] > 0, name
        assert row["tokens_per_second"] > 0, name
        assert row["peak_gpu_mb"] is None, name
        assert row["loss_finite"], name
        for value in (row["first_pass_at_1"], row["last_pass_at_1"], row["held_out"]["pass_at_1"]):
            assert 0.0 <= value <= 1.0, name
        replays = name in ("exgrpo", "rescue")
        for figure in ("replay/share", "replay/ratio_mean", "replay/ess"):
            assert (row[figure] is not None) == replays, (name, figure)
        assert name in done.stdout
    first = [row["history"][0]["fresh/pass_at_1"] for row in result["presets"].values()]
    assert len(set(first)) == 1  # the same start, the same questions
    assert result["presets"]["exgrpo"]["replay/share"] > 0
    assert (
        abs(result["presets"]["exgrpo"]["replay/ratio_mean"] - 1.0) > 1e-2
    )  # of a policy that learns; in the checks it is 1
    assert "check resume: holds" in done.stdout


@pytest.mark.slow
def test_time_that_is_over_ends_it_and_keeps_what_was_finished(tmp_path):
    place = tmp_path / "gpu.json"
    done = gpu("--smoke", "--minutes", 0.001, "--output", place, TMPDIR=str(tmp_path))
    assert done.returncode == 3, done.stderr
    assert "minutes are over" in done.stderr
    assert [path.name for path in tmp_path.glob("exgrpo-gpu-*")] == []
    assert not place.exists() or not json.loads(place.read_text())["complete"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--nonsense"], "unrecognized arguments: --nonsense"),
        (["--smoke", "--presets", "nonsense"], "there is no preset 'nonsense'. Presets: exgrpo, "),
        (["--minutes", "0"], "--minutes must be above 0, but is 0."),
        (["--smoke", "--train", "3"], "--train (3) must be at least twice --questions (16)."),
        (["--smoke", "--numbers", "9"], "--numbers 9 --digits 1: 1 to 6 digits, and at least 2 numbers but not all"),
        (["--wheels", "/nowhere"], "--wheels: /nowhere is not a folder."),
        ([], "torch sees no GPU here. Add --smoke"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_done_is_told(tmp_path, options, told):
    done = gpu(*options, "--output", tmp_path / "gpu.json")
    assert done.returncode == 2, done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "gpu.json").exists()


# Packages ---------------------------------------------------------------------------------------------------------------


def distribution(folder: Path, name: str, version: str) -> None:
    """As if it were installed."""
    place = folder / f"{name}-{version}.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def wheel(folder: Path, name: str, version: str, *requires: str) -> None:
    folder.mkdir(exist_ok=True)
    about = f"{name}-{version}.dist-info"
    metadata = "".join(f"Requires-Dist: {required}\n" for required in requires)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}/__init__.py", "")
        file.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}")
        file.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{about}/RECORD", "")


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> Path:
    """A python with pip, and nothing else but what `distribution` puts there; its packages."""
    import venv

    pip = pytest.importorskip("pip")
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "pip").symlink_to(Path(pip.__file__).parent)
    return packages


def python_of(packages: Path) -> str:
    return str(packages.parents[2] / "bin" / "python")


@pytest.mark.slow
def test_missing_packages(bare, tmp_path):
    """First torch, which is never installed here; then the command for the rest; then a folder of wheels."""
    venv = tmp_path / "venv"
    environment = dict(PYTHON=python_of(bare), VENV=str(venv), PYTHONPATH="")
    done = gpu("--prepare", **environment)
    assert done.returncode == 2
    assert "PyTorch is missing, or too old: torch>=2.6" in done.stderr

    for name, version in LINES.items():
        distribution(bare, name, version)
    distribution(bare, "trl", "0.9")  # too old
    done = gpu("--prepare", **environment)
    assert done.returncode == 2
    [command] = [line for line in done.stderr.splitlines() if line.startswith("Run: ")]
    assert "-m pip install 'trl<2,>=1.15' 'rich>=13'" in command

    wheel(tmp_path / "wheels", "trl", "1.16.3", "inner-part>=2")
    wheel(tmp_path / "wheels", "rich", "14.0", 'unwanted>=1; extra == "more"', "torch>=99")
    done = gpu("--prepare", "--wheels", tmp_path / "wheels", **environment)
    assert done.returncode == 2
    assert "holds no wheel for inner-part>=2 that fits" in done.stderr

    wheel(tmp_path / "wheels", "inner_part", "2.1")
    done = gpu("--prepare", "--wheels", tmp_path / "wheels", **environment)
    assert done.returncode == 0, done.stderr
    assert f"All packages are there: {venv}" in done.stdout
    [inside] = venv.glob("lib/python*/site-packages")
    assert {path.name for path in inside.glob("*.dist-info")} >= {
        "trl-1.16.3.dist-info", "rich-14.0.dist-info", "inner_part-2.1.dist-info",
    }  # fmt: skip
    assert not list(inside.glob("torch*"))


# The task ---------------------------------------------------------------------------------------------------------------


class Words:
    """A tokenizer without a chat template."""

    chat_template = None


def test_questions():
    task = module("gpu_run").Largest(numbers=4, digits=1, tokenizer=Words())
    train, held_out = task.draw("train", 64, 0), task.draw("eval", 64, 0)
    for row in (*train, *held_out):
        question = row["prompt"].splitlines()[-1].removeprefix("Largest of ").removesuffix(":").split()
        assert len(set(question)) == 4
        assert row["answer"] == max(question)
    prompts = [{row["prompt"] for row in rows} for rows in (train, held_out)]
    assert [len(texts) for texts in prompts] == [64, 64]
    assert not prompts[0] & prompts[1]
    assert task.draw("train", 64, 0) == train
    assert task.draw("train", 64, 1) != train
    examples = [line.split(": ")[1] for line in train[0]["prompt"].splitlines()[:2]]
    assert len(set(examples)) == 2  # else they tell the model an answer


def test_reward():
    reward = module("gpu_run").largest_reward
    completions = ["7", " 7.\n3 7 5", "77", "3 7", "", [{"role": "assistant", "content": "7"}]]
    assert reward(prompts=None, completions=completions, answer=["7"] * 6) == [1.0, 1.0, 0.0, 0.0, 0.0, 1.0]


def test_figures_of_an_arm():
    """By hand: 5 steps, the first not timed; ratios over the steps that have one."""
    run, sizes = module("gpu_run"), module("gpu").Sizes
    rows = [
        {"seconds": s, "replay_seconds": s / 10, "loss": 0.0, "fresh/pass_at_1": p, "fresh/generated_tokens": t}
        for s, p, t in [(9.0, 0.1, 10.0), (1.0, 0.2, 20.0), (2.0, 0.3, 40.0), (3.0, 0.4, 50.0), (4.0, 0.5, 70.0)]
    ]
    rows[2] |= {"replay/ratio_mean": 1.5, "replay/share": 0.25}
    rows[4] |= {"replay/ratio_mean": 0.5, "replay/share": 0.75}
    found = run.figures(rows, sizes(steps=6, warm_up=1))
    assert (found["steps"], found["stopped_by"], found["timed_steps"]) == (5, "time", 4)
    assert (found["seconds_per_step"], found["replay_seconds_per_step"]) == (2.5, 0.25)
    assert found["tokens_per_second"] == pytest.approx(60 / 10)
    assert (found["first_pass_at_1"], found["last_pass_at_1"]) == (0.1, 0.5)
    assert (found["replay/ratio_mean"], found["replay/share"], found["replay/ess"]) == (1.0, 0.5, None)
    rows[3]["loss"] = float("nan")
    assert not run.figures(rows, sizes())["loss_finite"]


def test_an_arm_ends_by_its_time():
    """Where a step as long as the longest of the last five would end after the deadline."""
    import time

    from transformers import TrainerControl

    run = module("gpu_run")
    for spare, stops in ((-1.0, True), (2.0, True), (1e6, False)):
        watch, control = run.Watch(gpu=False, deadline=time.monotonic() + spare), TrainerControl()
        watch.seconds = [90.0, 3.0, 0.1, 0.1, 0.1]
        watch.on_step_begin(None, None, control)
        watch.on_step_end(None, None, control)
        assert control.should_training_stop == stops, spare
