"""Results on disk: what is kept, what is refused, who may write, and that nothing else is touched."""

import json

import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.errors import ConfigurationError
from exgrpo.lab.studies import running
from exgrpo.lab.studies.results import Results, write_whole
from exgrpo.lab.studies.running import run_study
from exgrpo.lab.studies.study_file import make_study
from exgrpo.lab.studies.summary import load_findings

from ..support.tiny import ABOUT, Silent, arm_row, point, start_row, times_row, tiny, write_results


@pytest.fixture(autouse=True)
def ran(monkeypatch):
    """Runs give made-up rows, at once; returns the keys that were run."""
    keys = []

    def run_jobs(jobs, workers, setup, environment=None):
        for job in jobs:
            keys.append(job.name)
            yield "done", job, made_up(job.arguments["cell"])

    monkeypatch.setattr(running, "run_jobs", run_jobs)
    return keys


def made_up(cell):
    if cell.arm is None:
        return start_row(cell, 0.1), {"key": cell.key}
    return arm_row(cell, [point(192, 0.2), point(384, 0.5)]), times_row(cell, 1.0, 2.0)


def go(folder, study=None, cells=None, about=ABOUT, **options):
    study = study or tiny()
    run_study(study, study.cells() if cells is None else cells, Results(folder), about, 1, Silent(), **options)


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


CHANGED = dict(learning_rate=2e-3)


# A study that has changed ----------------------------------------------------------------------------------------------


def test_old_results_are_refused_and_nothing_is_touched(tmp_path, ran):
    go(tmp_path)
    before = files(tmp_path)
    ran.clear()
    with pytest.raises(
        ConfigurationError,
        match=r"8 runs in .* were made with other options than the study has now, chains/\(start\)/0 among them\. "
        r"Give another --output_dir, or --discard_changed",
    ):
        go(tmp_path, tiny(**CHANGED), about={**ABOUT, "command": "another"})
    assert ran == []
    after = files(tmp_path)
    assert after["results.jsonl"] == before["results.jsonl"]
    assert after["times.jsonl"] == before["times.jsonl"]
    assert after["study.json"] == before["study.json"]


def test_a_refused_study_is_not_reported(tmp_path):
    """The report of a folder is of the study that its rows were made with."""
    go(tmp_path)
    study = {**ABOUT["study"], "settings": {"chains": {**ABOUT["study"]["settings"]["chains"], **CHANGED}}}
    with pytest.raises(ConfigurationError):
        go(tmp_path, tiny(**CHANGED), about={**ABOUT, "study": study})
    assert load_findings(tmp_path).study == tiny()


def test_a_short_run_into_a_whole_study_s_folder_is_refused(tmp_path):
    study = {**ABOUT["study"], "settings": {"chains": {**ABOUT["study"]["settings"]["chains"], "steps": 100}}}
    go(tmp_path, tiny(steps=100), about={**ABOUT, "study": study})
    with pytest.raises(ConfigurationError, match=r"4 runs in .* were made with other options"):
        go(tmp_path, tiny(steps=100).shortened(), about={**ABOUT, "study": study, "short": True})
    assert not load_findings(tmp_path).short


def test_discard_changed_runs_only_those_again(tmp_path, ran):
    """One arm's options change: its runs go, the others stay as they are."""
    go(tmp_path)
    before = {key: json.dumps(row) for key, row in Results(tmp_path).rows().items()}
    ran.clear()
    changed = tiny(overrides={"exgrpo": {"sigma": 0.5}})
    go(tmp_path, changed, discard_changed=True)
    assert ran == ["chains/exgrpo/0", "chains/exgrpo/1"]
    results = Results(tmp_path)
    assert list(results.rows()) == [cell.key for cell in changed.cells()]
    for cell in changed.cells():
        assert results.rows()[cell.key]["fingerprint"] == cell.fingerprint
        assert (json.dumps(results.rows()[cell.key]) == before[cell.key]) == ("exgrpo" not in cell.key)
    assert results.times().keys() == results.rows().keys()
    go(tmp_path, changed)
    assert len(ran) == 2


def test_discarding_and_running_a_part_leaves_the_rest_to_do(tmp_path, ran):
    go(tmp_path)
    ran.clear()
    changed = tiny(**CHANGED)
    go(tmp_path, changed, changed.only(["*/exgrpo/0"]), discard_changed=True)
    assert list(Results(tmp_path).rows()) == ["chains/(start)/0", "chains/exgrpo/0"]
    go(tmp_path, changed)
    assert sorted(ran) == sorted(cell.key for cell in changed.cells())


def test_more_seeds_and_arms_keep_what_is_there(tmp_path, ran):
    go(tmp_path)
    ran.clear()
    more = {**ABOUT["study"], "seeds": 3}
    more["arms"] = {"twice": {"preset": "on-policy", "budget": 2}, **more["arms"]}
    study = make_study({**more, "baseline": "on-policy"}, "tiny")
    go(tmp_path, study)
    assert sorted(ran) == sorted(
        key for key in map(str, (c.key for c in study.cells())) if "twice" in key or key.endswith("/2")
    )
    assert list(Results(tmp_path).rows()) == [cell.key for cell in study.cells()]


