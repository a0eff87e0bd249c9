"""Reader of exports: every row is checked, and errors name file and row."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ExperienceLogError, TrajectoryError
from ..experience.columns import COLUMNS, SCALARS
from ..experience.trajectory import MAX_STEPS, Trajectory
from ..log.codec import nan
from ..log.records import UNKNOWN, Provenance, QuestionRecord
from .dataset_card import CARD, metadata_of_card
from .layout import (
    FORMAT,
    PARTS,
    QUESTIONS,
    TRAJECTORIES,
    pyarrow_for,
    question_schema,
    tokenizer_path,
    trajectory_schema,
)
from .transfer import KnownQuestion, KnownTrajectory, Source

OPTIONAL = {column.name for column in COLUMNS if column.nullable}
"""Columns of trajectories that may be empty in a row."""


@dataclass
class Export:
    """A folder that was read.

    Args:
        source: the experience in it.
        origin: of the run that it was exported from.
        log: the id of its log.
        logp_dtype: in what log-probs were exported.
        folder: where.
    """

    source: Source
    origin: Provenance
    log: str
    logp_dtype: str
    folder: Path

    def tokenizer(self, digest: str) -> str | None:
        """Return a tokenizer by its hash, as JSON of the `tokenizers` library; None if it is not there."""
        path = tokenizer_path(self.folder, digest)
        if path is None or not path.is_file():
            return None
        try:
            text = path.read_text(encoding="utf-8")
            json.loads(text)
        except ValueError as error:
            raise ExperienceLogError(f"{path} cannot be read ({error}). Remove it, or export again.") from error
        return text


def read_export(folder: Path | str) -> Export:
    """Read a folder that `export` wrote, checked row by row.

    Raises:
        ExperienceLogError: it is no export, of a later format, or a row of it is not as it must be; names file and row.
        MissingExtraError: pyarrow is not installed.
    """
    folder = Path(folder)
    pa, pq = pyarrow_for("Import")
    about = _about(pq, folder)
    with _card(folder):
        origins = _origins(about)
        origin, end = origins[int(about["origin"])], int(about["end_step"])
    questions = list(_questions(pa, pq, folder, about["format"]))
    rows = _Rows(pa, pq, folder, {q.record.key: i for i, q in enumerate(questions)}, origins, about["format"])
    if len(rows.places) < len(questions):
        raise _invalid(folder / QUESTIONS, "a question's key comes twice in it")
    source = Source(str(folder), end, questions, rows, origin=origin)
    return Export(source, origin, str(about.get("log", "")), str(about.get("logp_dtype", "")), folder)


def read_folder(folder: Path | str) -> Source:
    """Return only the experience of `read_export`."""
    return read_export(folder).source


def unknown_in_export(folder: Path) -> list[Provenance]:
    """List origins of an export's trajectories without behaviour log-probs; raises like `read_export`."""
    _, pq = pyarrow_for("Import")
    about = _about(pq, folder)
    with _card(folder):
        unknown = {number: one for number, one in _origins(about).items() if one.behaviour_logps == UNKNOWN}
    found = set[int]()
    for path in sorted((folder / TRAJECTORIES).glob(PARTS)) if unknown else ():
        with _file(pq, path) as file:
            found.update(file.read(columns=["origin"]).column("origin").to_pylist())
    return [one for number, one in unknown.items() if number in found]


