"""What the tests of this folder share: a study that takes seconds, rows without any training, and the command."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from exgrpo.evaluation.paired import MIN_PAIRS
from exgrpo.lab.studies.results import Results
from exgrpo.lab.studies.study import Cell
from exgrpo.lab.studies.study_file import make_study
from exgrpo.lab.studies.summary import Findings, Run

TINY = """\
title: Does a tiny study go on where it was?
seeds: 2
settings:
  chains:
    task: chains
    knobs: {lengths: [1], shares: [1.0]}
    train_questions: 16
    questions_per_step: 8
    steps: 6
    eval_questions: 16
    num_samples: 2
    evaluations: 2
    warm_up_batches: 40
arms:
  on-policy: {preset: on-policy}
  exgrpo: {preset: exgrpo, tried: 3}
  rescue: {preset: rescue}
"""
LINES = 8  # two seeds of a start and three arms


@dataclass(frozen=True)
class Folder:
    """A folder of results and what the command said."""

    path: Path
    said: str = ""

    @property
    def rows(self) -> bytes:
        return (self.path / "results.jsonl").read_bytes()


def arguments(*words: str) -> list[str]:
    return [sys.executable, "-m", "exgrpo", "lab", *words]


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """`exgrpo lab` in a process of its own."""
    return subprocess.run(
        arguments(*words), capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "100"}
    )


def tiny(**changes):
    """The tiny study; changes are of its only setting."""
    raw = yaml.safe_load(TINY)
    raw["settings"]["chains"] |= changes
    return make_study(raw, "tiny")


class Silent:
    """A display that keeps what it was told."""

    def __init__(self):
        self.said = []

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def say(self, text):
        self.said.append(text)

    def begin(self, name):
        pass

    def update(self, name, state):
        pass

    def finish(self, name, text):
        self.said.append(text)


ABOUT = {
    "command": "exgrpo lab run tiny.yaml",
    "name": "tiny",
    "study": yaml.safe_load(TINY),
    "short": False,
    "processor": "a processor",
    "cores": 2,
    "date": "2026-01-02",
    "versions": {"exgrpo": "1", "torch": "2", "trl": "3", "transformers": "4"},
}


# Rows by hand -----------------------------------------------------------------------------------------------------------

NO_EXPERIENCE = {"stored": 0, "stored_valid": None, "replayed": 0, "replayed_valid": None, "distinct_picks": None}


def point(at, pass_at_1, step=None, log=None, **more):
    """A point of a curve; Pass@2 is 0.1 more than Pass@1, greedy 0.01 more."""
    figures = {"pass_at_1": pass_at_1, "pass_at_2": pass_at_1 + 0.1, "greedy_accuracy": pass_at_1 + 0.01}
    places = {"step": at // 100 if step is None else step, "at": at, "tokens": at}
    return {**places, **figures, **({"log": log} if log else {}), **more}


def start_row(cell: Cell, pass_at_1: float):
    assert cell.arm is None
    head = {"key": cell.key, "setting": cell.setting.name, "arm": None, "seed": cell.seed}
    return {**head, "fingerprint": cell.fingerprint, "curve": [point(0, pass_at_1)]}


def arm_row(cell: Cell, curve, **more):
    """A row of an arm without replay; `more` replaces its figures."""
    head = {"key": cell.key, "setting": cell.setting.name, "arm": cell.arm.name, "seed": cell.seed}
    figures = {
        "token_budget": curve[-1]["at"],
        "tokens": curve[-1]["tokens"],
        "steps": curve[-1]["step"],
        "ended_by": "tokens",
        "retired": None,
        "questions_solved": 3,
        "replay_share": None,
        "experience": NO_EXPERIENCE,
    }
    return {**head, "fingerprint": cell.fingerprint, **figures, "curve": curve, **more}


def times_row(cell: Cell, *cpu: float):
    return {"key": cell.key, "seconds": {"train": cpu[-1], "evaluate": 0.0, "cpu": list(cpu), "all": cpu[-1]}}


def run_of(*heights, axis=None, cpu=(), **more) -> Run:
    """A run whose curve has these Pass@1, at 0, 100, 200, ... tokens unless `axis` says where."""
    axis = axis or [100 * i for i in range(len(heights))]
    curve = tuple(point(at, height) for at, height in zip(axis, heights, strict=True))
    return Run({"experience": NO_EXPERIENCE, "retired": None, **more}, curve, tuple(cpu))


def findings(finals, seeds=MIN_PAIRS, **changes) -> Findings:
    """Findings whose arms have given finals by seed, {arm: {seed: Pass@1}}, from a start of 0.1 and in 200 tokens.

    `changes` replace keys of the study's dictionary.
    """
    raw = {**yaml.safe_load(TINY), "seeds": seeds, **changes}
    study = make_study(raw, "tiny")
    runs = {("chains", arm, seed): run_of(0.1, final / 2, final, cpu=(0.0, 1.0, 2.0))
            for arm, by_seed in finals.items() for seed, final in by_seed.items()}  # fmt: skip
    return Findings(study, runs, {**ABOUT, "study": raw})


def write_results(folder, cells, rows, times=(), about=None) -> Results:
    """A folder as `exgrpo lab run` leaves it."""
    results = Results(folder)
    results.folder.mkdir(parents=True, exist_ok=True)
    results.about_path.write_text(json.dumps(about or ABOUT))
    results.rows_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    results.times_path.write_text("".join(json.dumps(row) + "\n" for row in times))
    return results
