"""Tell which row is which question: by content, never by row number."""

import datetime
import decimal
import dis
import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from ..errors import DatasetError
from ..experience.trajectory import IntArray
from ..log import QuestionRecord

CHUNK = 1000
NOT_SEEN_BY_REWARDS = ("prompt", "completion", "completion_ids")

Tokenize = Callable[[list[Any]], list[list[int]]]


class QuestionTable:
    """Questions of a dataset, numbered by the order of their first row.

    Two rows are one question if they agree in their prompt's token ids and in every column that a reward function sees.

    Args:
        dataset: rows with a `prompt`.
        tokenize: prompts -> token ids as the host renders them, chat template included.
        progress: whether to show a progress bar.

    Attributes:
        keys: one 16-byte content hash per question, as hex.
        question_of_row: (N,).
        row_of_question: (Q,), the first row of each.
        prompt_lengths: (Q,), in tokens.
    """

    def __init__(self, dataset: Any, tokenize: Tokenize, progress: bool = False):
        self._dataset = dataset
        self._tokenize = tokenize
        # A format (torch, numpy, ...) changes a value's type only; a transform makes the row.
        formatted = dataset.format["type"]
        self._plain = dataset if formatted in (None, "custom") else dataset.with_format(None)
        self._fetches_rows_at_once = formatted is None
        self._has_transform = formatted == "custom"
        self._latest: dict[
            int, dict[str, Any] | None
        ] = {}  # questions of the latest batch, with their rows once needed
        numbers: dict[str, int] = {}
        question_of_row: list[int] = []
        row_of_question: list[int] = []
        prompt_lengths: list[int] = []
        for start in tqdm(range(0, len(dataset), CHUNK), desc="Reading questions", disable=not progress):
            rows = self._plain[start : start + CHUNK]
            columns = sorted(set(rows) - set(NOT_SEEN_BY_REWARDS))
            prompts = tokenize(list(rows["prompt"]))
            for place, ids in enumerate(prompts):
                key = question_key(ids, {name: rows[name][place] for name in columns})
                number = numbers.setdefault(key, len(numbers))
                if number == len(row_of_question):
                    row_of_question.append(start + place)
                    prompt_lengths.append(len(ids))
                question_of_row.append(number)
        self.keys: Sequence[str] = tuple(numbers)
        self.question_of_row = np.array(question_of_row, np.int64)
        self.row_of_question = np.array(row_of_question, np.int64)
        self.prompt_lengths = np.array(prompt_lengths, np.int64)
        self.prompt_ids = lru_cache(maxsize=4096)(self._prompt_ids)

    def digest(self) -> str:
        """Hash all questions in their order: equal on all processes, or they would plan different batches."""
        return hashlib.blake2b("".join(self.keys).encode(), digest_size=16).hexdigest()

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def num_duplicates(self) -> int:
        return len(self.question_of_row) - len(self.keys)

    def rows(self, questions: Sequence[int]) -> list[dict[str, Any]]:
        """Return a dataset row for each question, copied even where one comes twice.

        A reward function may change what it is given.
        """
        rows = self.row_of_question[np.asarray(questions, np.int64)].tolist()
        if len(rows) > 1:
            self._latest = dict.fromkeys(map(int, questions))
        if not self._fetches_rows_at_once:
            return [self._dataset[row] for row in rows]
        columns = self._dataset[rows]
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def row(self, question: int) -> dict[str, Any]:
        return self.rows([question])[0]

    def types(self) -> IntArray:
        """Return the problem type of each question as a number, (Q,): its place among the values of `problem_type`."""
        values = np.array([str(value) for value in self._plain[self.row_of_question.tolist()]["problem_type"]])
        return np.unique(values, return_inverse=True)[1].astype(np.int64)

    def record(self, question: int) -> QuestionRecord:
        """Return the experience log's record of a question."""
        row = self._plain_row(question)
        others = {name: value for name, value in row.items() if name not in NOT_SEEN_BY_REWARDS}
        prompt = row["prompt"]
        return QuestionRecord(
            key=self.keys[question],
            dataset_row=int(self.row_of_question[question]),
            prompt=prompt if isinstance(prompt, str) else _as_json(prompt),
            columns=_as_json(others),
            problem_type=str(row["problem_type"]) if row.get("problem_type") is not None else None,
        )

    def _plain_row(self, question: int) -> dict[str, Any]:
        """Return the first row of a question; those of the latest batch are read together, in a tenth of the time."""
        if self._has_transform or question not in self._latest:
            row: dict[str, Any] = self._plain[int(self.row_of_question[question])]
            return row
        if self._latest[question] is None:
            columns = self._plain[self.row_of_question[list(self._latest)].tolist()]
            values = zip(*columns.values(), strict=True)
            self._latest = {
                one: dict(zip(columns, row, strict=True)) for one, row in zip(self._latest, values, strict=True)
            }
        found = self._latest[question]
        assert found is not None
        return found

    def _prompt_ids(self, question: int) -> tuple[int, ...]:
        """Return the token ids of a question's prompt."""
        return tuple(self._tokenize([self.row(question)["prompt"]])[0])

    def permutations(self, seed: int, shuffle: bool) -> Callable[[int], IntArray]:
        """Return the order of questions in each pass, as TRL's sampler: one generator over all passes."""
        orders = self._orders(seed, shuffle)
        return lambda pass_number: next(orders)

    def _orders(self, seed: int, shuffle: bool) -> Iterator[IntArray]:
        generator = torch.Generator()
        generator.manual_seed(seed)
        n = len(self.question_of_row)
        while True:
            rows = torch.randperm(n, generator=generator).numpy() if shuffle else np.arange(n)
            questions = self.question_of_row[rows]
            yield questions[self.row_of_question[questions] == rows]


