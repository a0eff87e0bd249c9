"""Questions with answers, from the hub or from local files, as the two columns that training reads."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError, DatasetError, MissingExtraError
from ..spelling import did_you_mean
from .local_files import find_files, read_file

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

QUESTION_COLUMNS = ("question", "problem", "query", "prompt", "instruction", "input")
ANSWER_COLUMNS = (
    ("answer", "final_answer", "ground_truth", "expected_answer", "answerkey", "target", "label"),
    ("solution", "response", "output"),  # looked at only if none of the first kind exists
)
COMPLETION_COLUMNS = (
    "completion",
    "completions",
    "response",
    "responses",
    "generation",
    "generations",
    "output",
    "trace",
)
KINDS: Mapping[str, Sequence[Sequence[str]]] = {
    "question": (QUESTION_COLUMNS,),
    "answer": ANSWER_COLUMNS,
    "completion": (COMPLETION_COLUMNS,),
}
VERL_ANSWER = "reward_model.ground_truth"
PLACEHOLDER = "{question}"

Row = Mapping[str, Any]


def load_questions(
    source: str | PathLike[str],
    *,
    split: str = "train",
    config_name: str | None = None,
    question_column: str | None = None,
    answer_column: str | None = None,
    prompt_template: str | None = None,
    system_prompt: str | None = None,
    conversational: bool = False,
    limit: int | None = None,
    keep_columns: Sequence[str] = (),
    drop_incomplete: bool = False,
) -> "Dataset":
    """Load a dataset with the columns `prompt` and `answer`, ready for a trainer or for `evaluate_policy`.

    Args:
        source: the name of a dataset on the hub; or a local file (.jsonl, .json or .csv, each also with .gz, or
            .parquet), a folder of such files, or a glob pattern.
        split: of a hub dataset. In a folder, or of the files that a pattern matches, those whose names contain a
            split's name are taken by it; where none does, all are. A single file is taken whole.
        config_name: of a hub dataset that has several configurations.
        question_column, answer_column: where the columns are not found by their names, or several could be meant. A value
            inside a column of mappings is `column.key`: the answers in verl's layout are `reward_model.ground_truth`.
        prompt_template: text with `{question}`, which is replaced literally; other braces stay as they are.
        system_prompt: first message of a conversational prompt.
        conversational: whether `prompt` is a list of messages instead of a string. Questions that are messages already are
            taken as they are.
        limit: rows taken, from the first.
        keep_columns: columns of the source to keep under their names, for a reward function that reads them.
        drop_incomplete: whether rows without question or answer are left out, with a logged count, instead of refused.

    Returns:
        `prompt`: str, or list of {"role", "content"}. `answer`: str. Then the columns of `keep_columns`.

    Raises:
        DatasetError: nothing found, columns missing or ambiguous, a row without question or answer (with its number).
        ConfigurationError: options that contradict each other. MissingExtraError: `datasets` is not installed.
    """
    _check_options(limit, keep_columns)
    form = PromptForm(prompt_template, system_prompt, conversational)
    datasets = _import_datasets()
    rows, places = read_rows(fspath(source), split, config_name, limit)
    if not rows:
        raise DatasetError(f"{source}: there are no rows.")
    columns = columns_of(rows)
    question = find_column("question", question_column, rows, source)
    answer = find_column("answer", answer_column, rows, source)
    for name in (question, answer):
        if name not in columns and all(_value(row, name) is None for row in rows):
            outer = name.rpartition(".")[0]
            keys = dict.fromkeys(
                key for row in rows if isinstance(inner := _value(row, outer), Mapping) for key in inner
            )
            raise DatasetError(f"{source}: no row has a value {name!r}. {outer!r} has: {', '.join(keys) or 'no keys'}.")
    for name in keep_columns:
        if name not in columns or (name in ("prompt", "answer") and name not in (question, answer)):
            reason = "there is no such column" if name not in columns else "the name is taken by the result"
            raise DatasetError(f"{source}: `keep_columns` names {name!r}, but {reason}. {_there_are(columns)}")

    if drop_incomplete:
        complete = [not _is_missing(_value(row, question)) and not _is_missing(_value(row, answer)) for row in rows]
        if not any(complete):
            raise DatasetError(f"{source}: no row has both a question ({question!r}) and an answer ({answer!r}).")
        if not all(complete):
            logger.warning(
                "%s: %d of %d rows lack question or answer, left out.", source, complete.count(False), len(rows)
            )
        rows = [row for row, keep in zip(rows, complete, strict=True) if keep]
        places = [place for place, keep in zip(places, complete, strict=True) if keep]

    located = list(zip(rows, places, strict=True))
    result: dict[str, list[Any]] = {
        "prompt": [form.prompt(row, question, place) for row, place in located],
        "answer": [answer_of(row, answer, place) for row, place in located],
    }
    result |= {name: [row.get(name) for row in rows] for name in keep_columns if name not in result}
    try:
        return datasets.Dataset.from_dict(result)
    except (ValueError, TypeError) as error:  # what Arrow raises for a column of several types
        raise DatasetError(
            f"{source}: a column of {', '.join(keep_columns)} has values of several types: {error}"
        ) from error


@dataclass(frozen=True)
class PromptForm:
    """The form in which questions become prompts.

    Args:
        template: text with `{question}`.
        system: first message of a conversational prompt.
        conversational: whether a prompt is a list of messages.
    """

    template: str | None = None
    system: str | None = None
    conversational: bool = False

    def __post_init__(self) -> None:
        if self.template is not None and PLACEHOLDER not in self.template:
            raise ConfigurationError(f"`prompt_template` must contain {PLACEHOLDER}, got {self.template!r}.")
        if self.system is not None and not self.conversational:
            raise ConfigurationError(
                "`system_prompt` needs `conversational=True`; put the text into `prompt_template` for plain prompts."
            )

    def prompt(self, row: Row, column: str, place: str) -> Any:
        """Return the prompt of a row; raise DatasetError, with the place, where the column holds no question."""
        *before, text = _messages(_value(row, column), column, place)
        text = text if self.template is None else self.template.replace(PLACEHOLDER, text)
        if before and not self.conversational:
            raise DatasetError(
                f"{place}: column {column!r} holds {len(before) + 1} messages. Set `conversational`, so that they are taken "
                "as they are (for chat models)."
            )
        if before and self.system is not None:
            raise DatasetError(
                f"{place}: column {column!r} holds messages before the question already. Remove `system_prompt`."
            )
        if not self.conversational:
            return text
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, *before, {"role": "user", "content": text}]


def _check_options(limit: int | None, keep: Sequence[str]) -> None:
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ConfigurationError(f"`limit` must be a positive integer or None, got {limit!r}.")
    if isinstance(keep, str):
        raise ConfigurationError(f"`keep_columns` is a list of names, got the string {keep!r}.")


def _import_datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("datasets", "trl", "Loading a dataset") from error
    return datasets


# --- columns and values -----------------------------------------------------------------------------------------------


def columns_of(rows: Sequence[Row]) -> list[str]:
    """Return all names of columns, in the order of their first row."""
    return list(dict.fromkeys(name for row in rows for name in row))


def find_column(role: str, given: str | None, rows: Sequence[Row], source: Any) -> str:
    """Return the column that holds the question, the answer or the completion: as given, or found by its name.

    Raises:
        DatasetError: there is none, or several could be meant.
    """
    columns, kinds = columns_of(rows), KINDS[role]
    if role == "answer" and given is None and _is_of_verl(rows[0]):
        given = None if set(ANSWER_COLUMNS[0][:4]) & {c.lower() for c in columns} else VERL_ANSWER
    if given is not None:
        if given not in columns and given.partition(".")[0] not in columns:
            raise DatasetError(
                f"{source}: `{role}_column` is {given!r}, but there is no such column.{did_you_mean(given, columns)} "
                f"{_there_are(columns)}"
            )
        return given
    for names in kinds:
        found = [column for column in columns if column.lower() in names]
        if len(found) == 1:
            return found[0]
        if found:
            raise DatasetError(
                f"{source}: the {role} could be any of the columns {', '.join(found)}; set `{role}_column`. "
                f"{_there_are(columns)}"
            )
    raise DatasetError(f"{source}: no column is known to hold the {role}; set `{role}_column`. {_there_are(columns)}")


def _there_are(columns: Sequence[str]) -> str:
    return f"Columns: {', '.join(columns)}."


def _is_of_verl(row: Row) -> bool:
    found = row.get("reward_model")
    return isinstance(found, Mapping) and "ground_truth" in found


def _value(row: Row, column: str) -> Any:
    """Return the value of a column; of `column.key` that inside its mapping."""
    if column in row or "." not in column:
        return row.get(column)
    value: Any = row
    for key in column.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _messages(value: Any, column: str, place: str) -> list[Any]:
    """Return the messages before the question, of which there may be none, and the question's text."""
    if isinstance(value, str) and value.strip():
        return [value]
    if isinstance(value, Sequence) and value and all(isinstance(message, Mapping) for message in value):
        said = [(message.get("role"), message.get("content")) for message in value]
        if all(isinstance(part, str) and part.strip() for pair in said for part in pair) and said[-1][0] == "user":
            return [*({"role": role, "content": content} for role, content in said[:-1]), said[-1][1]]
        if len(value) == 1 and isinstance(said[0][1], str) and said[0][1].strip():
            return [said[0][1]]
    wanted = "text, or a list of messages, each with a role and text, the last of the user"
    raise DatasetError(_bad(value, column, place, "a question", wanted))


