"""A long made-up run as a log, written by rows: `python -m tests.support.big_log FILE --questions 100000 --generations 8000`.

A planner would take hours for a million trajectories. What is written is what one writes, in its order, with its checksums.
"""

import argparse
import json
import sys
from collections import defaultdict, deque
from pathlib import Path

import numpy as np

from exgrpo.experience.events import PlannerState
from exgrpo.experience.trajectory import Trajectory
from exgrpo.log import LogReader, LogWriter, Provenance, QuestionRecord, schema
from exgrpo.log.codec import signed
from exgrpo.log.connection import connect
from tests.support.logs import TOKENIZER

K, BATCH, PER_QUESTION, TOKENS = 8, 128, 8, 16
OPTIONS = {"preset": "exgrpo", "seed": 0, "mixing": "share", "replay_share": 0.5, "sigma": 0.2}
ORIGIN = Provenance(
    "made-up-1.5B", "arch", "tok-1", "tpl",
    json.dumps([[{"name": "math_reward", "version": "1", "weight": 1.0}], {"decides": "math_reward", "above": 0.5}]),
    1.0, K, "questions", json.dumps({"exgrpo": "0"}), json.dumps(OPTIONS),
)  # fmt: skip


class Questions:
    def __init__(self, n):
        self.keys = tuple(f"{i:032x}" for i in range(n))

    def record(self, i):
        words = ["apples", "pears", "plums", "figs", "dates", "nuts"]
        text = (
            f"A crate holds {i % 97} {words[i % 6]} and {i % 89} {words[(i + 1) % 6]}; {i % 13} are taken out. Of "
            f"{i // 97} such crates, how many pieces are left in the end? (variant {i})"
        )
        prompt = json.dumps([{"role": "user", "content": text}])
        return QuestionRecord(self.keys[i], i, prompt, json.dumps({"answer": str(i % 97 + i % 89 - i % 13)}), "sum")


class Writer:
    """Rows of one branch, in order."""

    def __init__(self, path, questions):
        known = Questions(questions)
        with_log = LogWriter(path, known)
        with_log.add_tokenizer(ORIGIN.tokenizer, TOKENIZER)
        with_log.begin(ORIGIN)
        with_log.commit(PlannerState())
        with_log.close()
        with LogReader(path) as reader:
            (self.branch,), self.seq = reader.branches, reader.end()
        self.connection = connect(Path(path), write=True)
        self.connection.execute("PRAGMA synchronous = OFF")
        self.rows = defaultdict(list)
        rows = [(i + 1, f.key, f.dataset_row, f.prompt, f.columns, f.problem_type) for i, f in
                ((i, known.record(i)) for i in range(questions))]  # fmt: skip
        have = {n for (n,) in self.connection.execute("SELECT id FROM question")}
        self.connection.executemany(
            schema.INSERT["question"], [(*r, schema.checksum("question", r)) for r in rows if r[0] not in have]
        )

    def add(self, table, *values):
        self.seq += 1
        row = (self.seq, self.branch, *values)
        self.rows[table].append((*row, schema.checksum(table, row)))
        return self.seq

    def tokens(self, number, ids, logps):
        blobs = ids.astype("<i4").tobytes(), logps.astype("<f4").tobytes()
        self.rows["tokens"].append((number, *blobs, schema.checksum_of_bytes(number, *blobs)))

    def commit(self):
        self.connection.execute("BEGIN IMMEDIATE")
        for table, rows in self.rows.items():
            sql = schema.INSERT.get(table, "INSERT INTO tokens VALUES (?, ?, ?, ?)")
            self.connection.executemany(sql, rows)
        self.connection.execute("COMMIT")
        self.rows.clear()


