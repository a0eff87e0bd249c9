"""The tables of the experience log: one SQLite file, a log of what happened.

Singular names are tables and hold everything that ever happened; plural names are views and show what counts now: the
newest branch and, of its ancestors, what they held when it left them. Every event has a number of its own (`seq`), over
all tables and branches without gaps, and a checksum.
"""

import sqlite3
import zlib
from collections.abc import Iterable
from typing import Any

from ..experience.columns import COLUMNS

APPLICATION_ID = 0x45784752  # "ExGR"
SCHEMA_VERSION = 3
READABLE = (2, 3)
"""Schema 2 lacks two tables; a log of it is read as it is, and given them when it is next written. 1 was never released."""
NEEDS = "0.3"
"""The first version of exgrpo that reads this schema; a later schema names another."""

SERIAL_BITS = 40
"""A trajectory's id is its branch and, in the lower bits, its serial number."""

EVENTS: dict[str, tuple[str, ...]] = {
    "generation": ("branch", "generation", "step", "questions", "replayed", "refilled", "idle"),
    "observation": (
        "branch", "generation", "step", "question", "successes", "scorable", "unscorable", "replayed", "spread",
    ),
    "trajectory": tuple(column.name for column in COLUMNS if column.sql),
    "replay": ("branch", "generation", "step", "question", "trajectory", "moment", "age", "entropy"),
    "learning": ("branch", "generation", "step", "question", "trajectory", "log_ratio", "ess"),
    "measurement": (
        "branch", "step", "question", "trajectory", "entropy", "nll", "confidence", "confidence_variance", "drift",
    ),
    "retirement": ("branch", "generation", "step", "question", "kind"),
    "eviction": ("branch", "generation", "step", "question", "trajectory", "reason"),
    "state": (
        "branch", "generation", "step", "gate_open", "pass_at_1", "pass", "cursor", "deferred", "generated_tokens",
        "reviewed", "checkpoint",
    ),
    "continuation": (
        "branch", "generation", "step", "question", "trajectory", "length", "successes", "scorable", "unscorable", "fraction",
    ),
    "skip": ("branch", "generation", "step", "question"),
}  # fmt: skip
"""Columns of each event table after `seq` and before `crc`."""
SINCE_3 = ("continuation", "skip")

DDL = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);

CREATE TABLE branch (
    -- A run, or a part of one. Its events have the numbers from first_seq on; it sees those of its parent up to
    -- fork_seq.
    id INTEGER PRIMARY KEY, parent INTEGER REFERENCES branch, fork_seq INTEGER, first_seq INTEGER NOT NULL,
    first_serial INTEGER NOT NULL, step INTEGER NOT NULL, origin INTEGER NOT NULL REFERENCES origin, note TEXT,
    started TEXT NOT NULL, pid INTEGER NOT NULL, host TEXT NOT NULL, crc INTEGER NOT NULL);

CREATE TABLE origin (
    -- Under which model, tokenizer, template and reward functions trajectories were made: JSON.
    id INTEGER PRIMARY KEY, run TEXT NOT NULL UNIQUE, crc INTEGER NOT NULL);
CREATE TABLE tokenizer (
    -- To show completions as text; zlib.
    hash TEXT PRIMARY KEY, json BLOB NOT NULL);

CREATE TABLE question (
    -- key: content hash of the prompt's token ids and of every column that reward functions see; columns: JSON.
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, dataset_row INTEGER, prompt TEXT, columns TEXT, problem_type TEXT,
    crc INTEGER NOT NULL);

CREATE TABLE generation (
    -- A generation of the trainer began; idle: why nothing was replayed.
    seq INTEGER PRIMARY KEY, branch INTEGER NOT NULL, generation INTEGER NOT NULL, step INTEGER NOT NULL,
    questions INTEGER NOT NULL, replayed INTEGER NOT NULL, refilled INTEGER NOT NULL, idle TEXT, crc INTEGER NOT NULL);

CREATE TABLE observation (
    -- What the fresh completions of a question were worth; replayed: replay had chosen the question; spread: population
    -- standard deviation of their rewards.
    seq INTEGER PRIMARY KEY, branch INTEGER NOT NULL, generation INTEGER NOT NULL, step INTEGER NOT NULL,
    question INTEGER NOT NULL, successes INTEGER NOT NULL, scorable INTEGER NOT NULL, unscorable INTEGER NOT NULL,
    replayed INTEGER NOT NULL, spread REAL, crc INTEGER NOT NULL);

