"""What a run says of its stored answers is what lies in its buffer, seen through `train()` on a task that luck can win."""

from dataclasses import replace

import pytest

from exgrpo.cli import training
from exgrpo.lab.studies import arm
from exgrpo.lab.studies.regime import Regime
from exgrpo.tasks import get_task

pytestmark = pytest.mark.slow

KNOBS = {"modulus": 5, "lengths": (2, 3), "shares": (0.5, 0.5), "reward": "final"}
SMALL = Regime(
    "chains", KNOBS, train_questions=64, questions_per_step=16, steps=10, eval_questions=16, num_samples=2, evaluations=1,
    warm_up_batches=150, learning_rate=5e-4,
)  # fmt: skip


@pytest.fixture
def trainers(monkeypatch):
    """The trainers that arms make."""
    made = []

    class Kept(training.ExGRPOTrainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(training, "ExGRPOTrainer", Kept)
    return made


def test_stored_and_replayed_answers_are_those_of_the_buffer(trainers):
    options = {"retirement": "never", "trajectory_choice": "random", "capacity_per_question": 64}
    result = arm.run_arm("exgrpo", 300, SMALL, options=options)
    (trainer,) = trainers
    buffer, task = trainer.planner.buffer, get_task("chains", **KNOBS)
    slots = [slot for question in range(64) for slot in buffer.slots_of(question)]
    stored = buffer.get_many(slots)
    valid = [
        task.is_valid(
            trainer.questions.row(one.question)["prompt"],
            trainer.processing_class.decode(one.completion_ids.tolist(), skip_special_tokens=True),
        )
        for one in stored
    ]
    uses = [int(buffer.column("uses")[slot]) for slot in slots]
    figures = result["experience"]
    assert 0 < sum(valid) < len(valid), "the task has both"
    assert figures["stored"] == len(stored) > 20
    assert figures["stored_valid"] == pytest.approx(sum(valid) / len(valid))
    assert figures["replayed"] == sum(uses) > 20
    weighted = sum(use for use, right in zip(uses, valid, strict=True) if right)
    assert figures["replayed_valid"] == pytest.approx(weighted / sum(uses))
    assert figures["distinct_picks"] == pytest.approx(sum(use > 0 for use in uses) / sum(uses))
    assert figures["distinct_picks"] < 1


def test_a_row_says_what_ended_the_arm(monkeypatch):
    regime = replace(SMALL, steps=4)
    whole = arm.run_arm("on-policy", 300, regime)
    assert (whole["ended_by"], whole["tokens"] >= 0.9 * whole["token_budget"]) == ("tokens", True)
    monkeypatch.setattr(arm, "SURPLUS_STEPS", 1)
    cut = arm.run_arm("on-policy", 300, regime, token_budget=10 * whole["token_budget"])
    assert (cut["ended_by"], cut["steps"]) == ("steps", 4)
    assert cut["tokens"] < cut["token_budget"] == cut["curve"][-1]["at"]


def test_without_replay_there_is_nothing_to_tell():
    result = arm.run_arm("on-policy", 300, SMALL)
    assert result["experience"] == {
        "stored": 0, "stored_valid": None, "replayed": 0, "replayed_valid": None, "distinct_picks": None,
    }  # fmt: skip


def test_an_arm_with_demonstrations_starts_from_right_answers_of_its_first_questions(trainers):
    """Kept and replayed as experience of another run is; nothing of the bank stays, and the rest is the arm's own."""
    kept = {"retirement": "never", "capacity_per_question": 64}
    result = arm.run_arm("rescue", 300, SMALL, options=kept, demonstrations=20)
    importer, trainer = trainers
    assert importer.state.global_step == 0, "the trainer of the import never trains"
    task, buffer = get_task("chains", **KNOBS), trainer.planner.buffer
    number = {trainer.questions.row(q)["prompt"]: q for q in range(SMALL.train_questions)}
    for question in task.draw("train", SMALL.train_questions, 300)[:20]:
        stored = buffer.get_many(buffer.slots_of(number[question.prompt]))
        texts = [
            trainer.processing_class.decode(one.completion_ids.tolist(), skip_special_tokens=True) for one in stored
        ]
        assert task.solution(question) in texts
    cold = arm.run_arm("rescue", 300, SMALL, options=kept)
    assert result["experience"]["replayed"] > cold["experience"]["replayed"]
    assert result["history"][0]["replay/size"] >= 20 > cold["history"][0]["replay/size"]
    assert result["token_budget"] == cold["token_budget"]
    again = arm.run_arm("rescue", 300, SMALL, options=kept, demonstrations=20)
    assert {**again, "seconds": None} == {**result, "seconds": None}
