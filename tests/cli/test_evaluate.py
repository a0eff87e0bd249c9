"""`exgrpo evaluate` on the tiny policy: in this process, from a server that misbehaves, killed and gone on."""

import json
import math
import random
import sqlite3

import pytest

from exgrpo.cli.main import main
from exgrpo.evaluation import local_model
from exgrpo.evaluation.endpoint import Endpoint, EndpointError
from exgrpo.evaluation.sampling import Sampling
from exgrpo.evaluation.store import Answer, Store, StoredQuestion
from exgrpo.evaluation.summary import disagreements, summarize
from exgrpo.tasks import get_task
from exgrpo.tasks.base import WarmUp
from exgrpo.tasks.tiny_policy import warm_policy

from ..support.stub_server import FAULTS, Stub, serving

KNOBS = {"modulus": 5, "lengths": (2, 3), "shares": (0.5, 0.5), "reward": "final"}
REWARD = "exgrpo.tasks.chains.chains_final_reward"
QUESTIONS, SAMPLES = 12, 4


@pytest.fixture(scope="module")
def task():
    return get_task("chains", **KNOBS)


@pytest.fixture(scope="module")
def policies(task, tmp_path_factory):
    """Folders of two policies, one with a longer warm-up."""
    folders = []
    for batches in (60, 150):
        model, tokenizer = warm_policy(task, 3, warm_up=WarmUp(batches=batches))
        folders.append(tmp_path_factory.mktemp("policy") / f"warm-{batches}")
        model.save_pretrained(folders[-1])
        tokenizer.save_pretrained(folders[-1])
    return folders


@pytest.fixture(scope="module")
def loaded(policies):
    source = local_model.LocalModel(str(policies[1]))
    return source.model, source.tokenizer