def answer_of(row: Row, column: str, place: str) -> str:
    """Return the answer of a row as text; raise DatasetError, with the place, where the column holds none."""
    value = _value(row, column)
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) > 1 and all(isinstance(item, str | int | float) for item in value):
            joined = ", ".join(map(str, value))
            raise DatasetError(
                f"{place}: column {column!r} holds {len(value)} answers, {value!r}. If all of them together are the answer, "
                f"join them to {joined[:60]!r}, which math_reward reads as one list; if each alone is right, keep one, or "
                "write a reward function that accepts any and reads the column by `keep_columns`."
            )
        if len(value) == 1:
            value = value[0]  # OlympiadBench and others keep a list
    if isinstance(value, Mapping) and value:
        forms = " or ".join(f"{column}.{key}" for key in value)
        raise DatasetError(
            f"{place}: column {column!r} must hold an answer as text or a number, but holds a mapping with the keys "
            f"{', '.join(map(str, value))}. Set `answer_column` to {forms}."
        )
    if isinstance(value, int | float) and not isinstance(value, bool) and not _is_missing(value):
        return str(value)
    if isinstance(value, str) and value.strip():
        return value
    raise DatasetError(_bad(value, column, place, "an answer", "text or a number"))


def _is_missing(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    return value is None or (
        isinstance(value, str | Sequence) and not (value.strip() if isinstance(value, str) else value)
    )


def _bad(value: Any, column: str, place: str, what: str, wanted: str) -> str:
    if _is_missing(value):
        advice = "Complete the row, or set `drop_incomplete=True`."
        return f"{place}: {what} is missing, column {column!r} is {value!r}. {advice}"
    return f"{place}: column {column!r} must hold {what} as {wanted}, got {type(value).__name__}: {repr(value)[:80]}."


# --- sources ----------------------------------------------------------------------------------------------------------


def read_rows(source: str, split: str, config_name: str | None, limit: int | None) -> tuple[list[Row], list[str]]:
    """Read rows, and for each its place for messages: `file, row 3` counted from 1."""
    files = find_files(source, split)
    if files is None:
        rows = _read_hub(source, split, config_name, limit)
        return rows, [f"{source} ({split}), row {number}" for number in range(1, len(rows) + 1)]
    rows = []
    places: list[str] = []
    for path in files:
        for number, row in enumerate(read_file(path), start=1):
            if limit is not None and len(rows) == limit:
                return rows, places
            if not isinstance(row, Mapping):
                raise DatasetError(
                    f"{path}, row {number}: a row must be an object with named columns, got {repr(row)[:80]}."
                )
            rows.append(row)
            places.append(f"{path}, row {number}")
    return rows, places


def _read_hub(source: str, split: str, config_name: str | None, limit: int | None) -> list[Row]:
    datasets = _import_datasets()
    try:
        dataset = datasets.load_dataset(source, config_name, split=split)
    except (FileNotFoundError, ConnectionError, ValueError) as error:
        raise DatasetError(
            f"{source!r} is neither a local file, folder or pattern nor a dataset that the hub gives "
            f"(split {split!r}, config_name {config_name!r}): {error}"
        ) from error
    return (dataset if limit is None else dataset.select(range(min(limit, len(dataset))))).to_list()
