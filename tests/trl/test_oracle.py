"""One oracle for two hosts, on TRL: the file holds the plans and events that tests/verl/test_trainer.py expects of verl.

To make it anew: EXGRPO_WRITE_ORACLE=1 python -m pytest tests/trl/test_oracle.py
"""

import json
import os
from pathlib import Path

import pytest

from exgrpo.log import LogReader
from tests.support import harness as h
from tests.support.oracle import CASES, STEPS, answer, lines_of
from tests.verl.support import PLAIN, letters, logged_columns

GOLDEN = Path(h.__file__).with_name("oracle.json")


@pytest.fixture(autouse=True)
def scripted(monkeypatch):
    monkeypatch.setattr(h.GRPOTrainer, "_generate_single_turn", h.scripted_generation)


def letters_reward(prompts, completions, answer, **kwargs):
    scores = [letters(None, text, gold) for text, gold in zip(completions, answer, strict=True)]
    return [None if one["unscorable"] else one["score"] for one in scores]


letters_reward.__name__ = "letters"


def trained(folder, **options):
    dataset = h.questions(24).rename_column("right", "answer")
    tokenizer = h.tiny_tokenizer()
    tokenizer.chat_template = PLAIN
    args = h.config(folder, max_steps=STEPS, learning_rate=0.0, **options)
    trainer = h.trainer(args, dataset, tokenizer=tokenizer, reward=letters_reward, script=answer)
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def golden():
    found = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    yield found
    if os.environ.get("EXGRPO_WRITE_ORACLE"):
        GOLDEN.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def held(golden, name, found):
    if os.environ.get("EXGRPO_WRITE_ORACLE"):
        golden[name] = found
    assert golden[name] == found


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_plans_and_events_are_those_of_the_oracle(tmp_path, golden, case):
    trainer = trained(tmp_path, **CASES[case])
    held(golden, case, lines_of(trainer.events))
    held(golden, "keys", list(trainer.questions.keys))
    if case == "share":
        with LogReader(trainer.args.experience_path) as reader:
            origin = reader.origin_of(reader.position().branch)
            held(golden, "columns", logged_columns(reader))
            held(golden, "question_columns", sorted(one.columns for one in dict(reader.questions()).values()))
        held(golden, "tokenizer", origin.tokenizer)
        held(golden, "decides", json.loads(origin.rewards)[1])
