"""The page of an evaluation: its figures are the report's, its file is only read, and what is asked for is found."""

import json
import os
import random
from itertools import combinations

import pytest

from exgrpo.cli.main import main
from exgrpo.errors import ConfigurationError
from exgrpo.evaluation.store import Answer, Store
from exgrpo.evaluation.summary import summarize, told
from exgrpo.view.evaluation import evaluation_in, open_evaluations
from exgrpo.view.run import NotThere
from exgrpo.view.server import ViewServer
from tests.support.hostile import NAME, make_evaluation
from tests.view.test_page import data_of
from tests.view.test_server import asked as asked_of

SAMPLES, QUESTIONS = 6, 40


def answers(questions, model, samples=SAMPLES):
    draw = random.Random(model)
    return [
        Answer(q.id, sample, f"so it is {draw.randrange(4)}", draw.randrange(5, 40), draw.choice(["stop", "stop", "length"]),
               {"math_reward": None if draw.random() < 0.1 else float(draw.random() < (q.number % 5) / 4),
                "strict": float(draw.random() < 0.4)})
        for q in questions for sample in range(samples)
    ]  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    store = Store(tmp_path / "evaluation.db")
    for name, number in (("hard", QUESTIONS), ("easy", 5)):
        store.add_benchmark(name, {"num_samples": SAMPLES, "verifiers": ["math_reward", "strict"]})
        rows = [
            ([{"role": "user", "content": f"{name}: what is {i} + {i}?"}], str(2 * i), {"kind": "sum"})
            for i in range(number)
        ]
        asked = store.add_questions(name, rows)
        for model in ("small", "large"):
            store.add(store.add_model(model, {"temperature": 0.6}), answers(asked, model))
    return tmp_path


def opened(folder):
    return open_evaluations([evaluation_in(folder)])


def test_its_figures_are_those_of_the_report(folder):
    summary = json.loads(json.dumps(summarize(Store(folder / "evaluation.db"))))
    small, large = (one.answer("overview", {}) for one in opened(folder))
    for found, model in ((small, "small"), (large, "large")):
        for row in found["results"]:
            (reported,) = (r for r in summary["results"] if (r["model"], r["benchmark"]) == (model, row["benchmark"]))
            assert row["avg"] == reported["avg"]
            assert dict(row["pass_at_k"]) == {k: v for k, v in reported["pass_at_k"].items() if k != "1"}
            assert row["disagreements"] == [[name, len(which)] for name, which in reported["disagreements"].items()]
            for name in ("questions", "asked", "samples", "unscorable", "cut_share", "mean_tokens", "distinct_right"):
                assert row[name] == reported[name], name
    assert [row["benchmark"] for row in small["results"]] == ["hard", "easy"]
    assert large["differences"] == [["small", told(row)] for row in summary["differences"]]
    assert len(large["differences"]) == 2


def test_a_question_s_row_counts_its_completions(folder):
    small, large = opened(folder)
    rows = {row["id"]: row for row in small.answer("questions", {"count": "200"})["rows"]}
    theirs = {row["id"]: row for row in large.answer("questions", {"count": "200"})["rows"]}
    given = Store(folder / "evaluation.db").answers(1)
    assert len(rows) == QUESTIONS + 5
    for number, row in rows.items():
        known = [
            a.rewards["math_reward"] for a in given if a.question == number and a.rewards["math_reward"] is not None
        ]
        assert (row["successes"], row["scorable"], row["samples"]) == (sum(known), len(known), SAMPLES)
        if len(known) >= 4:
            assert row["k"] == 2
            pairs = [max(pair) for pair in combinations(known, 2)]
            assert row["pass_k"] == pytest.approx(sum(pairs) / len(pairs))
        assert row["others"] == [["large", theirs[number]["successes"], theirs[number]["scorable"]]]
        right = {a.text for a in given if a.question == number and a.rewards["math_reward"] == 1.0}
        assert row["distinct"] == len(right)


def test_filters_orders_search_and_pages(folder):
    small, _ = opened(folder)

    def ids(**query):
        return [row["id"] for row in small.answer("questions", {"count": "200", **query})["rows"]]

    everything = ids()
    found = small.answer("questions", {})
    assert len(found["rows"]) == 45
    for one in found["filters"]:
        assert len(ids(only=one["name"])) == one["count"], one
    assert sorted(ids(only="solved") + ids(only="mixed") + ids(only="unsolved")) == everything
    assert ids(only="of easy") == list(range(QUESTIONS + 1, QUESTIONS + 6))
    rows = {row["id"]: row for row in small.answer("questions", {"count": "200"})["rows"]}
    assert ids(only="differ") == [i for i, row in rows.items() if row["difference"] not in (0, None)]
    up = [rows[i]["share"] for i in ids(sort="accuracy")]
    assert up == sorted(up)
    assert [rows[i]["tokens"] for i in ids(sort="tokens", down="1")] == sorted(
        (r["tokens"] for r in rows.values()), reverse=True
    )
    assert ids(search="EASY: what is 3") == [QUESTIONS + 4]
    assert ids(search="q:7") == [7]
    assert ids(start="40", count="3") == everything[40:43]
    for wrong in ({"only": "1 OR 1"}, {"sort": "id;DROP"}, {"start": "-1"}):
        with pytest.raises(NotThere):
            small.answer("questions", wrong)


