"""`exgrpo experience`: what each command says, to people and to machines, and what it refuses."""

import csv
import io
import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from exgrpo.cli.experience import look as experience_look
from exgrpo.cli.experience.output import plain, prompt_text, shortened, write_json, write_table
from exgrpo.cli.main import main
from exgrpo.log import LogReader
from tests.cli.test_main import HEAVY
from tests.support.logs import ORIGIN, Dataset, K, Run, buffer_at, eventful, write_checkpoint

COMMANDS = ("stats", "questions", "show", "sql", "export", "import", "merge", "prune", "verify", "fork")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path, _ = eventful(tmp_path_factory.mktemp("log"))
    return path.parent


@pytest.fixture
def folder(original, tmp_path, monkeypatch):
    """A copy of the folder of a run; the current folder is an empty one."""
    monkeypatch.setenv("COLUMNS", "120")
    shutil.copytree(original, tmp_path / "run")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "run"


@pytest.fixture
def say(capsys):
    """Run a command that must succeed: its words, or its JSON."""

    def run(*arguments, code=0):
        assert main(["experience", *map(str, arguments)]) == code, capsys.readouterr().err
        captured = capsys.readouterr()
        text = captured.err if code else captured.out
        return json.loads(text, parse_constant=pytest.fail) if "--json" in arguments and not code else text

    return run


def query(folder, sql, *parameters):
    connection = sqlite3.connect(folder / "experience.db")
    rows = connection.execute(sql, parameters).fetchall()
    connection.close()
    return rows


def stored_number(folder):
    return query(folder, "SELECT max(id) FROM experience")[0][0]