CREATE TABLE trajectory (
    -- A completion that was stored. step: of the policy that generated it, negative before this run began; length in
    -- tokens; digest: hash of its token ids; rewards: JSON, one per reward function; entropy in nats a token; correct:
    -- 0 for a failure; advantage: reward minus the mean of its group; quality: of success and diversity, 0 to 1; nll,
    -- confidence, confidence_variance: token means of -log p and p, and variance of p, under the policy that generated
    -- it; dimension: of its embedding, 0 where it has none.
    id INTEGER PRIMARY KEY, seq INTEGER NOT NULL, branch INTEGER NOT NULL, generation INTEGER NOT NULL,
    step INTEGER NOT NULL, question INTEGER NOT NULL, length INTEGER NOT NULL, digest INTEGER NOT NULL, rewards TEXT NOT NULL,
    entropy REAL, entropy_step INTEGER NOT NULL, finish_reason TEXT NOT NULL, origin INTEGER NOT NULL,
    correct INTEGER NOT NULL, advantage REAL, quality REAL, nll REAL, confidence REAL, confidence_variance REAL,
    dimension INTEGER NOT NULL, crc INTEGER NOT NULL);

CREATE TABLE tokens (
    -- Its token ids (int32) and the log-probs of the policy that generated it (float32 or float16), little-endian;
    -- both empty where they were pruned.
    id INTEGER PRIMARY KEY, completion_ids BLOB NOT NULL, behaviour_logps BLOB NOT NULL, crc INTEGER NOT NULL);

CREATE TABLE embedding (
    -- Of the text of a trajectory, for the diversity of later ones: float16, little-endian. Pruning keeps it.
    id INTEGER PRIMARY KEY, vector BLOB NOT NULL, crc INTEGER NOT NULL);

CREATE TABLE replay (
    -- A stored trajectory entered a batch; moment: plan or rescue, as a member of a group, or added, beside the groups;
    -- age in steps; entropy as known when it was chosen.
    seq INTEGER PRIMARY KEY, branch INTEGER NOT NULL, generation INTEGER NOT NULL, step INTEGER NOT NULL,
    question INTEGER NOT NULL, trajectory INTEGER NOT NULL, moment TEXT NOT NULL, age INTEGER NOT NULL, entropy REAL,
    crc INTEGER NOT NULL);

CREATE TABLE learning (
    -- What the loss said of a replay: token mean of log(pi / pi_behaviour), effective sample size of the ratios.
    seq INTEGER PRIMARY KEY, branch INTEGER NOT NULL, generation INTEGER NOT NULL, step INTEGER NOT NULL,
    question INTEGER NOT NULL, trajectory INTEGER NOT NULL, log_ratio REAL, ess REAL, crc INTEGER NOT NULL);

CREATE TABLE measurement (
    -- How a trajectory looked to the policy of step, in nats: as in its row there, and drift, the token mean of
    -- (log pi - log pi_behaviour)^2. NULL: not measured.
    seq INTEGER PRIMARY KEY, branch INTEGER NOT NULL, step INTEGER NOT NULL, question INTEGER NOT NULL,
    trajectory INTEGER NOT NULL, entropy REAL, nll REAL, confidence REAL, confidence_variance REAL, drift REAL,
    crc INTEGER NOT NULL);

CREATE TABLE retirement (
    -- kind: left replay and the fresh stream, or returned to the fresh stream
    seq INTEGER PRIMARY KEY, branch INTEGER NOT NULL, generation INTEGER NOT NULL, step INTEGER NOT NULL,
    question INTEGER NOT NULL, kind TEXT NOT NULL, crc INTEGER NOT NULL);

CREATE TABLE eviction (
    -- a trajectory left; reason: retired, capacity, capacity_per_question, age, uses
    seq INTEGER PRIMARY KEY, branch INTEGER NOT NULL, generation INTEGER NOT NULL, step INTEGER NOT NULL,
    question INTEGER NOT NULL, trajectory INTEGER NOT NULL, reason TEXT NOT NULL, crc INTEGER NOT NULL);

