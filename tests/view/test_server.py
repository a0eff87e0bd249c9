"""The server answers who knows its address, and nobody else; it only reads, and only what belongs to the page."""

import http.client
import json
import os
import socket
import threading
from dataclasses import replace

import pytest

from exgrpo.archive.parquet import export
from exgrpo.errors import ConfigurationError, ExperienceLogError
from exgrpo.log import LogReader
from exgrpo.view import assets
from exgrpo.view.run import NotThere
from exgrpo.view.run import Run as ViewedRun
from exgrpo.view.server import ViewServer
from tests.support.hostile import NAME
from tests.support.hostile import make as hostile_run
from tests.support.logs import ORIGIN, Run, eventful


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    eventful(folder)
    return folder


@pytest.fixture(scope="module")
def server(folder):
    server = ViewServer([ViewedRun(folder, "one")], port=0)
    server.in_background()
    yield server
    server.shutdown()
    server.server_close()


def asked(server, path, method="GET", **headers):
    """Status, headers and body of an answer; `path` is taken literally, {token} in it is the token."""
    port = server.server_address[1]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.putrequest(method, path.replace("{token}", server.token), skip_host=True, skip_accept_encoding=True)
    for name, value in {"Host": f"127.0.0.1:{port}", **headers}.items():
        if value is not None:
            connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers, body


def test_everything_of_the_page_is_served_with_a_policy(server):
    for name in ("", *assets.FILES):
        status, headers, body = asked(server, f"/{{token}}/{name}")
        assert status == 200
        assert body
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/", {}),
        ("/wrong-token/", {}),
        ("/{token}", {}),  # not a folder: addresses relative to it would lose the token
        ("/api/runs", {}),
        ("/{token}/api/runs", {"Host": "evil.example"}),  # a name that was made to point here
        ("/{token}/api/runs", {"Host": "127.0.0.1:1"}),
        ("/{token}/api/runs", {"Host": None}),
        ("/{token}/api/runs", {"Origin": "http://evil.example"}),
        ("/{token}/api/runs", {"Origin": "null"}),
        ("/{token}/", {"Origin": "https://127.0.0.1"}),
        ("/{token}/api/runs", {"Sec_Fetch_Site": "cross-site"}),
        ("/{token}/api/runs", {"Sec_Fetch_Site": "same-site"}),
        ("/{token}/api/runs?" + "a" * 5000, {}),
    ],
)
def test_who_does_not_know_the_address_or_comes_from_elsewhere_is_refused(server, path, headers):
    status, _, body = asked(server, path, **headers)
    assert status == 403
    assert b"one" not in body.replace(b"the one that", b"")


@pytest.mark.parametrize(
    "path",
    ["../server.py", "..%2fserver.py", "static/index.html", "vendor/../index.html", "/etc/passwd", "vendor/", "..", "%00",
     "assets.py", "vendor/uPlot.LICENSE"],
)  # fmt: skip
def test_no_other_file_is_ever_read(server, path):
    assert asked(server, f"/{{token}}/{path}")[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_nothing_but_reading(server, method):
    assert asked(server, "/{token}/api/runs", method)[0] == 501


@pytest.mark.parametrize(
    "path",
    ["1/overview", "-1/overview", "x", "0/nothing", "0/question/x", "0/question/9999", "0/question/-1", "0/trajectory/1",
     "0/step/77777", "0/questions?only=1%20OR%201", "0/questions?sort=id;DROP%20TABLE%20question", "0/questions?start=-5",
     "0/questions?count=1e9", "0/question/٣", "0/same/' OR '1'='1", "0/question/99999999999999999999999"],
)  # fmt: skip
def test_what_does_not_exist_is_said_to_be_so(server, path):
    status, _, body = asked(server, "/{token}/api/" + path.replace(" ", "%20").replace("٣", "%D9%A3"))
    assert status == 404
    assert json.loads(body)["error"]


def test_sql_in_a_search_is_text(server, folder):
    for text in ("' OR '1'='1", "%", "'); DROP TABLE question; --", "\\", "_"):
        _, _, body = asked(server, "/{token}/api/0/questions?search=" + "".join(f"%{b:02x}" for b in text.encode()))
        assert json.loads(body)["total"] == 0
    with LogReader(folder / "experience.db") as reader:
        assert next(reader.rows("SELECT count(*) FROM question"))[0] == 24


def test_the_log_is_opened_to_read_and_its_bytes_stay(server, folder):
    before = (folder / "experience.db").read_bytes()
    for path in ("overview", "questions", "question/3", "steps", "step/2", "version"):
        assert asked(server, f"/{{token}}/api/0/{path}")[0] == 200
    assert (folder / "experience.db").read_bytes() == before
    run = server.runs[0]
    with pytest.raises(Exception, match="readonly"):
        run._reader.connection.execute("DELETE FROM question")


def test_a_page_is_the_same_however_many_ask_at_once(server):
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(asked(server, "/{token}/api/0/question/5")[2])) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