def test_rows_of_arms_that_are_gone_come_last(tmp_path, ran):
    go(tmp_path)
    less = {**ABOUT["study"], "arms": {"on-policy": {"preset": "on-policy"}, "rescue": {"preset": "rescue"}}}
    study = make_study(less, "tiny")
    go(tmp_path, study)
    keys = list(Results(tmp_path).rows())
    assert keys[:6] == [cell.key for cell in study.cells()]
    assert keys[6:] == ["chains/exgrpo/0", "chains/exgrpo/1"]


# Versions and other processes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", ["torch", "transformers", "trl", "exgrpo"])
def test_other_versions_are_refused(package, tmp_path, ran):
    go(tmp_path)
    before, done = files(tmp_path), list(ran)
    other = {**ABOUT, "versions": {**ABOUT["versions"], package: "99"}}
    with pytest.raises(
        ConfigurationError, match=rf"begun with {package} {ABOUT['versions'][package]}, and 99 is installed"
    ):
        go(tmp_path, about=other, cells=[], discard_changed=True)
    assert files(tmp_path) == before
    assert ran == done


def test_another_version_of_something_else_is_not(tmp_path):
    go(tmp_path, cells=tiny().cells()[:2])
    go(tmp_path, about={**ABOUT, "versions": {**ABOUT["versions"], "numpy": "99"}, "cores": 64})
    assert Results(tmp_path).about()["cores"] == 64


def test_a_run_with_nothing_to_do_changes_only_the_study_of_what_was_run(tmp_path):
    go(tmp_path)
    go(tmp_path, about={**ABOUT, "study": {"title": "renamed"}, "cores": 64, "command": "another"})
    assert Results(tmp_path).about() == {**ABOUT, "study": {"title": "renamed"}}


def test_a_second_process_is_refused_and_the_lock_is_given_back(tmp_path):
    tmp_path.joinpath("folder").mkdir()
    folder = tmp_path / "folder"
    with (
        FileLock(folder / ".lock"),
        pytest.raises(ConfigurationError, match=r"Another process runs a study in .*folder"),
    ):
        go(folder)
    assert files(folder) == {}
    go(folder)
    with FileLock(folder / ".lock", timeout=0):
        pass


def test_the_lock_is_given_back_after_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), Results(tmp_path).locked():
        raise ZeroDivisionError
    with Results(tmp_path).locked():
        pass


# Lines ------------------------------------------------------------------------------------------------------------------


def test_no_folder_no_study(tmp_path):
    with pytest.raises(ConfigurationError, match=r"holds no study: there is no study\.json"):
        Results(tmp_path / "nowhere").about()
    assert Results(tmp_path / "nowhere").rows() == {}


def test_a_line_in_the_middle_that_is_none_is_named(tmp_path, ran):
    go(tmp_path)
    path = tmp_path / "results.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:2], lines[2][:40] + "\n", *lines[3:]]))
    with pytest.raises(
        ConfigurationError, match=r"Line 3 of .*results\.jsonl is not JSON \(.*\)\. Remove it to run it again"
    ):
        go(tmp_path)
    path.write_text("".join([*lines[:2], *lines[3:]]))
    ran.clear()
    go(tmp_path)
    assert ran == ["chains/exgrpo/0"]
    assert path.read_text() == "".join(lines)


def test_what_is_read_does_not_change_files(tmp_path):
    """A report may be made while the study runs, and while a line is being written."""
    go(tmp_path)
    path = tmp_path / "results.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    before = files(tmp_path)
    assert len(Results(tmp_path).rows()) == 7
    assert len(load_findings(tmp_path).runs) == 5
    assert files(tmp_path) == before


@given(cut=st.integers(0, 400), order=st.permutations(range(8)))
def test_any_order_and_any_cut_end_the_same(cut, order, tmp_path_factory):
    """Lines as they were written in any order, cut anywhere near the end: rows read back, then in the study's order."""
    folder = tmp_path_factory.mktemp("cut")
    cells = tiny().cells()
    rows, times = zip(*map(made_up, cells), strict=True)
    results = write_results(folder, cells, [rows[i] for i in order], [times[i] for i in order])
    data = results.rows_path.read_bytes()
    results.rows_path.write_bytes(data[: len(data) - cut])
    lost = 8 - data[: len(data) - cut].count(b"\n")
    done = results.done(cells)
    assert done == {rows[i]["key"] for i in order[: 8 - lost]}
    assert results.rows_path.read_bytes().endswith(b"\n") or not done
    for i in order[8 - lost :]:
        results.add(rows[i], times[i])
    results.order(cells)
    assert results.rows_path.read_text() == "".join(json.dumps(row) + "\n" for row in rows)
    assert results.times_path.read_text() == "".join(json.dumps(row) + "\n" for row in times)


def test_a_whole_file_is_replaced_in_one_step(tmp_path):
    path = tmp_path / "a.txt"
    write_whole(path, "one\n")
    write_whole(path, "zwei – 2\n")
    assert path.read_text(encoding="utf-8") == "zwei – 2\n"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
