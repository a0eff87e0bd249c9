"""One commit: records gathered in memory become rows, bytes and checksums when written."""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..experience.columns import SCALARS, STORED
from ..experience.events import Stored
from ..experience.trajectory import Trajectory
from . import schema
from .codec import null, to_sql

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
    """The content of one transaction; it no longer changes once it is handed to the writer.

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
        """Return a copy that ends with the given state; this one stays as it is, to be tried again."""
        at = None if snapshot is None else (state[0], snapshot)
        return Commit(self.rows | {"state": [state]}, self.kept, at, durable)

    def write(self, connection: sqlite3.Connection, logp_dtype: np.dtype[Any]) -> None:
        """Write into the open transaction.

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
        tokens, embeddings = [], []
        rows = [(*row, schema.checksum("trajectory", row)) for row in _rows_of(self.kept)]
        for kept in self.kept:
            number, trajectory = kept.number, kept.trajectory
            ids = trajectory.completion_ids.astype("<i4").tobytes()
            logps = trajectory.behaviour_logps.astype(logp_dtype).tobytes()
            tokens.append((number, ids, logps, schema.checksum_of_bytes(number, ids, logps)))
            if trajectory.embedding is not None:
                vector = trajectory.embedding.astype("<f2").tobytes()
                embeddings.append((number, vector, schema.checksum_of_bytes(number, vector)))
        connection.executemany(schema.INSERT["trajectory"], rows)
        connection.executemany("INSERT INTO tokens VALUES (?, ?, ?, ?)", tokens)
        connection.executemany("INSERT INTO embedding VALUES (?, ?, ?)", embeddings)


def _rows_of(kept: Sequence[Kept]) -> Iterator[tuple[Any, ...]]:
    """Yield rows of the table `trajectory`, without their checksums."""
    trajectories = [one.trajectory for one in kept]
    stored = Stored.of(np.array([one.serial for one in kept]), trajectories)
    found = {column.name: to_sql(column, getattr(stored, column.name).tolist()) for column in STORED}
    for column in SCALARS:
        if column not in STORED:
            found[column.name] = to_sql(column, [getattr(one, column.attribute) for one in trajectories])
    found |= {
        name: [getattr(one, name) for one in kept] for name in ("seq", "branch", "generation", "question", "origin")
    }
    found |= {
        "id": [one.number for one in kept],
        "length": [len(one) for one in trajectories],
        "rewards": [json.dumps([null(reward) for reward in one.rewards.tolist()]) for one in trajectories],
        "dimension": [0 if one.embedding is None else len(one.embedding) for one in trajectories],
    }
    return zip(*(found[name] for name in ("seq", *schema.EVENTS["trajectory"])), strict=True)
