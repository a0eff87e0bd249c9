"""Reader of a log: which events count, in which order, with their checksums checked."""

import heapq
import json
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DamagedLogError, ExperienceLogError, TrajectoryError
from ..experience.columns import SCALARS
from ..experience.events import Event, PlannerState
from ..experience.trajectory import MAX_STEPS, Trajectory
from . import schema
from .codec import DIGEST_MASK, SERIAL_MASK, event_of, from_sql, nan
from .connection import connect, damaged, explained
from .records import Branch, Position, Provenance, QuestionRecord, Span
from .snapshot import unpacked

_TRAJECTORY = (
    f"SELECT {', '.join(f't.{name}' for name in ('seq', *schema.EVENTS['trajectory'], 'crc'))}, k.id, k.completion_ids, "
    "k.behaviour_logps, k.crc FROM trajectory t LEFT JOIN tokens k ON k.id = t.id WHERE t.id = ?"
)


class LogReader:
    """A reader of a log file; questions have the log's numbers.

    Args:
        path: of the file.
        connection: opened by `connect`; one that only reads, by default.
    """

    def __init__(self, path: Path | str, connection: sqlite3.Connection | None = None):
        self.path = Path(path)
        self.connection = connection or connect(self.path)
        with explained(self.path, "reading its heading"):
            self.id: str = self._one("SELECT value FROM meta WHERE key = 'id'")
            self.tables = schema.tables_of(self.connection)
            self.branches = self.read_branches()

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> "LogReader":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield rows of one of our queries; an SQLite error here means damage."""
        with explained(self.path, "reading"):
            for row in self.connection.execute(sql, parameters):  # noqa: UP028 - it would close the cursor after the file
                yield row

    def _one(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        row = self.connection.execute(sql, parameters).fetchone()
        if row is None:
            raise damaged(self.path, "a row is missing that must be there")
        return row[0]

    # Branches ---------------------------------------------------------------------------------------------------

    def read_branches(self) -> dict[int, Branch]:
        """Return all branches by number, as they are in the file now."""
        return {values[0]: Branch(*values) for values in self._records("branch")}

    def _records(self, table: str) -> Iterator[tuple[Any, ...]]:
        for row in self.rows(schema.SELECT_FACTS[table]):
            self._check(table, row[:-1], row[-1])
            yield row[:-1]

    @property
    def head(self) -> int | None:
        """The newest branch; None in a log to which nothing was written yet."""
        return max(self.branches, default=None)

    def end(self) -> int:
        """Return the number of the last committed event; 0: none."""
        with explained(self.path, "reading its end"):
            return int(self._one("SELECT coalesce(max(seq), 0) FROM state"))

    def position(self) -> Position | None:
        """Return the end of the newest branch; None in a log to which nothing was written yet."""
        return None if self.head is None else Position(self.id, self.head, self._last_of(self.head))

    def _last_of(self, branch: int) -> int:
        """Return the last event that a branch sees: its own, or where it left its parent."""
        (last,) = next(self.rows("SELECT max(seq) FROM state WHERE branch = ?", (branch,)))
        return int(last if last is not None else self.branches[branch].fork_seq or 0)

    def ends(self) -> list[Position]:
        """List the end of each branch, oldest branch first."""
        return [Position(self.id, branch, self._last_of(branch)) for branch in sorted(self.branches)]

    def _was_pruned(self) -> bool:
        return next(self.rows("SELECT 1 FROM meta WHERE key = 'pruned'"), None) is not None

    def _is_commit(self, branch: int, seq: int) -> bool:
        sql = "SELECT 1 FROM state WHERE seq = ? AND branch = ?"
        return next(self.rows(sql, (seq, branch)), None) is not None

    def _is_gone(self, position: Position) -> bool:
        """Return whether a position was pruned: a pruned log has no state there any more."""
        return self._was_pruned() and not self._is_commit(position.branch, position.seq)

    def lineage(self, position: Position | None = None) -> tuple[Span, ...]:
        """Return the spans of events that count at a position, oldest branch first.

        Raises:
            ExperienceLogError: a position of another log, or one that was pruned.
            DamagedLogError: a position that this log does not reach.
        """
        position = position or self.position()
        if position is None:
            return ()
        if position.log != self.id:
            raise ExperienceLogError(
                f"{self.path} is not the log that was asked for: its id is {self.id}, that of the checkpoint {position.log}. "
                "Put the log of this run back, or start with experience_from and without resume_from_checkpoint."
            )
        if position.seq and self._is_gone(position):
            raise ExperienceLogError(
                f"{self.path}: event {position.seq} of branch {position.branch} was pruned: no checkpoint beside the log "
                "needed it then. Resume from a later one."
            )
        if position.branch not in self.branches or position.seq > self.end():
            raise damaged(
                self.path,
                f"it ends at event {self.end()}, but event {position.seq} of branch {position.branch} was committed",
            )
        spans: list[Span] = []
        branch: int | None = position.branch
        last = position.seq
        while branch is not None:
            found = self.branches.get(branch)
            if found is None:
                raise damaged(self.path, f"branch {branch} is missing, which others continue")
            if last >= found.first_seq and not self._is_commit(branch, last):
                raise damaged(self.path, f"event {last} of branch {branch} was committed, but is not there")
            spans.append(Span(branch, found.first_seq, last, found.first_serial))
            branch, last = found.parent, found.fork_seq or 0
        return tuple(reversed(spans))

    # Questions and origins --------------------------------------------------------------------------------------

    def questions(self) -> Iterator[tuple[int, QuestionRecord]]:
        for values in self._records("question"):
            yield values[0], QuestionRecord(*values[1:])

    def origins(self) -> dict[int, Provenance]:
        return {number: Provenance.from_json(text) for number, text in self._records("origin")}

    def origin_of(self, branch: int) -> Provenance:
        """Return the provenance of a branch."""
        if branch not in self.branches:
            raise damaged(self.path, f"branch {branch} is missing")
        origin = self.origins().get(self.branches[branch].origin)
        if origin is None:
            raise damaged(self.path, f"the origin of branch {branch} is missing")
        return origin

    def tokenizer(self, digest: str) -> str | None:
        """Return a tokenizer by its hash, as JSON of the `tokenizers` library; None if the log has none such."""
        for (blob,) in self.rows("SELECT json FROM tokenizer WHERE hash = ?", (digest,)):
            try:
                return zlib.decompress(blob).decode()
            except (zlib.error, UnicodeDecodeError) as error:
                raise damaged(self.path, f"a tokenizer cannot be read ({error})") from error
        return None

    # Events -----------------------------------------------------------------------------------------------------

    def events(self, lineage: Sequence[Span], after: int = 0, next_serial: int = 0) -> Iterator[tuple[int, Event]]:
        """Yield the events that count, with their numbers, in order.

        Args:
            lineage: of a position.
            after: only those with higher numbers.
            next_serial: of the trajectories at `after`, which spares reading those before.

        Raises:
            DamagedLogError: an event is missing, or is not what was written.
        """
        for span in lineage:
            first = max(span.first, after + 1)
            if first <= span.last:
                yield from self._events_of(span, first, next_serial)

    def _events_of(self, span: Span, first: int, next_serial: int) -> Iterator[tuple[int, Event]]:
        expected = first
        streams = [self._rows_of(table, span, first, next_serial) for table in self.tables]
        for seq, table, values in heapq.merge(*streams, key=itemgetter(0)):
            if seq != expected:
                raise damaged(self.path, f"event {expected} of branch {span.branch} is missing")
            expected += 1
            event = event_of(table, values)
            if event is not None:
                yield seq, event
        if expected != span.last + 1:
            raise damaged(self.path, f"event {expected} of branch {span.branch} is missing")

    def _rows_of(
        self, table: str, span: Span, first: int, next_serial: int
    ) -> Iterator[tuple[int, str, tuple[Any, ...]]]:
        parameters: tuple[int, ...] = (span.branch, first, span.last)
        sql = schema.SELECT_EVENT[table]
        if table == "trajectory":  # in order of their ids, which begin with the branch
            base = span.branch << schema.SERIAL_BITS
            sql = sql.replace("WHERE", "WHERE id BETWEEN ? AND ? AND").replace("ORDER BY seq", "ORDER BY id")
            parameters = (base | max(next_serial, span.first_serial), base | SERIAL_MASK, *parameters)
        for row in self.rows(sql, parameters):
            self._check(table, row[:-1], row[-1])
            yield row[0], table, row[1:-1]

    # Trajectories -----------------------------------------------------------------------------------------------

    def trajectory(self, number: int, question_of: Callable[[int], int] = int) -> Trajectory:
        """Read a trajectory by its id, wherever it counts; `question_of` translates its question's number.

        Raises:
            ExperienceLogError: its tokens were pruned.
            DamagedLogError: it is not there, or not what was written.
        """
        with explained(self.path, "reading"):
            found = self.connection.execute(_TRAJECTORY, (number,)).fetchone()
        if found is None:
            raise damaged(self.path, f"trajectory {number} is missing")
        *values, crc = found[:-4]
        self._check("trajectory", tuple(values), crc)
        row = dict(zip(schema.EVENTS["trajectory"], values[1:], strict=True))
        ids, logps = self._tokens(number, *found[-4:])
        try:
            rewards = np.array([nan(reward) for reward in json.loads(row["rewards"])])
            scalars = {column.name: from_sql(column, row[column.name]) for column in SCALARS}
            embedding = self._embedding(number, row["dimension"])
            trajectory = Trajectory(question_of(row["question"]), ids, logps, rewards, **scalars, embedding=embedding)
        except (TrajectoryError, ValueError) as error:
            raise damaged(self.path, f"trajectory {number}: {error}") from error
        if len(trajectory) != row["length"] or trajectory.digest != row["digest"] & DIGEST_MASK:
            raise damaged(self.path, f"trajectory {number} has other tokens than were stored")
        return trajectory

    def _tokens(
        self, number: int, found: int | None, ids: Any, logps: Any, crc: Any
    ) -> tuple[NDArray[np.int32], NDArray[np.floating[Any]]]:
        if found is None:
            raise damaged(self.path, f"the tokens of trajectory {number} are missing")
        if ids == b"" == logps and schema.checksum_of_bytes(number, b"", b"") == crc:
            raise ExperienceLogError(
                f"{self.path}: the tokens of trajectory {number} were pruned. What needs them is older than what was kept: "
                "resume from a later checkpoint."
            )
        are_bytes = isinstance(ids, bytes) and isinstance(logps, bytes)
        if not are_bytes or schema.checksum_of_bytes(number, ids, logps) != crc or len(ids) % 4:
            raise damaged(self.path, f"the tokens of trajectory {number} are not what was written")
        half = len(logps) * 2 == len(ids)
        return np.frombuffer(ids, "<i4"), np.frombuffer(logps, "<f2" if half else "<f4")

    def _embedding(self, number: int, dimension: int) -> NDArray[np.float16] | None:
        if not dimension:
            return None
        row = next(self.rows("SELECT vector, crc FROM embedding WHERE id = ?", (number,)), (None, None))
        return self._vector(number, dimension, *row)

    def _vector(self, number: int, dimension: int, vector: Any, crc: int | None) -> NDArray[np.float16]:
        if crc is None:
            raise damaged(self.path, f"the embedding of trajectory {number} is missing")
        is_whole = isinstance(vector, bytes) and len(vector) == 2 * dimension
        if not is_whole or schema.checksum_of_bytes(number, vector) != crc:
            raise damaged(self.path, f"the embedding of trajectory {number} is not what was written")
        return np.frombuffer(vector, "<f2").astype(np.float16, copy=False)

    def embeddings(
        self, lineage: Sequence[Span], encoder: str | None = None, question_of: Callable[[int], int] = int
    ) -> Iterator[tuple[int, int, NDArray[np.float16]]]:
        """Yield serial, question and embedding (D,) of each embedded trajectory of a lineage, by serial.

        Those that left since are included.

        Args:
            lineage: of a position.
            encoder: only those made with the encoder of that name; of all by default.
            question_of: translates the number of a question.

        Raises:
            DamagedLogError: one is missing, or is not what was written.
        """
        columns = ", ".join(f"t.{name}" for name in ("seq", *schema.EVENTS["trajectory"], "crc"))
        sql = (
            f"SELECT {columns}, e.vector, e.crc FROM trajectory t LEFT JOIN embedding e ON e.id = t.id "
            "WHERE t.id BETWEEN ? AND ? AND t.seq <= ? AND t.dimension != 0 ORDER BY t.id"
        )
        places = [schema.EVENTS["trajectory"].index(name) + 1 for name in ("id", "question", "dimension", "origin")]
        origins = self.origins()
        for span in lineage:
            base = span.branch << schema.SERIAL_BITS
            for *row, crc, vector, vector_crc in self.rows(sql, (base, base | SERIAL_MASK, span.last)):
                self._check("trajectory", tuple(row), crc)
                number, question, dimension, origin = (row[place] for place in places)
                if encoder is None or origins[origin].embedding == encoder:
                    embedding = self._vector(number, dimension, vector, vector_crc)
                    yield number & SERIAL_MASK, question_of(question), embedding

    # States -----------------------------------------------------------------------------------------------------

    def state(self, position: Position) -> PlannerState:
        """Return the planner's state at a position, the end of a commit; questions as numbered here."""
        _, generation, step, gate_open, pass_at_1, pass_number, cursor, deferred, tokens, reviewed, _ = self._row_of(
            "state", "seq", position.seq
        )
        waiting = tuple(json.loads(deferred))
        return PlannerState(
            generation, step, bool(gate_open), pass_at_1, pass_number, cursor, waiting, tokens, reviewed
        )

    def recent(self, lineage: Sequence[Span], completions: int) -> tuple[tuple[int, int], ...]:
        """Return successes and scorable completions of the latest generations, the oldest first.

        As many generations of the lineage as together hold at least `completions` scorable ones; all where they hold
        fewer.
        """
        names = ["seq", *schema.EVENTS["observation"]]
        places = [names.index(name) for name in ("generation", "successes", "scorable")]
        sql = (
            f"SELECT {', '.join(names)}, crc FROM observation WHERE branch = ? AND seq BETWEEN ? AND ? AND generation >= 0 "
            "ORDER BY seq DESC"
        )
        found: dict[int, tuple[int, int]] = {}
        for span in reversed(lineage):
            for *row, crc in self.rows(sql, (span.branch, span.first, span.last)):
                self._check("observation", tuple(row), crc)
                generation, successes, scorable = (row[place] for place in places)
                if generation not in found and sum(n for _, n in found.values()) >= completions:
                    return tuple(found.values())[::-1]
                before = found.get(generation, (0, 0))
                if scorable:
                    found[generation] = (before[0] + successes, before[1] + scorable)
        return tuple(found.values())[::-1]

    def prefix_fraction(self, lineage: Sequence[Span]) -> float | None:
        """Return what `controlled` prefixes aim at, at the end of a lineage; None where they did not move yet."""
        if "continuation" not in self.tables:
            return None
        names = ["seq", *schema.EVENTS["continuation"]]
        sql = (
            f"SELECT {', '.join(names)}, crc FROM continuation WHERE branch = ? AND seq BETWEEN ? AND ? "
            "ORDER BY seq DESC LIMIT 1"
        )
        for span in reversed(lineage):
            for *row, crc in self.rows(sql, (span.branch, span.first, span.last)):
                self._check("continuation", tuple(row), crc)
                fraction: float | None = row[names.index("fraction")]
                return fraction
        return None

    def latest_generation(self, lineage: Sequence[Span]) -> tuple[int, int] | None:
        """Return number and optimizer step of the last generation that began; None if there was none."""
        for span in reversed(lineage):
            sql = "SELECT generation, step FROM generation WHERE branch = ? AND seq <= ? ORDER BY seq DESC LIMIT 1"
            for generation, step in self.rows(sql, (span.branch, span.last)):
                return int(generation), int(step)
        return None

    def position_at_step(self, step: int) -> Position:
        """Return the last commit with at most `step` optimizer steps, on the newest branch and its ancestors."""
        if (found := self.commit_at(self.lineage(), step)) is not None:
            return found
        raise ExperienceLogError(f"{self.path} holds nothing at or before step {step}.")

    def commit_at(self, lineage: Sequence[Span], step: int) -> Position | None:
        """Return the last commit of a lineage with at most `step` optimizer steps; None: there is none."""
        step = max(-MAX_STEPS, min(step, MAX_STEPS))  # as far as a step of a log goes
        for span in reversed(lineage):
            sql = "SELECT max(seq) FROM state WHERE branch = ? AND seq <= ? AND step <= ?"
            for (seq,) in self.rows(sql, (span.branch, span.last, step)):
                if seq is not None:
                    return Position(self.id, span.branch, seq)
        return None

    def snapshot(self, lineage: Sequence[Span]) -> tuple[int, dict[str, NDArray[Any]]] | None:
        """Return the newest snapshot that counts, as the number of its event and its arrays; None if there is none."""
        for span in reversed(lineage):
            sql = (
                "SELECT c.seq, c.data, c.crc FROM snapshot c JOIN state s ON s.seq = c.seq AND s.branch = ? "
                "WHERE c.seq BETWEEN ? AND ? ORDER BY c.seq DESC LIMIT 1"
            )
            for seq, data, crc in self.rows(sql, (span.branch, span.first, span.last)):
                if not isinstance(data, bytes) or schema.checksum_of_bytes(seq, data) != crc:
                    raise damaged(self.path, f"the snapshot at event {seq} is not what was written")
                return seq, unpacked(data)
        return None

    def _row_of(self, table: str, key: str, value: int) -> tuple[Any, ...]:
        """Return the event of a number or id, from its branch on."""
        sql = f"SELECT seq, {', '.join(schema.EVENTS[table])}, crc FROM {table} WHERE {key} = ?"
        for row in self.rows(sql, (value,)):
            self._check(table, row[:-1], row[-1])
            return row[1:-1]
        raise damaged(self.path, f"{table} {value} is missing")

    def _check(self, table: str, values: tuple[Any, ...], crc: int) -> None:
        if schema.checksum(table, values) != crc:
            raise damaged(self.path, f"row {values[0]} of {table} is not what was written")


__all__ = ["SERIAL_MASK", "DamagedLogError", "LogReader"]