@contextmanager
def _card(folder: Path) -> Iterator[None]:
    """Translate missing or broken metadata into an error that names the card."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _invalid(folder / CARD, f"its mapping `exgrpo` lacks or has a wrong {error}") from error


def _origins(about: dict[str, Any]) -> dict[int, Provenance]:
    return {int(number): Provenance.from_json(json.dumps(values)) for number, values in about["origins"].items()}


def _about(pq: Any, folder: Path) -> dict[str, Any]:
    """Return the metadata of an export: from its card, or from its files where the card was rewritten."""
    if not folder.is_dir():
        raise ExperienceLogError(f"there is no folder {folder}. Give one that `exgrpo experience export` made.")
    metadata = metadata_of_card(folder / CARD)
    if metadata is None and (folder / CARD).is_file():
        for path in sorted((folder / QUESTIONS).glob(PARTS))[:1]:
            with _file(pq, path) as file:
                text = (file.schema_arrow.metadata or {}).get(b"exgrpo")
                metadata = json.loads(text) if text else None
    if metadata is None:
        raise ExperienceLogError(
            f"{folder} is not an export of experience: it has no {CARD} with a mapping `exgrpo`, which is written last. Give a "
            "folder that `exgrpo experience export` made and finished."
        )
    version = metadata.get("format")
    if not isinstance(version, int) or not 1 <= version <= FORMAT:
        raise ExperienceLogError(
            f"{folder} has format {version!r}; this version of exgrpo reads formats up to {FORMAT}. Install a "
            "later version of exgrpo, or export again with this one."
        )
    return metadata


def _invalid(path: Path, what: str) -> ExperienceLogError:
    return ExperienceLogError(
        f"{path}: {what}. The export is damaged or was changed: download or export it again, or take this row out."
    )


@contextmanager
def _file(pq: Any, path: Path) -> Iterator[Any]:
    """Open a Parquet file; errors of pyarrow then name the file."""
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (ExperienceLogError, TrajectoryError):
        raise
    except (OSError, ValueError, NotImplementedError) as error:  # includes pyarrow's errors
        raise _invalid(path, f"it cannot be read ({error})") from error


def _batches(pa: Any, pq: Any, folder: Path, kind: Any) -> Iterator[tuple[Path, int, dict[str, list[Any]]]]:
    """Yield a few rows at a time: file, number of the first row in it, columns by name; lists of numbers as arrays."""
    paths = sorted(folder.glob(PARTS))
    if not paths:
        raise _invalid(folder, f"there are no files {PARTS} in it")
    for path in paths:
        with _file(pq, path) as file:
            _check_types(pa, path, file.schema_arrow, kind)
            row = 0
            for batch in file.iter_batches(batch_size=256, columns=kind.names):
                columns = zip(batch.schema.names, batch.columns, strict=True)
                yield path, row, {name: _values(pa, column, path, row, name) for name, column in columns}
                row += batch.num_rows


def _values(pa: Any, column: Any, path: Path, first: int, name: str) -> list[Any]:
    is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    values: list[Any] = _arrays(column, path, first, name) if is_list else column.to_pylist()
    return values


def _check_types(pa: Any, path: Path, found: Any, wanted: Any) -> None:
    for name in wanted.names:
        if name not in found.names:
            raise _invalid(path, f"the column {name!r} is missing")
        have, want = found.field(name).type, wanted.field(name).type
        if not _same_kind(pa, have, want):
            raise _invalid(path, f"the column {name!r} must hold {want}, but holds {have}")


def _same_kind(pa: Any, have: Any, want: Any) -> bool:
    """Return whether values are of a kind, in whatever width: other tools write a wider one."""
    types = pa.types
    if types.is_list(want):
        is_list = types.is_list(have) or types.is_large_list(have)
        return is_list and _same_kind(pa, have.value_type, want.value_type)
    kinds: tuple[Callable[[Any], bool], ...] = (
        types.is_integer, types.is_floating, types.is_boolean, lambda t: types.is_string(t) or types.is_large_string(t),
    )  # fmt: skip
    return types.is_null(have) or any(kind(have) and kind(want) for kind in kinds)


def _questions(pa: Any, pq: Any, folder: Path, version: int) -> Iterator[KnownQuestion]:
    for path, first, columns in _batches(pa, pq, folder / QUESTIONS, question_schema(pa, version)):
        for i, row in enumerate(zip(*columns.values(), strict=True)):
            values = dict(zip(columns, row, strict=True))
            key, scorable, successes = values["key"], values["scorable"] or 0, values["successes"] or 0
            where = f"row {first + i}: "
            if not key or not re.fullmatch(r"\S+", key):
                raise _invalid(path, f"{where}a question must have a key, but has {key!r}")
            at = values["observed_at"]
            if not 0 <= successes <= scorable <= MAX_STEPS or (scorable and (at is None or abs(at) > MAX_STEPS)):
                raise _invalid(
                    path, f"{where}{successes} successes of {scorable} at step {values['observed_at']} are impossible"
                )
            reward_std = values.get("spread")
            if reward_std is not None and not 0 <= reward_std < np.inf:
                raise _invalid(path, f"{where}a spread of {reward_std} is impossible")
            record = QuestionRecord(**{name: values[name] for name in QuestionRecord.__dataclass_fields__})
            yield KnownQuestion(
                record, successes, scorable, values["observed_at"] or 0, reward_std, bool(values["retired"])
            )


class _Rows:
    """Trajectories of an export, read from the files by every loop over them."""

    def __init__(
        self, pa: Any, pq: Any, folder: Path, places: dict[str, int], origins: dict[int, Provenance], version: int
    ):
        self._pa, self._pq, self._folder = pa, pq, folder / TRAJECTORIES
        self.places, self._origins, self._version = places, origins, version

    def __iter__(self) -> Iterator[KnownTrajectory]:
        kind = trajectory_schema(self._pa, "float32", False, self._version)
        for path, first, columns in _batches(self._pa, self._pq, self._folder, kind):
            for i, values in enumerate(zip(*columns.values(), strict=True)):
                yield self._trajectory(dict(zip(columns, values, strict=True)), path, first + i)

    def _trajectory(self, row: dict[str, Any], path: Path, number: int) -> KnownTrajectory:
        empty = [name for name, value in row.items() if value is None and name not in OPTIONAL]
        if empty:
            raise _invalid(path, f"row {number}: {empty[0]} must not be empty")
        if row["question"] not in self.places:
            raise _invalid(path, f"row {number}: its question {row['question']} is not in {QUESTIONS}/")
        if row["origin"] not in self._origins:
            raise _invalid(path, f"row {number}: its origin {row['origin']} is not in the card")
        known = [column for column in SCALARS if column.name in row]
        scalars: dict[str, Any] = {c.name: nan(row[c.name]) if c.nullable else row[c.name] for c in known}
        try:
            with np.errstate(over="ignore"):  # from too large numbers, which are then refused
                trajectory = Trajectory(
                    self.places[row["question"]], row["completion_ids"], row["behaviour_logps"], row["rewards"],
                    **scalars, embedding=row.get("embedding"),
                )  # fmt: skip
        except TrajectoryError as error:
            said = re.sub(r"^trajectory of question \d+:? ?", "", str(error))
            raise _invalid(path, f"row {number}: {said}") from error
        return KnownTrajectory(trajectory, self._origins[row["origin"]])


def _arrays(column: Any, path: Path, first: int, name: str) -> list[NDArray[Any] | None]:
    """Return a list column as arrays; null in it is NaN, which only a reward may be."""
    values = column.values
    if name != "rewards" and values.null_count:
        flat = np.asarray(values.is_null())
        row = int(np.searchsorted(np.asarray(column.offsets), np.flatnonzero(flat)[0], side="right")) - 1
        raise _invalid(path, f"row {first + row}: {name} holds an empty value")
    flat, offsets = values.to_numpy(zero_copy_only=False), np.asarray(column.offsets)
    known = np.asarray(column.is_valid())
    return [flat[offsets[i] : offsets[i + 1]] if known[i] else None for i in range(len(column))]
