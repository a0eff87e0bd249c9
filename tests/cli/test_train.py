"""`exgrpo train`: recipes, refusals before the model is loaded, and one run for real."""

import inspect
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from exgrpo.cli import training
from exgrpo.cli.main import UsageError, main
from exgrpo.cli.train import read_recipe, split_config
from exgrpo.errors import ConfigurationError, DatasetError

LAUNCHES = sorted((Path(__file__).parents[2] / "recipes" / "accelerate").glob("*.yaml"))
RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
CPU = ["--use_cpu", "--bf16", "false"]
TWO_QUESTIONS = [
    "--gradient_accumulation_steps",
    "2",
]  # a generation; the defaults give one, of which no half can be replayed
TINY = [
    *CPU, "--task", "chains", "--task_questions", "64", "--warm_up_batches", "2", "--num_generations", "4",
    "--per_device_train_batch_size", "32", "--max_completion_length", "9", "--save_strategy", "no",
    "--gradient_checkpointing", "false", "--dataloader_pin_memory", "false",
]  # fmt: skip


def settings(*argv, **recipe):
    return training.parse(recipe, argv)


def checked(*argv, **recipe):
    """All that happens before a model is loaded."""
    made = settings(*argv, **recipe)
    inputs = training.load_inputs(made)
    training.check_inputs(made, inputs)
    return made, inputs


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps({"question": f"{i}+1?", "answer": str(i + 1)}) + "\n" for i in range(16)))
    return str(path)


def with_golds(path, golds):
    path.write_text("".join(json.dumps({"question": f"q{i}?", "answer": gold}) + "\n" for i, gold in enumerate(golds)))
    return ["--dataset_name", str(path), "--model_name_or_path", ".", *CPU, *TWO_QUESTIONS]


def test_golds_that_the_reward_cannot_read_are_refused_before_the_model_loads(tmp_path, caplog):
    argv = with_golds(tmp_path / "bad.jsonl", ["1", "2", "three apples", *map(str, range(17))])
    with pytest.raises(
        DatasetError, match=r"of 20 gold answers 1 cannot be read.*row 2: 'three apples'.*5\.0% of the gold"
    ):
        checked(*argv, "--reward_funcs", "numeric")
    checked(*argv, "--reward_funcs", "numeric", "--max_bad_golds", "0.05")
    assert "of 20 gold answers 1 cannot be read" in caplog.text
    caplog.clear()
    checked(*argv, "--reward_funcs", "numeric", "--max_bad_golds", "1")
    checked(*with_golds(tmp_path / "good.jsonl", map(str, range(20))), "--reward_funcs", "numeric")
    assert not caplog.text


def test_only_the_deciding_reward_s_golds_are_looked_at(tmp_path):
    argv = with_golds(tmp_path / "letters.jsonl", ["A", "B"] * 8)
    checked(*argv, "--reward_funcs", "choice", "numeric")
    with pytest.raises(DatasetError, match="numeric_reward: of 16 gold answers 16 cannot be read"):
        checked(*argv, "--reward_funcs", "choice", "numeric", "--correctness_function", "numeric_reward")


# Recipes ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_parses(path):
    recipe = read_recipe(str(path))
    recipe.pop("env", None)
    made = settings(*CPU, **recipe)
    assert made.args.preset == recipe["preset"]
    assert made.script.task or made.script.reward_funcs
    for name, value in recipe.items():
        for part in (made.script, made.args, made.model):
            if hasattr(part, name) and name not in ("use_cpu", "bf16"):
                assert getattr(part, name) == value or str(getattr(part, name)) == str(value), name


def test_the_paper_s_recipe_has_the_paper_s_values():
    recipe = read_recipe(str(next(path for path in RECIPES if path.stem == "openr1-math")))
    args = settings(*CPU, **recipe).args
    gpus = 8
    assert args.generation_batch_size * gpus == 128 * 8
    assert args.steps_per_generation == 2 * args.gradient_accumulation_steps
    assert (args.num_generations, args.learning_rate, args.temperature, args.beta) == (8, 1e-6, 1.0, 0.0)
    assert (args.max_completion_length, args.vllm_max_model_length) == (8192, 8192 + 1024)
    assert (args.entropy_coef, args.max_grad_norm) == (0.001, 1.0)


