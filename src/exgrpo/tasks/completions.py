"""Completions of questions from the hub or from local files: demonstrations, teacher traces, rollouts of other runs.

A row holds a question and a completion, or several; each as text or as messages, or both together in one list of messages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import DatasetError
from .datasets import columns_of, find_column, read_rows

MESSAGES = ("messages", "conversation", "conversations")
FINISH = "finish_reason"
CUT = ("length", "max_tokens")
"""Finish reasons by which model servers mark a truncated completion."""
THOUGHTS = ("reasoning_content", "reasoning", "thinking")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Completion:
    """A completion as it was read.

    Args:
        text: with its thoughts.
        is_cut: whether it was cut at a limit of length: its writer did not end it.
    """

    text: str
    is_cut: bool = False


@dataclass(frozen=True)
class AnsweredRow:
    """A row of the data: its place, its other columns, and its completions."""

    place: str
    row: Row
    completions: tuple[Completion, ...]


@dataclass
class AnsweredRows:
    """The rows of a source.

    Args:
        source: its name.
        rows: those that can be used.
        bad: of the others, what is wrong, with the place.
        question: column of the questions.
    """

    source: str
    rows: list[AnsweredRow] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    question: str = ""


def read_completions(
    source: str,
    *,
    split: str = "train",
    config_name: str | None = None,
    question_column: str | None = None,
    completion_column: str | None = None,
    limit: int | None = None,
) -> AnsweredRows:
    """Read rows with completions; collect invalid ones rather than raise.

    Args:
        source, split, config_name: as for `load_questions`.
        question_column, completion_column: where they are not found by their names. Without a column for completions, a
            column `messages` holds the question and, in its last message, the completion.
        limit: rows taken, from the first.

    Raises:
        DatasetError: nothing is found, a file cannot be read, or columns are missing or ambiguous.
    """
    rows, places = read_rows(source, split, config_name, limit)
    if not rows:
        raise DatasetError(f"{source}: there are no rows.")
    talk = next((name for name in MESSAGES if name in columns_of(rows)), None)
    if completion_column is None and talk is not None and not _has_completions(rows, source):
        rows = [_apart(row, talk) for row in rows]
        completion_column, question_column = "completion", "question"
    completion = find_column("completion", completion_column, rows, source)
    others = [{name: value for name, value in row.items() if name != completion} for row in rows]
    found = AnsweredRows(source, question=find_column("question", question_column, others, source))
    for row, rest, place in zip(rows, others, places, strict=True):
        try:
            found.rows.append(AnsweredRow(place, rest, _completions(row, completion, place)))
        except DatasetError as error:
            found.bad.append(str(error))
    return found


def _has_completions(rows: Sequence[Row], source: str) -> bool:
    try:
        find_column("completion", None, rows, source)
    except DatasetError:
        return False
    return True


def _apart(row: Row, column: str) -> Row:
    """Split a row's list of messages into question and completion."""
    messages = row.get(column)
    others = {name: value for name, value in row.items() if name != column}
    if not isinstance(messages, Sequence) or isinstance(messages, str) or len(messages) < 2:
        return {**others, "question": messages, "completion": None}
    return {**others, "question": list(messages[:-1]), "completion": [messages[-1]]}


def _completions(row: Row, column: str, place: str) -> tuple[Completion, ...]:
    value = row.get(column)
    several = isinstance(value, Sequence) and not isinstance(value, str) and not _is_message_list(value)
    values = list(value) if several else [value]  # type: ignore[arg-type]
    if not values:
        raise DatasetError(f"{place}: column {column!r} holds an empty list. Complete the row.")
    finish = row.get(FINISH)
    reasons = finish if isinstance(finish, Sequence) and not isinstance(finish, str) else [finish] * len(values)
    if len(reasons) != len(values):
        raise DatasetError(f"{place}: there are {len(values)} completions, but {len(reasons)} values of {FINISH!r}.")
    return tuple(
        Completion(_text(value, column, place), reason in CUT) for value, reason in zip(values, reasons, strict=True)
    )


def _is_message_list(value: Any) -> bool:
    return bool(value) and all(isinstance(message, Mapping) for message in value)


def _text(value: Any, column: str, place: str) -> str:
    """Return the text of a completion, from a string, a message or a list of one message."""
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 1:
        value = value[0]
    role = value.get("role", "assistant") if isinstance(value, Mapping) else "assistant"
    text = _with_thoughts(value) if isinstance(value, Mapping) else value
    if role == "assistant" and isinstance(text, str) and text.strip():
        return text
    missing = value is None or (isinstance(text, str) and not text.strip())
    came = "is missing" if missing else f"came as {type(value).__name__}: {repr(value)[:80]}"
    raise DatasetError(
        f"{place}: a completion must be text or one message of the assistant, but in column {column!r} it {came}. Fix the "
        "row, or set drop_incomplete."
    )


def _with_thoughts(message: Row) -> Any:
    """Return the content of a message, after the thoughts that some keep in a separate field."""
    content = message.get("content")
    thoughts = next((message[name] for name in THOUGHTS if isinstance(message.get(name), str)), "")
    if not thoughts.strip() or not isinstance(content, str):
        return content
    return f"<think>\n{thoughts.strip()}\n</think>\n\n{content.lstrip()}"
