"""How an export lies on the disk: its folders, the columns of its files and their types."""

import re
from pathlib import Path
from typing import Any

from ..errors import MissingExtraError

FORMAT = 2
"""Format 1 had successes only."""
TRAJECTORIES, QUESTIONS, TOKENIZERS = "trajectories", "questions", "tokenizers"
PARTS = "part-*.parquet"


def tokenizer_path(folder: Path, digest: str) -> Path | None:
    """Where the tokenizer of that hash is kept; None for what cannot be a file's name."""
    return folder / TOKENIZERS / f"{digest}.json" if re.fullmatch(r"[\w-]{1,100}", digest) else None


def pyarrow_for(purpose: str) -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "trl", purpose) from error
    return pyarrow, pyarrow.parquet


def trajectory_schema(pa: Any, logp_dtype: str, text: bool, version: int = FORMAT) -> Any:
    fields = [
        ("id", pa.int64()), ("question", pa.string()), ("completion_ids", pa.list_(pa.int32())),
        ("behaviour_logps", pa.list_(pa.float16() if logp_dtype == "float16" else pa.float32())),
        ("rewards", pa.list_(pa.float32())), ("step", pa.int32()), ("entropy", pa.float32()),
        ("entropy_step", pa.int32()), ("finish_reason", pa.string()), ("origin", pa.int32()),
    ]  # fmt: skip
    if version >= 2:
        fields += [
            ("correct", pa.bool_()), ("advantage", pa.float64()), ("quality", pa.float64()),
            ("embedding", pa.list_(pa.float32())),
        ]  # fmt: skip
    return pa.schema([*fields, ("completion", pa.string())] if text else fields)


def question_schema(pa: Any, version: int = FORMAT) -> Any:
    fields = [
        ("key", pa.string()), ("prompt", pa.string()), ("columns", pa.string()), ("problem_type", pa.string()),
        ("dataset_row", pa.int64()), ("successes", pa.int32()), ("scorable", pa.int32()), ("observed_at", pa.int32()),
        ("retired", pa.bool_()),
    ]  # fmt: skip
    return pa.schema([*fields, ("spread", pa.float64())] if version >= 2 else fields)
