"""Logs as a run writes them: a planner, its log, and completions of a made-up policy."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from exgrpo.config import ReplayConfig
from exgrpo.experience import RIGHT, UNSCORABLE, WRONG, Group, Trajectory
from exgrpo.experience.events import Continued, Trained
from exgrpo.experience.policy_stats import PolicyStats
from exgrpo.experience.replayed import fingerprint_of, snapshot_of
from exgrpo.log import LogReader, LogWriter, Position, Provenance, QuestionRecord, StoredTrajectories, rebuild
from exgrpo.log.rebuild import empty_buffer
from exgrpo.log.snapshot import OPTIONS
from exgrpo.replay import FreshStream, ReplayPlanner

K = 4
DIMENSION = 8
EVENTFUL = {
    "admission": "all", "eviction": "lowest_quality", "review_every": 3, "review_share": 0.5, "skip": "zero_variance",
    "skip_explore": 0.0,
}  # fmt: skip
"""Failures, qualities with their embeddings, retired questions that return, questions that are left out."""
TYPES = 3
ORIGIN = Provenance(
    "tiny", "arch-1", "tok-1", "tpl-1", '{"exact": 1.0}', 1.0, K, "questions-1", "{}", "{}", "encoder-1"
)
TOKENIZER = Tokenizer(WordLevel({f"w{i}": i for i in range(1000)}, unk_token="w0")).to_str()


class Dataset:
    """Questions `first`, `first + 1`, ...: a run's own numbering begins at 0."""

    def __init__(self, n=24, first=0):
        self.numbers = range(first, first + n)
        self.keys = tuple(f"{number:032x}"[::-1] for number in self.numbers)

    def record(self, question):
        n = self.numbers[question]
        prompt = json.dumps([{"role": "user", "content": f"How much is {n} + {n}?"}])
        return QuestionRecord(self.keys[question], n, prompt, json.dumps({"answer": str(2 * n)}), "sum")


