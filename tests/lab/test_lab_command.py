"""`exgrpo lab`: its options, and the report, on rows made by hand and on those of a real run."""

import json
import subprocess
import sys

import pytest
import yaml
from filelock import FileLock

from exgrpo.cli.main import main
from exgrpo.lab.studies import pictures
from exgrpo.lab.studies.cells import LOGGED, with_log
from exgrpo.lab.studies.results import Results
from exgrpo.lab.studies.study_file import file_name, make_study

from ..support.tiny import (
    ABOUT,
    NO_EXPERIENCE,
    TINY,
    arm_row,
    command,
    findings,
    point,
    start_row,
    times_row,
    tiny,
    write_results,
)

PNG = b"\x89PNG"


def lab(*words):
    return main(["lab", *map(str, words)])


# A real run -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_the_command_says(whole):
    assert "\x1b" not in whole.said
    said = whole.said.splitlines()
    assert said[0] == "Does a tiny study go on where it was?"
    assert said[1].startswith("1 settings, 8 runs, 8 of them to do: about ")
    assert said[1].endswith(" on 2 idle cores.")
    assert sum("begins" in line for line in said) == 8
    assert sum("held-out Pass@1 " in line for line in said) == 8
    assert sum("8/8, about 0 s left" in line for line in said) == 1
    assert said[-1] == f"wrote {whole.path / 'results.jsonl'}; next: exgrpo lab report {whole.path}"


@pytest.mark.slow
def test_what_the_command_leaves(whole, study_file):
    assert {path.name for path in whole.path.iterdir()} - {".lock"} == {"results.jsonl", "times.jsonl", "study.json"}
    about = Results(whole.path).about()
    assert about["study"] == yaml.safe_load(TINY)
    assert about["command"].startswith("exgrpo lab run ")
    assert str(study_file) in about["command"]
    assert about["versions"]["torch"]
    assert not about["short"]
    assert make_study(about["study"], about["name"]) == tiny()


@pytest.mark.slow
def test_everything_that_is_kept_of_the_log_is_logged(whole):
    """Each name occurs with a number in a real run; those of replay in runs that really replay."""
    rows = Results(whole.path).rows().values()
    logs = {row["key"]: [p["log"] for p in row["curve"]] for row in rows if row["arm"]}
    assert {name for points in logs.values() for log in points for name in log} == set(LOGGED)
    for arm in ("exgrpo", "rescue"):
        found = {name for seed in (0, 1) for log in logs[f"chains/{arm}/{seed}"] for name in log}
        assert found == set(LOGGED), arm
        last = logs[f"chains/{arm}/0"][-1]
        assert last["replay/share"] > 0
        assert last["replay/injected"] > 0
    control = {name for seed in (0, 1) for log in logs[f"chains/on-policy/{seed}"] for name in log}
    assert control == {name for name in LOGGED if not name.startswith("replay/")}


@pytest.mark.slow
def test_what_was_stored_and_replayed_is_kept(whole):
    rows = Results(whole.path).rows()
    for seed in (0, 1):
        assert rows[f"chains/on-policy/{seed}"]["experience"] == NO_EXPERIENCE
        for arm in ("exgrpo", "rescue"):
            stored = rows[f"chains/{arm}/{seed}"]["experience"]
            assert stored["stored"] > 0 < stored["replayed"]
            assert stored["stored_valid"] == stored["replayed_valid"] == 1.0  # `strict` rewards only right reasoning
            assert 0 < stored["distinct_picks"] <= 1


@pytest.mark.slow
def test_the_report_of_a_real_run(whole, tmp_path, capsys):
    assert lab("report", whole.path, "--output_dir", tmp_path) == 0
    assert capsys.readouterr().out.splitlines() == [f"wrote {tmp_path / name}" for name in ("report.md", "chains.png")]
    text = (tmp_path / "report.md").read_text()
    assert "No pair of arms has five common seeds: no differences." in text
    assert "[+" not in text
    assert "[-" not in text
    assert (tmp_path / "chains.png").read_bytes().startswith(PNG)