def test_a_port_that_is_taken_gives_the_next_free_one(folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = ViewServer([], port=port)
        assert port < server.server_address[1] < port + 50
        server.server_close()
    with pytest.raises(ConfigurationError, match="--host"):
        ViewServer([], host="203.0.113.7", port=0)


def test_a_run_that_grows_is_followed(tmp_path):
    run = Run(tmp_path / "experience.db", seed=3)
    run.generations(2)
    viewed = ViewedRun(tmp_path)
    first = viewed.answer("version", {})
    assert first["growing"]
    run.generations(3)
    viewed._seen = 0
    assert viewed.answer("version", {})["version"] != first["version"]
    assert viewed.answer("steps", {})["total"] == 5
    run.close()
    viewed._seen = 0
    assert not viewed.answer("version", {})["growing"]
    viewed.close()


def test_a_reader_holds_no_snapshot_between_answers(tmp_path):
    """Else the writer's journal could never be emptied into the file."""
    run = Run(tmp_path / "experience.db", seed=3)
    run.generations(3)
    viewed = ViewedRun(tmp_path)
    viewed.answer("question/2", {})
    run.generations(3)
    busy, _, _ = run.log.reader.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert busy == 0
    run.close()
    viewed.close()


def test_other_kinds_of_runs(folder, tmp_path):
    """The file itself, an exported folder, a training log alone, and what is nothing of it."""
    viewed = ViewedRun(folder / "experience.db")
    assert viewed.answer("questions", {})["total"] == 24
    with LogReader(folder / "experience.db") as reader:
        export(reader, tmp_path / "exported")
    exported = ViewedRun(tmp_path / "exported")
    assert (
        exported.answer("questions", {"only": "stored"})["total"]
        == viewed.answer("questions", {"only": "stored"})["total"]
    )
    assert "exported folder" in exported.answer("overview", {})["missing"][0]
    assert exported.answer("steps", {})["rows"] == []
    exported.close()
    (tmp_path / "plain").mkdir()
    with pytest.raises(ExperienceLogError, match="neither an experience log"):
        ViewedRun(tmp_path / "plain")
    (tmp_path / "plain" / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5, "loss": 0}\n{"step": 2, "rew')
    alone = ViewedRun(tmp_path / "plain")
    assert "experience_log='none'" in alone.answer("overview", {})["missing"][0]
    with pytest.raises(NotThere, match="no questions"):
        alone.answer("questions", {})
    with pytest.raises(ExperienceLogError, match="no run"):
        ViewedRun(tmp_path / "nowhere")


def test_rows_of_a_training_log_that_a_resume_left_behind_are_passed_over(tmp_path):
    rows = [*((step, 0.1) for step in range(1, 8)), *((step, 0.2) for step in range(5, 10))]
    lines = [json.dumps({"step": step, "loss": 0.0, "reward": value}) for step, value in rows]
    lines.insert(3, json.dumps({"step": 3, "eval_reward": 0.4}))
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    charts = {chart["id"]: chart for chart in ViewedRun(tmp_path).answer("overview", {})["charts"]}
    (line,) = charts["reward"]["lines"]
    assert line["x"] == list(range(1, 10))
    assert line["y"] == [0.1] * 4 + [0.2] * 5
    assert charts["held_out"]["lines"][0]["x"] == [3]


def test_options_of_a_log_run_no_code(tmp_path, monkeypatch):
    """A rule that a file names is not imported, whoever wrote the file."""
    (tmp_path / "stranger.py").write_text("import pathlib\npathlib.Path('ran').touch()\ndef rule(strata): return 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    run = Run(tmp_path / "experience.db")
    run.generations(2)
    options = {"question_choice": "stranger:rule", "correction": "stranger.rule", "baseline": "stranger:rule"}
    position = run.log.position
    run.log.begin(replace(ORIGIN, options=json.dumps(options)), position, 2)
    run.generations(1)
    run.close()
    viewed = ViewedRun(tmp_path)
    assert viewed.history.origin.options
    assert "code of the user's" in viewed.next_plan().why
    assert "code of the user's" in viewed.answer("objective", {})["why"]
    assert not os.path.exists("ran")


def test_hostile_texts_come_whole_as_json(tmp_path):
    viewed = ViewedRun(hostile_run(tmp_path / "run"))
    for path in ("overview", "questions", "question/1", "steps", "step/1"):
        text = json.dumps(viewed.answer(path, {}), allow_nan=False)
        assert json.loads(text)
    assert viewed.answer("question/1", {})["messages"][0][0] == NAME
    found = viewed.answer("questions", {"search": "' OR 1=1; DROP"})
    assert [row["id"] for row in found["rows"]] == [11]