class Run:
    """A run on a log; `generation` is one of the trainer's, with everything that can happen in it."""

    def __init__(self, path, dataset=None, origin=ORIGIN, seed=0, position=None, note=None, **options):
        options = {
            "start_pass_at_1": 0.0, "capacity": 25, "capacity_per_question": 3, "entropy_refresh": "exact", **options
        }  # fmt: skip
        self.path, self.seed = Path(path), seed
        config = ReplayConfig(**options)
        of_index = {name: value for name, value in options.items() if name in OPTIONS}
        origin = replace(origin, options=json.dumps(of_index)) if of_index else origin
        self.log = LogWriter(path, dataset or Dataset(), config.logp_dtype)
        self.log.add_tokenizer(origin.tokenizer, TOKENIZER)
        n = len(self.log.questions.keys)
        stream = FreshStream(lambda p: np.random.default_rng((seed, p)).permutation(n), n)
        types = np.arange(n) % TYPES
        self.planner = ReplayPlanner(config, stream, K, seed, store=self.log, listener=self.log, types=types)
        self.step = 0
        if position is not None:
            reader = self.log.reader
            state = rebuild(reader, self.planner.buffer, position, self.log.question_map)
            self.step = state.step
            if self.planner.diversity is not None:
                lineage = reader.lineage(position)
                for _, question, vector in reader.embeddings(
                    lineage, origin.embedding, self.log.question_map.question_of
                ):
                    self.planner.diversity.add(question, vector)
        self.log.begin(origin, position, self.step, note)
        if position is not None:
            self.planner.restore(state)

    @property
    def buffer(self):
        return self.planner.buffer

    def generation(self, snapshot=False, checkpoint=None):
        """Plan, score, learn and commit; now and then a question is solved entirely, or not at all."""
        rng = np.random.default_rng((self.seed, self.planner.iteration))
        plan = self.planner.plan(6, self.step, 0.0, self.score)
        groups, found = [], []
        for question, choices, replayed in zip(plan.questions, plan.replays, plan.replayed, strict=True):
            group = self.group(rng, int(question), K - len(choices), bool(replayed)) if len(choices) < K else None
            groups.append(group)
            for outcome in [] if group is None else group.outcomes:
                if outcome == RIGHT or (outcome == WRONG and self.planner.config.admission in ("all", "quality")):
                    found.append((group, self.completion(rng, int(question), outcome == RIGHT)))
        if self.planner.config.mixing == "rescue":
            self.planner.rescue(plan, np.stack([group.outcomes for group in groups]), self.score)
        self.planner.observe(plan, groups)
        for choice in plan.choices:
            self.log(
                Trained(plan.iteration, plan.step, choice.trajectory.question, choice.serial, rng.normal() / 10, 0.9)
            )
        for choice in plan.choices[:1]:  # as if a group had gone on from it
            question = choice.trajectory.question
            self.log(Continued(plan.iteration, plan.step, question, choice.serial, 1, 2, K - 1, 1))
        wanted = [t for group, t in found if self.planner.should_admit(group, t.correct, t.finish_reason)]
        self.planner.admit(wanted, groups)
        self.step += 1
        arrays = snapshot_of(self.buffer) if snapshot or checkpoint else None
        position = self.log.commit(self.planner.state(self.step), bool(checkpoint), arrays)
        if checkpoint:
            write_checkpoint(Path(checkpoint), self.step, position)
        return position

    def score(self, trajectories):
        """Of a made-up policy that changes with every step."""
        scores = []
        for t in trajectories:
            logps = t.behaviour_logps * np.float32(1 + 0.02 * (self.step - t.step))
            entropy = float(abs(t.behaviour_logps.sum())) / (1 + self.step % 3)
            scores.append(replace(PolicyStats.of_tokens(logps, t.behaviour_logps), entropy=entropy))
        return scores

    def group(self, rng, question, m, replayed):
        luck = rng.random()
        outcomes = rng.choice([RIGHT, WRONG, UNSCORABLE], m, p=[0.5, 0.4, 0.1])
        if luck < 0.08 or luck > 0.92:
            outcomes = np.full(m, RIGHT if luck < 0.08 else WRONG)
        scorable = outcomes[outcomes != UNSCORABLE]
        return Group(question, outcomes, replayed, float(scorable.std()) if len(scorable) else float("nan"))

    def completion(self, rng, question, correct=True):
        n = int(rng.integers(1, 12))
        logps = -rng.exponential(1.0, n).astype(np.float32)
        if self.log._logp_dtype.itemsize == 2:
            logps = logps.astype(np.float16)
        entropy = float(rng.exponential()) if rng.random() < 0.8 else float("nan")
        rewards = np.array([float(correct), np.nan if rng.random() < 0.3 else 0.5])
        finish = "length" if rng.random() < 0.2 else "stop"
        advantage = float(rng.normal()) if rng.random() < 0.9 else float("nan")
        embedding = rng.normal(size=DIMENSION) if self.planner.diversity is not None else None
        return Trajectory(
            question, rng.integers(0, 1000, n), logps, rewards, self.step, finish, entropy, None, correct, advantage,
            embedding=embedding,
        )  # fmt: skip

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
    path, options = Path(folder) / "experience.db", EVENTFUL | options
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


def buffer_at(reader, position=None, use_snapshot=True):
    """The buffer at a position, questions numbered as in the log, and the planner's state."""
    position = position or reader.position()
    store = StoredTrajectories(reader, reader.lineage(position))
    buffer = empty_buffer(reader, position, store)
    state = rebuild(reader, buffer, position, use_snapshot=use_snapshot)
    return buffer, state


def fingerprints(path, positions=()):
    """Of the buffers at the end of the log and at positions of it, token arrays included."""
    with LogReader(path) as reader:
        wanted: list[Position] = [reader.position(), *positions]
        return [(fingerprint_of(buffer), state) for buffer, state in (buffer_at(reader, p) for p in wanted)]