def test_a_question_s_page_has_every_completion(folder):
    small, large = opened(folder)
    page = small.answer("question/9", {})
    assert page["messages"] == [["user", "hard: what is 8 + 8?"]]
    assert page["columns"] == [["answer", "16"], ["kind", "sum"]]
    stored = [a for a in Store(folder / "evaluation.db").answers(1) if a.question == 9]
    assert [(c["text"], c["tokens"], c["finish"]) for c in page["trajectories"]] == [
        (a.text, a.tokens, a.finish) for a in stored
    ]
    verdicts = {None: "unscorable", 1.0: "right", 0.0: "wrong"}
    assert [c["verdict"] for c in page["trajectories"]] == [verdicts[a.rewards["math_reward"]] for a in stored]
    assert large.answer(f"same/{page['key']}", {}) == {"id": 9}
    for nothing in ("question/999", "question/x", "same/' OR '1'='1", "steps", "trajectory/1"):
        with pytest.raises(NotThere):
            small.answer(nothing, {})


def test_one_that_grows_is_followed_and_its_file_stays_as_it_is(folder):
    store = Store(folder / "evaluation.db")
    asked = store.add_questions(
        "hard", [(q.prompt, q.gold, q.columns) for q in store.questions() if q.benchmark == "hard"]
    )
    third = store.add_model("third", {"temperature": 0.6})
    store.add(third, answers(asked[:10], "third")[:-1])
    before = (folder / "evaluation.db").read_bytes()
    one = opened(folder)[2]
    first = one.answer("version", {})
    assert first["growing"]
    assert one.answer("questions", {})["total"] == 10
    one.answer("question/10", {})
    assert (folder / "evaluation.db").read_bytes() == before
    store.add(third, answers(asked, "third")[10 * SAMPLES - 1 :])
    os.utime(folder / "evaluation.db", (2e9, 2e9))
    for each in (one, *one.peers):
        each._seen = 0
    assert one.answer("version", {})["version"] != first["version"]
    rows = one.answer("questions", {})["rows"]
    assert [row["samples"] for row in rows] == [SAMPLES] * QUESTIONS
    assert one.answer("overview", {})["results"][0]["samples"] == QUESTIONS * SAMPLES


def test_two_evaluations_beside_each_other_meet_by_what_was_asked(folder, tmp_path):
    """The same questions under other numbers; another gold is another question."""
    other = Store(tmp_path / "other" / "evaluation.db")
    other.add_benchmark("mine", {"num_samples": 1, "verifiers": ["math_reward"]})
    rows = [([{"role": "user", "content": f"hard: what is {i} + {i}?"}], str(2 * i + (i == 3)), {}) for i in (7, 3)]
    asked = other.add_questions("mine", rows)
    other.add(other.add_model("small", {}), [Answer(q.id, 0, "1", None, "stop", {"math_reward": 1.0}) for q in asked])
    small, _, theirs = open_evaluations([evaluation_in(folder), evaluation_in(tmp_path / "other")])
    assert theirs.name.startswith("small, other")
    by_id = {row["id"]: row for row in small.answer("questions", {"count": "200"})["rows"]}
    assert [name for name, *_ in by_id[8]["others"]] == [f"large, {folder.name}", theirs.name]
    assert [name for name, *_ in by_id[4]["others"]] == [f"large, {folder.name}"]
    assert theirs.answer("overview", {})["differences"] == []


def test_what_is_no_evaluation_is_said(folder, tmp_path, capsys):
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "evaluation.db").write_text("no database")
    with pytest.raises(ConfigurationError, match="cannot be read as an evaluation"):
        opened(tmp_path / "torn")
    Store(tmp_path / "empty" / "evaluation.db")
    with pytest.raises(ConfigurationError, match="holds no model yet"):
        opened(tmp_path / "empty")
    (tmp_path / "run").mkdir()
    assert main(["view", str(folder), str(tmp_path / "run")]) == 2
    assert "look at runs and evaluations apart" in capsys.readouterr().err


def test_the_file_holds_the_same_questions_of_every_model(folder, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["view", str(folder), "--html", str(page), "--questions", "8"]) == 0
    assert "16 questions" in capsys.readouterr().out
    data = data_of(page.read_text(encoding="utf-8"))
    ids = [[row["id"] for row in data["questions"][str(model)]["rows"]] for model in (0, 1)]
    assert ids[0] == ids[1]
    assert len(ids[0]) == 8
    for one in ids[0]:
        assert len(data["answers"][f"1/question/{one}"]["trajectories"]) == SAMPLES
        assert data["answers"][f"1/same/{data['answers'][f'0/question/{one}']['key']}"] == {"id": one}


def test_hostile_texts_come_whole_and_stay_inside_the_data(tmp_path):
    folder = make_evaluation(tmp_path / "evaluation")
    server = ViewServer(opened(folder), port=0)
    server.in_background()
    try:
        for path in ("runs", "0/overview", "0/questions", "1/question/1", "0/version"):
            status, _, body = asked_of(server, "/{token}/api/" + path)
            assert status == 200
            json.loads(body)
        assert b'src="evaluation_app.js"' in asked_of(server, "/{token}/")[2]
        assert asked_of(server, "/{token}/api/0/questions", Host="evil.example")[0] == 403
        assert asked_of(server, "/api/0/questions")[0] == 403
    finally:
        server.shutdown()
        server.server_close()
    assert main(["view", str(folder), "--html", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    inside = text.partition('id="data">')[2].partition("</script>")[0]
    assert "pwned" not in text.replace(inside, "")
    assert "<" not in inside
    assert data_of(text)["answers"]["0/question/1"]["messages"][0][0] == NAME