CREATE TABLE state (
    -- The planner after all events before it; the last event of every commit. generation: of the next one; deferred:
    -- JSON; reviewed: step of the latest review of retired questions.
    seq INTEGER PRIMARY KEY, branch INTEGER NOT NULL, generation INTEGER NOT NULL, step INTEGER NOT NULL,
    gate_open INTEGER NOT NULL, pass_at_1 REAL, pass INTEGER NOT NULL, cursor INTEGER NOT NULL, deferred TEXT NOT NULL,
    generated_tokens INTEGER NOT NULL, reviewed INTEGER NOT NULL, checkpoint INTEGER NOT NULL, crc INTEGER NOT NULL);

CREATE TABLE snapshot (
    -- The index as it was at a state, so that opening need not read all events before it. A cache: may be deleted.
    seq INTEGER PRIMARY KEY, data BLOB NOT NULL, crc INTEGER NOT NULL);

CREATE VIEW lineage AS
    WITH RECURSIVE chain(branch, parent, fork_seq, first_seq, last_seq) AS (
        SELECT id, parent, fork_seq, first_seq, 9223372036854775807 FROM branch WHERE id = (SELECT max(id) FROM branch)
        UNION ALL
        SELECT b.id, b.parent, b.fork_seq, b.first_seq, c.fork_seq FROM chain c JOIN branch b ON b.id = c.parent)
    SELECT branch, first_seq, last_seq FROM chain;

CREATE VIEW replays AS
    SELECT r.seq, r.branch, r.generation, r.step, r.question, r.trajectory, r.moment, r.age, r.entropy, g.log_ratio, g.ess
    FROM replay r JOIN lineage l ON r.branch = l.branch AND r.seq <= l.last_seq
    LEFT JOIN learnings g ON g.generation = r.generation AND g.trajectory = r.trajectory;

CREATE VIEW experience AS
    -- What is stored now, with its question and its latest entropy.
    SELECT t.id, t.question, q.key, q.prompt, t.step, t.length, t.rewards, t.correct, t.advantage, t.quality,
        t.finish_reason, t.origin, coalesce(m.entropy, t.entropy) AS entropy, coalesce(u.uses, 0) AS uses
    FROM trajectories t JOIN question q ON q.id = t.question
    LEFT JOIN (SELECT trajectory, entropy, max(seq) FROM measurements GROUP BY trajectory) m ON m.trajectory = t.id
    LEFT JOIN (SELECT trajectory, count(*) AS uses FROM replays GROUP BY trajectory) u ON u.trajectory = t.id
    WHERE t.id NOT IN (SELECT trajectory FROM evictions);

CREATE VIEW questions AS
    -- Every question seen, and how it stands: its latest accuracy, what is stored of it (how much, failures among it,
    -- mean quality), whether it is retired.
    SELECT q.id, q.key, q.dataset_row, q.prompt, q.columns, q.problem_type, o.successes, o.scorable, o.step AS observed_at,
        coalesce(a.groups, 0) AS groups, coalesce(a.completions, 0) AS completions, coalesce(a.solved, 0) AS solved,
        coalesce(s.stored, 0) AS stored, coalesce(s.failures, 0) AS failures, s.quality, coalesce(r.replays, 0) AS replays,
        q.id IN (SELECT question FROM retirements GROUP BY question HAVING sum(kind = 'left') > sum(kind = 'returned'))
            AS retired
    FROM question q
    JOIN (SELECT question, count(*) AS groups, sum(scorable) AS completions, sum(successes) AS solved
          FROM observations GROUP BY question) a ON a.question = q.id
    LEFT JOIN (SELECT question, successes, scorable, step, max(seq) FROM observations WHERE scorable > 0
               GROUP BY question) o ON o.question = q.id
    LEFT JOIN (SELECT question, count(*) AS stored, count(*) - sum(correct) AS failures, avg(quality) AS quality
               FROM experience GROUP BY question) s ON s.question = q.id
    LEFT JOIN (SELECT question, count(*) AS replays FROM replays GROUP BY question) r ON r.question = q.id;
