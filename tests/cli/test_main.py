"""The console script: what it imports, what it says, and its exit codes."""

import json
import subprocess
import sys
from dataclasses import fields

import pytest

from exgrpo import PRESETS, ObjectiveConfig, ReplayConfig, __version__
from exgrpo.cli import main as entry
from exgrpo.cli.environment import supported_trl
from exgrpo.cli.main import UsageError, main
from exgrpo.errors import ConfigurationError
from exgrpo.trl.contract import SUPPORTED_TRL

HEAVY = ("torch", "transformers", "trl", "datasets", "accelerate", "matplotlib", "rich")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("train", "--help"),
        ("demo", "--help"),
        ("presets",),
        ("presets", "--json"),
        ("env", "--help"),
        ("explain", "--help"),
    ],
    ids=" ".join,
)
def test_help_imports_nothing_heavy(arguments):
    code = (
        "import sys; from exgrpo.cli.main import main; code = main(sys.argv[1:]);"
        f"print(sorted(set({HEAVY!r}) & sys.modules.keys()), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"
    assert done.stdout


def test_the_module_is_the_script():
    done = subprocess.run([sys.executable, "-m", "exgrpo", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"exgrpo {__version__}\n")


@pytest.mark.parametrize(
    "arguments", [["fly"], ["--wings"], ["demo", "--wings"], ["presets", "more"], ["demo", "--steps", "0"]], ids=str
)
def test_wrong_usage_is_2(arguments, capsys):
    assert main(arguments) == 2
    assert "error" in capsys.readouterr().err


def test_help_of_every_command_is_named(capsys):
    for arguments in (["--help"], []):
        assert main(arguments) == 0
        text = capsys.readouterr().out
        assert all(command in text for command in entry.COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ("trian", "train"),
        ("experience shw", "show"),
        ("demo --presets on-polcy", "on-policy"),
        ("demo --task chain", "chains"),
        ("explain --preset exgrop", "exgrpo"),
        ("explain --admission corect", "correct"),
        ("explain --sgima 1", "--sigma"),
        ("train --task chain --use_cpu --bf16 false", "chains"),
        ("train --task chains --preset recsue --use_cpu --bf16 false", "rescue"),
        ("train --dataset_name x.jsonl --reward_funcs numeric_rewrd --use_cpu --bf16 false", "numeric_reward"),
        ("lab rnu", "run"),
        ("bench stp", "step"),
    ],
)
def test_what_was_meant_is_asked_and_the_code_is_2(arguments, meant, capsys):
    assert main(arguments.split()) == 2
    text = " ".join(capsys.readouterr().err.split())
    assert f"Did you mean '{meant}'?" in text
    assert "Config." not in text


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("--preset on_policy", "--preset on-policy"),
        ("--trajectory-choice lowest-entropy", "--trajectory_choice lowest_entropy"),
    ],
)
def test_hyphens_and_underscores_are_alike(written, meant, capsys):
    texts = []
    for arguments in (written, meant):
        assert main(["explain", *arguments.split(), "--json", "--draws", "2"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "command", [["presets"], ["train", "--help"], ["--help"], ["explain", "--help"], ["demo", "--help"]]
)
@pytest.mark.parametrize("columns", [80, 100])
def test_the_width_of_the_terminal_is_kept(command, columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(command) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= columns
    assert len(text.splitlines()) < 11 * len(PRESETS)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("say it so"), 2),
        (ConfigurationError("set x to y"), 2),
        (RuntimeError("out of memory"), 1),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda value: type(value).__name__,
)
def test_exit_codes_of_errors(error, code, monkeypatch, capsys):
    monkeypatch.setitem(entry.COMMANDS, "presets", ("tests.cli.raising", ""))
    monkeypatch.setitem(sys.modules, "tests.cli.raising", type("Raising", (), {"run": staticmethod(_raise(error))}))
    monkeypatch.delenv("EXGRPO_DEBUG", raising=False)
    assert main(["presets"]) == code
    text = capsys.readouterr().err
    assert str(error) in text
    assert "Traceback" not in text
    if code != 130:
        assert main(["--debug", "presets"]) == code
        assert "Traceback" in capsys.readouterr().err
        monkeypatch.setenv("EXGRPO_DEBUG", "1")
        assert main(["presets"]) == code
        assert "Traceback" in capsys.readouterr().err


def _raise(error):
    def run(argv):
        raise error

    return run


def test_the_advice_shows_the_row_behind_each_answer(capsys):
    assert main(["presets", "--advise"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert main(["presets", "--advise", "--json"]) == 0
    asked = json.loads(capsys.readouterr().out)
    assert [f"{i}. {question['question']}" in text for i, question in enumerate(asked, 1)] == [True] * 5
    for question in asked:
        for answer in question["answers"]:
            assert answer["says"] in text
            for row in answer["rows"]:
                assert (
                    f"{row['figure']} {row['difference']} {row['told_apart']}: {row['arm']} against {row['against']}"
                    in text
                )
    assert text.count("no stored study answers this") == sum(not a["rows"] for q in asked for a in q["answers"])


def plain(options):
    """As JSON has them: lists in place of tuples."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}


def test_presets_are_all_listed(capsys):
    assert main(["presets"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    text = " ".join(text.split())
    for name, preset in PRESETS.items():
        assert name in text
        assert f"source: {preset.source}" in text
        for option, value in preset.options.items():
            assert f"{option}={value} (" in text
    assert "sigma=1.0 (default 0.125), entropy_refresh=exact (default lazy)," in text
    assert "truncation=1.0 (as by default)" in text
    assert "sets of the trainer's own: num_iterations=2" in text
    assert main(["presets", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    defaults = {f.name: f.default for config in (ReplayConfig, ObjectiveConfig) for f in fields(config)}
    assert rows == {
        name: {
            "summary": p.summary, "source": p.source, "options": plain(p.options),
            "defaults": plain({option: defaults[option] for option in p.options}), "host": dict(p.host),
        }
        for name, p in PRESETS.items()
    }  # fmt: skip


def test_env(capsys):
    assert main(["env", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["versions"]["exgrpo"] == __version__
    assert found["trl_supported"]["met"] is True
    assert isinstance(found["cuda"], list)
    assert main(["env"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in found["versions"])


def test_env_knows_the_range_that_is_enforced():
    low, high = SUPPORTED_TRL
    assert set(supported_trl().replace(" ", "").split(",")) == {f">={low}", f"<{high}"}
