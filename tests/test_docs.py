"""The pages say what is there: links resolve, snippets compile and run, names and figures are the code's."""

import ast
import logging
import os
import re
from dataclasses import fields
from functools import cache
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest

from exgrpo import config
from exgrpo.registry import Registry
from exgrpo.runtime.metric_table import METRICS, as_markdown

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
SOURCE = ROOT / "src" / "exgrpo"
TIERS = ("unsolved", "hard", "medium", "easy")
NOT_OPTIONS = {"model", "model_init_kwargs"}  # arguments of the trainer, and what stands inside a dictionary


def name_of(value) -> str:
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else value


@cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose_of(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", text_of(page), flags=re.DOTALL | re.MULTILINE)


def section(page: str, title: str) -> str:
    """From a heading to the next of its level or above."""
    text = text_of(ROOT / "docs" / page)
    start = re.search(rf"^(#+) {re.escape(title)}$", text, re.MULTILINE)
    rest = text[start.end() :]
    end = re.search(rf"^#{{1,{len(start[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def rows_of(text: str) -> list[list[str]]:
    """Cells of all table rows, without heads and rules."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rules = {i for i, line in enumerate(lines) if set(line) <= set("|-: ")}
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for i, line in enumerate(lines)
        if i not in rules and i + 1 not in rules
    ]


# Links ------------------------------------------------------------------------------------------------------------------


def anchors_of(page: Path) -> set[str]:
    """As GitHub makes them: lower case, punctuation removed, spaces to hyphens."""
    titles = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{target}: there is no such file"
        assert there.is_relative_to(ROOT), f"{target} leaves the repository"
        if anchor:
            assert anchor in anchors_of(there), f"{target}: there is no such heading"


def test_every_page_is_in_the_index():
    index = text_of(ROOT / "docs" / "README.md")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in index, page.name


# Snippets ---------------------------------------------------------------------------------------------------------------

BLOCK = re.compile(r"^(<!-- run -->\n)?```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks_of(page: Path) -> list[tuple[bool, str]]:
    """Whether to run it, and the code."""
    return [(bool(run), code) for run, code in BLOCK.findall(text_of(page))]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page)], ids=name_of)
def test_snippets_compile(page):
    for _, code in blocks_of(page):
        ast.parse(code)


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if any(run for run, _ in blocks_of(p))], ids=name_of)
def test_snippets_run(page, tmp_path, monkeypatch, capsys):
    """Those marked so, of a page one after the other, each with what those before it defined."""
    monkeypatch.chdir(tmp_path)
    for registry in vars(config).values():  # what a page registers is gone afterwards
        if isinstance(registry, Registry):
            assert all(registry.values())  # the built-in ones are there before
            monkeypatch.setattr(registry, "_rules", dict(registry._rules))
    logger, names = logging.getLogger("exgrpo"), {"__name__": "snippet"}
    level = logger.level
    try:
        for run, code in blocks_of(page):
            if run:
                exec(compile(code, name_of(page), "exec"), names)
    finally:
        logger.setLevel(level)


def test_the_one_file_example_and_the_recipes_are_named_as_they_are():
    for page in PAGES:
        for path in re.findall(r"(?:recipes|examples|benchmarks)/[\w./-]*\w\.\w+", text_of(page)):
            assert (ROOT / path).exists(), f"{name_of(page)}: {path}"


# Names ------------------------------------------------------------------------------------------------------------------


@cache
def metrics_of_the_code() -> frozenset[str]:
    """Every metric name in the source of the trainer; f-strings written out, a bucket's number as `k`."""
    names = set()
    written = [*(SOURCE / "runtime" / name for name in ("metrics.py", "step.py"))]
    written += [*(SOURCE / "trl" / name for name in ("trainer.py", "host_metrics.py"))]
    for path in written:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and re.fullmatch(r"(replay|fresh|prefix)/\w+", str(node.value)):
                names.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                pattern = "".join(
                    part.value if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
                    for part in node.values
                )
                if pattern.startswith(("replay/", "fresh/")):
                    names |= {
                        "replay/{name}": {f"replay/{tier}" for tier in TIERS},
                        "replay/bucket_{bucket}": {"replay/bucket_k"},
                    }[pattern]
    return frozenset((names | {"replay/time/PHASE"}) - {"replay/bucket_"})


def test_the_table_of_metrics_is_complete():
    assert set(METRICS) == metrics_of_the_code()
    assert as_markdown() in section("monitoring.md", "All metrics")  # else: write metric_table.as_markdown() there


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_metrics_that_pages_name_exist(page):
    for name in re.findall(r"`((?:replay|fresh)/\w+)`", prose_of(page)):
        assert re.sub(r"bucket_\d+", "bucket_k", name) in metrics_of_the_code(), name


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_options_that_pages_name_exist(page):
    """`name=value` in prose names an option of ExGRPOConfig, and a value that it takes."""
    from exgrpo.trl import ExGRPOConfig

    options = {f.name for f in fields(ExGRPOConfig)}
    for span in re.findall(r"`([^`\n]+)`", prose_of(page)):
        for name, value in re.findall(r"(?<![.\w])([a-z_]\w*)=([^=,]*)", span):
            if "(" in span or name in NOT_OPTIONS:
                continue
            assert name in options, f"{span}: no such option"
            if name in choices():
                assert value.strip("\"'") in (*choices()[name], "...", ""), f"{span}: no such value"


@cache
def choices() -> dict[str, tuple[str, ...]]:
    """The values of options whose values have names."""
    from exgrpo import PRESETS

    return dict(
        preset=tuple(PRESETS), mixing=config.MIXINGS, question_choice=config.QUESTION_SAMPLERS,
        trajectory_choice=config.TRAJECTORY_CHOICES, entropy_refresh=config.ENTROPY_REFRESHES,
        retirement=config.RETIREMENTS, eviction=config.EVICTIONS, correction=config.CORRECTIONS,
        admission=config.ADMISSIONS, schedule=config.SCHEDULES, difficulty=config.DIFFICULTIES, baseline=config.BASELINES,
    )  # fmt: skip


def test_options_in_the_troubleshooting_tables_exist():
    """What a table tells to set: backticked names in its last column."""
    from exgrpo.trl import ExGRPOConfig

    options = {f.name for f in fields(ExGRPOConfig)}
    rows = rows_of(section("troubleshooting.md", "Replay is idle")) + rows_of(
        section("troubleshooting.md", "Ratio explodes or ess is low")
    )
    assert len(rows) > 8
    for row in rows:
        for name in re.findall(r"`(\w+)`", row[-1]):
            assert name in options | set(choices()["correction"]), name


def constants(node: ast.AST) -> set:
    return {
        c.value.strip() if isinstance(c.value, str) else c.value
        for c in ast.walk(node)
        if isinstance(c, ast.Constant) and c.value and len(str(c.value)) > 3
    }


def test_every_idle_reason_is_explained():
    """The constant parts of the reasons in the code stand in the table."""
    told = section("troubleshooting.md", "Replay is idle")
    parts = set()
    for file in ("gate.py", "planner.py", "idleness.py", "counts.py", "options/coin.py"):
        for node in ast.walk(ast.parse((SOURCE / "replay" / file).read_text())):
            named = [ast.unparse(t) for t in node.targets] if isinstance(node, ast.Assign) else []
            appended = isinstance(node, ast.Call) and ast.unparse(node.func) == "closed.append"
            if appended or named in (["idle"], ["came"]):
                parts |= constants(node)
            said = ("why_empty", "_why_none_stored", "one_by_coin", "coin", "_waits_for_pass_at_1")
            if isinstance(node, ast.FunctionDef) and node.name in said:
                parts |= {
                    part for inside in ast.walk(node) if isinstance(inside, ast.Return) for part in constants(inside)
                }
    reasons = {part for part in parts if isinstance(part, str) and re.search(r"[a-z]{3}", part)}
    assert {"no replayable question stored", "completions, so far", "all over age: the last"} <= reasons
    for part in reasons - {"share"}:
        assert part in told, part


def test_presets_and_axes_are_told():
    from exgrpo import PRESETS

    assert [row[0].strip("`") for row in rows_of(section("replay.md", "Presets"))] == list(PRESETS)
    axes = section("replay.md", "Axes")
    for option, known in choices().items():
        if option != "preset":
            assert f"`{option}`" in axes, option
            for value in getattr(known, "builtin", known):
                assert f"`{value}`" in axes, (option, value)


def test_commands_and_environment_variables_are_told():
    from exgrpo.cli.main import COMMANDS

    told = {row[0].strip("`").removeprefix("exgrpo ") for row in rows_of(text_of(ROOT / "docs" / "commands.md"))}
    assert set(COMMANDS) <= told
    source = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    named = set(re.findall(r"EXGRPO_[A-Z_]*[A-Z]\b", source))
    assert named
    assert named == set(re.findall(r"EXGRPO_[A-Z_]+", text_of(ROOT / "docs" / "commands.md")))


# Figures ----------------------------------------------------------------------------------------------------------------


def test_gradient_weights():
    """The table against the gradient of the loss."""
    import math

    import torch

    from exgrpo import ObjectiveConfig
    from exgrpo.objective import replay_loss

    rows = rows_of(section("how-it-works.md", "Gradient weights"))
    assert len(rows) == 5
    for row in rows:
        correction = re.search(r"`(\w+)`", row[0])[1]
        signs = [-1.0] if "A < 0" in row[0] else [1.0] if "A > 0" in row[0] else [1.0, -1.0]
        for sign in signs:
            for w, told in zip((0.1, 0.5, 1.0, 2.0, 10.0), row[3:], strict=True):
                logps = torch.full((1, 1), -3.0 + math.log(w), dtype=torch.float64, requires_grad=True)
                loss = replay_loss(
                    logps, torch.full((1, 1), -3.0, dtype=torch.float64), torch.tensor([sign], dtype=torch.float64),
                    torch.ones(1, 1), torch.tensor([True]), ObjectiveConfig(correction=correction), 1.0,
                ).loss  # fmt: skip
                loss.backward()
                assert -float(logps.grad) / sign == pytest.approx(float(told), abs=5e-5), (row[0], w)