# All commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [("--help",), *((command, "--help") for command in COMMANDS)], ids=" ".join)
def test_help_imports_nothing_heavy_and_has_an_example(arguments):
    code = (
        "import sys; from exgrpo.cli.main import main; code = main(['experience', *sys.argv[1:]]);"
        f"print(sorted({{*{HEAVY!r}, 'numpy', 'pyarrow'}} & sys.modules.keys()), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "[]")
    if len(arguments) == 1:
        assert all(command in done.stdout for command in COMMANDS)
    else:
        assert f"example:\n  exgrpo experience {arguments[0]} " in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("fly",), ("stats", "--wings"), ("stats", "nowhere"), ("stats",), ("fork",), ("show",), ("sql",), ("export",),
        ("merge", "a"), ("questions", "--sort", "beauty"), ("verify", "nowhere.db"), ("sql", "SELECT 1", "--json", "--csv"),
        ("prune", "--checkpoints", "nowhere"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_wrong_usage_is_2(folder, arguments, say):
    where = [str(folder)] if arguments[:1] in (("sql",), ("prune",)) and len(arguments) > 1 else []
    assert "exgrpo" in say(*arguments[:1], *where, *arguments[1:], code=2)


@pytest.mark.parametrize("command", ["show", "sql", "export", "import"])
def test_the_run_comes_first_and_the_old_order_is_told(folder, say, tmp_path, command):
    other = {"show": "q:3", "sql": "SELECT 1 AS a", "export": tmp_path / "out", "import": tmp_path / "export"}[command]
    if command == "import":
        say("export", folder, other)
    run = tmp_path / "new" if command == "import" else folder
    told = say(command, other, run, code=2)
    assert (
        told == f"exgrpo: the run comes first: {shlex.join(['exgrpo', 'experience', command, str(run), str(other)])}\n"
    )
    assert say(command, run, "--json", other)
    assert say(command, run, other) if command != "export" else True


def test_an_option_is_written_with_hyphens_or_underscores(folder, say):
    assert say("prune", folder, "--dry-run", "--json") == say("prune", folder, "--dry_run", "--json")
    assert "--dry_run" in say("prune", folder, "--dry-rn", code=2)
    assert "usage: exgrpo experience prune" in say("prune", folder, "--dry-rn", code=2)


@pytest.mark.parametrize("command", [(), ("fly",)], ids=str)
def test_without_a_command_there_is_help(say, command):
    assert "usage: exgrpo experience" in say(*command, code=2 if command else 0)


def test_a_table_of_questions_has_a_limit_and_fits_80_columns(folder, say, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(experience_look, "ROWS", 2)
    everything = say("questions", folder, "--limit", "0")
    total = len(say("questions", folder, "--json"))
    text = say("questions", folder)
    assert f"and {total - 2} more questions of {total}; --limit N shows more, 0 all" in text
    assert "more question" not in everything
    for shown in (text, everything, say("stats", folder), say("sql", folder, "SELECT * FROM trajectories")):
        assert (
            max(len(line) for line in shown.splitlines() if not line.startswith("log ")) <= 80
        )  # a path is not broken


def test_a_run_is_its_folder_or_the_file_or_the_current_folder(folder, say, monkeypatch):
    texts = [say("stats", folder), say("stats", folder / "experience.db")]
    monkeypatch.chdir(folder)
    texts.append(say("stats"))
    assert len({re.sub(r"^log .*", "", text) for text in texts}) == 1


READING = [
    ("stats",), ("questions",), ("show", "q:3"), ("sql", "SELECT count(*) FROM experience"), ("verify",),
    ("questions", "--unsolved"), ("questions", "--retired", "--sort", "accuracy"),
]  # fmt: skip


def first(folder, arguments):
    """The run stands before everything else that a command takes."""
    return [arguments[0], str(folder), *arguments[1:]]


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_in_a_pipe_it_is_plain_text(folder, arguments):
    command = [sys.executable, "-m", "exgrpo", "experience", *first(folder, arguments)]
    environment = {**os.environ, "COLUMNS": "40", "FORCE_COLOR": "", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, encoding="utf-8")
    assert done.stdout
    assert "\x1b" not in done.stdout
    assert not set(done.stdout) & set("│┃─━┏└╭")
    if arguments[0] == "show":
        for (number,) in query(folder, "SELECT id FROM trajectories WHERE question = 3"):
            assert f"trajectory {number}\n" in done.stdout


def test_a_pipe_that_is_closed_early_is_no_error(folder):
    statement = "SELECT a.seq, b.seq FROM observation a, observation b"
    command = f"{sys.executable} -m exgrpo experience sql {folder} '{statement}' | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert (len(done.stdout.splitlines()), done.stderr) == (1, "")


# stats ----------------------------------------------------------------------------------------------------------------


def test_stats_are_those_of_the_log(folder, say):
    found = say("stats", folder, "--json")
    with LogReader(folder / "experience.db") as reader:
        buffer, state = buffer_at(reader)
    assert found["now"] == {
        "branch": 3, "step": state.step, "generation": state.generation, "pass_at_1": state.pass_at_1, "gate_open": True,
        "generated_tokens": 0,
    }  # fmt: skip
    assert found["origin"] == vars(ORIGIN)
    assert found["questions"]["replayable"] == buffer.num_replayable
    assert found["questions"]["retired"] == buffer.num_retired
    trajectories = found["trajectories"]
    assert trajectories["stored"] == len(buffer)
    assert [(trajectories["failures"],)] == query(folder, "SELECT count(*) FROM experience WHERE NOT correct")
    assert trajectories["failures"] > 0
    assert trajectories["ever_stored"] == len(buffer) + sum(trajectories["left"].values())
    tokens = query(folder, "SELECT sum(length) FROM experience")
    assert [(trajectories["tokens"],)] == tokens
    assert [row["replayable"] for row in found["accuracy"]] == buffer.bucket_sizes().tolist()
    assert [row["bucket"] for row in found["accuracy"]] == [f"{i}/{K}" for i in range(K + 1)]
    assert sum(row["questions"] for row in found["accuracy"]) == int((buffer.questions.scorable > 0).sum())
    assert found["age"]["count"] == found["uses"]["count"] == found["quality"]["count"] == len(buffer)
    assert found["age"]["p100"] == float((state.step - buffer.column("step")[buffer.live_slots()]).max())
    share = query(folder, "SELECT 1.0 * sum(replayed) / sum(questions) FROM generations")[0][0]
    assert found["replay"]["share"] == pytest.approx(share)
    assert found["replay"]["planned"] == query(folder, "SELECT count(*) FROM replays")[0][0]
    assert found["replay"]["ess_mean"] == pytest.approx(0.9)
    branches = [(row["id"], row["parent"], row["counts"], row["note"]) for row in found["branches"]]
    assert branches == [(1, None, True, None), (2, None, False, "nobody continues this"), (3, 1, True, None)]
    assert found["log"]["writer"] is None
    assert found["log"]["bytes"] == (folder / "experience.db").stat().st_size


def test_stats_for_people(folder, say):
    text = say("stats", folder)
    for said in (
        "written now   no",
        "tok-1",
        "tpl-1",
        "exact",
        "nobody continues this",
        f"{K}/{K}",
        "#####",
        "log-ratio",
        " failures), ",
        "\nquality ",
    ):
        assert said in text


def test_stats_of_a_log_of_nothing(tmp_path, say):
    run = Run(tmp_path / "experience.db", capacity=0)
    empty = say("stats", tmp_path, "--json")
    say("stats", tmp_path)
    run.generation()
    run.close()
    found = say("stats", tmp_path, "--json")
    assert schema_of(found) == schema_of(empty)
    assert found["entropy"]["mean"] is None
    say("stats", tmp_path)


def schema_of(value):
    return (
        {k: schema_of(v) for k, v in value.items() if k not in ("left", "writer")} if isinstance(value, dict) else None
    )


# questions ------------------------------------------------------------------------------------------------------------


def test_questions_are_those_of_the_view(folder, say):
    rows = say("questions", folder, "--json")
    assert [row["id"] for row in rows] == [i for (i,) in query(folder, "SELECT id FROM questions ORDER BY id")]
    for option, where in (("--retired", "retired"), ("--stored", "stored > 0"), ("--unsolved", "solved = 0")):
        wanted = [i for (i,) in query(folder, f"SELECT id FROM questions WHERE {where} ORDER BY id")]
        assert [row["id"] for row in say("questions", folder, option, "--json")] == wanted
    assert {row["retired"] for row in rows} == {True, False}
    wanted = query(folder, "SELECT question, count(*), avg(quality) FROM experience WHERE NOT correct GROUP BY 1")
    assert {row["id"]: row["failures"] for row in rows if row["failures"]} == {i: n for i, n, _ in wanted}
    assert "failures" in say("questions", folder)


@pytest.mark.parametrize("name", ["replays", "stored", "groups", "completions"])
def test_questions_sorted(folder, say, name):
    values = [row[name] for row in say("questions", folder, "--sort", name, "--json")]
    assert values == sorted(values, reverse=True)
    assert len(say("questions", folder, "--sort", name, "--limit", "3", "--json")) == 3


def test_questions_sorted_by_accuracy_hardest_first(folder, say):
    shares = [row["successes"] / row["scorable"] for row in say("questions", folder, "--sort", "accuracy", "--json")]
    assert shares == sorted(shares)


def test_long_prompts_are_shortened_to_the_width_but_nothing_else_is(folder, say, monkeypatch):
    prompt = "Why? " * 100
    connection = sqlite3.connect(folder / "experience.db")
    with connection:
        connection.execute("UPDATE question SET prompt = ?", (prompt,))
    connection.close()
    for columns in (80, 100, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = say("questions", folder).splitlines()
        assert all(line.endswith("…") for line in lines[1:] if not line.startswith(("(without", "and ")))
        assert max(map(len, lines)) <= columns
    assert say("questions", folder, "--json")[0]["prompt"] == prompt


# show -----------------------------------------------------------------------------------------------------------------


def test_show_a_trajectory(folder, say):
    number = stored_number(folder)
    found = say("show", folder, number, "--json")
    with LogReader(folder / "experience.db") as reader:
        trajectory = reader.trajectory(number)
    assert found["completion_ids"] == trajectory.completion_ids.tolist()
    assert found["completion"] == " ".join(f"w{i}" for i in found["completion_ids"])
    assert found["logp_mean"] == pytest.approx(float(trajectory.behaviour_logps.mean()))
    assert (found["id"], found["counts"], found["left"], found["model"]) == (number, True, None, "tiny")
    text = say("show", folder, number)
    for said in (str(number), found["completion"], found["key"], "it is stored", "nats a token", "How much is"):
        assert said in text


def test_show_what_happened_to_a_trajectory(folder, say):
    ((number,),) = query(
        folder,
        "SELECT r.trajectory FROM replays r JOIN evictions e ON e.trajectory = r.trajectory "
        "JOIN measurements m ON m.trajectory = r.trajectory LIMIT 1",
    )
    found = say("show", folder, number, "--json")
    replays = query(folder, "SELECT generation, log_ratio, ess FROM replays WHERE trajectory = ? ORDER BY seq", number)
    assert [(row["generation"], row["log_ratio"], row["ess"]) for row in found["replays"]] == replays
    assert found["left"]["reason"] in ("retired", "capacity", "capacity_per_question")
    assert found["measurements"]
    text = say("show", folder, number)
    assert f"at step {found['left']['step']}: {found['left']['reason']}" in text
    assert "measured again\nstep  " in text
    assert "entropy" in text


def test_show_a_failure_and_what_it_is_worth(folder, say):
    ((number, advantage, quality),) = query(
        folder,
        "SELECT id, advantage, quality FROM trajectories WHERE NOT correct AND advantage NOTNULL ORDER BY id LIMIT 1",
    )
    found = say("show", folder, number, "--json")
    assert (found["correct"], found["advantage"], found["quality"]) == (False, advantage, quality)
    text = say("show", folder, number)
    for said in ("(a failure)", "\nadvantage ", "\nquality "):
        assert said in text


def test_show_a_question_that_came_back(folder, say):
    ((number,),) = query(folder, "SELECT question FROM retirements WHERE kind = 'returned' LIMIT 1")
    kinds = [row["kind"] for row in say("show", folder, f"q:{number}", "--json")["retirements"]]
    assert kinds[:2] == ["left", "returned"]
    text = say("show", folder, f"q:{number}")
    assert text.index("left replay at step") < text.index("came back at step")


def test_an_experience_log_of_the_development_version_is_refused(folder, say):
    connection = sqlite3.connect(folder / "experience.db")
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    for command in ("stats", "verify", "prune"):
        assert "has schema 1, which a development version of exgrpo wrote" in say(command, folder, code=1)


def test_show_a_trajectory_of_a_dead_branch(folder, say):
    ((number,),) = query(folder, "SELECT id FROM trajectory WHERE branch = 2 LIMIT 1")
    assert say("show", folder, number, "--json")["counts"] is False
    assert "no longer counts" in say("show", folder, number)


@pytest.mark.parametrize("form", ["q:{id}", "{key}", "{key:.5}"])
def test_show_a_question(folder, say, form):
    ((number, key),) = query(folder, "SELECT id, key FROM question WHERE key GLOB '[a-f]*' ORDER BY id DESC LIMIT 1")
    asked = form.format(id=number, key=key)
    found = say("show", folder, asked, "--json")
    assert (found["id"], found["key"]) == (number, key)
    assert found["columns"].keys() == {"answer"}
    ids = [i for (i,) in query(folder, "SELECT id FROM trajectories WHERE question = ? ORDER BY seq", number)]
    assert [row["id"] for row in found["trajectories"]] == ids
    assert len(found["observations"]) == query(
        folder, "SELECT count(*) FROM observations WHERE question = ?", number
    )[0][0]  # fmt: skip
    text = say("show", folder, asked)
    for said in (key, "How much is", "answer: ", *map(str, ids)):
        assert said in text


def test_show_says_what_is_pruned_and_shows_the_rest(folder, say):
    say("prune", folder)
    ((number,),) = query(folder, "SELECT id FROM tokens WHERE completion_ids = x'' LIMIT 1")
    found = say("show", folder, number, "--json")
    assert found["completion_ids"] is None
    assert "were pruned" in found["missing"]
    assert "were pruned" in say("show", folder, number)


def test_show_without_a_tokenizer_shows_ids(folder, say):
    connection = sqlite3.connect(folder / "experience.db")
    with connection:
        connection.execute("DELETE FROM tokenizer")
    connection.close()
    found = say("show", folder, stored_number(folder), "--json")
    assert found["completion"] is None
    assert "token ids: " + " ".join(map(str, found["completion_ids"])) in say("show", folder, stored_number(folder))


@pytest.mark.parametrize("asked", ["99999999999999999999", "q:999", "q:x", "zzz", "", "q:"])
def test_show_what_is_not_there(folder, say, asked):
    assert "there is no" in say("show", folder, asked, code=2) or asked in ("q:x", "q:")


def test_an_ambiguous_key_is_refused(folder, say):
    connection = sqlite3.connect(folder / "experience.db")
    with connection:
        connection.execute("UPDATE question SET key = 'ab' || id")
    connection.close()
    assert "begins several keys" in say("show", folder, "ab", code=2)


# sql ------------------------------------------------------------------------------------------------------------------


def test_sql_in_all_forms(folder, say):
    statement = "SELECT id, length, entropy FROM experience ORDER BY id LIMIT 5"
    rows = query(folder, statement)
    assert [tuple(row.values()) for row in say("sql", folder, statement, "--json")] == rows
    table = list(csv.reader(io.StringIO(say("sql", folder, statement, "--csv"))))
    assert table[0] == ["id", "length", "entropy"]
    assert [int(row[0]) for row in table[1:]] == [row[0] for row in rows]
    text = say("sql", folder, statement)
    assert all(str(row[0]) in text for row in rows)


@pytest.mark.parametrize(
    "statement",
    [
        "WITH x AS (SELECT 1 AS a) SELECT a FROM x", "VALUES (1)", "EXPLAIN QUERY PLAN SELECT * FROM experience",
        "SELECT name FROM pragma_table_info('trajectory')", "SELECT 1 AS a, 2 AS a", "SELECT count(*) FROM questions",
        "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 5) SELECT * FROM n", "  select 1  ",
    ],
)  # fmt: skip
def test_sql_reads(folder, say, statement):
    assert say("sql", folder, statement, "--json")
    assert say("sql", folder, statement)


def test_sql_shows_blobs_by_their_size_and_columns_of_one_name(folder, say):
    rows = say("sql", folder, "SELECT completion_ids, x'' AS empty FROM tokens LIMIT 1", "--json")
    assert re.fullmatch(r"<\d+ bytes>", rows[0]["completion_ids"])
    assert rows[0]["empty"] == "<0 bytes>"
    assert say("sql", folder, "SELECT 1 AS a, 2 AS a", "--json") == [{"a": 1, "a:2": 2}]
    assert say("sql", folder, "SELECT 1e999 AS a, NULL AS b", "--json") == [{"a": None, "b": None}]


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM tokens", "INSERT INTO meta VALUES ('a', 'b')", "UPDATE meta SET value = ''", "DROP TABLE tokens",
        "CREATE TABLE x (y)", "PRAGMA user_version = 7", "PRAGMA writable_schema = 1", "ATTACH 'new.db' AS new", "VACUUM",
        "VACUUM INTO 'copy.db'", "BEGIN IMMEDIATE", "REPLACE INTO meta VALUES ('a', 'b')", "PRAGMA query_only = 0",
        "WITH x AS (SELECT 1) DELETE FROM tokens", "SELECT load_extension('x')", "CREATE TEMP TABLE x (y)",
        "EXPLAIN DELETE FROM tokens", "ANALYZE", "REINDEX",
    ],
)  # fmt: skip
def test_sql_never_writes(folder, say, statement):
    before = (folder / "experience.db").read_bytes()
    assert "only statements that read" in say("sql", folder, statement, code=2)
    assert (folder / "experience.db").read_bytes() == before
    assert not os.listdir()


@pytest.mark.parametrize("statement", ["SELECT", "SELECT x FROM experience", "SELECT * FROM nothing", "hello", "", ";"])
def test_a_mistake_gives_the_tables(folder, say, statement):
    text = say("sql", folder, statement, code=2)
    assert "trajectories" in text
    assert "views" in text


PAGE = (Path(__file__).parents[2] / "docs" / "experience.md").read_text(encoding="utf-8")


def test_the_sql_of_the_page_about_failures_and_returns(folder, say):
    queries = re.findall(r"^```sql\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (failures,) = (query for query in queries if "AS failures" in query)
    rows = say("sql", folder, failures, "--json")
    sql = "SELECT q.prompt, sum(NOT correct) FROM experience e JOIN question q ON q.id = e.question GROUP BY e.question"
    assert {row["prompt"]: row["failures"] for row in rows}.items() <= dict(query(folder, sql)).items()
    assert rows[0]["failures"] > 0
    assert all(0 <= row["quality"] <= 1 for row in rows)
    (returns,) = (query for query in queries if "returned_at" in query)
    rows = say("sql", folder, returns, "--json")
    back = query(folder, "SELECT question, max(step) FROM retirements WHERE kind = 'returned' GROUP BY question")
    assert sorted(row["returned_at"] for row in rows if row["returned_at"] is not None) == sorted(at for _, at in back)
    assert back
    assert all(row["left_at"] < row["returned_at"] for row in rows if row["returned_at"] is not None)
    assert any(row["completions_since"] for row in rows)


# export, import, merge, prune, verify, fork ---------------------------------------------------------------------------


def test_export_and_import(folder, say, tmp_path):
    report = say("export", folder, tmp_path / "out", "--json")
    with LogReader(folder / "experience.db") as reader:
        buffer, _ = buffer_at(reader)
    assert report["trajectories"] == len(buffer)
    import datasets

    loaded = datasets.load_dataset(str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded[0]["completion"] == " ".join(f"w{i}" for i in loaded[0]["completion_ids"])
    (tmp_path / "new").mkdir()
    found = say("import", tmp_path / "new", tmp_path / "out", "--json")
    assert found["sources"][0]["taken"] == found["trajectories"] == len(buffer)
    assert say("stats", tmp_path / "new", "--json")["trajectories"]["stored"] == len(buffer)
    again = say("import", tmp_path / "new", tmp_path / "out", "--json")
    assert (again["sources"][0]["taken"], again["sources"][0]["left_out"]) == (0, {"already stored": len(buffer)})
    assert "already stored" in say("import", tmp_path / "new", tmp_path / "out")
    assert "load_dataset" in say(
        "export", folder, tmp_path / "text", "--step", "7", "--no_text", "--logp_dtype", "float16"
    )
    assert "is not empty" in say("export", folder, tmp_path / "out", code=1)
    assert "is a run's log" in say("import", tmp_path / "new", folder, code=2)


def test_merge(folder, say, tmp_path):
    say("export", folder, tmp_path / "export")
    say("import", tmp_path / "other.db", tmp_path / "export")
    found = say("merge", folder, tmp_path / "other.db", "--into", tmp_path / "both", "--json")
    assert [source["name"] for source in found["sources"]] == [
        str(folder / "experience.db"),
        str(tmp_path / "other.db"),
    ]
    assert "name each log once" in say("merge", folder, folder / "experience.db", "--into", tmp_path / "twice", code=2)
    assert found["into"] == str(tmp_path / "both/experience.db")
    assert "taken over" in say("merge", folder, "--into", tmp_path / "one.db")
    assert "exists already" in say("merge", folder, "--into", tmp_path / "one.db", code=1)


def test_prune_and_verify(folder, say):
    planned = say("prune", folder, "--dry_run", "--json")
    assert "Would go" in say("prune", folder, "--dry_run")
    done = say("prune", folder, "--json")
    assert done["bytes_freed"] > 0 == planned["bytes_freed"]
    assert {k: planned[k] for k in ("branches", "events", "tokens")} == {
        k: done[k] for k in ("branches", "events", "tokens")
    }
    assert "Gone" in say("prune", folder)
    assert say("verify", folder, "--json") == {
        "path": str(folder / "experience.db"), "sound": True, "findings": []
    }  # fmt: skip
    assert "no damage found" in say("verify", folder)


def test_checkpoints_elsewhere_can_be_named(folder, say, tmp_path):
    with LogReader(folder / "experience.db") as reader:
        write_checkpoint(tmp_path / "elsewhere", 3, reader.ends()[1])
    assert say("prune", folder, "--dry_run", "--json")["branches"] == [2]
    found = say("prune", folder, "--dry_run", "--checkpoints", tmp_path / "elsewhere", "--json")
    assert found["branches"] == []
    assert found["checkpoints"] == ["checkpoint-3", "checkpoint-7", "checkpoint-13"]


def test_verify_lists_damage_and_fails(folder, capsys):
    connection = sqlite3.connect(folder / "experience.db")
    with connection:
        connection.execute("UPDATE observation SET successes = successes + 1 WHERE seq < 20")
    connection.close()
    assert main(["experience", "verify", str(folder), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["sound"]
    assert {"where", "row", "what"} == found["findings"][0].keys()
    assert main(["experience", "verify", str(folder)]) == 1
    text = capsys.readouterr().out
    assert "is not what was written" in text
    assert "--skip_damaged" in text


def test_fork(folder, say):
    found = say("fork", folder, "--step", "8", "--json")
    assert (found["step"], found["parent"], found["branch"]) == (8, 3, 4)
    assert say("stats", folder, "--json")["now"]["step"] == 8
    assert "stays on its branch" in say("fork", folder, "--step", "7")
    assert "nothing at or before" in say("fork", folder, "--step", "-1", code=2)


# While a run writes, and where nobody may -----------------------------------------------------------------------------

WRITER = """
import sys
from tests.support.logs import Run
from exgrpo.log import LogReader

path = sys.argv[1]
with LogReader(path) as reader:
    position = reader.position()
run = Run(path, seed=1, position=position)
run.generations(2)
if sys.argv[2] == "holds":
    run.log._connection.execute("BEGIN IMMEDIATE")
    run.log._connection.execute("INSERT INTO meta VALUES ('half', 'written')")
    print("ready", flush=True)
    sys.stdin.read()
else:
    print("ready", flush=True)
    while True:
        run.generation(snapshot=True)
"""


@pytest.fixture
def writer(folder):
    """Another process that writes the log, in the way that is asked for."""
    started = []

    def start(how):
        command = [sys.executable, "-c", textwrap.dedent(WRITER), str(folder / "experience.db"), how]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT))
        assert started[0].stdout.readline() == "ready\n"
        return started[0]

    yield start
    for process in started:
        process.kill()
        process.communicate()


ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@pytest.mark.slow
def test_everything_that_reads_works_within_a_transaction_of_a_run(folder, say, writer, tmp_path):
    process = writer("holds")
    found = say("stats", folder, "--json")
    assert found["log"]["writer"]["pid"] == process.pid
    assert f"by process {process.pid}" in say("stats", folder)
    for arguments in READING:
        assert say(*first(folder, arguments))
    assert say("sql", folder, "SELECT count(*) AS n FROM meta WHERE key = 'half'", "--json") == [{"n": 0}]
    assert say("show", folder, stored_number(folder))
    assert say("export", folder, tmp_path / "out")
    assert say("merge", folder, "--into", tmp_path / "merged.db")
    for arguments in (("prune", folder), ("fork", folder, "--step", "3"), ("import", folder, tmp_path / "out")):
        assert f"being written by process {process.pid}" in say(*arguments, code=1)


@pytest.mark.slow
def test_reading_while_a_run_goes_on(folder, say, writer):
    writer("goes on")
    steps = []
    for _ in range(8):
        steps.append(say("stats", folder, "--json")["now"]["step"])
        say("questions", folder, "--sort", "replays")
        assert say("verify", folder, "--json")["sound"]
    assert steps == sorted(steps)
    assert steps[-1] > steps[0]


def test_a_writer_that_died_is_no_writer(folder, say, writer):
    process = writer("holds")
    process.kill()
    process.wait()
    assert say("stats", folder, "--json")["log"]["writer"] is None or os.path.exists(folder / "experience.db.owner")


def test_a_folder_that_cannot_be_written_can_be_read(folder, say, monkeypatch, tmp_path):
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and real(path, mode))
    before = sorted(os.listdir(folder))
    for arguments in READING:
        assert say(*first(folder, arguments))
    assert sorted(os.listdir(folder)) == before
    assert say("export", folder, tmp_path / "out")


# How it is written ----------------------------------------------------------------------------------------------------


def test_json_is_valid_whatever_comes(capsys):
    write_json({"a": float("nan"), "b": [float("inf"), b"xy"], "c": "\udc80", 1: (True, None)})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "a": None, "b": [None, "<2 bytes>"], "c": "?", "1": [True, None],
    }  # fmt: skip
    with pytest.raises(TypeError, match="set is no value"):
        plain({1})


@pytest.mark.parametrize("terminal", [True, False])
def test_identifiers_are_never_cut(terminal, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    key = "0123456789abcdef" * 2
    write_table([{"key": key, "n": 1, "prompt": "long " * 50}], ["key", "n", "prompt"], long="prompt")
    text = capsys.readouterr().out
    assert key in re.sub(r"\s", "", text)
    assert "…" in text


def test_prompts_as_people_read_them():
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    assert prompt_text(json.dumps(messages)) == "Why?"
    assert prompt_text(json.dumps(messages[:1])) == "Be brief."
    for text in ("Why?", "[]", "7", '{"a": 1}', "[1]"):
        assert prompt_text(text) == text
    assert prompt_text(None) == ""
    assert shortened("abcdef", 4) == "abc…"


def test_nothing_that_a_dataset_says_commands_the_terminal(tmp_path, capsys):
    evil = "clear \x1b[2J title \x1b]0;pwned\x07 c1 \x9b31m turn \u202e bell \x07"

    class Evil(Dataset):
        def record(self, question):
            return replace(
                super().record(question),
                prompt=evil,
                columns=json.dumps({"a": evil}, ensure_ascii=False),
                problem_type=evil,
            )

    run = Run(tmp_path / "experience.db", Evil())
    run.generations(3)
    run.close()
    for argv in (["questions"], ["show", "q:1"], ["sql", "SELECT prompt, columns, problem_type FROM question"]):
        assert main(["experience", *first(tmp_path, argv)]) == 0
        shown = capsys.readouterr().out
        assert "clear" in shown
        assert not set(shown) & {"\x1b", "\x07", "\x9b", "\u202e"}, argv


# What no one should type, and what disks do ---------------------------------------------------------------------------------


@pytest.mark.parametrize("run", ["x" * 300, "~nobody-of-this-name/run", "nul\0", "/dev/null", "circle"])
def test_a_run_that_cannot_be_a_path_is_wrong_usage(folder, say, run):
    Path("circle").symlink_to("circle")
    assert "Give an output_dir that holds experience.db" in say("stats", run, code=2)


def test_numbers_beyond_those_of_the_file_are_numbers_all_the_same(folder, say):
    far = 10**30
    assert say("questions", folder, "--limit", far, "--json") == say("questions", folder, "--limit", 0, "--json")
    assert "holds nothing at or before step" in say("fork", folder, "--step", -far, code=2)
    planned = say("prune", folder, "--before_step", far, "--dry_run", "--json")
    assert planned["tokens"] == say("prune", folder, "--before_step", 10**6, "--dry_run", "--json")["tokens"]
    assert say("fork", folder, "--step", far, "--json")["step"] == say("stats", folder, "--json")["now"]["step"]


def test_a_statement_is_not_blamed_for_damage(folder, say):
    path = folder / "experience.db"
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))
    assert "experience.db is damaged" in say("sql", folder, "SELECT count(*) FROM observation", code=1)


def test_prune_keeps_what_checkpoints_of_other_names_need(folder, say):
    whole = say("prune", folder, "--dry_run", "--json")
    (folder / "checkpoint-7").rename(folder / "the best")
    renamed = say("prune", folder, "--dry_run", "--json")
    assert renamed["checkpoints"] == ["checkpoint-13", "the best"]
    assert {**renamed, "checkpoints": 0} == {**whole, "checkpoints": 0}
    (folder / "the best" / "exgrpo.json").unlink()
    (folder / "the best" / "exgrpo.json").mkdir()
    assert "what this checkpoint needs of the log is not known" in say("prune", folder, code=1)


def test_an_output_that_lacks_a_sign_gets_its_escape(folder):
    """Also for half of a surrogate pair, which no output has."""
    columns = json.dumps({"answer": "\ud800 \u2260"})
    with sqlite3.connect(folder / "experience.db") as connection:
        connection.execute("UPDATE question SET columns = ?, prompt = '\u2260' WHERE id = 1", (columns,))
    connection.close()
    command = [sys.executable, "-m", "exgrpo", "experience", "show", str(folder), "q:1"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\ud800 \\u2260" in done.stdout
