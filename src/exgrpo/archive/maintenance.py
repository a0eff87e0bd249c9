"""Maintenance of a log: prune and fork.

`verify` is in `verify.py`; `merge` and imports are in `merge.py`.
"""

import contextlib
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import ExperienceLogError
from ..experience.buffer import ExperienceBuffer
from ..experience.replayed import snapshot_of
from ..log import schema
from ..log.connection import WriterLock, connect, explained, now
from ..log.reader import LogReader
from ..log.rebuild import empty_buffer, rebuild
from ..log.records import Position
from ..log.snapshot import config_of
from ..log.writer import LogWriter
from .merge import Gathered, ListedQuestions, import_folder, merge
from .verify import Finding, checkpoints_beside, verify

PATIENCE_MS = 3000
GENERATIONS_KEPT = 2
"""A checkpoint in the middle of a generation needs what that one replays, also where it has left the buffer since."""


# Pruning ----------------------------------------------------------------------------------------------------------------


@dataclass
class Pruned:
    """A report of what was removed.

    Args:
        before_step: tokens of trajectories that had left before this step went.
        checkpoints: folders beside the log that can be resumed from as before.
        branches: that went entirely.
        events: that nothing sees any more, among them those of these branches.
        trajectories: that went with them.
        tokens: trajectories that left earlier: their token ids and log-probs went, the rest of them stays.
        bytes_before, bytes_after: size of the file.
        note: what did not work.
    """

    before_step: int
    checkpoints: list[str] = field(default_factory=list)
    branches: list[int] = field(default_factory=list)
    events: int = 0
    trajectories: int = 0
    tokens: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    note: str | None = None


def prune(
    path: Path | str,
    before_step: int | None = None,
    dry_run: bool = False,
    also: Sequence[Path] = (),
    without_checkpoints: bool = False,
) -> Pruned:
    """Delete what nothing needs any more, and give the space back.

    Kept is whatever the end of the newest branch and the checkpoints beside the log need: their events, the embeddings of
    all that ever was stored (the diversity of later ones is measured against them), and the tokens of what is stored there,
    or was at any time since `before_step`.

    Args:
        path: of the log.
        before_step: tokens of trajectories that left before this optimizer step go; by default the step of the earliest
            checkpoint beside the log, or the end where there is none.
        dry_run: only tell what would go.
        also: folders with further `checkpoint-*` folders that must stay usable.
        without_checkpoints: go on where checkpoints were saved, but none is found.

    Raises:
        LogInUseError: a trainer writes it.
        DamagedLogError: it cannot be trusted; nothing was deleted.
    """
    named, path = Path(path).absolute(), Path(path).resolve()
    connect(path).close()  # raises if it is not a log
    lock = WriterLock(path)
    lock.acquire()
    try:
        with contextlib.closing(connect(path, write=True)) as connection:
            reader = LogReader(path, connection)
            report = _prune(reader, before_step, dry_run, [named.parent, *also], without_checkpoints)
    finally:
        lock.release()
    report.bytes_after = path.stat().st_size
    return report


