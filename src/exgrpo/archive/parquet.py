"""Experience as a folder that travels: Parquet files and a card, which `datasets.load_dataset(FOLDER)` reads.

Nothing of it is tied to this machine, to SQLite or to this package: a trajectory is a row, with its token ids and log-probs
as lists. Written and read in a stream; memory does not grow with the number of trajectories.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigurationError, DamagedLogError, ExperienceLogError
from ..experience.columns import SCALARS
from ..experience.trajectory import Trajectory
from ..log.codec import null
from ..log.reader import LogReader
from ..log.rebuild import empty_buffer, rebuild
from ..log.records import Position, Provenance
from ..log.store import StoredTrajectories
from .dataset_card import CARD, card
from .exported import Export, read_export, read_folder
from .layout import (
    FORMAT,
    QUESTIONS,
    TOKENIZERS,
    TRAJECTORIES,
    pyarrow_for,
    question_schema,
    tokenizer_path,
    trajectory_schema,
)

ROWS_PER_PART = 50_000
ROWS_PER_GROUP = 4096
TOKENS_PER_GROUP = 1 << 20
LOGP_DTYPES = ("float32", "float16")

Decoder = Callable[[Provenance, Sequence[Sequence[int]]], Sequence[str | None]]
"""Completions as text, by the tokenizer of their origin; None where there is none."""


# Writing ----------------------------------------------------------------------------------------------------------------


@dataclass
class Exported:
    """A report of what was written.

    Args:
        folder: where.
        trajectories, failures, questions, tokens, bytes: how many; failures are among the trajectories.
        unreadable: ids of trajectories that were left out because they are damaged.
    """

    folder: Path
    trajectories: int = 0
    failures: int = 0
    questions: int = 0
    tokens: int = 0
    bytes: int = 0
    unreadable: list[int] = field(default_factory=list)


def export(
    reader: LogReader,
    folder: Path | str,
    position: Position | None = None,
    logp_dtype: str = "float32",
    decode: Decoder | None = None,
    skip_damaged: bool = False,
) -> Exported:
    """Write what a log holds at a position, by default at the end of its newest branch.

    The card is written last: a folder without one is not an export.

    Args:
        reader: of the log, which may be written meanwhile.
        folder: new, or empty.
        position: where in the log.
        logp_dtype: `float32` loses nothing; `float16` halves the log-probs and rounds those that were kept in float32.
        decode: adds a column with the completions as text.
        skip_damaged: leave out what is damaged instead of refusing.

    Raises:
        ExperienceLogError: the folder holds something, or the log nothing.
        DamagedLogError: the log cannot be trusted; with `skip_damaged` only where its events cannot.
    """
    if logp_dtype not in LOGP_DTYPES:
        raise ConfigurationError(f"logp_dtype must be one of {', '.join(LOGP_DTYPES)}, but is {logp_dtype!r}.")
    pyarrow_for("Export")
    position = position or reader.position()
    if position is None:
        raise ExperienceLogError(f"{reader.path} holds nothing yet: nothing to export.")
    held = _Held(reader, position)
    report = Exported(_empty_folder(Path(folder)))
    try:
        _write(held, report, logp_dtype, decode, skip_damaged)
    except BaseException:
        for name in (QUESTIONS, TRAJECTORIES, TOKENIZERS):
            shutil.rmtree(report.folder / name, ignore_errors=True)
        raise
    report.bytes = sum(path.stat().st_size for path in report.folder.rglob("*") if path.is_file())
    return report


def _write(held: "_Held", report: Exported, logp_dtype: str, decode: Decoder | None, skip_damaged: bool) -> None:
    pa, pq = pyarrow_for("Export")
    about = held.about | {"format": FORMAT, "logp_dtype": logp_dtype}
    with _Parts(pq, report.folder / QUESTIONS, question_schema(pa), about) as parts:
        rows = list(held.questions())
        report.questions = len(rows)
        if rows:
            parts.write(pa.table({n: [row[n] for row in rows] for n in parts.schema.names}, schema=parts.schema))
    columns = trajectory_schema(pa, logp_dtype, decode is not None)
    with _Parts(pq, report.folder / TRAJECTORIES, columns, about) as parts:
        for group in _groups(held.trajectories(report.unreadable if skip_damaged else None)):
            report.trajectories += len(group)
            report.failures += sum(not trajectory.correct for _, _, trajectory in group)
            report.tokens += sum(len(trajectory) for _, _, trajectory in group)
            parts.write(held.table(pa, group, parts.schema, logp_dtype, decode))
    held.write_tokenizers(report.folder, skip_damaged)
    about |= {name: getattr(report, name) for name in ("questions", "trajectories", "failures", "tokens")}
    (report.folder / CARD).write_text(card(about, decode is not None), encoding="utf-8")


def _empty_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ExperienceLogError(f"{folder} is not empty. Export into a new folder, or empty this one.")
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise ExperienceLogError(
            f"{folder} cannot be created or read ({error}). Export into another folder."
        ) from error
    return folder


Numbered = tuple[int, int, Trajectory]
"""A trajectory with its id and the number of its origin."""


def _groups(items: Iterator[Numbered]) -> Iterator[list[Numbered]]:
    """Yield row groups of a bounded number of tokens."""
    group: list[Numbered] = []
    tokens = 0
    for item in items:
        group.append(item)
        tokens += len(item[2])
        if tokens >= TOKENS_PER_GROUP or len(group) == ROWS_PER_GROUP:
            yield group
            group, tokens = [], 0
    if group:
        yield group


class _Held:
    """The content of a log at a position, as rows."""

    def __init__(self, reader: LogReader, position: Position):
        self._reader = reader
        self._lineage = reader.lineage(position)
        self._records = dict(reader.questions())
        self._origins = reader.origins()
        self._store = StoredTrajectories(reader, self._lineage)
        self._buffer = empty_buffer(reader, position, self._store)
        self.about = {
            "log": reader.id,
            "end_step": rebuild(reader, self._buffer, position).step,
            "origin": reader.branches[position.branch].origin,
            "origins": {str(number): vars(origin.without_paths()) for number, origin in self._origins.items()},
        }

    def questions(self) -> Iterator[dict[str, Any]]:
        """Yield observed questions, with their latest accuracy."""
        unknown = (None, None)
        seen: dict[int, tuple[int | None, float | None]]
        seen = dict.fromkeys(np.flatnonzero(self._buffer.count).tolist(), unknown)
        for span in self._lineage:
            sql = "SELECT question, step, spread, scorable FROM observation WHERE branch = ? AND seq <= ? ORDER BY seq"
            for question, step, reward_std, scorable in self._reader.rows(sql, (span.branch, span.last)):
                seen[question] = (step, reward_std) if scorable else seen.get(question, unknown)
        for question in sorted(seen):
            scorable = int(self._buffer.questions.scorable[question])
            yield {
                **vars(self._records[question]),
                "successes": int(self._buffer.questions.successes[question]) if scorable else None,
                "scorable": scorable,
                "observed_at": seen[question][0],
                "retired": bool(self._buffer.retired[question]),
                "spread": seen[question][1],
            }

    def trajectories(self, unreadable: list[int] | None) -> Iterator[Numbered]:
        """Yield ids, origins and trajectories, oldest first, with the entropy as last measured."""
        slots = self._buffer.live_slots()
        serials = self._buffer.column("serial")
        for slot in slots[np.argsort(serials[slots])].tolist():
            number = self._store.id_of(int(serials[slot]))
            try:
                trajectory = self._reader.trajectory(number)
            except ExperienceLogError:
                if unreadable is None:
                    raise
                unreadable.append(number)
                continue
            entropy, at = (self._buffer.column(name)[slot].item() for name in ("entropy", "entropy_step"))
            (origin,) = next(self._reader.rows("SELECT origin FROM trajectory WHERE id = ?", (number,)))
            yield number, origin, replace(trajectory, entropy=entropy, entropy_step=at)

    def table(self, pa: Any, group: Sequence[Numbered], kind: Any, logp_dtype: str, decode: Decoder | None) -> Any:
        trajectories = [trajectory for _, _, trajectory in group]
        dtype = np.dtype(logp_dtype)
        columns = {
            "id": [number for number, _, _ in group],
            "question": [self._records[t.question].key for t in trajectories],
            "origin": [origin for _, origin, _ in group],
            "completion_ids": _lists(pa, [t.completion_ids for t in trajectories], np.dtype(np.int32)),
            "behaviour_logps": _lists(pa, [t.behaviour_logps.astype(dtype) for t in trajectories], dtype),
            "rewards": _lists(pa, [t.rewards for t in trajectories], np.dtype(np.float32)),
            "embedding": _lists(pa, [t.embedding for t in trajectories], np.dtype(np.float32)),
        }
        for column in SCALARS:
            values = [getattr(t, column.attribute) for t in trajectories]
            columns[column.name] = [null(value) for value in values] if column.nullable else values
        if decode is not None:
            columns["completion"] = self._texts(group, decode)
        return pa.table(columns, schema=kind)

    def write_tokenizers(self, folder: Path, skip_damaged: bool) -> None:
        """Write the log's tokenizers, so that a log that imports the export can show completions as text."""
        for digest in {origin.tokenizer for origin in self._origins.values()}:
            path = tokenizer_path(folder, digest)
            try:
                text = self._reader.tokenizer(digest)
            except DamagedLogError:
                if not skip_damaged:
                    raise
                continue
            if text is not None and path is not None:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")

    def _texts(self, group: Sequence[Numbered], decode: Decoder) -> list[str | None]:
        texts: list[str | None] = [None] * len(group)
        for number in {origin for _, origin, _ in group}:
            places = [i for i, (_, origin, _) in enumerate(group) if origin == number]
            found = decode(self._origins[number], [group[i][2].completion_ids.tolist() for i in places])
            for i, text in zip(places, found, strict=True):
                texts[i] = text
        return texts


