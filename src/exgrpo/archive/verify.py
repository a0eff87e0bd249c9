"""Verification of a log: everything is read, every damage is listed, nothing is changed."""

import contextlib
import hashlib
import json
import re
import sqlite3
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DamagedLogError, ExperienceLogError
from ..experience.replayed import snapshot_of
from ..experience.trajectory import IntArray
from ..log import schema
from ..log.codec import DIGEST_MASK
from ..log.connection import connect, explained
from ..log.question_map import snapshot_from_log
from ..log.reader import LogReader
from ..log.rebuild import empty_buffer, rebuild
from ..log.records import Position, Provenance
from ..log.snapshot import differences

NAME = "exgrpo.json"
LISTED = 100
"""Findings of one kind that are listed one by one."""

META = {
    "id": r"[0-9a-f]{32}",
    "created": r"\d{4}-\d\d-\d\dT.+",
    "needs": r"\d+(\.\d+)*",
    "pruned": r"\d{4}-\d\d-\d\dT.+",
}
SEQS, TRAJECTORIES, QUESTIONS = "seq", "trajectory", "question"


@dataclass(frozen=True)
class Finding:
    """One damage: the table or part of the file, the row, and what is wrong."""

    where: str
    row: int | str | None
    what: str

    def __str__(self) -> str:
        return f"{self.where}{'' if self.row is None else f' {self.row}'}: {self.what}"


def checkpoints_beside(log: str, *folders: Path) -> dict[Path, Position]:
    """Return the checkpoints that refer to a log, and their positions in it, the earliest step first.

    Folders are searched whatever their names.

    Raises:
        ExperienceLogError: what one refers to cannot be read now.
    """
    found: dict[Path, Position] = {}
    for path in {path for folder in folders for path in folder.resolve().glob(f"*/{NAME}")}:
        try:
            place = json.loads(path.read_text(encoding="utf-8"))["log"]
            position = Position(str(place["log"]), int(place["branch"]), int(place["seq"]))
        except OSError as error:
            raise ExperienceLogError(
                f"{path} cannot be read ({error}), so what this checkpoint needs of the log is not known. Make it readable, or "
                "move the checkpoint away."
            ) from error
        except (ValueError, KeyError, TypeError):  # not a checkpoint to resume from
            continue
        if position.log == log:
            found[path.parent] = position
    return dict(sorted(found.items(), key=lambda item: (*_step_of(item[0]), item[1].seq)))


def _step_of(checkpoint: Path) -> tuple[bool, int]:
    """Return a sort key by the step in a checkpoint's name; those without one come last."""
    number = checkpoint.name.rpartition("-")[2]
    return not number.isdecimal(), int(number) if number.isdecimal() else 0


def verify(path: Path | str) -> list[Finding]:
    """List all damage of a log, and of what checkpoints beside it need of it; empty where there is none.

    Looks at the structure of the file (SQLite's integrity check), the schema, every checksum, the numbers of events, what
    rows say of each other, and the tokens and embeddings of every trajectory; then rebuilds the buffer at every branch's
    end, every checkpoint and every snapshot from the first event on.

    Raises:
        ExperienceLogError: there is no such file, it is no log, or one of another schema.
    """
    path = Path(path)
    try:
        connection = connect(path)
    except DamagedLogError as error:
        return [Finding("file", None, _cause(error))]
    connection.text_factory = lambda raw: raw.decode(
        "utf-8", "surrogateescape"
    )  # damaged text is found by its checksum
    with contextlib.closing(connection):
        verification = _Verification(path, connection)
        with verification.guarded("file"):
            connection.execute("BEGIN")  # one consistent state, even while it is written
        verification.structure()
        verification.records()
        verification.events()
        verification.tokens()
        verification.embeddings()
        with verification.guarded("file"):
            verification.buffers(LogReader(path, connection))
        return verification.listed()