"""

DDL_SINCE_3 = """
CREATE TABLE continuation (
    -- A group went on from the first length tokens of a stored success, none of which is learned from: what its
    -- completions were worth. A trajectory of the same generation and question begins with these tokens. fraction: what
    -- the next generation aims at, NULL where lengths are not controlled.
    seq INTEGER PRIMARY KEY, branch INTEGER NOT NULL, generation INTEGER NOT NULL, step INTEGER NOT NULL,
    question INTEGER NOT NULL, trajectory INTEGER NOT NULL, length INTEGER NOT NULL, successes INTEGER NOT NULL,
    scorable INTEGER NOT NULL, unscorable INTEGER NOT NULL, fraction REAL, crc INTEGER NOT NULL);

CREATE TABLE skip (
    -- The fresh stream left a question out, since its latest groups had no variance.
    seq INTEGER PRIMARY KEY, branch INTEGER NOT NULL, generation INTEGER NOT NULL, step INTEGER NOT NULL,
    question INTEGER NOT NULL, crc INTEGER NOT NULL);
"""

_PLURAL = {
    "generation": "generations", "observation": "observations", "trajectory": "trajectories", "learning": "learnings",
    "measurement": "measurements", "retirement": "retirements", "eviction": "evictions", "state": "states",
    "continuation": "continuations", "skip": "skips",
}  # fmt: skip


def _views(tables: Iterable[str]) -> str:
    return " ".join(
        f"CREATE VIEW {_PLURAL[table]} AS SELECT t.* FROM {table} t JOIN lineage l ON t.branch = l.branch AND t.seq <= "
        "l.last_seq;"
        for table in tables
    )


def create(connection: sqlite3.Connection, version: int = SCHEMA_VERSION) -> None:
    """Create all tables and views of a schema in an empty database."""
    connection.executescript(
        f"BEGIN; {DDL} {_views(table for table in _PLURAL if table not in SINCE_3)} "
        f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 2; COMMIT;"
    )
    if version > 2:
        upgrade(connection)


def upgrade(connection: sqlite3.Connection) -> None:
    """Add the tables of schema 3 to a log of schema 2; nothing else of it changes."""
    needs = f"UPDATE meta SET value = '{NEEDS}' WHERE key = 'needs';"
    connection.executescript(
        f"BEGIN IMMEDIATE; {DDL_SINCE_3} {_views(SINCE_3)} {needs} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
    )


def tables_of(connection: sqlite3.Connection) -> tuple[str, ...]:
    """Return the event tables that a log has."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return tuple(table for table in EVENTS if version > 2 or table not in SINCE_3)


def checksum(table: str, values: tuple[Any, ...]) -> int:
    """Return the checksum of a row: numbers, text and None as SQLite returns them."""
    return zlib.crc32(repr((table, values)).encode("utf-8", "surrogatepass"))


def checksum_of_bytes(number: int, *blobs: bytes) -> int:
    """Return the checksum of the blobs that belong to a row of that number."""
    crc = zlib.crc32(number.to_bytes(8, "little"))
    for blob in blobs:
        crc = zlib.crc32(blob, zlib.crc32(len(blob).to_bytes(8, "little"), crc))
    return crc


FACTS: dict[str, tuple[str, ...]] = {
    "branch": (
        "id", "parent", "fork_seq", "first_seq", "first_serial", "step", "origin", "note", "started", "pid", "host",
    ),
    "origin": ("id", "run"),
    "question": ("id", "key", "dataset_row", "prompt", "columns", "problem_type"),
}  # fmt: skip
"""Columns of the other tables with a checksum."""


def insert(table: str, columns: tuple[str, ...]) -> str:
    names = ", ".join(columns)
    return f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(columns))})"


INSERT = {table: insert(table, ("seq", *columns, "crc")) for table, columns in EVENTS.items()}
INSERT |= {table: insert(table, (*columns, "crc")) for table, columns in FACTS.items()}
SELECT_FACTS = {table: f"SELECT {', '.join(columns)}, crc FROM {table} ORDER BY id" for table, columns in FACTS.items()}
SELECT_EVENT = {
    table: f"SELECT seq, {', '.join(columns)}, crc FROM {table} WHERE branch = ? AND seq BETWEEN ? AND ? ORDER BY seq"
    for table, columns in EVENTS.items()
}
