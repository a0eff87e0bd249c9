"""`exgrpo rewards`: golds against a reward function, and what is suspicious of a run's experience."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from exgrpo.cli.main import main
from exgrpo.cli.rewards.audit import is_listed, second_for, states_several
from exgrpo.cli.rewards.degeneration import Completion, signs
from exgrpo.errors import DatasetError
from exgrpo.experience import RIGHT, WRONG, Group, Trajectory
from exgrpo.log import QuestionRecord
from exgrpo.rewards import numeric_reward, pool
from exgrpo.rewards.check import check_golds, final_answer
from exgrpo.tasks.datasets import load_questions
from tests.cli.test_main import HEAVY
from tests.support import logs


@pytest.fixture(autouse=True, scope="module")
def _no_workers_left():
    yield
    pool.close()


@pytest.fixture
def say(capsys):
    """Run a command: its exit code and its words, or its JSON."""

    def run(*arguments):
        code = main(["rewards", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, json.loads(
            captured.out
        ) if "--json" in arguments and not captured.err else captured.out + captured.err

    return run


@pytest.mark.parametrize("arguments", [("--help",), ("check", "--help"), ("audit", "--help")], ids=" ".join)
def test_help_imports_nothing_heavy_and_has_an_example(arguments):
    code = (
        "import sys; from exgrpo.cli.main import main; code = main(['rewards', *sys.argv[1:]]);"
        f"print(sorted({{*{HEAVY!r}, 'numpy', 'pyarrow', 'math_verify'}} & sys.modules.keys()), file=sys.stderr);"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "[]")
    assert "audit" in done.stdout if len(arguments) == 1 else "exgrpo rewards" in done.stdout


# check ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def dataset(tmp_path):
    path = tmp_path / "questions.jsonl"
    answers = [
        "5",
        "1,234",
        "x + 1",
        "-3/4",
        "so it is 7\n#### 7",
        "2\\sqrt{3}",
        "we get \\boxed{8}.",
        "12",
        "13",
        "14",
    ]
    path.write_text("".join(json.dumps({"question": f"q{i}", "answer": a}) + "\n" for i, a in enumerate(answers)))
    return path


def test_unreadable_golds_are_counted_and_shown_and_above_the_threshold_the_code_is_1(dataset, say):
    code, text = say("check", "--dataset_name", dataset, "--reward_funcs", "numeric")
    assert code == 1
    assert "2 (20.00%)" in text
    assert "8 (100.00%)" in text
    assert "x + 1" in text
    assert "2\\sqrt{3}" in text
    assert "more than --max_unscorable 0.02" in text
    code, text = say(
        "check", "--dataset_name", dataset, "--reward_funcs", "numeric", "--max_unscorable", "0.2", "--examples", "1"
    )
    assert code == 0
    assert "and 1 more" in text


def test_as_json(dataset, say):
    code, found = say("check", "--dataset_name", dataset, "--reward_funcs", "numeric_reward", "--json", "--limit", "6")
    assert code == 1
    assert (found["rows"], found["unscorable"], found["not_boxed"], found["not_stated"]) == (6, 2, 0, 0)
    assert [gold["row"] for gold in found["found"]] == [2, 5]
    assert found["found"][0] == {"row": 2, "gold": "x + 1", "boxed": None, "sentence": None}


def test_golds_that_do_not_score_themselves_are_above_a_threshold_too(tmp_path, monkeypatch, say, dataset):
    (tmp_path / "misreading.py").write_text(
        "def misread(prompts, completions, answer, **kwargs):\n"
        "    return [0.0 if gold[0] == 'x' else float('nan') if gold == '5' else 1.0 for gold in answer]\n"
        "async def late(prompts, completions, gold, level, **kwargs): return [float('boxed' in c) for c in completions]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    code, text = say(
        "check", "--dataset_name", dataset, "--reward_funcs", "misreading.misread", "--max_unscorable", "0.5"
    )
    assert code == 1
    assert "11.11% of the gold answers do not score themselves 1 in a box" in text
    (tmp_path / "levels.csv").write_text("problem,answer,level\na,1,3\nb,2,4\n")
    arguments = (
        "check",
        "--dataset_name",
        tmp_path / "levels.csv",
        "--reward_funcs",
        "misreading.late",
        "--answer_name",
        "gold",
        "--json",
    )
    code, found = say(*arguments, "--keep_columns", "level")
    assert (code, found["not_boxed"], found["not_stated"]) == (0, 0, 2)


def test_rewards_of_trl_get_messages_and_their_column(dataset, say):
    pytest.importorskip("math_verify")
    code, found = say("check", "--dataset_name", dataset, "--reward_funcs", "accuracy_reward", "--json", "--limit", "2")
    assert (found["reward"], found["rows"], found["not_boxed"]) == ("accuracy_reward", 2, 0), code


def test_what_cannot_be_checked_is_said(dataset, say):
    assert say("check", "--dataset_name", dataset, "--reward_funcs", "nope")[0] == 2
    assert say("check", "--dataset_name", dataset, "--max_unscorable", "2")[0] == 2
    assert "no such column" in say("check", "--dataset_name", dataset, "--answer_column", "gold")[1]
    assert f"exgrpo rewards check --dataset_name {dataset}" in say("check", dataset)[1]  # as it was written until 0.2
    assert "--reward is written --reward_funcs now" in say("check", "--dataset_name", dataset, "--reward", "numeric")[1]
    assert "there is no data" in say("check")[1]
    told = say(
        "check", "--dataset_name", dataset, "--reward-funcs", "format", "numeric", "--correctness-function", "x"
    )[1]
    assert "is not one of the reward functions format_reward, numeric_reward" in told
    with pytest.raises(DatasetError, match="column 'solution'"):
        check_golds(numeric_reward, load_questions(dataset), answer_name="solution")


def test_golds_that_are_no_numbers_among_numbers_are_said(tmp_path, say):
    path = tmp_path / "q.jsonl"

    def write(*golds):
        path.write_text("".join(json.dumps({"question": f"q{i}", "answer": a}) + "\n" for i, a in enumerate(golds)))

    write("5", "so\n#### 1,234", "no idea", "3/4", "7")
    code, text = say("check", "--dataset_name", path)
    assert code == 0
    assert "Most gold answers are numbers, but 1 of 5 are not: row 2: 'no idea'" in text
    assert say("check", "--dataset_name", path, "--json")[1]["no_numbers"] == [{"row": 2, "gold": "no idea"}]
    write("x", "y", "5")
    assert "Most gold answers" not in say("check", "--dataset_name", path)[1]


def test_a_prompt_that_began_the_thinking_does_not_make_its_gold_unreadable(dataset):
    rows = load_questions(dataset).map(lambda row: {"prompt": row["prompt"] + "\nAssistant: <think>"})
    report = check_golds(numeric_reward, rows)
    assert (report.unscorable, report.not_boxed, report.not_stated) == (2, 0, 0)


def test_a_report_is_one_sentence(dataset):
    report = check_golds(numeric_reward, load_questions(dataset))
    assert report.share_unscorable == 0.2
    assert str(report) == (
        "numeric_reward: of 10 gold answers 2 cannot be read; of the others 0 do not score themselves 1 in a box, 0 in a "
        "sentence (row 2: 'x + 1'; row 5: '2\\\\sqrt{3}')"
    )


@pytest.mark.parametrize(
    ("gold", "final"),
    [
        ("a #### 1 #### 2", "2"),
        ("so \\boxed{1} and \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        (" x ", "x"),
        ("\\boxed{1", "\\boxed{1"),
    ],
)
def test_the_final_answer_of_a_solution(gold, final):
    assert final_answer(gold) == final


# audit ----------------------------------------------------------------------------------------------------------------

LONG = "hm " * 30
COMPLETIONS = {  # (question's gold, text, how it ended)
    "fine": ("4", LONG + "The answer is 4.", "stop"),
    "fine too": ("5", LONG + "\\boxed{5}", "stop"),
    "wrong": ("6", LONG + "The answer is 7.", "stop"),
    "two boxes": ("7", LONG + "\\boxed{7} \\boxed{8}", "stop"),
    "many": ("8", LONG + "The answer is one of 6, 7, 8, 9", "stop"),
    "cut": ("9", LONG + "\\boxed{9}", "length"),
    "short": ("10", "\\boxed{10}", "stop"),
    "same": ("11", LONG + "The answer is 11 .", "stop"),
    "as this": ("11", LONG + "The answer is 11 .", "stop"),
    "letters": ("C", LONG + "The answer is C.", "stop"),
    "no gold": (None, LONG + "it is done", "stop"),
}
WORDS = sorted({word for _, text, _ in COMPLETIONS.values() for word in text.split(" ")})


class Questions(logs.Dataset):
    def __init__(self):
        super().__init__(len(COMPLETIONS))

    def record(self, question):
        gold = list(COMPLETIONS.values())[question][0]
        prompt = json.dumps([{"role": "user", "content": f"Question {question}?"}])
        return QuestionRecord(
            self.keys[question], question, prompt, json.dumps({} if gold is None else {"answer": gold})
        )


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    return stored(tmp_path_factory.mktemp("run"))


def stored(folder):
    """The folder of a run that stored all of them; `numeric_reward` decided."""
    rewards = json.dumps([[{"name": "numeric_reward"}], {"decides": "numeric_reward", "above": 0.5}])
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token=WORDS[0])).to_str()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "TOKENIZER", tokenizer)
        run = logs.Run(folder / "experience.db", Questions(), replace(logs.ORIGIN, rewards=rewards))
    plan = run.planner.plan(len(COMPLETIONS), 0, 0.0, lambda ts: np.zeros(len(ts)))
    run.planner.observe(
        plan, [Group(q, np.array([RIGHT, WRONG, WRONG, WRONG]), False) for q in plan.questions.tolist()]
    )
    for question, (_, text, end) in enumerate(COMPLETIONS.values()):
        ids = np.array([WORDS.index(word) for word in text.split(" ")])
        run.planner.admit([
            Trajectory(question, ids, -np.ones(len(ids), np.float32), np.array([1.0]), 0, end, 0.5)
        ])  # fmt: skip
    run.log.commit(run.planner.state(1))
    run.close()
    return folder


@pytest.mark.parametrize("second", [(), ("--with", "numeric_reward")], ids=["by gold", "given"])
def test_what_is_suspicious_of_a_run(audited, say, second):
    code, found = say("audit", audited, "--json", *second)
    assert code == 0
    assert (found["stored"], found["read"], found["scored_again"]) == (11, 11, 10)
    names = list(COMPLETIONS)
    reasons = {names[int(one["prompt"][9:-1])]: one["reasons"] for one in found["found"]}
    assert not {"fine", "fine too"} & set(reasons)
    assert reasons["wrong"] == ["second verifier: wrong"]
    assert set(reasons["two boxes"]) == {"second verifier: wrong", "several answers"}
    assert "answer among many" in reasons["many"]
    assert reasons["cut"] == ["cut"]
    assert reasons["short"] == ["short"]
    assert reasons["same"] == reasons["as this"] == ["stored for several questions"]
    assert reasons.get("letters") == (["second verifier: cannot tell"] if second else None)
    assert found["found"][0]["reasons"][0] == "second verifier: wrong"
    verifiers = {one["verifier"] for one in found["found"]}
    assert verifiers <= ({"numeric_reward"} if second else {"math_reward", "choice_reward", None})


@pytest.mark.parametrize("begun", [True, False])
def test_the_second_verifier_is_told_that_the_runs_template_began_the_thinking(tmp_path, say, monkeypatch, begun):
    thought = "" if begun else "<think> "
    texts = {
        "whole": ("4", f"{thought}4 or 5? </think> The answer is 4.", "stop"),
        "cut": ("5", "hm The answer is 5.", "stop"),
    }
    monkeypatch.setitem(globals(), "COMPLETIONS", texts)
    monkeypatch.setitem(globals(), "WORDS", sorted({word for _, text, _ in texts.values() for word in text.split(" ")}))
    _, found = say("audit", stored(tmp_path), "--json", "--with", "math_reward")
    assert {one["gold"]: one["reasons"] for one in found["found"]} == (
        {"5": ["second verifier: wrong"]} if begun else {}
    )


def test_as_a_table(audited, say):
    code, text = say("audit", audited, "--with", "numeric_reward", "--limit", "2")
    assert code == 0
    assert "suspicious" in text
    assert "second verifier: wrong, several answers" in text
    assert "Name one that does by --with" not in text
    assert "Name one that does by --with" in say("audit", audited, "--with", "format_reward")[1]
    assert f"more; exgrpo experience show {audited} TRAJECTORY" in text


def test_a_log_without_suspicion_or_without_text_is_said(tmp_path, say, monkeypatch):
    run = logs.Run(tmp_path / "experience.db")
    run.log.commit(run.planner.state(0))
    run.close()
    assert say("audit", tmp_path, "--json") == (
        0, {"stored": 0, "read": 0, "scored_again": 0, "suspicious": 0, "reasons": {}, "degeneration": [], "found": []},
    )  # fmt: skip
    assert say("audit", tmp_path / "nowhere")[0] == 2
    path, _ = logs.eventful(tmp_path / "more")
    assert say("audit", path.parent, "--all", "--json", "--with", "numeric_reward")[0] == 0
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    code, text = say("audit", path)
    assert code == 2
    assert "no completion can be shown as text" in text


@pytest.mark.parametrize(
    ("gold", "decided", "second"),
    [
        ("C", "", "choice_reward"), ("C", "choice_reward", "math_reward"), ("3/4", "math_reward", "numeric_reward"),
        ("3/4", "numeric_reward", "math_reward"), ("so\n#### 5", "", "numeric_reward"), ("x", "", "math_reward"),
        ("x + 1", "math_reward", "math_reward"), ("5", "", "numeric_reward"),
    ],
)  # fmt: skip
def test_the_second_verifier_is_another_where_there_is_one(gold, decided, second):
    if gold == "x":  # a label as well as a variable
        second = "choice_reward"
    assert second_for(gold, decided) == second


@pytest.mark.parametrize(
    ("text", "several"),
    [
        ("\\boxed{1} \\boxed{ 1 }", False), ("\\boxed{1} \\boxed{2}", True), ("\\boxed{1", True), ("no", False),
        ("The answer is 5. So the answer: 5", False), ("The answer is 5\nThe answer is 6", True),
        ("\\boxed{1}</think>\\boxed{2}", False), ("\\boxed{} \\boxed{1}", False),
        ("<answer>1</answer> <answer>2</answer>", True),
        ("\\boxed{1} is not the answer", True),
    ],
)  # fmt: skip
def test_several_answers(text, several):
    assert states_several(text) is several


@pytest.mark.parametrize(
    ("text", "gold", "listed"),
    [
        ("\\boxed{A, B, C or D}", "C", True), ("The answer is 1, 2, 3 and 4.", "3", True), ("1\n2\n3\n4", "3", False),
        ("\\boxed{(1, 2, 3, 4)}", "(1, 2, 3, 4)", False), ("The answer is 1 or 2.", "2", False),
    ],
)  # fmt: skip
def test_an_answer_among_many(text, gold, listed):
    assert is_listed(text, gold) is listed


# Signs of degeneration ------------------------------------------------------------------------------------------------


def completion(step, question, text, length=100):
    return Completion(step, question, length, text)


def test_signs_of_degeneration_worked_by_hand():
    """Step 0: four ordinary ones. Step 1: two in code blocks, of which one is twice as long; two of two questions that begin
    alike but for their numbers."""
    alike = "Let us compute {} plus {} step by step, and then check it"
    found = signs(
        [
            *(completion(0, q, f"{word} one two three four five six seven eight") for q, word in enumerate("abcd")),
            completion(1, 0, "```python\nprint(4)\n```"),
            completion(1, 1, "so ```4```", length=200),
            completion(1, 2, alike.format(3, 14)),
            completion(1, 3, alike.format(27, 5)),
        ]
    )
    assert [(s.first, s.last, s.stored) for s in found] == [(0, 0, 4), (1, 1, 4)]
    assert [(s.code, s.template, s.jumped) for s in found] == [(0.0, 0.0, None), (0.5, 0.5, 0.25)]


def test_what_is_no_sign_of_degeneration():
    """The same opening again of one question, openings of too few words, and lengths within a factor of two."""
    long_one = "one two three four five six seven eight nine"
    again = signs(
        [completion(0, 0, long_one), completion(1, 5, long_one, 150), completion(1, 5, long_one + " ten", 60)]
    )
    assert [(s.template, s.jumped) for s in again] == [(0.0, None), (0.0, 0.0)]
    short = signs([completion(0, q, "the answer is 4") for q in range(3)])
    assert short[0].template == 0.0
    assert signs([]) == []


def test_signs_are_told_in_ten_rows_at_most():
    found = signs([completion(step, 0, "text", 1 + step) for step in range(95)])
    assert len(found) == 10
    assert [s.first for s in found] == list(range(0, 95, 10))
    assert sum(s.stored for s in found) == 95


def test_the_audit_shows_signs_of_degeneration(audited, say):
    _, text = say("audit", audited, "--with", "numeric_reward")
    assert "Signs of degeneration" in text
    assert "in code blocks" in text
    _, found = say("audit", audited, "--json", "--with", "numeric_reward")
    assert sum(row["stored"] for row in found["degeneration"]) == found["read"]