def test_the_mean_of_the_log_between_evaluations():
    history = [
        {"step": 1, "entropy": 1.0, "fresh/pass_at_1": 0.1, "loss": 5.0},
        {"step": 2, "entropy": 2.0, "fresh/pass_at_1": None},
        {"step": 3, "entropy": 4.0, "replay/ess": 1 / 3},
        {"step": 4, "entropy": 9.0, "fresh/pass_at_1": 0.5},
    ]
    curve = [{"step": 2, "at": 10}, {"step": 3, "at": 20}, {"step": 4, "at": 30}]
    assert with_log(curve, history) == [
        {"step": 2, "at": 10, "log": {"entropy": 1.5, "fresh/pass_at_1": 0.1}},
        {"step": 3, "at": 20, "log": {"entropy": 4.0, "replay/ess": 0.333333}},
        {"step": 4, "at": 30, "log": {"entropy": 9.0, "fresh/pass_at_1": 0.5}},
    ]


# Options ----------------------------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_would_run_and_writes_nothing(study_file, tmp_path, capsys):
    assert lab("run", study_file, "--output_dir", tmp_path / "out", "--dry_run", "--only", "*/rescue/1") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1].startswith("1 settings, 2 runs, 2 of them to do: about ")
    assert said[2:] == ["  chains/(start)/1", "  chains/rescue/1"]
    assert not (tmp_path / "out").exists()


def test_a_dry_run_leaves_out_what_is_done(study_file, tmp_path, capsys):
    cells = tiny().cells()
    write_results(tmp_path, cells, [start_row(cells[0], 0.1)])
    assert lab("run", study_file, "--output_dir", tmp_path, "--dry_run", "--only", "chains/*/0") == 0
    said = capsys.readouterr().out
    assert "chains/on-policy/0" in said
    assert "4 runs, 3 of them to do" in said
    assert "chains/(start)/0" not in said


@pytest.mark.parametrize("jobs", ["0", "-1"])
def test_some_process_is_needed(jobs, study_file, tmp_path, capsys):
    code = lab("run", study_file, "--output_dir", tmp_path / "out", "--jobs", jobs, "--dry_run")
    error = capsys.readouterr().err
    assert code == 2
    assert f"--jobs: must be an integer of at least 1, but is '{jobs}'" in error


def test_mistakes_are_one_line_and_exit_code_2(study_file, tmp_path, capsys):
    assert lab("run", study_file, "--only", "chains/fly/*", "--dry_run") == 2
    assert lab("run", tmp_path / "missing.yaml") == 2
    assert lab("report", tmp_path) == 2
    errors = capsys.readouterr().err.splitlines()
    assert [error.split(":")[0] for error in errors] == ["exgrpo"] * 3
    assert "nothing matches 'chains/fly/*'. Keys look like 'chains/rescue/1'" in errors[0]
    assert "missing.yaml cannot be read: No such file or directory" in errors[1]
    assert "holds no study: there is no study.json" in errors[2]


def test_a_second_process_is_refused(study_file, tmp_path, capsys):
    with FileLock(tmp_path / ".lock"):
        assert lab("run", study_file, "--output_dir", tmp_path) == 2
    assert "Another process runs a study in" in capsys.readouterr().err
    assert not (tmp_path / "study.json").exists()


def test_other_versions_are_refused(study_file, tmp_path, capsys):
    write_results(tmp_path, [], [])  # its study.json has made-up versions
    before = (tmp_path / "study.json").read_bytes()
    assert lab("run", study_file, "--output_dir", tmp_path) == 2
    assert "were begun with torch 2, and" in capsys.readouterr().err
    assert (tmp_path / "study.json").read_bytes() == before


@pytest.fixture
def recorded(monkeypatch):
    """`run_study` is only asked; returns what with."""
    asked = {}

    def run_study(study, cells, results, about, workers, display, discard_changed):
        asked.update(
            study=study, cells=cells, folder=results.folder, about=about, workers=workers, discard=discard_changed
        )

    monkeypatch.setattr("exgrpo.lab.commands.run_study", run_study)
    return asked


