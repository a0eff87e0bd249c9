"""The page as one file: whole, within its size, and with nothing in it that its texts could break out of."""

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

from exgrpo.cli.main import main
from exgrpo.view import assets
from exgrpo.view.page import write_page
from exgrpo.view.run import Run
from tests.support.hostile import make as hostile_run
from tests.support.logs import eventful

STATIC = Path(assets.__file__).parent / "static"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    run = Run(hostile_run(folder / "run"), "</title><script>window.pwned=8</script>")
    write_page([run], folder / "page.html")
    run.close()
    return (folder / "page.html").read_text(encoding="utf-8")


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_every_script_and_style_is_allowed_by_its_digest_and_nothing_else_is(hostile):
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', hostile)[1]
    assert "unsafe" not in policy
    assert "http" not in policy
    scripts = re.findall(r"<script>(.*?)</script>", hostile, re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", hostile, re.DOTALL)
    assert len(scripts) == 3
    assert len(styles) == 1
    for text in (*scripts, *styles):
        assert f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in policy
    assert not re.search(r"(src|href)=\"(?!data:,)", hostile.partition('id="data"')[0])


def test_texts_stay_inside_the_data(hostile):
    outside = re.sub(r'(id="data">).*?(</script>)', r"\1\2", hostile, flags=re.DOTALL)
    assert "pwned" not in outside
    data = re.search(r'id="data">(.*?)</script>', hostile, re.DOTALL)[1]
    assert "<" not in data
    assert ">" not in data
    texts = [q["messages"][0][1] for name, q in data_of(hostile)["answers"].items() if "/question/" in name]
    assert any("<script>window.pwned=1</script>" in text for text in texts)
    assert any("\ud800" in text for text in texts)


@pytest.mark.parametrize("megabytes", [0.6, 1.0])
def test_it_keeps_to_its_size_and_says_what_it_lacks(tmp_path, megabytes, capsys):
    eventful(tmp_path)
    page = tmp_path / "page.html"
    assert main(["view", str(tmp_path), "--html", str(page), "--megabytes", str(megabytes)]) == 0
    assert page.stat().st_size <= megabytes * 1e6
    data = data_of(page.read_text(encoding="utf-8"))
    said = capsys.readouterr().out
    if megabytes == 1.0:
        assert data["about"]["questions"] == 24
        assert "lacks" not in said
        assert sum("/trajectory/" in name for name in data["answers"]) == 316
    else:
        assert "To fit, it lacks" in said


def test_mistakes_of_the_command_are_said_before_anything_is_read(tmp_path, capsys):
    assert main(["view", str(tmp_path / "nowhere"), "--html", str(tmp_path)]) == 2
    assert "--html needs the path of a file" in capsys.readouterr().err
    assert main(["view", str(tmp_path / "nowhere"), "--html", str(tmp_path / "x.html")]) == 1
    assert "there is no run" in capsys.readouterr().err
    assert main(["view", str(tmp_path), "--port", "70000"]) == 2


# The program ------------------------------------------------------------------------------------------------------------


def test_no_two_modules_declare_the_same_name():
    """In the file they share one scope."""
    seen: dict[str, str] = {}
    for module in assets.MODULES:
        text = assets.read(f"{module}.js").decode()
        names = re.findall(r"^(?:export )?(?:async )?(?:function|class) (\w+)", text, re.MULTILINE)
        for line in re.findall(r"^(?:export )?(?:const|let) ([^;]*)", text, re.MULTILINE):
            names += re.findall(r"(?:^|, )(\w+) = ", line.split("{")[0].split("(")[0])
        assert names or module in assets.APPS.values(), module
        for name in names:
            assert name not in seen, f"{name} in {module}.js and {seen[name]}.js"
            seen[name] = module
    assert {path.stem for path in STATIC.glob("*.js")} == set(assets.MODULES)


def test_a_module_imports_only_those_before_it():
    for place, module in enumerate(assets.MODULES):
        for name in re.findall(r'from "\./(\w+)\.js"', assets.read(f"{module}.js").decode()):
            assert name in assets.MODULES[:place], f"{module} imports {name}"
    for kind in assets.APPS:
        assert "import " not in re.sub(r"//.*", "", assets.program(kind))
        assert "export " not in re.sub(r"//.*", "", assets.program(kind))


def test_nothing_parses_html_or_evaluates_text():
    for module in assets.MODULES:
        text = assets.read(f"{module}.js").decode()
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc", text
        )


@pytest.mark.parametrize("kind", assets.APPS)
def test_our_own_program_is_small(kind):
    modules = assets.modules_of(kind)
    assert modules[-1] == assets.APPS[kind]
    assert sum(len(assets.read(f"{module}.js")) for module in modules) < 60_000


def test_the_libraries_are_what_their_page_says():
    page = (STATIC / "vendor" / "VERSIONS.md").read_text()
    rows = re.findall(r"^\| `([\w.]+)` \|.*\| `([0-9a-f]{64})` \|$", page, re.MULTILINE)
    assert {name for name, _ in rows} == {
        path.name for path in (STATIC / "vendor").glob("*.*s") if path.suffix in (".js", ".css")
    }
    for name, digest in rows:
        assert hashlib.sha256((STATIC / "vendor" / name).read_bytes()).hexdigest() == digest
        assert (STATIC / "vendor" / f"{name.split('.')[0]}.LICENSE").is_file()