class _Verification:
    """The findings so far."""

    def __init__(self, path: Path, connection: sqlite3.Connection):
        self.path, self._connection = path, connection
        self._findings: list[Finding] = []
        self._events_are_sound = True
        self._numbers: dict[str, set[int]] = {"question": set(), "origin": set(), "branch": set(), "trajectory": set()}
        self._origins: dict[int, Provenance] = {}
        self._branches: list[tuple[Any, ...]] = []

    def add(self, where: str, row: int | str | None, what: str) -> None:
        self._findings.append(Finding(where, row, what))

    def listed(self) -> list[Finding]:
        """Return the findings; where one kind concerns very many rows of a table, only the first of them."""
        listed: list[Finding] = []
        kinds: dict[tuple[str, str], int] = {}
        for finding in self._findings:
            kind = (finding.where, re.sub(r"\d+", "#", finding.what))
            kinds[kind] = kinds.get(kind, 0) + 1
            if kinds[kind] <= LISTED:
                listed.append(finding)
        more = {kind: count - LISTED for kind, count in kinds.items() if count > LISTED}
        return [*listed, *(Finding(where, None, f"{n} more rows: {what}") for (where, what), n in more.items())]

    @contextlib.contextmanager
    def guarded(self, where: str) -> Iterator[None]:
        """Record what cannot be read as a finding, and go on elsewhere."""
        try:
            with explained(self.path, f"reading {where}"):
                yield
        except ExperienceLogError as error:
            if isinstance(error.__cause__, (sqlite3.Error, MemoryError)) and not isinstance(error, DamagedLogError):
                raise  # an error of locks, memory or the file system, not of the log
            self.add(where, None, _cause(error))
            self._events_are_sound = self._events_are_sound and where not in schema.EVENTS

    # The file ---------------------------------------------------------------------------------------------------

    def structure(self) -> None:
        with self.guarded("file"):
            for (said,) in self._connection.execute(f"PRAGMA integrity_check({LISTED})"):
                if said != "ok":
                    self.add("file", None, said)
        with self.guarded("schema"):
            version = self._connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in schema.READABLE:
                self.add("schema", None, f"version {version} was never written")
            with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
                schema.create(fresh, version)
                wanted, found = _objects(fresh), _objects(self._connection)
            for name in sorted(wanted.keys() | found.keys()):
                if wanted.get(name) != found.get(name) and not name.startswith("sqlite_stat"):
                    what = "missing" if name not in found else "not of this schema" if name in wanted else "not ours"
                    self.add("schema", name, what)
        with self.guarded("meta"):
            meta = dict(self._connection.execute("SELECT key, value FROM meta"))
            for key in META.keys() | meta.keys():
                if key != "pruned" and (key not in meta or key not in META):
                    self.add("meta", key, "missing" if key in META else "unknown")
                elif key in meta and not re.fullmatch(META[key], str(meta[key])):
                    self.add("meta", key, f"has the value {meta[key]!r}")

    # Rows that are no events ------------------------------------------------------------------------------------

    def records(self) -> None:
        for table in schema.FACTS:
            with self.guarded(table):
                for *values, crc in self._connection.execute(schema.SELECT_FACTS[table]):
                    self._numbers[table].add(values[0])
                    if schema.checksum(table, tuple(values)) != crc:
                        self.add(table, values[0], "is not what was written")
                    elif table == "origin":
                        self._origins[values[0]] = Provenance.from_json(values[1])
                    elif table == "branch":
                        self._branches.append(tuple(values))
        for number, parent, _, _, _, _, origin, *_ in self._branches:
            if parent is not None and parent not in self._numbers["branch"]:
                self.add("branch", number, f"its parent, branch {parent}, is missing")
            if origin not in self._numbers["origin"]:
                self.add("branch", number, f"its origin {origin} is missing")
        with self.guarded("tokenizer"):
            known = {origin.tokenizer for origin in self._origins.values()} - {""}
            stored = dict(self._connection.execute("SELECT hash, json FROM tokenizer"))
            for digest, blob in stored.items():
                try:
                    json.loads(zlib.decompress(blob))
                except (zlib.error, ValueError, TypeError) as error:
                    self.add("tokenizer", digest, f"cannot be read ({error})")
                if digest not in known and known - stored.keys():  # else a run that ended before its first commit
                    self.add("tokenizer", digest, "belongs to no origin, and one lacks its tokenizer")

    # Events -----------------------------------------------------------------------------------------------------

    def events(self) -> None:
        """Check checksums, gaps in numbers, and references to missing rows."""
        numbers: list[IntArray] = []
        for table in ("trajectory", *(name for name in schema.tables_of(self._connection) if name != "trajectory")):
            numbers.append(self._events_of(table))
        seqs = np.concatenate(numbers)
        for number, _, fork, first, *_ in self._branches:
            own = np.sort(seqs[seqs[:, 0] == number, 1])
            self._check_numbers(number, first, own)
            if fork is not None and fork >= first:
                self.add("branch", number, f"begins at event {first}, but left its parent later, at {fork}")
        for number in sorted(set(seqs[:, 0].tolist()) - self._numbers["branch"]):
            self.add("branch", number, "is missing, but has events")

    def _events_of(self, table: str) -> IntArray:
        """Return branch and number of each event of a table, (n, 2)."""
        columns = schema.EVENTS[table]
        places = {name: columns.index(name) + 1 for name in ("question", "trajectory", "origin") if name in columns}
        rows: list[tuple[int, int]] = []
        with self.guarded(table):
            for *values, crc in self._connection.execute(f"SELECT seq, {', '.join(columns)}, crc FROM {table}"):
                if schema.checksum(table, tuple(values)) != crc:
                    self.add(table, values[0], "is not what was written")
                    self._events_are_sound = False
                else:
                    for name, place in places.items():
                        if values[place] not in self._numbers[name]:
                            self.add(table, values[0], f"its {name} {values[place]} is missing")
                    if table == "trajectory":
                        self._numbers[table].add(values[2])
                with contextlib.suppress(TypeError, ValueError, OverflowError):
                    rows.append((int(values[1]), int(values[0])))
        return np.array(rows, np.int64).reshape(-1, 2)

    def _check_numbers(self, branch: int, first: int, seqs: IntArray) -> None:
        if not len(seqs):
            self.add("branch", branch, "has no events")
            return
        expected = np.arange(first, int(seqs[-1]) + 1) if seqs[-1] - first < 10 * len(seqs) + 10**6 else seqs
        missing = np.setdiff1d(expected, seqs)
        if len(missing):
            shown = ", ".join(map(str, missing[:5].tolist())) + (", ..." if len(missing) > 5 else "")
            self.add("branch", branch, f"{len(missing)} of its events are missing: {shown}")
            self._events_are_sound = False
        with self.guarded("state"):
            sql = "SELECT 1 FROM state WHERE seq = ?"
            if self._connection.execute(sql, (int(seqs[-1]),)).fetchone() is None:
                self.add("branch", branch, f"its last event, {int(seqs[-1])}, is not the end of a commit")

    def tokens(self) -> None:
        """Check the tokens of every trajectory, unless they were pruned."""
        with self.guarded("tokens"):
            sql = (
                "SELECT t.id, t.length, t.digest, k.completion_ids, k.behaviour_logps, k.crc FROM trajectory t "
                "LEFT JOIN tokens k ON k.id = t.id"
            )
            for number, length, digest, ids, logps, crc in self._connection.execute(sql):
                if crc is None:
                    self.add("tokens", number, "missing")
                elif not (isinstance(length, int) and isinstance(digest, int)):
                    continue  # damage of its trajectory, which is listed there
                elif not (isinstance(ids, bytes) and isinstance(logps, bytes)):
                    self.add("tokens", number, "not what was written: no bytes")
                elif schema.checksum_of_bytes(number, ids, logps) != crc:
                    self.add("tokens", number, "not what was written")
                elif (ids or logps) and (4 * length != len(ids) or len(logps) not in (2 * length, 4 * length)):
                    self.add("tokens", number, f"of another length than the {length} of its trajectory")
                elif ids and _digest(ids) != digest & DIGEST_MASK:
                    self.add("tokens", number, "others than were stored")
            sql = "SELECT id FROM tokens WHERE id NOT IN (SELECT id FROM trajectory)"
            for (number,) in self._connection.execute(sql):
                self.add("tokens", number, "their trajectory is missing")

    def embeddings(self) -> None:
        """Check that exactly the trajectories stored with an embedding have one."""
        with self.guarded("embedding"):
            sql = (
                "SELECT t.id, t.dimension, e.vector, e.crc FROM trajectory t LEFT JOIN embedding e ON e.id = t.id "
                "WHERE t.dimension != 0 OR e.id NOTNULL"
            )
            for number, dimension, vector, crc in self._connection.execute(sql):
                if crc is None:
                    self.add("embedding", number, "missing")
                elif not isinstance(vector, bytes) or schema.checksum_of_bytes(number, vector) != crc:
                    self.add("embedding", number, "not what was written")
                elif isinstance(dimension, int) and len(vector) != 2 * dimension:
                    self.add("embedding", number, f"of another length than the {dimension} of its trajectory")
            sql = "SELECT id FROM embedding WHERE id NOT IN (SELECT id FROM trajectory)"
            for (number,) in self._connection.execute(sql):
                self.add("embedding", number, "its trajectory is missing")

    # What follows from the events -------------------------------------------------------------------------------

    def buffers(self, reader: LogReader) -> None:
        """Rebuild the buffer at the end of every branch, at every checkpoint beside the log, and at every snapshot."""
        for position in reader.ends():
            is_head = position.branch == reader.head
            self._rebuilt(reader, position, "branch", position.branch, with_tokens=is_head)
        for folder, position in checkpoints_beside(reader.id, self.path.resolve().parent).items():
            sql = "SELECT 1 FROM state WHERE seq = ? AND branch = ?"
            if self._connection.execute(sql, (position.seq, position.branch)).fetchone() is None:
                where = f"event {position.seq} of branch {position.branch}"
                self.add("checkpoint", folder.name, f"refers to {where}, which is not here")
            else:
                self._rebuilt(reader, position, "checkpoint", folder.name)
        sql = "SELECT s.seq, t.branch FROM snapshot s LEFT JOIN state t ON t.seq = s.seq"
        for seq, branch in self._connection.execute(sql).fetchall():
            if branch is None:
                self.add("snapshot", seq, "is not at the end of a commit")
            else:
                self._check_snapshot(reader, Position(reader.id, branch, seq))

    def _rebuilt(
        self, reader: LogReader, position: Position, where: str, row: int | str, with_tokens: bool = True
    ) -> None:
        """Rebuild a buffer and, where a run may go on, read the tokens of what is stored in it."""
        with self.guarded(where):
            buffer = empty_buffer(reader, position)
            try:
                rebuild(reader, buffer, position, use_snapshot=False)
            except ExperienceLogError as error:
                if self._events_are_sound:
                    self.add(where, row, _cause(error))
                return
            if not with_tokens:
                return
            lineage = reader.lineage(position)
            ends = [span.first_serial for span in lineage[1:]] + [buffer.next_serial]
            stored = np.sort(buffer.column("serial")[buffer.live_slots()])
            for span, end in zip(lineage, ends, strict=True):
                base = span.branch << schema.SERIAL_BITS
                own = stored[(stored >= span.first_serial) & (stored < end)]
                sql = "SELECT id FROM tokens WHERE completion_ids = x'' AND id BETWEEN ? AND ?"
                ids = self._connection.execute(sql, (base, base + (1 << schema.SERIAL_BITS) - 1))
                gone = {number - base for (number,) in ids} & set(own.tolist())
                for serial in sorted(gone):
                    self.add(where, row, f"the tokens of trajectory {base + serial} were pruned, but it is stored")

    def _check_snapshot(self, reader: LogReader, position: Position) -> None:
        with self.guarded("snapshot"):
            lineage = reader.lineage(position)
            seq, arrays = reader.snapshot(lineage) or (None, {})
            if seq != position.seq:
                self.add("snapshot", position.seq, "cannot be found")
                return
            buffer = empty_buffer(reader, position)
            try:
                rebuild(reader, buffer, position, use_snapshot=False)
            except ExperienceLogError as error:
                if self._events_are_sound:
                    self.add("snapshot", position.seq, _cause(error))
                return
            try:
                found = snapshot_from_log(arrays, buffer.num_questions)
                different = differences(found, snapshot_of(buffer))
            except (IndexError, ValueError, KeyError) as error:
                self.add("snapshot", position.seq, f"does not fit the questions of the log ({error})")
                return
            for name in different:
                self.add("snapshot", position.seq, f"its {name} is not what follows from the events")


def _digest(ids: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(ids, digest_size=8).digest(), "little")


def _objects(connection: sqlite3.Connection) -> dict[str, tuple[Any, ...]]:
    """Return tables, views and indices by name."""
    return {row[0]: row[1:] for row in connection.execute("SELECT name, type, tbl_name, sql FROM sqlite_schema")}


def _cause(error: ExperienceLogError) -> str:
    """Return only what happened from a message for users."""
    return re.sub(r"^.*? is damaged: |\. Nothing was changed\..*", "", str(error), flags=re.DOTALL)