def test_the_command_line_goes_over_the_recipe():
    made = settings("--sigma", "0.5", "--max-steps=7", *CPU, sigma=0.2, mu=0.4, max_steps=3, learning_rate="1e-5")
    assert (made.args.sigma, made.args.mu, made.args.max_steps, made.args.learning_rate) == (0.5, 0.4, 7, 1e-5)


def test_the_place_of_the_recipe():
    assert split_config(["--a", "1", "--config", "x.yaml"]) == ("x.yaml", ["--a", "1"])
    assert split_config(["--config=x.yaml", "--a"]) == ("x.yaml", ["--a"])


def test_what_is_said_at_the_start():
    text = training.describe(settings("--preset", "rescue", "--positive_weight", "4", *CPU).args)
    assert text.startswith("preset rescue, with positive_weight=4.0 (preset: 8.0)\n")
    said = training.describe(settings(*CPU).args)
    assert said.startswith(
        "preset exgrpo, unchanged; the default: exgrpo presets --advise says which preset suits a run\n1 question x"
    )


# Values of a recipe -----------------------------------------------------------------------------------------------------

BASE = {"use_cpu": True, "bf16": False, "task": "chains"}


def parsed(text):
    return settings(**{**BASE, **yaml.safe_load(text)})


@pytest.mark.parametrize(
    ("text", "part", "value"),
    [
        ("learning_rate: 1e-5", "learning_rate", 1e-5),
        ("lr_scheduler_kwargs: {min_lr: 1e-7, power: -1E3}", "lr_scheduler_kwargs", {"min_lr": 1e-7, "power": -1000.0}),
        ("generation_kwargs: {eta: 1e-1, words: ['1', x]}", "generation_kwargs", {"eta": 0.1, "words": ["1", "x"]}),
        ("optim_args: {eps: 1e-7}", "optim_args", "eps=1e-07"),
        ("reward_weights: 1.0", "reward_weights", [1.0]),
        ("reward_weights: [1e0]", "reward_weights", [1.0]),
        ("tier_shares: [1e-1, 0.9]", "tier_shares", (0.1, 0.9)),
        ("max_steps: 1e3", "max_steps", 1000),
        ("max_steps: 20.0", "max_steps", 20),
        ("run_name: 7", "run_name", "7"),
        ("preset: on_policy", "preset", "on-policy"),
        ("admission: single-success", "admission", "single_success"),
        ("save_strategy: 'no'", "save_strategy", "no"),
        ("warmup_steps: null", None, "warmup_steps"),
        ("sigma: null", "sigma", 0.125),
    ],
)  # fmt: skip
def test_values_of_a_recipe_become_what_their_options_take(text, part, value):
    if part is None:
        with pytest.raises(UsageError, match=value):
            parsed(text)
        return
    found = getattr(parsed(text).args, part)
    assert found == value
    assert type(found) is type(value) or hasattr(found, "value")