def _lists(pa: Any, arrays: Sequence[NDArray[Any] | None], dtype: np.dtype[Any]) -> Any:
    """Return arrays as one list column; NaN becomes null, and so does a missing array."""
    offsets = np.cumsum([0, *(0 if array is None else len(array) for array in arrays)], dtype=np.int32)
    values = np.concatenate([np.empty(0, dtype), *(array for array in arrays if array is not None)], dtype=dtype)
    mask = np.isnan(values) if dtype.kind == "f" else None
    missing = pa.array([array is None for array in arrays], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, mask=mask), mask=missing)


class _Parts:
    """Parquet files of a folder, each of a bounded number of rows."""

    def __init__(self, pq: Any, folder: Path, kind: Any, about: Mapping[str, Any]):
        self._pq, self._folder = pq, folder
        self.schema = kind.with_metadata({"exgrpo": json.dumps(about)})
        self._rows = self._parts = 0
        folder.mkdir()
        self._open()

    def _open(self) -> None:
        path = self._folder / f"part-{self._parts:05d}.parquet"
        self._writer = self._pq.ParquetWriter(path, self.schema, compression="zstd")
        self._rows, self._parts = 0, self._parts + 1

    def __enter__(self) -> "_Parts":
        return self

    def __exit__(self, *error: object) -> None:
        self._writer.close()

    def write(self, table: Any) -> None:
        """Write one row group."""
        if self._rows >= ROWS_PER_PART:
            self._writer.close()
            self._open()
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._rows += table.num_rows


__all__ = ["FORMAT", "Decoder", "Export", "Exported", "export", "read_export", "read_folder"]
