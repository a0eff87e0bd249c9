"""Rows from local files: JSON lines, JSON, CSV, Parquet.

They are read here and not through the cache of `datasets`: a changed file gives its new content, always, and errors can
name file and row.
"""

import csv
import glob
import gzip
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import DatasetError

SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}


def find_files(source: str, split: str) -> list[Path] | None:
    """Return the files that a path, a folder or a pattern means; None if it can only name a hub dataset.

    Where names of files hold the name of a split (`train-0.parquet`, `test.jsonl`), those of `split` are taken.
    """
    path = Path(source).expanduser()
    if path.is_file():
        _reader(path)
        return [path]
    if path.is_dir():
        found = sorted(entry for entry in path.iterdir() if entry.is_file() and _suffix(entry) in _READERS)
        if not found:
            raise DatasetError(f"The folder {path} holds no file that can be read: {', '.join(_READERS)}.")
        return _of_split(found, split, path)
    if glob.has_magic(source):
        found = sorted(entry for entry in map(Path, glob.glob(str(path), recursive=True)) if entry.is_file())
        if not found:
            raise DatasetError(f"No file matches {source!r}.")
        for entry in found:
            _reader(entry)
        return _of_split(found, split, source)
    if _suffix(path) in _READERS or path.is_absolute() or source.startswith((".", "~")):
        raise DatasetError(f"There is no file or folder {source!r}.")
    return None


def _of_split(files: list[Path], split: str, source: Any) -> list[Path]:
    named = {path: names for path in files if (names := _splits_in(path.name))}
    if not named:
        return files
    chosen = [path for path, names in named.items() if split in names]
    if not chosen:
        raise DatasetError(
            f"{source}: no file of the split {split!r}; there are {', '.join(path.name for path in files)}. "
            f"Set `split` to one of {', '.join(sorted(set().union(*named.values())))}, or name a file."
        )
    return chosen


def _splits_in(name: str) -> set[str]:
    words = re.split(r"[^a-z]+", name.lower())
    return {split for split, names in SPLIT_NAMES.items() if any(word in names for word in words)}


def is_data(path: str) -> bool:
    """Return whether a path ends as a file that can be read here."""
    return _suffix(Path(path)) in _READERS


def _suffix(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    return "".join(suffixes) if suffixes[-1:] == [".gz"] else "".join(suffixes[-1:])


def _reader(path: Path) -> Callable[[Path], Iterable[Any]]:
    if _suffix(path) not in _READERS:
        raise DatasetError(f"{path}: this kind of file cannot be read. Kinds: {', '.join(_READERS)}.")
    return _READERS[_suffix(path)]


def read_file(path: Path) -> Iterator[Any]:
    """Read the rows of one file, by its kind; raise `DatasetError` where it is not what its name says."""
    try:
        yield from _reader(path)(path)
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, csv.Error, json.JSONDecodeError) as error:
        raise DatasetError(f"{path}: the file cannot be read: {error}") from error


def _open_text(path: Path, newline: str | None = None) -> Any:
    opener: Callable[..., Any] = gzip.open if path.suffix.lower() == ".gz" else open
    return opener(path, "rt", encoding="utf-8-sig", newline=newline)


def _read_jsonl(path: Path) -> Iterable[Any]:
    with _open_text(path) as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    yield json.loads(line)
                except json.JSONDecodeError as error:
                    raise DatasetError(f"{path}, line {number}: this is not JSON: {error}") from error


def _read_json(path: Path) -> Iterable[Any]:
    with _open_text(path) as text:
        content = json.load(text)
    if isinstance(content, Mapping):
        lists = [value for value in content.values() if isinstance(value, list)]
        if len(lists) == 1:
            content = lists[0]  # {"data": [...]}
    if not isinstance(content, list):
        raise DatasetError(f"{path}: a .json file must hold one list of objects; for one object a line, use .jsonl.")
    return content


def _read_csv(path: Path) -> Iterable[Any]:
    with _open_text(path, newline="") as lines:
        for number, row in enumerate(csv.DictReader(lines), start=1):
            if None in row:
                raise DatasetError(f"{path}, row {number}: there are more fields than columns; is a comma not quoted?")
            yield row


def _read_parquet(path: Path) -> Iterable[Any]:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowInvalid as error:
        raise DatasetError(f"{path}: the file cannot be read: {error}") from error


_READERS: dict[str, Callable[[Path], Iterable[Any]]] = {
    ".jsonl": _read_jsonl,
    ".jsonl.gz": _read_jsonl,
    ".json": _read_json,
    ".json.gz": _read_json,
    ".csv": _read_csv,
    ".csv.gz": _read_csv,
    ".parquet": _read_parquet,
}