def test_numbers_in_the_mappings_of_model_and_task_are_numbers():
    made = settings(**BASE, model_init_kwargs={"rope": {"theta": "1e6"}}, task_knobs={"modulus": "1e1"})
    assert made.args.model_init_kwargs == {"rope": {"theta": 1e6}}
    assert made.script.task_knobs == {"modulus": 10.0}
    assert settings(**BASE, reward_funcs="numeric").script.reward_funcs == ["numeric"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_steps: 1.5", "max_steps in the recipe must be a whole number, but is 1.5"),
        ("max_steps: many", "max_steps in the recipe must be a whole number, but is 'many'"),
        ("max_steps: [1]", r"max_steps in the recipe must be a whole number, but is \[1\]"),
        ("max_steps: yes", "max_steps in the recipe must be a whole number, but is True"),
        (
            "learning_rate: null",
            r"learning_rate in the recipe must be a number, but is empty \(null\). Give one, or remove",
        ),
        ("learning_rate: {a: 1}", "learning_rate in the recipe must be a number, but is {'a': 1}"),
        ("reward_weights: [1, heavy]", "reward_weights in the recipe must be a number, but is 'heavy'"),
        ("save_strategy: no", "save_strategy in the recipe must be .* but is False. .* Quote it: save_strategy: 'no'"),
        ("lr_scheduler_kwargs: 5", "lr_scheduler_kwargs in the recipe must be a text or a mapping, but is 5"),
        ("save_strategy: stepz", "save_strategy in the recipe is 'stepz'. Did you mean 'steps'"),
        ("optim: adamw-torc", "optim in the recipe is 'adamw-torc'. Did you mean 'adamw_torch'"),
        ("task_questions: 0", "task_questions must be a whole number of at least 1, but is 0"),
        ("warm_up_batches: 0", "warm_up_batches must be a whole number of at least 1, but is 0"),
        ("preset: recsue", "There is no preset 'recsue'. Did you mean 'rescue'"),
    ],
)
def test_values_that_fit_no_option_are_refused_by_its_name(text, message):
    with pytest.raises(ConfigurationError, match=message):
        parsed(text)


def test_names_in_a_recipe_may_have_hyphens_and_stand_once(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("learning-rate: 1e-5\n")
    assert read_recipe(str(path)) == {"learning_rate": "1e-5"}
    for text in ("max_steps: 1\nmax_steps: 2\n", "max-steps: 1\nmax_steps: 2\n"):
        path.write_text(text)
        with pytest.raises(ConfigurationError, match="'max_steps' occurs twice"):
            read_recipe(str(path))


# Refusals ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "recipe", "message"),
    [
        (["--sgima", "1"], {}, "unknown option '--sgima'. Did you mean 'sigma'"),
        ([], {"sgima": 1}, "the recipe has an unknown option 'sgima'. Did you mean 'sigma'"),
        (["--max_steps", "many"], {}, "invalid int value: 'many'"),
        (["--save-strategy", "stepz"], {}, "there is no 'stepz'. Did you mean 'steps'"),
        (["five"], {}, "'five' belongs to no option"),
        (["--max_step", "5"], {}, "Did you mean 'max_steps'"),  # no abbreviations
    ],
    ids=str,
)
def test_what_the_parser_does_not_know(argv, recipe, message):
    with pytest.raises(UsageError, match=message):
        settings(*argv, **recipe)


