"""The columns of a stored trajectory, in one table: what the buffer keeps, what the log, an export and its card hold.

A new scalar is a field of `Trajectory` (and of `Stored`) and a row here; the log's SQL text in `log/schema.py` says it once
more, for people, and a test holds the two together.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

REFERENCE, OWN, DERIVED, ARRAY, LATER = "reference", "own", "derived", "array", "later"
"""Where a value comes from: the log's numbers of other things, a field of `Trajectory`, its tokens, one of its arrays, or
what happened to it since."""

_ATTRIBUTES = {"entropy_step": "measured_at"}
_WIDE: dict[str, Any] = {"i": np.int64, "u": np.uint64, "f": np.float64, "b": np.bool_}


@dataclass(frozen=True)
class Column:
    """One column.

    Args:
        name: everywhere.
        source: one of the above.
        meaning: in words, for the card of an export.
        numpy: type in the table of the buffer; None: not there.
        sql: type in the log; None: not there.
        parquet: type in an export, `logp` for the one that was asked for; None: not there.
        nullable: whether it may be unknown: NaN in numpy, NULL elsewhere.
        since: the first format of exports that has it.
    """

    name: str
    source: str
    meaning: str
    numpy: str | None = None
    sql: str | None = None
    parquet: str | None = None
    nullable: bool = False
    since: int = 1

    @property
    def attribute(self) -> str:
        """The `Trajectory` attribute that holds this column, if one does."""
        return _ATTRIBUTES.get(self.name, self.name)

    def array(self, values: Any) -> NDArray[Any]:
        """Convert values, (n,), to the widest type of their kind, as events carry them."""
        return np.array(values, _WIDE[np.dtype(self.numpy).kind])


COLUMNS = (
    Column("branch", REFERENCE, "part of the log that stored it", sql="INTEGER"),
    Column("id", REFERENCE, "number in the log that it comes from", sql="INTEGER", parquet="int64"),
    Column("serial", LATER, "number in the buffer, never used again", "i8"),
    Column("generation", REFERENCE, "iteration that stored it", sql="INTEGER"),
    Column("step", OWN, "optimizer step of the policy that generated it; its age is the end step minus this; negative: before "
           "the run began", "i4", "INTEGER", "int32"),
    Column("question", REFERENCE, "`key` of its question", "i4", "INTEGER", "string"),
    Column("completion_ids", ARRAY, "token ids as the policy emitted them; the end token is last if and only if it was emitted",
           parquet="list<int32>"),
    Column("behaviour_logps", ARRAY, "log-prob of each of these tokens under the policy that generated them, in nats",
           parquet="list<logp>"),
    Column("length", DERIVED, "tokens", sql="INTEGER"),
    Column("digest", DERIVED, "hash of its token ids", "u8", "INTEGER"),
    Column("rewards", ARRAY, "one value per reward function; null where a function gave none", sql="TEXT",
           parquet="list<float32>"),
    Column("entropy", OWN, "mean token entropy in nats, as measured last; null if never", "f4", "REAL", "float32", True),
    Column("entropy_step", OWN, "optimizer step of the policy under which that was measured", "i4", "INTEGER", "int32"),
    Column("finish_reason", OWN, "`stop`: the policy ended it; `length`: it was cut", sql="TEXT", parquet="string"),
    Column("origin", REFERENCE, "under which model, tokenizer, template and rewards it was made: `origins` in the head of this "
           "file", sql="INTEGER", parquet="int32"),
    Column("correct", OWN, "whether the reward function that decides called it right", "?", "INTEGER", "bool", since=2),
    Column("advantage", OWN, "reward minus the mean of the group it came from; null if not known", "f2", "REAL", "float64",
           True, 2),
    Column("quality", OWN, "of success and diversity, 0 to 1; null if not scored", "f2", "REAL", "float64", True, 2),
    Column("nll", DERIVED, "mean of -log p over its tokens, in nats", "f2", "REAL", None, True),
    Column("confidence", DERIVED, "mean of p over its tokens", "f2", "REAL", None, True),
    Column("confidence_variance", DERIVED, "variance of p over its tokens", "f2", "REAL", None, True),
    Column("drift", LATER, "mean squared log-ratio to the policy that generated it", "f2", None, None, True),
    Column("embedding", ARRAY, "of its text, by the encoder that `origins` names; null if it has none",
           parquet="list<float32>", nullable=True, since=2),
    Column("dimension", DERIVED, "of its embedding, 0 where it has none", sql="INTEGER"),
    Column("uses", LATER, "how often it was replayed", "i4"),
)  # fmt: skip
"""The columns of a trajectory; those of the log are in the order of its table."""

SCALARS = tuple(c for c in COLUMNS if c.source == OWN)
"""Scalar arguments of a `Trajectory`."""
STORED = tuple(c for c in COLUMNS if c.numpy and c.sql)
"""Columns of the event `Stored`, beside the serial."""
RECORD = np.dtype(
    sorted(((c.name, c.numpy) for c in COLUMNS if c.numpy), key=lambda c: -np.dtype(c[1]).itemsize), align=True
)
"""The buffer's record of a trajectory, without its tokens: 56 bytes."""
