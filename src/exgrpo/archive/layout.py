"""Layout of an export: its folders, the columns of its files and their types."""

import re
from pathlib import Path
from typing import Any

from ..errors import MissingExtraError
from ..experience.columns import COLUMNS

FORMAT = 2
"""Format 1 had successes only."""
TRAJECTORIES, QUESTIONS, TOKENIZERS = "trajectories", "questions", "tokenizers"
PARTS = "part-*.parquet"


def tokenizer_path(folder: Path, digest: str) -> Path | None:
    """Return where the tokenizer of a hash is kept; None for what cannot be a file's name."""
    return folder / TOKENIZERS / f"{digest}.json" if re.fullmatch(r"[\w-]{1,100}", digest) else None


def pyarrow_for(purpose: str) -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "trl", purpose) from error
    return pyarrow, pyarrow.parquet


def trajectory_schema(pa: Any, logp_dtype: str, text: bool, version: int = FORMAT) -> Any:
    fields = [(c.name, _type_of(pa, c.parquet, logp_dtype)) for c in COLUMNS if c.parquet and c.since <= version]
    return pa.schema([*fields, ("completion", pa.string())] if text else fields)


def _type_of(pa: Any, name: str, logp_dtype: str) -> Any:
    """Return the type of a column by its name in `COLUMNS`."""
    if name.startswith("list<"):
        return pa.list_(_type_of(pa, name[5:-1], logp_dtype))
    return pa.type_for_alias(logp_dtype if name == "logp" else name)


def question_schema(pa: Any, version: int = FORMAT) -> Any:
    fields = [
        ("key", pa.string()), ("prompt", pa.string()), ("columns", pa.string()), ("problem_type", pa.string()),
        ("dataset_row", pa.int64()), ("successes", pa.int32()), ("scorable", pa.int32()), ("observed_at", pa.int32()),
        ("retired", pa.bool_()),
    ]  # fmt: skip
    return pa.schema([*fields, ("spread", pa.float64())] if version >= 2 else fields)
