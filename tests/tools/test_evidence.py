"""The pages of evidence say what the stored results say, and these come from the studies and the code as they are."""

import importlib.util
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from exgrpo import PRESETS
from exgrpo.lab.bench.machine import describe
from exgrpo.lab.studies.results import Results, read
from exgrpo.lab.studies.study_file import load_study, read_yaml

ROOT = Path(__file__).parents[2]
RESULTS, STUDIES = ROOT / "benchmarks" / "results" / "lab", ROOT / "benchmarks" / "studies"
SHORT = ROOT / "benchmarks" / "results" / "lab-short"
PAGE, TABLES = ROOT / "docs" / "evidence.md", ROOT / "docs" / "evidence-tables.md"
COMMAND = re.compile(r"exgrpo lab run benchmarks/studies/([\w-]+)\.yaml")
STUDIES_SHOWN = sorted(set(COMMAND.findall(TABLES.read_text(encoding="utf-8"))))


def evidence():
    spec = importlib.util.spec_from_file_location("evidence", ROOT / "tools" / "evidence.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_stored_study_is_shown_and_every_shown_one_is_stored():
    stored = {path.parent.name for path in RESULTS.glob("*/results.jsonl")}
    assert stored == set(STUDIES_SHOWN)
    assert stored == {path.stem for path in STUDIES.glob("*.yaml")}


def test_the_pages_are_what_the_results_say():
    module = evidence()
    for page, text in module.pages().items():
        assert text == page.read_text(encoding="utf-8"), page.name
    assert re.fullmatch(r"0\.\d{3}", module.render("{{ mean main chains exgrpo pass_at_1 }}"))
    assert re.fullmatch(r"\+\d+\.\d \[.+\]", module.render("{{ diff main chains rehearsal on-policy }}"))


def test_every_finding_leads_to_its_tables_and_every_table_to_a_finding():
    findings = PAGE.read_text(encoding="utf-8").partition("## Findings")[2].partition("\n## ")[0]
    leads = [re.findall(r"evidence-tables\.md#([\w-]+)", finding) for finding in findings.split("\n### ")[1:]]
    assert len(leads) > 5
    assert all(leads)
    sections = re.findall(r"^## (.+)$", TABLES.read_text(encoding="utf-8"), re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in sections}
    assert anchors == {anchor for lead in leads for anchor in lead}


def test_the_pages_prose_has_no_figure_of_its_own():
    """Accuracies and intervals stand in the templates as directives, so that none can go stale."""
    for template in evidence().PAGES.values():
        prose = re.sub(r"\{\{.+?\}\}", "", template.read_text(encoding="utf-8"))
        assert not re.findall(r"[+-]\d*\.\d+|(?<![\d.])0?\.\d{3}\b", prose), template.name


def test_the_readme_quotes_the_page():
    page = PAGE.read_text(encoding="utf-8")
    quoted = re.findall(r"[+-]\d+\.\d \[[+-]\d+\.\d, [+-]\d+\.\d\]", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(quoted) >= 9
    for figures in quoted:
        assert figures in page


@pytest.mark.parametrize("name", STUDIES_SHOWN)
def test_stored_results_are_of_the_study_as_it_is(name):
    """The same file, and for every run the same options, those of the presets among them."""
    results = Results(RESULTS / name)
    assert results.about()["study"] == json.loads(json.dumps(read_yaml(STUDIES / f"{name}.yaml", "The study")))
    fingerprints = {cell.key: cell.fingerprint for cell in load_study(STUDIES / f"{name}.yaml").cells()}
    rows = results.rows()
    assert rows
    for key, row in rows.items():
        assert row["fingerprint"] == fingerprints[key], f"{name}: {key} was run with other options than it has now"
    assert {"processor", "cores", "versions", "command"} <= results.about().keys()


def test_three_figures_at_random_are_reproduced_bit_for_bit_on_a_shortened_budget(tmp_path):
    """Any figure of the page, by the command under it with --short, against the stored short result."""
    made_on, here = json.loads((SHORT / "machine.json").read_text()), describe()
    stored = [(path.stem, row) for path in sorted(SHORT.glob("*.jsonl")) for row in read(path).values()]
    assert {study for study, _ in stored} == set(STUDIES_SHOWN)

    def kernels(about):
        return about["processor"], about["versions"]["torch"]

    same = {study for study, _ in stored if kernels(made_on["of"].get(study, made_on)) == kernels(here)}
    if not same:
        pytest.skip(f"no stored short result is of {kernels(here)}: other kernels, other bits")
    for study, row in random.SystemRandom().sample([pair for pair in stored if pair[1]["arm"] and pair[0] in same], 3):
        folder = tmp_path / study
        command = [sys.executable, "-m", "exgrpo", "lab", "run", f"benchmarks/studies/{study}.yaml", "--short"]
        subprocess.run(
            [*command, "--only", row["key"], "--output_dir", str(folder), "--jobs", "1"],
            cwd=ROOT, check=True, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert Results(folder).rows()[row["key"]] == row, (study, row["key"])


def test_the_advice_says_what_the_results_say():
    """Every figure and verdict behind an answer is made from stored runs; the prose has none of its own."""
    module = evidence()
    assert module.ADVICE.read_text(encoding="utf-8") == module.advice(module.findings)
    asked = json.loads(module.ADVICE.read_text(encoding="utf-8"))
    assert len(asked) == 5
    for question in asked:
        assert len(question["answers"]) >= 2
        for answer in question["answers"]:
            assert answer["preset"] is None or answer["preset"] in PRESETS
            assert not re.findall(r"\d?\.\d|told apart|better|worse", answer["says"]), answer["says"]
            for row in answer["rows"]:
                low, high = (float(part) for part in re.findall(r"[+-]\d+\.\d", row["difference"])[1:])
                verdict = "better" if low > 0 else "worse" if high < 0 else "not told apart"
                assert row["told_apart"] == verdict or 0.0 in (low, high)