class MadeUpRun:
    """A policy that learns with time, forgets in waves, and replays half of each batch."""

    def __init__(self, path, questions, seed=0):
        self.rng = np.random.default_rng(seed)
        self.n, self.log = questions, Writer(path, questions)
        self.hardness, self.phase = self.rng.normal(1.0, 1.6, questions), self.rng.random(questions) * 6.3
        self.retired = np.zeros(questions, bool)
        self.stored = defaultdict(deque)
        self.generation = self.serial = self.tokens = 0
        self.seen = set()
        self.length = 1

    def chance(self, question, length):
        t = self.generation / length
        wave = 1.2 * np.sin(self.phase[question] + 9 * t)
        return 1 / (1 + np.exp(-(3 * t - self.hardness[question] + wave)))

    def generations(self, number, length=None, every=40):
        length = length or number
        for _ in range(number):
            self.one(length)
            if self.generation % every == 0:
                self.log.commit()
        self.log.commit()

    def one(self, length):
        g, log, rng = self.generation, self.log, self.rng
        pool = list(self.stored)
        replayed = {pool[i] for i in rng.integers(0, len(pool), BATCH // 2)} if g > length // 50 and pool else set()
        idle = None if replayed else f"gate: Pass@1 over 256 completions is {0.1 + 0.2 * g / length:.2f}, below 0.35"
        log.add("generation", g, g, BATCH, len(replayed), 0, idle)
        fresh = [int(q) for q in rng.integers(0, self.n, 2 * BATCH) if not self.retired[q] and int(q) not in replayed]
        groups = [*replayed, *dict.fromkeys(fresh)][:BATCH]
        self.seen.update(groups)
        for question in replayed:
            self.replay(question, g)
        scorable = np.array([K - (q in replayed) for q in groups])
        right = rng.binomial(scorable, self.chance(np.array(groups), length))
        for question, successes, m in zip(groups, right.tolist(), scorable.tolist(), strict=True):
            p = successes / m
            reward_std = float(np.sqrt(p * (1 - p)))
            log.add("observation", g, g, question + 1, successes, m, 0, int(question in replayed), reward_std)
        for question, successes, m in zip(groups, right.tolist(), scorable.tolist(), strict=True):
            if successes == m:
                self.retire(question, g)
            elif successes:
                for _ in range(1 + (successes > 3)):
                    self.store(question, g, successes / m)
        self.generation += 1
        self.tokens += BATCH * K * 300
        log.add(
            "state",
            g + 1,
            g + 1,
            int(bool(replayed)),
            float(right.sum() / scorable.sum()),
            0,
            0,
            "[]",
            self.tokens,
            0,
            0,
        )

    def replay(self, question, g):
        number, step = self.stored[question][-1]
        gap = self.rng.normal(0.02, 0.1) - (g - step) * 2e-5
        self.log.add("replay", g, g, question + 1, number, "plan", g - step, float(self.rng.random()))
        self.log.add("learning", g, g, question + 1, number, float(gap), float(np.exp(-(gap**2) * 4)))

    def retire(self, question, g):
        if not self.retired[question]:
            self.retired[question] = True
            self.log.add("retirement", g, g, question + 1, "left")
            for number, _ in self.stored.pop(question, ()):
                self.log.add("eviction", g, g, question + 1, number, "retired")

    def store(self, question, g, p):
        number = self.log.branch << schema.SERIAL_BITS | self.serial
        self.serial += 1
        ids, logps = self.rng.integers(0, 1000, TOKENS), -self.rng.exponential(0.4, TOKENS).astype(np.float32)
        self.log.tokens(number, ids, logps)
        digest = signed(Trajectory(question, ids, logps, np.ones(1), g).digest)
        row = (number, self.log.seq + 1, self.log.branch)
        self.log.seq += 1
        entropy = float(self.rng.exponential(0.4))
        values = (
            g, g, question + 1, TOKENS, digest, "[1.0]", entropy, g, "stop", 1, 1, 1 - p, None,
            float(-logps.mean()), float(np.exp(logps).mean()), float(np.exp(logps).var()), 0,
        )  # fmt: skip
        names = ("seq", *schema.EVENTS["trajectory"])
        row = dict(zip(names, (row[1], self.log.branch, number, *values), strict=True))
        ordered = tuple(row[name] for name in names)
        self.log.rows["trajectory"].append((*ordered, schema.checksum("trajectory", ordered)))
        mine = self.stored[question]
        mine.append((number, g))
        if len(mine) > PER_QUESTION:
            old, _ = mine.popleft()
            self.log.add("eviction", g, g, question + 1, old, "capacity_per_question")


def make(path, questions=100_000, generations=8000, seed=0):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    run = MadeUpRun(path, questions, seed)
    run.generations(generations)
    run.log.connection.close()
    return run


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--questions", type=int, default=100_000)
    parser.add_argument("--generations", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    made = make(args.file, args.questions, args.generations, args.seed)
    sys.stdout.write(f"{made.serial:,} trajectories of {args.questions:,} questions\n")
