"""Rows of a log as arrays that grow, read once and extended with new rows."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..log.reader import LogReader
from ..log.records import Span
from ..log.schema import SERIAL_BITS

CHUNK = 16_384
"""Rows that are made an array at once."""

Field = tuple[str, str, str]
"""Name, SQL expression, numpy type."""


class Columns:
    """Columns of one table.

    Args:
        table: of the log.
        fields: what is kept of a row.
        words: names of expressions that are text; they are kept as small numbers.

    Attributes:
        words: of each such column the texts that its numbers stand for.
    """

    def __init__(self, table: str, fields: Sequence[Field], words: Sequence[str] = ()):
        self.table = table
        self._fields: tuple[Field, ...] = tuple(fields)
        self.words: dict[str, list[str]] = {name: [] for name in words}
        self._numbers: dict[str, dict[str, int]] = {name: {} for name in words}
        self._type = np.dtype([(name, kind) for name, _, kind in self._fields])
        self._arrays = {name: np.empty(0, kind) for name, _, kind in self._fields}
        self._own: dict[str, tuple[str, float]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[name][: self._size]

    def add(self, name: str, kind: str, fill: float) -> None:
        """Add a column that is not read but set; new rows have the value `fill` there."""
        self._own[name] = (kind, fill)
        self._arrays[name] = np.full(0, fill, kind)

    def extend(self, reader: LogReader, spans: Sequence[Span], after: int, until: int) -> slice:
        """Read a lineage's rows after an event, up to another; return their places."""
        before = self._size
        for span in spans:
            first, last = max(span.first, after + 1), min(span.last, until)
            if first <= last:
                self._append(self._rows(reader, span.branch, first, last))
        return slice(before, self._size)

    def _rows(self, reader: LogReader, branch: int, first: int, last: int) -> Iterator[tuple[Any, ...]]:
        names = ", ".join(expression for _, expression, _ in self._fields)
        if self.table != "trajectory":
            sql = f"SELECT {names} FROM {self.table} WHERE seq BETWEEN ? AND ? AND branch = ?"
            yield from reader.rows(sql, (first, last, branch))
            return
        least = branch << SERIAL_BITS  # its key is the id, which grows with seq
        if self._size and int(self["id"][-1]) >> SERIAL_BITS == branch:
            least = int(self["id"][-1]) + 1
        sql = f"SELECT seq, {names} FROM trajectory WHERE id BETWEEN ? AND ? AND seq >= ?"
        for seq, *row in reader.rows(sql, (least, (branch + 1 << SERIAL_BITS) - 1, first)):
            if seq > last:
                return
            yield tuple(row)

    def _append(self, rows: Iterable[tuple[Any, ...]]) -> None:
        chunk: list[tuple[Any, ...]] = []
        for row in rows:
            chunk.append(row)
            if len(chunk) == CHUNK:
                self._take(chunk)
                chunk = []
        self._take(chunk)

    def _take(self, rows: list[tuple[Any, ...]]) -> None:
        if not rows:
            return
        needed = self._size + len(rows)
        columns = zip(*rows, strict=True)
        for (name, _, kind), values in zip(self._fields, columns, strict=True):
            self._room(name, kind, needed)[self._size : needed] = self._values(name, values)
        for name, (kind, fill) in self._own.items():
            self._room(name, kind, needed)[self._size : needed] = fill
        self._size = needed

    def _room(self, name: str, kind: str, needed: int) -> NDArray[Any]:
        """Return a column with room for so many rows.

        It grows by an eighth: memory counts more here than copying.
        """
        array = self._arrays[name]
        if len(array) < needed:
            grown = np.empty(needed + needed // 8 + 16, kind)
            grown[: self._size] = array[: self._size]
            self._arrays[name] = array = grown
        return array

    def _values(self, name: str, values: Sequence[Any]) -> Any:
        if name in self.words:
            return [self._number(name, value) for value in values]
        if self._type[name].kind == "f":
            return np.array(values, "f8")  # None becomes NaN
        return values

    def _number(self, name: str, text: Any) -> int:
        numbers = self._numbers[name]
        if text not in numbers:
            numbers[text] = len(numbers)
            self.words[name].append("" if text is None else str(text))
        return numbers[text]
