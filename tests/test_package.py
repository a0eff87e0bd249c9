"""The wheel holds what it should, and works where nothing but its own requirements is installed."""

import subprocess

import pytest

from tests.support.logs import eventful
from tools import release


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return release.build(tmp_path_factory.mktemp("dist"))[1]


@pytest.mark.slow
def test_what_the_wheel_holds(wheel):
    metadata, names = release.contents(wheel)
    assert [line for line in release.problems(metadata, names) if "CHANGELOG" not in line] == []


@pytest.mark.slow
def test_without_extras(wheel, tmp_path):
    commands = release.bare_environment(tmp_path / "bare", wheel)
    log, _ = eventful(tmp_path)

    def run(*arguments):
        return subprocess.run([commands / "exgrpo", *arguments], capture_output=True, text=True, cwd=tmp_path)

    for arguments in (["--help"], ["presets"], ["experience", "stats", log], ["experience", "questions", log]):
        done = run(*arguments)
        assert done.returncode == 0, done.stderr
        assert done.stdout
    done = run("train", "--config", "nowhere.yaml")
    assert done.returncode != 0
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("names", "word"),
    [(["tests/x.py"], "holds"), (["exgrpo/view/vendor/a.js"], "licence"), ([], "lacks exgrpo/py.typed")],
)
def test_what_keeps_a_release_back(names, word):
    assert any(word in line for line in release.problems({}, names))