def test_short(recorded, study_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert lab("run", study_file, "--short", "--jobs", 1) == 0
    assert recorded["study"] == tiny().shortened()
    assert recorded["cells"] == tiny().shortened().cells()
    assert str(recorded["folder"]) == "exgrpo-lab/tiny-short"
    assert recorded["about"]["short"]
    assert recorded["about"]["study"] == yaml.safe_load(TINY)  # the file as it is
    assert not recorded["discard"]


def test_options_arrive(recorded, study_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert lab("run", study_file, "--discard_changed", "--jobs", 3, "--only", "*/exgrpo/0", "*/exgrpo/1") == 0
    assert [cell.key for cell in recorded["cells"]] == [
        f"chains/{arm}/{seed}" for seed in (0, 1) for arm in ("(start)", "exgrpo")
    ]
    assert (str(recorded["folder"]), recorded["workers"], recorded["discard"]) == ("exgrpo-lab/tiny", 3, True)
    assert "--discard_changed" in recorded["about"]["command"]


def test_help_needs_no_torch():
    script = "import sys; from exgrpo.lab.commands import make_parser; make_parser(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


# The report, on rows by hand -------------------------------------------------------------------------------------------

TWO = {
    **yaml.safe_load(TINY),
    "seeds": 5,
    "contrasts": [["rescue", "exgrpo"]],
    "settings": {
        name: yaml.safe_load(TINY)["settings"]["chains"] | {"eval_questions": 4096}
        for name in ("chains", "chains, again")
    },
}


def finals(cell):
    """Final Pass@1: on-policy 0.30 to 0.34; exgrpo 0.05 more; rescue 0.2 more, and a hundredth more with each seed."""
    return {"on-policy": 0.30, "exgrpo": 0.35, "rescue": 0.50 + cell.seed / 100}[cell.arm.name] + cell.seed / 100


def rows_of(cells):
    rows, times = [], []
    for cell in cells:
        if cell.arm is None:
            rows.append(start_row(cell, 0.1))
            continue
        final = finals(cell)
        log = {"entropy": 1.25, **({} if cell.arm.name == "on-policy" else {"replay/retired": 4.0})}
        tokens = 40_000 + 1000 * cell.seed
        curve = [
            point(192, final / 2, step=3, log=log),
            point(384, final, step=6, log={**log, "entropy": 0.75}, tokens=tokens),
        ]
        replay = {} if cell.arm.name == "on-policy" else {"retired": 10 + cell.seed, "replay_share": 0.25}
        rows.append(arm_row(cell, curve, **replay))
        times.append(times_row(cell, 10.0, 20.0 if cell.arm.name == "on-policy" else 30.0))
    return rows, times


@pytest.fixture
def by_hand(tmp_path):
    """Two settings: five seeds of the first; of the second, seed 0 alone and without `rescue`."""
    study = make_study(TWO, "tiny")
    cells = [
        c
        for c in study.cells()
        if c.setting.name == "chains" or (c.seed == 0 and (not c.arm or c.arm.name != "rescue"))
    ]
    write_results(tmp_path / "in", cells, *rows_of(cells), about={**ABOUT, "study": TWO})
    return tmp_path / "in"


def tables(text):
    """Tables of a page: lists of dictionaries."""
    found = []
    for block in text.split("\n\n"):
        if block.startswith("| "):
            head, _, *body = [[c.strip() for c in line.strip("| ").split(" | ")] for line in block.splitlines()]
            found.append([dict(zip(head, row, strict=True)) for row in body])
    return found


@pytest.mark.slow
def test_tables_say_what_the_numbers_are(by_hand, tmp_path, capsys):
    assert lab("report", by_hand, "--output_dir", tmp_path / "out") == 0
    capsys.readouterr()
    text = (tmp_path / "out" / "report.md").read_text()
    arms, differences, answers, again, _ = tables(text)
    start, on_policy, exgrpo, rescue = arms
    assert (start["arm"], start["Pass@1"], start["Pass@2"], start["seeds"]) == ("(start)", "0.100", "0.200", "5")
    # Means over seeds 0 to 4: 0.30 + 0.02; 0.35 + 0.02; 0.50 + 0.04.
    assert [row["Pass@1"] for row in arms[1:]] == ["0.320", "0.370", "0.540"]
    assert [row["Pass@2"] for row in arms[1:]] == ["0.420", "0.470", "0.640"]
    assert [row["greedy"] for row in arms[1:]] == ["0.330", "0.380", "0.550"]
    assert {row["entropy"] for row in arms[1:]} == {"0.750"}
    assert [row["retired"] for row in arms[1:]] == ["–", "12", "12"]
    assert [row["replayed"] for row in arms[1:]] == ["–", "25.0%", "25.0%"]
    assert [row["CPU s"] for row in arms[1:]] == ["20", "30", "30"]
    assert {row["k tokens"] for row in arms[1:]} == {"42"}
    assert {row["steps"] for row in arms[1:]} == {"6"}
    assert [row["tried"] for row in arms[1:]] == ["1", "3", "1"]
    assert {row["collapsed"] for row in arms[1:]} == {"0/5"}
    # The baseline's 0.32 of seed 2, on the way of rescue from 0.27 at half to 0.54: 0.5 + 0.05 / 0.27 / 2 = 0.59.
    assert on_policy["tokens to baseline"] == "1.00 (5/5)"
    assert exgrpo["tokens to baseline"] == "0.86 (5/5)"  # 0.5 + (0.32 - 0.185) / 0.185 / 2
    assert rescue["tokens to baseline"] == "0.59 (5/5)"
    # Differences: exgrpo 0.05 in every seed; rescue 0.20, 0.21, ... 0.24: mean 0.22, s 0.0158, t 2.776: +-0.0196.
    first, second, contrast = differences
    assert (first["arm"], first["against"], first["pairs"]) == ("exgrpo", "on-policy", "5")
    assert first["Pass@1"] == "+5.0 [+5.0, +5.0]"
    assert second["Pass@1"] == second["Pass@2"] == "+22.0 [+20.0, +24.0]"
    assert [row["tried"] for row in differences] == ["3", "1", "1"]
    assert [row["arm"] for row in answers] == ["on-policy", "exgrpo", "rescue"]
    assert [row["Pass@1"] for row in answers] == [row["Pass@1"] for row in arms[1:]]
    assert (contrast["arm"], contrast["against"]) == ("rescue", "exgrpo")
    assert contrast["Pass@1"] == "+17.0 [+15.0, +19.0]"
    # At the baseline's 20 s, rescue is half way from its 10 s to its 30 s: 0.75 of its final; 0.405 of seed 2, less 0.32.
    assert second["Pass@1 at equal time"].startswith("+8.5 [")
    # The second setting has one seed: figures, no interval.
    assert [row["arm"] for row in again] == ["(start)", "on-policy", "exgrpo"]
    assert [row["seeds"] for row in again] == ["1"] * 3
    after = text.split("## chains, again")[1]
    assert "No pair of arms has five common seeds: no differences." in after
    assert "[+" not in after
    assert "No interval is given for fewer than five" in text


@pytest.mark.slow
def test_the_head_says_where_it_is_from(by_hand, tmp_path):
    assert lab("report", by_hand, "--output_dir", tmp_path / "out") == 0
    text = (tmp_path / "out" / "report.md").read_text()
    assert text.startswith("# Does a tiny study go on where it was?\n\n")
    for line in (
        "- machine: 2 cores, a processor",
        "- versions: exgrpo 1, torch 2, trl 3, transformers 4",
        "- date: 2026-01-02",
        "- command: `exgrpo lab run tiny.yaml`",
        "- results: `in/results.jsonl`",
    ):
        assert line in text.splitlines()
    assert "16 training questions, 4,096 held out; 8 questions x 4 completions a step, learning rate 0.0008" in text
    assert "shortened" not in text


@pytest.mark.parametrize("height", [0.0, 0.3])
def test_panels_have_titles_of_their_own_and_axes_without_numbers_below_0(tmp_path, monkeypatch, height):
    seen = []
    monkeypatch.setattr(pictures, "save", lambda canvas, path: seen.append(canvas.figure))
    finals = {arm: dict.fromkeys(range(5), height) for arm in ("on-policy", "exgrpo")}  # one line upon the other
    pictures.draw_setting(findings(finals), "chains", tmp_path / "a.png")
    panels = seen[0].axes
    assert len({panel.get_title(loc="left") for panel in panels}) == len(panels) == 6
    for panel in panels:
        low, high = panel.get_ylim()
        assert -0.1 * high < low
        assert high - low >= 0.05
        widths = [line.get_linewidth() for line in panel.lines]
        assert widths == sorted(set(widths), reverse=True)


@pytest.mark.slow
def test_pictures_are_written_and_linked(by_hand, tmp_path, capsys):
    assert lab("report", by_hand) == 0
    names = ["report.md", "differences.png", "chains.png", "chains-again.png"]
    assert capsys.readouterr().out.splitlines() == [f"wrote {by_hand / name}" for name in names]
    text = (by_hand / "report.md").read_text()
    for name in names[1:]:
        assert (by_hand / name).read_bytes().startswith(PNG)
        assert f"]({name})" in text


@pytest.mark.slow
def test_a_report_twice_is_the_same(by_hand, tmp_path):
    for name in ("one", "two"):
        assert lab("report", by_hand, "--output_dir", tmp_path / name) == 0
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_a_study_that_has_only_begun(tmp_path):
    """A start and half a line: figures of nobody, and it says so; another setting has one arm of one seed."""
    study = make_study(TWO, "tiny")
    cells = study.cells()
    kept = [cells[0], *(c for c in cells if c.key in ("chains, again/(start)/0", "chains, again/exgrpo/0"))]
    results = write_results(tmp_path, kept, *rows_of(kept), about={**ABOUT, "study": TWO})
    with results.rows_path.open("a") as file:
        file.write('{"key": "chains/on-pol')
    assert lab("report", tmp_path) == 0
    text = (tmp_path / "report.md").read_text()
    assert "## chains\n\nNo run is done." in text
    (start, only), _ = tables(text)
    assert (only["arm"], only["Pass@1"], only["seeds"]) == ("exgrpo", "0.350", "1")
    assert start["seeds"] == "1"
    assert only["tokens to baseline"] == "–"
    assert not (tmp_path / "differences.png").exists()
    assert not (tmp_path / "chains.png").exists()


def test_an_empty_study_says_so(tmp_path):
    write_results(tmp_path, [], [])
    assert lab("report", tmp_path) == 0
    text = (tmp_path / "report.md").read_text()
    assert "## chains\n\nNo run is done." in text
    assert tables(text) == []
    assert list(tmp_path.glob("*.png")) == []


def test_a_short_run_is_no_evidence_and_says_so(tmp_path):
    study = tiny().shortened()
    rows = [start_row(c, 0.1) if c.arm is None else arm_row(c, [point(384, 0.5, pass_at_4=0.6)]) for c in study.cells()]
    for row in rows:
        row["curve"][0]["pass_at_4"] = 0.6
    write_results(tmp_path, study.cells(), rows, about={**ABOUT, "short": True})
    assert lab("report", tmp_path) == 0
    assert (
        "**A shortened run: it shows that the study runs, and nothing else.**" in (tmp_path / "report.md").read_text()
    )


def test_a_setting_s_name_in_a_file_name():
    assert file_name("chains, K=8") == "chains-k-8"
    assert file_name("Free order") == "free-order"


@pytest.mark.slow
def test_a_report_from_the_command_line(by_hand, tmp_path):
    done = command("report", str(by_hand), "--output_dir", str(tmp_path / "out"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == f"wrote {tmp_path / 'out' / 'report.md'}"
    assert json.loads((by_hand / "study.json").read_text())["study"] == TWO