def _prune(
    reader: LogReader, before_step: int | None, dry_run: bool, also: Sequence[Path], without_checkpoints: bool
) -> Pruned:
    path, connection = reader.path, reader.connection
    head = reader.position()
    if head is None:
        raise ExperienceLogError(f"{path} holds nothing yet: nothing to prune.")
    beside = {
        folder: position
        for folder, position in checkpoints_beside(reader.id, path.parent, *also).items()
        if _is_there(reader, position)
    }
    (saved,) = next(reader.rows("SELECT count(*) FROM state WHERE checkpoint"))
    if saved and not beside and not without_checkpoints:
        raise ExperienceLogError(
            f"{path}: {saved} checkpoints were saved with this log, but none lies beside it. Name the folder that holds them "
            "(--checkpoints DIR), so that they can be resumed from afterwards; or, if they are gone, say --without_checkpoints."
        )
    steps = [reader.state(position).step for position in beside.values()]
    since = before_step if before_step is not None else min(steps, default=reader.state(head).step)
    report = Pruned(since, [folder.name for folder in beside], bytes_before=path.stat().st_size)
    with explained(path, "pruning"):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for position in {head, *beside.values()}:
                rebuild(
                    reader, empty_buffer(reader, position), position, use_snapshot=False
                )  # never prune a log that cannot be trusted
            kept = _kept_events(reader, [head, *beside.values()])
            needed = _needed_at(reader, head, since)
            for position in beside.values():
                needed |= _needed_at(reader, position, None)
            _delete(connection, kept, needed, report)
            connection.execute("ROLLBACK" if dry_run else "COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    if not dry_run:
        _give_back(connection, report)
    return report


def _is_there(reader: LogReader, position: Position) -> bool:
    """Return whether a position can be returned to; a checkpoint may be older than an earlier pruning, or a copy."""
    sql = "SELECT 1 FROM state WHERE seq = ? AND branch = ?"
    return next(reader.rows(sql, (position.seq, position.branch)), None) is not None


def _kept_events(reader: LogReader, positions: Iterable[Position]) -> dict[int, int]:
    """Return for each branch that any of these positions sees the last event that one does."""
    kept: dict[int, int] = {}
    for position in positions:
        for span in reader.lineage(position):
            kept[span.branch] = max(kept.get(span.branch, 0), span.last)
    return kept


def _needed_at(reader: LogReader, position: Position, since_step: int | None) -> set[int]:
    """Return the trajectories whose tokens may be needed at a position, or on its lineage from a step on."""
    lineage = reader.lineage(position)
    commit = position if since_step is None else reader.commit_at(lineage, since_step)
    since = 0 if commit is None else commit.seq
    needed, generation = set[int](), 0
    for span in lineage:
        here = (span.branch, span.last)
        ids = (span.branch << schema.SERIAL_BITS, (span.branch + 1) << schema.SERIAL_BITS)
        sql = "SELECT id FROM trajectory WHERE id BETWEEN ? AND ? AND seq <= ?"
        needed |= {number for (number,) in reader.rows(sql, (*ids, span.last))}
        sql = "SELECT trajectory FROM eviction WHERE branch = ? AND seq <= ? AND seq <= ?"
        needed -= {number for (number,) in reader.rows(sql, (*here, since))}
        sql = "SELECT coalesce(max(generation), 0) FROM generation WHERE branch = ? AND seq <= ? AND seq <= ?"
        for (last,) in reader.rows(sql, (*here, since)):
            generation = max(generation, last)
    for span in lineage:
        sql = "SELECT trajectory FROM replay WHERE branch = ? AND seq <= ? AND generation > ?"
        needed |= {n for (n,) in reader.rows(sql, (span.branch, span.last, generation - GENERATIONS_KEPT))}
    return needed


def _delete(connection: sqlite3.Connection, kept: dict[int, int], needed: set[int], report: Pruned) -> None:
    branches = [row[0] for row in connection.execute("SELECT id FROM branch")]
    report.branches = [branch for branch in branches if branch not in kept]
    for branch in branches:
        for table in schema.EVENTS:
            sql = f"DELETE FROM {table} WHERE branch = ? AND seq > ?"
            gone = connection.execute(sql, (branch, kept.get(branch, 0))).rowcount
            report.events += gone
            report.trajectories += gone if table == "trajectory" else 0
    for branch in report.branches:
        connection.execute("DELETE FROM branch WHERE id = ?", (branch,))
    connection.execute("DELETE FROM snapshot WHERE seq NOT IN (SELECT seq FROM state)")
    for table in ("tokens", "embedding"):
        connection.execute(f"DELETE FROM {table} WHERE id NOT IN (SELECT id FROM trajectory)")
    rows = connection.execute("SELECT id FROM tokens WHERE completion_ids != x''")
    unneeded = [(schema.checksum_of_bytes(number, b"", b""), number) for (number,) in rows if number not in needed]
    report.tokens = len(unneeded)
    sql = "UPDATE tokens SET completion_ids = x'', behaviour_logps = x'', crc = ? WHERE id = ?"
    connection.executemany(sql, unneeded)
    if report.events or report.tokens:
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('pruned', ?)", (now(),))


def _give_back(connection: sqlite3.Connection, report: Pruned) -> None:
    """Make the file smaller; it takes as much free space as the smaller one needs."""
    try:
        connection.execute("VACUUM")
        connection.execute(f"PRAGMA busy_timeout = {PATIENCE_MS}")
        (is_busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if is_busy:
            report.note = (
                "another process reads the log: the file gets smaller once that has ended and the log is used again."
            )
    except sqlite3.Error as error:
        report.note = (
            f"the file could not be made smaller ({error}): that takes free space for a second one. What went is deleted all "
            "the same, and new experience takes its place; prune again to shrink the file."
        )


# Going back -------------------------------------------------------------------------------------------------------------


@dataclass
class Forked:
    """A new branch: where it left which branch, and what it sees there."""

    branch: int
    parent: int
    seq: int
    step: int
    generation: int
    trajectories: int


def fork(path: Path | str, step: int) -> Forked:
    """Start a branch at the last commit with at most `step` optimizer steps done.

    Reports, exports and `experience_from` then see the experience of that moment. Nothing is deleted: what came later
    stays on its branch.

    Raises:
        LogInUseError: a trainer writes it.
        ExperienceLogError: it holds nothing at or before that step.
    """
    path = Path(path)
    with LogReader(path) as reader:
        questions = ListedQuestions([record for _, record in reader.questions()])
    with contextlib.closing(LogWriter(path, questions)) as log:
        reader = log.reader
        position = reader.position_at_step(step)
        origin = reader.origin_of(position.branch)
        buffer = ExperienceBuffer(len(questions.keys), max(1, origin.num_generations), config_of(origin))
        state = rebuild(reader, buffer, position, log.question_map)
        log.begin(origin, position, state.step, f"forked at step {state.step} (asked for {step})")
        end = log.commit(state, snapshot=snapshot_of(buffer))
        return Forked(end.branch, position.branch, position.seq, state.step, state.generation, len(buffer))


__all__ = [
    "Finding", "Forked", "Gathered", "ListedQuestions", "Pruned", "checkpoints_beside", "fork", "import_folder", "merge",
    "prune", "verify",
]  # fmt: skip