def columns_read(functions: Sequence[Any], columns: Collection[str]) -> frozenset[str] | None:
    """Return the dataset columns that reward functions read; None where unknown, as where one forwards `**kwargs`.

    A function may state them in an attribute `columns`.
    """
    read = set[str]()
    for function in functions:
        if isinstance(function, torch.nn.Module):
            continue
        said = getattr(function, "columns", None)
        found = set(columns).intersection(said) if isinstance(said, (list, tuple, set, frozenset)) else None
        if found is None and (found := _columns_in_code(function, columns)) is None:
            return None
        read |= found
    return frozenset(read)


def _columns_in_code(function: Any, columns: Collection[str]) -> set[str] | None:
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None or hasattr(function, "__wrapped__"):
        return None
    count = code.co_argcount + code.co_kwonlyargcount
    found = set(code.co_varnames[:count])
    if code.co_flags & inspect.CO_VARKEYWORDS:
        others = code.co_varnames[count + bool(code.co_flags & inspect.CO_VARARGS)]
        if (keys := _keys_taken(code, others)) is None:
            return None
        found |= keys
    return found.intersection(columns)


def _keys_taken(code: CodeType, name: str) -> set[str] | None:
    """Return the keys that a function reads by `mapping[KEY]`, `.get` and `.pop`; None if it does more."""
    keys = set[str]()
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "PUSH_NULL", "PRECALL")]
    for place, step in enumerate(steps):
        names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        if name not in names or step.opname.startswith("STORE") or step.opname == "LOAD_CONST":
            continue
        after = steps[place + 1 : place + 3]
        is_method = after[0].opname in ("LOAD_METHOD", "LOAD_ATTR") and after[0].argval in ("get", "pop")
        key, use = (after[1], None) if is_method else after
        is_taken = use is None or use.opname == "BINARY_SUBSCR" or use.argrepr == "[]"
        if step.argval != name or key.opname != "LOAD_CONST" or not isinstance(key.argval, str) or not is_taken:
            return None
        keys.add(key.argval)
    return keys


def question_key(prompt_ids: Sequence[int], columns: dict[str, Any]) -> str:
    """Hash the content of a question: its prompt's token ids and the columns that reward functions see.

    Raises:
        DatasetError: a value whose content cannot be told, such as an image or an object of a class of one's own.
    """
    digest = hashlib.blake2b(np.asarray(prompt_ids, np.int32).tobytes(), digest_size=16)
    for name in sorted(columns):
        try:
            text = _as_json([name, columns[name]])
        except TypeError as error:
            raise DatasetError(
                f"column {name!r} of train_dataset holds {error}: a question is identified by its content, and this cannot be "
                f"hashed. Remove the column with dataset.remove_columns({name!r}), or turn it into text or numbers."
            ) from error
        digest.update(text.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=_content, ensure_ascii=False)


def _content(value: Any) -> Any:
    """Return what is hashed of a value that JSON does not know."""
    if isinstance(value, (np.ndarray, np.generic)):
        return [str(value.dtype), value.tolist()]
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), value.tolist()]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal)):
        return str(value)
    raise TypeError(f"a {type(value).__module__}.{type(value).__qualname__}")