@pytest.mark.parametrize(
    ("argv", "kind", "message"),
    [
        ([], UsageError, "there are no questions"),
        (["--dataset_name", "{questions}"], UsageError, "no reward function"),
        (["--dataset_name", "{questions}", "--reward_funcs", "numeric"], UsageError, "there is no model"),
        (["--dataset_name", "gone.jsonl", "--reward_funcs", "numeric"], DatasetError, "no file or folder 'gone.jsonl'"),
        (["--dataset_name", "{questions}", "--reward_funcs", "a.b.c"], ConfigurationError, "no module 'a'"),
        (
            ["--dataset_name", "{questions}", "--reward_funcs", "numeric", "--answer_name", "gold"],
            DatasetError, "'numeric_reward' needs a column 'answer'",
        ),
        (
            ["--dataset_name", "{questions}", "--reward_funcs", "numeric", "--model_name_or_path", "./gone"],
            ConfigurationError, "there is no such directory",
        ),
        (
            ["--dataset_name", "{questions}", "--reward_funcs", "numeric", "--eval_strategy", "epoch"],
            UsageError, "has no other split",
        ),
        (
            ["--dataset_name", "{questions}", "--reward_funcs", "numeric", "--model_name_or_path", "x",
             "--per_device_train_batch_size", "256"],
            DatasetError, "has 16 rows, but one generation takes 64",
        ),
        (["--task", "chess"], ConfigurationError, "no task 'chess'"),
        (["--task", "chains", "--task_knobs", '{"depth": 3}'], ConfigurationError, "no knob 'depth'"),
        (["--task", "chains", "--dataset_name", "x"], ConfigurationError, "one source of questions"),
        (["--task", "chains", "--limit", "3"], ConfigurationError, "limit=3 has no effect without dataset_name"),
        (["--task", "chains", "--reward_weights", "1", "2"], ConfigurationError, "reward_weights has 2 values"),
        (["--task", "chains", "--correctness_function", "f"], ConfigurationError, "is not one of the reward functions"),
        (["--task", "chains", "--loss_type", "bnpo"], ConfigurationError, "cannot be combined with replay"),
        (["--task", "chains", "--preset", "nope"], ConfigurationError, "no preset 'nope'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)  # fmt: skip
def test_refused_before_the_model_is_loaded(argv, kind, message, questions, monkeypatch):
    monkeypatch.setattr(training, "ExGRPOTrainer", None)
    with pytest.raises(kind, match=message):
        checked(*CPU, *TWO_QUESTIONS, *(argument.replace("{questions}", questions) for argument in argv))


def test_a_local_dataset(questions):
    _, inputs = checked(
        *CPU, *TWO_QUESTIONS, "--dataset_name", questions, "--reward_funcs", "numeric", "--model_name_or_path", "a/model",
        "--conversational", "--system_prompt", "Count.", "--prompt_template", "How much is {question}", "--limit", "9",
    )  # fmt: skip
    assert len(inputs.train) == 9
    assert inputs.train[0]["prompt"] == [
        {"role": "system", "content": "Count."},
        {"role": "user", "content": "How much is 0+1?"},
    ]
    assert inputs.rewards[0](prompts=None, completions=["1"], answer=["1"]) == [1.0]


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        ([], 2),
        (["--config"], 2),
        (["--config", "gone.yaml"], 2),
        (["--nope", "1"], 2),
        ([*CPU, "--dataset_name", "gone.csv", "--reward_funcs", "numeric"], 2),
    ],
    ids=str,
)
def test_exit_codes(argv, code, capsys):
    assert main(["train", *argv]) == code
    assert capsys.readouterr().err.startswith("exgrpo: ")


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [1\n", "1: 2\n", "env: x\n"])
def test_a_recipe_that_is_none(text, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match="recipe"):
        read_recipe(str(path))
    assert issubclass(UsageError, ConfigurationError)


# For real ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_steps_through_the_command(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"env": {"OMP_NUM_THREADS": 1}, "preset": "rescue", "max_steps": 2}))
    done = subprocess.run(
        [
            sys.executable, "-m", "exgrpo.cli.train", "--config", str(recipe), *TINY, "--logging_steps", "1",
            "--eval_strategy", "steps", "--eval_steps", "2", "--task_eval_questions", "8",
            "--per_device_eval_batch_size", "8", "--output_dir", str(tmp_path / "out"),
        ],
        capture_output=True, text=True, check=False, env=environment(tmp_path), cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "preset rescue, unchanged\n8 questions x 4 completions a generation, 1 optimizer step"
    )
    _, _, *lines, steps, solved, replayed, model, following = done.stdout.splitlines()
    assert [re.sub(r"[\d.]+", "0", line) for line in lines] == [
        *["step 0/0  0 tokens  Pass@0 0  reward 0  replay 0%  retired 0"] * 2,
        "step 0/0  evaluation  reward 0  0 tokens a completion  in 0 s",
    ]
    assert re.fullmatch(r"2 steps in \d+ s, \d+ tokens generated", steps)
    assert re.fullmatch(r"fresh Pass@1 [\d.]+ in the first log, [\d.]+ in the last", solved)
    assert re.fullmatch(r"\d+ completions stored, \d+ times one replayed, \d+ questions retired", replayed)
    assert (model, following) == (
        f"The model is in {tmp_path / 'out'}.",
        f"Next: exgrpo experience stats {tmp_path / 'out'}",
    )
    assert {"model.safetensors", "tokenizer.json", "train_results.json", "trainer_state.json"} <= {
        path.name for path in (tmp_path / "out").iterdir()
    }
    log = json.loads((tmp_path / "out" / "trainer_state.json").read_text())["log_history"]
    assert [row["step"] for row in log if "fresh/pass_at_1" in row] == [1, 2]
    assert any("eval_reward" in row for row in log)


def environment(tmp_path):
    import os

    return {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "EXGRPO_CACHE": str(tmp_path / "cache")}


@pytest.mark.slow
def test_a_run_that_has_ended_can_be_started_again(tmp_path, capsys):
    argv = [
        "train",
        *TINY,
        "--preset",
        "exgrpo",
        "--max_steps",
        "2",
        "--output_dir",
        str(tmp_path / "out"),
        "--resume_from_checkpoint",
        "last",
    ]
    argv += ["--save_strategy", "steps", "--save_steps", "1"]
    figures = []
    for _ in range(2):
        assert main(argv) == 0
        assert "The model is in" in capsys.readouterr().out
        figures.append((tmp_path / "out" / "train_results.json").read_text())
    assert figures[0] == figures[1]


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    """Exit code 130, and a command that, as it stands, finishes the run."""
    (tmp_path / "halting.py").write_text(
        "import pathlib\n"
        "def reward(completions, **kwargs):\n"
        "    if pathlib.Path('out/checkpoint-2').is_dir() and not pathlib.Path('halted').exists():\n"
        "        pathlib.Path('halted').touch()\n"
        "        raise KeyboardInterrupt\n"
        "    return [float(len(text) % 2) for text in completions]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EXGRPO_CACHE", str(tmp_path / "cache"))
    argv = [
        *TINY, "--save_strategy=steps", "--save_steps=1", "--max_steps=4", "--logging_steps=1", "--output_dir", "out",
        "--reward_funcs", "halting.reward", "--resume-from-checkpoint", "last",
    ]  # fmt: skip
    assert main(["train", *argv]) == 130
    said, command = capsys.readouterr().err.splitlines()[-2:]
    assert said == "exgrpo: interrupted at step 2. To go on from out/checkpoint-2:"
    program, *again = shlex.split(command)
    assert (program, again[-2:]) == ("exgrpo", ["--resume_from_checkpoint", "last"])
    assert "--resume-from-checkpoint" not in again
    assert main(again) == 0
    assert "step 3/4" in capsys.readouterr().out


@pytest.mark.slow
def test_ctrl_c_before_the_first_checkpoint(tmp_path, monkeypatch, capsys):
    (tmp_path / "halting_at_once.py").write_text("def reward(**kwargs):\n    raise KeyboardInterrupt\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EXGRPO_CACHE", str(tmp_path / "cache"))
    assert main(["train", *TINY, "--output_dir", "out", "--reward_funcs", "halting_at_once.reward"]) == 130
    assert "interrupted at step 0, before the first checkpoint (save_strategy='no'" in capsys.readouterr().err


@pytest.mark.parametrize("share", ["nan", "-1", "2"])
def test_max_bad_golds_is_a_share(share):
    with pytest.raises(ConfigurationError, match=r"max_bad_golds must be a share in \[0, 1\]"):
        settings(*CPU, "--dataset_name", "x", "--max_bad_golds", share)


@pytest.mark.parametrize("path", LAUNCHES, ids=lambda path: path.stem)
def test_accelerate_takes_its_files(path):
    """Accelerate refuses what it does not know, and says nothing of what it leaves out: what is said is what is done."""
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.utils import FullyShardedDataParallelPlugin

    config = load_config_from_file(str(path))
    if path.stem == "fsdp2":
        plugin = inspect.signature(FullyShardedDataParallelPlugin).parameters
        names = {name if name == "fsdp_version" else name.removeprefix("fsdp_") for name in config.fsdp_config}
        renamed = {"offload_params": "cpu_offload"}
        assert {renamed.get(name, name) for name in names} <= plugin.keys()
        assert config.fsdp_config["fsdp_version"] == 2
    else:
        assert config.deepspeed_config["zero_stage"] == 3
    assert config.num_processes == 8
