"""Logs as a run writes them: a planner, its log, and completions of a made-up policy."""

import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from exgrpo.config import ReplayConfig
from exgrpo.experience import RIGHT, UNSCORABLE, WRONG, ExperienceBuffer, Group, Trajectory
from exgrpo.experience.events import Learned
from exgrpo.experience.log import (
    LogReader,
    LogWriter,
    Origin,
    Position,
    QuestionFacts,
    StoredTrajectories,
    rebuild,
)
from exgrpo.experience.log.rebuild import size_of
from exgrpo.replay import FreshStream, ReplayPlanner

K = 4
ORIGIN = Origin("tiny", "arch-1", "tok-1", "tpl-1", '{"exact": 1.0}', 1.0, K, "questions-1", "{}", "{}")
TOKENIZER = Tokenizer(WordLevel({f"w{i}": i for i in range(1000)}, unk_token="w0")).to_str()


class Dataset:
    """Questions `first`, `first + 1`, ...: a run's own numbering begins at 0."""

    def __init__(self, n=24, first=0):
        self.numbers = range(first, first + n)
        self.keys = tuple(f"{number:032x}"[::-1] for number in self.numbers)

    def facts(self, question):
        n = self.numbers[question]
        prompt = json.dumps([{"role": "user", "content": f"How much is {n} + {n}?"}])
        return QuestionFacts(self.keys[question], n, prompt, json.dumps({"answer": str(2 * n)}), "sum")


class Run:
    """A run on a log; `generation` is one of the trainer's, with everything that can happen in it."""

    def __init__(self, path, dataset=None, origin=ORIGIN, seed=0, position=None, note=None, **options):
        options = {
            "start_pass_at_1": 0.0, "capacity": 25, "capacity_per_question": 3, "entropy_refresh": "exact", **options
        }  # fmt: skip
        self.path, self.seed = Path(path), seed
        config = ReplayConfig(**options)
        self.log = LogWriter(path, dataset or Dataset(), config.logp_dtype)
        self.log.add_tokenizer(origin.tokenizer, TOKENIZER)
        n = len(self.log.questions.keys)
        stream = FreshStream(lambda p: np.random.default_rng((seed, p)).permutation(n), n)
        self.planner = ReplayPlanner(config, stream, K, seed, store=self.log, listener=self.log)
        self.step = 0
        if position is not None:
            state = rebuild(self.log.reader, self.planner.buffer, position, self.log.indices())
            self.step = state.step
        self.log.begin(origin, position, self.step, note)
        if position is not None:
            self.planner.restore(state)

    @property
    def buffer(self):
        return self.planner.buffer

    def generation(self, snapshot=False, checkpoint=None):
        """Plan, score, learn and commit; now and then a question is solved entirely."""
        rng = np.random.default_rng((self.seed, self.planner.generation))
        plan = self.planner.plan(6, self.step, 0.0, lambda ts: np.array([abs(t.behaviour_logps.sum()) for t in ts]))
        groups, found = [], []
        for question, choice in zip(plan.questions.tolist(), plan.replays, strict=True):
            m = K - (choice is not None)
            solved = rng.random() < 0.08
            outcomes = [RIGHT] * m if solved else rng.choice([RIGHT, WRONG, UNSCORABLE], m, p=[0.5, 0.4, 0.1])
            groups.append(Group(question, np.array(outcomes), choice is not None))
            found += [self.completion(rng, question) for outcome in outcomes if outcome == RIGHT]
            if choice is not None:
                self.log(Learned(plan.generation, plan.step, question, choice.serial, rng.normal() / 10, 0.9))
        self.planner.observe(plan, groups)
        self.planner.admit([t for t in found if self.planner.wants(t.question, t.finish_reason)])
        self.step += 1
        arrays = self.buffer.snapshot() if snapshot or checkpoint else None
        position = self.log.commit(self.planner.state(self.step), bool(checkpoint), arrays)
        if checkpoint:
            write_checkpoint(Path(checkpoint), self.step, position)
        return position

    def completion(self, rng, question):
        n = int(rng.integers(1, 12))
        logps = -rng.exponential(1.0, n).astype(np.float32)
        if self.log._logp_dtype.itemsize == 2:
            logps = logps.astype(np.float16)
        entropy = float(rng.exponential()) if rng.random() < 0.8 else float("nan")
        rewards = np.array([1.0, np.nan if rng.random() < 0.3 else 0.5])
        finish = "length" if rng.random() < 0.2 else "stop"
        return Trajectory(question, rng.integers(0, 1000, n), logps, rewards, self.step, finish, entropy)

    def generations(self, n, **kwargs):
        positions = [self.generation(**kwargs) for _ in range(n)]
        return positions[-1]

    def close(self):
        self.log.close()


def write_checkpoint(folder, step, position):
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / "exgrpo.json").write_text(json.dumps({"log": position.as_dict(), "format": 1}))


def eventful(folder, **options):
    """A log with two checkpoints, a branch that continues the first of them after a crash, and one that nobody continues.

    Returns:
        Its path, and the positions of the commits that a checkpoint refers to.
    """
    path = Path(folder) / "experience.db"
    run = Run(path, seed=1, **options)
    run.generations(6)
    early = run.generation(checkpoint=folder)
    run.generations(4)
    run.close()
    dead = Run(path, seed=2, note="nobody continues this", **options)
    dead.generations(3, snapshot=True)
    dead.close()
    run = Run(path, seed=1, position=early, **options)
    run.generations(5)
    late = run.generation(checkpoint=folder)
    run.generations(6)
    run.close()
    return path, [early, late]


def buffer_at(reader, position=None, use_snapshot=True, k=K):
    """The buffer at a position, questions numbered as in the log, and the planner's state."""
    position = position or reader.position()
    store = StoredTrajectories(reader, reader.lineage(position))
    buffer = ExperienceBuffer(size_of(reader), k, capacity=0, store=store)
    state = rebuild(reader, buffer, position, use_snapshot=use_snapshot)
    return buffer, state


def fingerprints(path, positions=()):
    """Of the buffers at the end of the log and at positions of it, token arrays included."""
    with LogReader(path) as reader:
        wanted: list[Position] = [reader.position(), *positions]
        return [(buffer.fingerprint(), state) for buffer, state in (buffer_at(reader, p) for p in wanted)]
