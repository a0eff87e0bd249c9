"""Driven by what was recorded under TRL, the core without any host plans the same."""

import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from exgrpo.experience.replayed import fingerprint_of
from tests.support import harness as h
from tests.support.recorded import Recorder

ROOT = Path(__file__).parents[2]

RUNS = {
    "exgrpo": {},
    "exgrpo-paper-text": {},
    "random-replay": {},
    "rescue": {},
    "prompt-replay": {"cooldown": 1, "max_uses": 2},
    "entropy-guided": {"start_epoch": 0.5, "start_size": 10, "replay_probability": 0.6},
    "quality-tiers": {},
    "headroom-drift": {},
    "hard-questions": {},
    "exgrpo with all of it": {
        "preset": "exgrpo", "max_entropy_age": 0, "by_problem_type": True, "difficulty": "window", "difficulty_window": 6,
        "max_age": 4, "max_uses": 2, "cooldown": 1, "max_drift": 5.0, "review_every": 2, "review_share": 0.5,
        "replays_per_group": 2, "capacity": 20, "eviction": "highest_entropy", "logp_dtype": "float16",
    },
}  # fmt: skip


def script(generation, prompt, member):
    """All right, three, two, one and none by question and generation; other texts in other generations."""
    i = int(re.search(r"q(\d+)", prompt).group(1))
    right = (i + generation) % 5
    return f"{'abcdefgh'[(member + generation) % 8]}{i}$" if member < right else f"{'zyxw'[member]}{generation}$"


def toy_embedder(texts):
    return [[text.count(c) + 0.1 for c in "abcdefgh"] for text in texts]


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_the_core_alone_plans_the_same(tmp_path, name):
    options = {"preset": name, "start_pass_at_1": 0.0, "learning_rate": 1e-2, **RUNS[name]}
    args = h.config(tmp_path, max_steps=9, experience_log="none", alarms="off", **options)
    rows = [{**row, "problem_type": "even" if i % 2 else "odd"} for i, row in enumerate(h.questions(20))]
    trainer = h.trainer(args, h.Dataset.from_list(rows), script=script, embedder=toy_embedder)
    planner, recorder = trainer.planner, Recorder(trainer.planner)
    trainer.train()
    orders = trainer.questions.permutations(args.seed, trainer.shuffle_dataset)
    passes = [orders(number) for number in range(planner.stream.pass_number + 1)]
    recorder.written_to(tmp_path / "run.json", passes, trainer.types)

    done = subprocess.run(
        [sys.executable, "-m", "tests.support.recorded", str(tmp_path / "run.json")], cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    alone = json.loads(done.stdout)
    assert alone["loaded"] == []
    expected = [call[-1] for call in recorder.calls if call[0] in ("plan", "rescue", "admit")]
    assert alone["came"] == expected
    assert alone["fingerprint"] == fingerprint_of(planner.buffer)
    assert alone["state"] == json.loads(json.dumps(asdict(planner.state(0))))
    replayed = sum(plan[4].count(True) + len(plan[5]) for what, _, _, plan in _plans(recorder) if what == "plan")
    rescued = sum(len(call[-1]) for call in recorder.calls if call[0] == "rescue")
    assert replayed + rescued > 3, "there was something to plan"


def _plans(recorder):
    return [call for call in recorder.calls if call[0] == "plan"]
