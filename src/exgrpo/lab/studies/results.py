"""A study's results on disk: one JSON line a run, appended when it is done, in the study's order once all are.

`results.jsonl` holds only what follows from the study, so that a study that was interrupted ends with the same bytes as
one that was not; `times.jsonl` holds what it cost, `study.json` what was run, on which machine, with which versions.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...errors import ConfigurationError
from ...report.files import write_whole
from .study import Cell

Row = Mapping[str, Any]


class Results:
    """The files of a study in `folder`."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.rows_path, self.times_path = self.folder / "results.jsonl", self.folder / "times.jsonl"
        self.about_path = self.folder / "study.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder as its only writer; raise ConfigurationError where another process has it."""
        from filelock import FileLock, Timeout

        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / ".lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise ConfigurationError(
                f"Another process runs a study in {self.folder}. Wait for it, or give another --output_dir."
            ) from None
        try:
            yield
        finally:
            lock.release()

    def check_versions(self, about: Mapping[str, Any]) -> None:
        """Refuse to continue a folder of other versions, whose figures would not be comparable."""
        if self.about_path.exists():
            before = json.loads(self.about_path.read_text())
            for package in ("torch", "transformers", "trl", "exgrpo"):
                old, new = before["versions"].get(package), about["versions"].get(package)
                if old != new:
                    raise ConfigurationError(
                        f"The results in {self.folder} were begun with {package} {old}, and {new} is installed: arms of one "
                        "study must run on the same versions. Install those, or give another --output_dir."
                    )

    def describe(self, about: Mapping[str, Any], runs: bool = True) -> None:
        """Store the study beside its results; where nothing runs, only update it."""
        if not runs and self.about_path.exists():
            about = {**self.about(), "study": about["study"]}
        write_whole(self.about_path, json.dumps(about, indent=1) + "\n")

    def rows(self) -> dict[str, Row]:
        """Return results by key; a last line that was cut off by a crash is ignored."""
        return read(self.rows_path)

    def times(self) -> dict[str, Row]:
        """Return costs by key."""
        return read(self.times_path)

    def about(self) -> Mapping[str, Any]:
        """Return what was run; raise ConfigurationError where there are no results."""
        if not self.about_path.exists():
            raise ConfigurationError(f"{self.folder} holds no study: there is no {self.about_path.name}.")
        return json.loads(self.about_path.read_text())

    def done(self, cells: Sequence[Cell], discard_changed: bool = False) -> set[str]:
        """Return keys that need not run again; raise where a cell ran otherwise than the study now says."""
        rows = self.rows()
        fingerprints = {cell.key: cell.fingerprint for cell in cells}
        changed = [key for key, row in rows.items() if key in fingerprints and row["fingerprint"] != fingerprints[key]]
        if changed and not discard_changed:
            raise ConfigurationError(
                f"{len(changed)} runs in {self.folder} were made with other options than the study has now, {changed[0]} "
                "among them. Give another --output_dir, or --discard_changed to run them again."
            )
        if changed or self._torn():
            kept = {key: row for key, row in rows.items() if key not in changed}
            times = {key: row for key, row in self.times().items() if key in kept}
            _rewrite(self.rows_path, kept.values())
            _rewrite(self.times_path, times.values())
            rows = kept
        return set(rows) & set(fingerprints)

    def add(self, row: Row, times: Row) -> None:
        """Store a finished run; it is on disk when this returns."""
        for path, value in ((self.times_path, times), (self.rows_path, row)):
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(value) + "\n")
                file.flush()
                os.fsync(file.fileno())

    def collect(self, cells: Sequence[Cell]) -> None:
        """Collect the study's runs that were made one by one, elsewhere (`keep_alone`)."""
        there = self.rows()
        for cell in cells:
            path = self._alone(cell.key)
            if cell.key not in there and path.exists():
                kept = json.loads(path.read_text())
                if kept["row"]["fingerprint"] == cell.fingerprint:
                    self.add(kept["row"], kept["times"])

    def keep_alone(self, row: Row, times: Row) -> Path:
        """Store a run in a file of its own, while other processes store theirs; return its path."""
        path = self._alone(row["key"])
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"row": row, "times": times}) + "\n")
        return path

    def _alone(self, key: str) -> Path:
        return self.folder / "runs" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"

    def order(self, cells: Sequence[Cell]) -> None:
        """Sort the lines in the order of the study; those of no cell come last."""
        places = {cell.key: place for place, cell in enumerate(cells)}
        for path in (self.rows_path, self.times_path):
            rows = read(path)
            _rewrite(path, [rows[key] for key in sorted(rows, key=lambda key: (places.get(key, len(places)), key))])

    def _torn(self) -> bool:
        return any(
            path.exists() and not path.read_bytes().endswith(b"\n") for path in (self.rows_path, self.times_path)
        )


def read(path: Path) -> dict[str, Row]:
    """Return the rows of a file, by key."""
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").split("\n")
    rows = {}
    for number, line in enumerate(lines[:-1], 1):  # what follows the last newline is nothing, or torn
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ConfigurationError(
                f"Line {number} of {path} is not JSON ({error}). Remove it to run it again."
            ) from None
        rows[row["key"]] = row
    return rows


def _rewrite(path: Path, rows: Any) -> None:
    write_whole(path, "".join(json.dumps(row) + "\n" for row in rows))