@pytest.fixture
def data(task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"question": q.prompt, "answer": q.answer, "modulus": 5} for q in task.draw("eval", QUESTIONS, 0)]
    (tmp_path / "chains.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "chains.jsonl"


def evaluate(*models, out="out", words=(), **options):
    options = {
        "data": "chains.jsonl", "reward_funcs": REWARD, "keep_columns": "modulus", "num_samples": SAMPLES, "max_tokens": 12,
        "output_dir": out, "temperature": 1, "batch_size": 8, **options,
    }  # fmt: skip
    given = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return main(["evaluate", *map(str, models), *given, *words])


def completions(out):
    with sqlite3.connect(f"{out}/evaluation.db") as connection:
        rows = list(connection.execute("SELECT * FROM completion ORDER BY model, question, sample"))
    connection.close()
    return rows


def results(out):
    with open(f"{out}/results.json") as file:
        return json.load(file)


@pytest.mark.slow
def test_two_models_in_this_process(data, policies, capsys):
    assert evaluate(*policies) == 0
    said = capsys.readouterr().out
    assert "warm-150 is" in said
    assert "on the same 12 questions (95 % interval" in said
    found = results("out")
    for row in found["results"]:
        assert (row["questions"], row["samples"], row["unscorable"]) == (QUESTIONS, QUESTIONS * SAMPLES, 0)
        accuracies = list(row["accuracies"].values())
        assert row["avg"]["mean"] == pytest.approx(sum(accuracies) / QUESTIONS)
        assert row["avg"]["low"] < row["avg"]["mean"] < row["avg"]["high"]
        assert set(row["pass_at_k"]) == {"1", "2", "4"}
        share = sum(value > 0 for value in accuracies) / QUESTIONS
        assert row["pass_at_k"]["4"]["mean"] == pytest.approx(share), "of four samples one is right"
    (difference,) = found["differences"]
    first, second = (row["avg"]["mean"] for row in found["results"])
    assert difference["mean"] == pytest.approx(second - first)
    record = json.loads(next(data.parent.glob("out/every-eval-ever-*warm-150.json")).read_text())
    assert record["schema_version"] == "0.2.1"
    assert record["evaluation_results"][0]["score_details"]["score"] == pytest.approx(second)
    assert "Evaluation" in (data.parent / "out/report.html").read_text()


@pytest.mark.slow
def test_killed_at_any_of_20_instants_it_ends_with_the_same_completions(data, policies, monkeypatch):
    """An instant is before or after a batch is kept; six batches, so some come twice."""
    assert evaluate(policies[1], out="whole") == 0
    whole, add = completions("whole"), Store.add
    assert len(whole) == QUESTIONS * SAMPLES
    for instant in range(20):
        left = [instant % 12]

        def dying(store, model, answers, left=left):
            for act in (lambda: None, lambda: add(store, model, answers)):
                if left[0] == 0:
                    raise KeyboardInterrupt
                left[0] -= 1
                act()

        out = f"killed-{instant}"
        with monkeypatch.context() as patch:
            patch.setattr(Store, "add", dying)
            assert evaluate(policies[1], out=out) == 130
        assert len(completions(out)) < len(whole)
        assert evaluate(policies[1], out=out) == 0
        assert completions(out) == whole
        assert results(out) == results("whole")


@pytest.mark.slow
def test_a_server_that_misbehaves_answers_every_question_once(data, policies, loaded, monkeypatch):
    """Every third request goes wrong; the rates are those of the same policy in this process, within sampling error."""
    monkeypatch.setattr("exgrpo.evaluation.endpoint.random.random", lambda: 0.0)
    monkeypatch.setattr(Endpoint.__init__, "__kwdefaults__", {**Endpoint.__init__.__kwdefaults__, "wait": 0.01})
    stub = Stub(
        *loaded, faults=lambda n: FAULTS[n % len(FAULTS)] if random.Random(n).random() < 0.35 else None, silence=1.5
    )
    far = {"out": "far", "words": ["--plain"], "num_samples": 8}
    with serving(stub) as url:
        assert evaluate("served", base_url=url, timeout=1.2, parallel=6, **far) in (0, 1)
        assert evaluate("served", base_url=url, timeout=30, parallel=6, **far) == 0
        asked = stub.requests
        assert evaluate("served", base_url=url, **far) == 0
        assert stub.requests == asked, "what is kept is not asked for again"
    assert all(stub.happened[fault] for fault in FAULTS)
    rows = completions("far")
    assert len(rows) == QUESTIONS * 8
    assert {row[5] for row in rows} <= {"stop", "length"}
    assert len(stub.answered) == QUESTIONS * 8, "each sample has a seed of its own"
    assert evaluate(policies[1], out="near", num_samples=8) == 0
    far, near = (results(out)["results"][0] for out in ("far", "near"))
    for k in ("1", "8"):
        errors = [max(row["pass_at_k"][k]["error"] or 0, 0.01) for row in (far, near)]
        assert abs(far["pass_at_k"][k]["mean"] - near["pass_at_k"][k]["mean"]) < 4 * math.hypot(*errors)


def questions(number):
    return [StoredQuestion(i + 1, "b", i, "1+1", "2", {}) for i in range(number)]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_never_answers_whole_ends_the_evaluation(fault, loaded):
    stub = Stub(*loaded, faults=lambda n: fault if n > 3 else None, silence=0.5)
    with serving(stub) as url:
        source = Endpoint("m", url, parallel=2, timeout=0.3 if fault == "silent" else 20, tries=2, wait=0.0)
        kept = []
        with pytest.raises(EndpointError, match="in 2 tries"):
            kept += [
                answer.key for batch in source.answers(questions(8), Sampling(max_tokens=3), set()) for answer in batch
            ]
    assert stub.requests <= 4 + 2 * 2 + 2, "none is begun after one has failed"


def test_a_refusal_is_told_at_once(loaded):
    stub = Stub(*loaded, faults=lambda n: "refused")
    with serving(stub) as url, pytest.raises(EndpointError, match=r"refused with status 401: .*wrong key"):
        list(Endpoint("m", url, parallel=1).answers(questions(3), Sampling(max_tokens=2), set()))
    assert stub.requests == 1


def test_what_cannot_be_evaluated_is_told(data, policies, capsys):
    assert main(["evaluate", "x"]) == 2
    assert "set --benchmarks or --data" in capsys.readouterr().err
    assert evaluate(policies[0], temperature=0) == 2
    assert "At temperature 0 all 4 samples" in capsys.readouterr().err
    assert evaluate("./nowhere") == 2
    assert "no model folder" in capsys.readouterr().err
    assert evaluate(policies[0], base_url="localhost:1") == 2
    assert "must begin with http" in capsys.readouterr().err


@pytest.mark.slow
def test_other_settings_are_not_mixed_in(data, policies, capsys):
    assert evaluate(policies[0], num_samples=1) == 0
    assert evaluate(policies[0], num_samples=1, temperature=0.5) == 2
    assert "with temperature=1.0, and now it is 0.5" in capsys.readouterr().err
    assert evaluate(policies[0], num_samples=2) == 2
    assert "num_samples=1, and now it is 2" in capsys.readouterr().err


def test_answers_that_verifiers_disagree_about_are_shown(tmp_path):
    store = Store(tmp_path / "evaluation.db")
    store.add_benchmark("b", {"verifiers": ["math_reward", "math_verify"], "num_samples": 1})
    store.add_questions("b", [("1+1", "2", {}), ("2+2", "4", {}), ("3+3", "x", {})])
    model = store.add_model("m", {})
    rewards = [{"math_reward": one, "math_verify": two} for one, two in ((1.0, 0.0), (1.0, 1.0), (None, 0.0))]
    store.add(model, [Answer(i + 1, 0, f"answer {i}", 3, "stop", reward) for i, reward in enumerate(rewards)])
    [row] = disagreements(store)
    assert (row["question"], row["gold"], row["ends with"], row["math_verify"]) == (0, "2", "answer 0", 0.0)
    [found] = summarize(store)["results"]
    assert found["disagreements"] == {"math_verify": [[0, 0]]}
    assert (found["questions"], found["unscorable"], found["avg"]["mean"]) == (3, 1, 1.0)
    assert found["verifiers"] == {"math_reward": 1.0, "math_verify": pytest.approx(1 / 3)}
