"""What a commit writes: facts as they were gathered, which become rows, bytes and checksums when they are written."""

import json
import sqlite3
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..experience.events import Stored
from ..experience.trajectory import Trajectory
from . import schema
from .codec import null, scores_of, signed

SNAPSHOTS_KEPT = 2


class Kept(NamedTuple):
    """A trajectory that was stored, under its serial and the numbers that it has in the log."""

    seq: int
    branch: int
    number: int
    serial: int
    generation: int
    question: int
    origin: int
    trajectory: Trajectory


@dataclass
class Commit:
    """All that one transaction writes. Nothing of it changes any more once it is handed to who writes it.

    Args:
        rows: of each table its rows in order, without their checksums; those of `trajectory` follow from `kept`.
        kept: trajectories, in order.
        snapshot: of the index after it, as number of its event and bytes.
        durable: whether it must be on the disk, not only with the operating system.
    """

    rows: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    kept: list[Kept] = field(default_factory=list)
    snapshot: tuple[int, bytes] | None = None
    durable: bool = False

    def __bool__(self) -> bool:
        return bool(self.rows or self.kept)

    def add(self, table: str, *row: Any) -> None:
        self.rows.setdefault(table, []).append(row)

    def finished(self, state: tuple[Any, ...], snapshot: bytes | None, durable: bool) -> "Commit":
        """This, ended by the state that it led to; this one stays as it is, to be tried again."""
        at = None if snapshot is None else (state[0], snapshot)
        return Commit(self.rows | {"state": [state]}, self.kept, at, durable)

    def write(self, connection: sqlite3.Connection, logp_dtype: np.dtype[Any]) -> None:
        """Into the transaction that is open.

        Args:
            connection: to the log.
            logp_dtype: in what log-probs are kept, little-endian.
        """
        for table, rows in self.rows.items():
            checked = [(*row, schema.checksum(table, row)) for row in rows]
            connection.executemany(schema.INSERT[table], checked)
        if self.kept:
            self._write_kept(connection, logp_dtype)
        if self.snapshot is not None:
            seq, data = self.snapshot
            crc = schema.checksum_of_bytes(seq, data)
            connection.execute("INSERT INTO snapshot VALUES (?, ?, ?)", (seq, data, crc))
            connection.execute(
                "DELETE FROM snapshot WHERE seq NOT IN (SELECT seq FROM snapshot ORDER BY seq DESC LIMIT ?)",
                (SNAPSHOTS_KEPT,),
            )

    def _write_kept(self, connection: sqlite3.Connection, logp_dtype: np.dtype[Any]) -> None:
        rows, tokens, embeddings = [], [], []
        stored = Stored.of(np.array([kept.serial for kept in self.kept]), [kept.trajectory for kept in self.kept])
        for kept, one in zip(self.kept, stored.each(), strict=True):
            number, trajectory = kept.number, kept.trajectory
            row = _row_of(kept, one)
            rows.append((*row, schema.checksum("trajectory", row)))
            ids = trajectory.completion_ids.astype("<i4").tobytes()
            logps = trajectory.behaviour_logps.astype(logp_dtype).tobytes()
            tokens.append((number, ids, logps, schema.checksum_of_bytes(number, ids, logps)))
            if trajectory.embedding is not None:
                vector = trajectory.embedding.astype("<f2").tobytes()
                embeddings.append((number, vector, schema.checksum_of_bytes(number, vector)))
        connection.executemany(schema.INSERT["trajectory"], rows)
        connection.executemany("INSERT INTO tokens VALUES (?, ?, ?, ?)", tokens)
        connection.executemany("INSERT INTO embedding VALUES (?, ?, ?)", embeddings)


def _row_of(kept: Kept, stored: Stored) -> tuple[Any, ...]:
    trajectory = kept.trajectory
    rewards = json.dumps([null(reward) for reward in trajectory.rewards.tolist()])
    dimension = 0 if trajectory.embedding is None else len(trajectory.embedding)
    return (
        kept.seq, kept.branch, kept.number, kept.generation, stored.step, kept.question, len(trajectory),
        signed(stored.digest), rewards, null(stored.entropy), stored.measured_at, trajectory.finish_reason, kept.origin,
        *scores_of(stored), dimension,
    )  # fmt: skip
