"""Keep what the forwards of an iteration reveal of each row: one record a row, and log-probs of the rows to admit.

The first value of a row counts: it is that of the policy closest to the one that generated. Processes hold different rows;
`RowStats.concatenate` puts them together, and a checkpoint keeps the same arrays by name.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..experience.policy_stats import PolicyStats
from ..experience.trajectory import FloatArray, IntArray

SCORES = ("nll", "confidence", "confidence_variance", "drift")
RATIOS = ("log_ratio", "log_sum", "log_sum_squares")

DTYPE = np.dtype(
    [
        ("row", "i8"),  # global row of the iteration
        ("tokens", "i8"),  # own tokens of the policy, over which the entropy is a mean
        ("entropy", "f8"),  # mean token entropy, nats
        ("entropy_step", "i8"),  # optimizer step of the policy under which it was measured; -1: it was not
        *((name, "f8") for name in SCORES),  # of a stored row, under the policy that is trained; NaN: not known
        *((name, "f8") for name in RATIOS),  # of a stored row: mean log w, log sum w, log sum w^2
        ("ratio_tokens", "i8"),  # 0: the ratio is not known
        ("clamped", "i8"),  # tokens whose ratio the correction cut
        ("filler", "?"),  # a filler row's: counts only where nothing else is known
    ],
    align=True,
)
UNKNOWN = np.array((0, 0, np.nan, -1, *[np.nan] * len(SCORES), *[np.nan] * len(RATIOS), 0, 0, False), DTYPE)


class RowStats:
    """Measurements of this process's rows.

    Args:
        rows: their global numbers, (n,), ascending.

    Attributes:
        table: one record a row, (n,), of `DTYPE`.
        logps: of a row, by its global number, the log-probs of its own tokens, (T,).
    """

    def __init__(self, rows: Iterable[int]):
        numbers = np.fromiter(rows, np.int64)
        self.table = np.full(len(numbers), UNKNOWN)
        self.table["row"] = numbers
        self.logps: dict[int, FloatArray] = {}

    def places(self, rows: Sequence[int] | IntArray) -> IntArray:
        """Return the table's places of given global rows.

        Raises:
            ValueError: a row of another process.
        """
        wanted = np.asarray(rows, np.int64)
        places = np.searchsorted(self.table["row"], wanted)
        known = self.table["row"][np.minimum(places, max(len(self.table) - 1, 0))] if len(self.table) else wanted - 1
        if (strange := wanted[known != wanted]).size:
            raise ValueError(
                f"rows {strange.tolist()} are not of this process, which holds {self.table['row'].tolist()}"
            )
        return np.asarray(places)

    def has_entropy(self, rows: Sequence[int] | IntArray) -> NDArray[np.bool_]:
        return np.asarray(self.table["entropy_step"][self.places(rows)] >= 0)

    def add_fillers(self, rows: Sequence[int] | IntArray) -> None:
        """Mark rows that were computed without need."""
        self.table["filler"][self.places(rows)] = True

    def add_entropies(self, rows: Sequence[int] | IntArray, means: FloatArray, tokens: IntArray, step: int) -> None:
        """Write down mean token entropies, (n,), under the policy of an optimizer step."""
        places = self.places(rows)
        new = self.table["entropy_step"][places] < 0
        self.table["entropy"][places[new]], self.table["tokens"][places[new]] = means[new], tokens[new]
        self.table["entropy_step"][places[new]] = step

    def add_scores(self, rows: Sequence[int] | IntArray, scores: Sequence[PolicyStats]) -> None:
        """Write down how stored trajectories look to the policy that is trained, (n,)."""
        places = self.places(rows)
        new = np.isnan(self.table["nll"][places]) & ~self.table["filler"][places]
        for name in SCORES:
            self.table[name][places[new]] = np.array([getattr(one, name) for one in scores])[new]

    def add_ratios(self, rows: Sequence[int] | IntArray, values: Mapping[str, NDArray[Any]]) -> None:
        """Write down the replay ratios of stored rows: each of `RATIOS`, `ratio_tokens` and `clamped`, (n,)."""
        places = self.places(rows)
        new = (self.table["ratio_tokens"][places] == 0) & ~self.table["filler"][places]
        for name, column in values.items():
            self.table[name][places[new]] = column[new]

    def add_logps(self, row: int, logps: FloatArray) -> None:
        """Record the log-probs of a row to admit, (T,)."""
        self.logps.setdefault(row, logps)

    # Across processes and restarts ------------------------------------------------------------------------------

    def arrays(self, known: bool = False) -> dict[str, NDArray[Any]]:
        """Return everything as plain arrays by name.

        The columns of the table, and `logps` of all rows one after the other with `logp_rows` and `logp_lengths`.
        known: only rows with any measurement.
        """
        rows = sorted(self.logps)
        values = [self.logps[row] for row in rows]
        table = self.table[_is_known(self.table)] if known else self.table
        return {
            **{name: np.ascontiguousarray(table[name]) for name in DTYPE.names or ()},
            "logp_rows": np.array(rows, np.int64),
            "logp_lengths": np.array([len(value) for value in values], np.int64),
            "logps": np.concatenate(values) if values else np.zeros(0, np.float32),
        }

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "RowStats":
        """Make one from `arrays`."""
        made = cls(arrays["row"].tolist())
        for name in DTYPE.names or ():
            made.table[name] = arrays[name]
        parts = np.split(arrays["logps"], np.cumsum(arrays["logp_lengths"])[:-1])
        made.logps = dict(zip(arrays["logp_rows"].tolist(), parts, strict=False))
        return made

    @classmethod
    def concatenate(cls, parts: Sequence["RowStats"]) -> "RowStats":
        """Concatenate the stats of all processes, which are disjoint, without empty rows."""
        tables = [part.table[_is_known(part.table)] for part in parts]
        table = np.concatenate(tables)
        made = cls(())
        made.table = table[np.argsort(table["row"], kind="stable")]
        made.logps = {row: logps for part in parts for row, logps in part.logps.items()}
        return made


def _is_known(table: NDArray[Any]) -> NDArray[np.bool_]:
    known = (table["entropy_step"] >= 0) | (table["ratio_tokens"] > 0) | ~np.isnan(table["nll"])
    return np.asarray(known)
