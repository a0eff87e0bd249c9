"""Match completions to questions: the run's, or ones that the data bring themselves."""

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset

from ...errors import DatasetError
from ...rewards import get_reward
from ...tasks.completions import AnsweredRow, AnsweredRows, read_completions
from ...tasks.datasets import PromptForm, answer_of, columns_of, find_column
from ...trl.demonstrations import Demonstration
from ..arguments import ScriptArguments
from ..main import UsageError
from ..training import RunInputs, Settings, load_inputs


@dataclass
class Answered:
    """Completions and their questions.

    Args:
        name: of the data.
        rows: how many these have.
        bad: of those that cannot be used what is wrong, with the place.
        inputs: the questions that are answered, and the reward functions.
        demonstrations: the completions.
        left_out: why other completions are none -> their places.
    """

    name: str
    rows: int
    bad: list[str]
    inputs: RunInputs
    demonstrations: list[Demonstration] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


def read_answered(settings: Settings, source: str, completion_column: str | None) -> Answered:
    """Read completions and match them to questions.

    Where the settings name a dataset or a task, questions are matched by their prompts; else the data bring questions
    and answers.

    Args:
        settings: of a run.
        source: a file, a folder, a pattern or a data set of the hub.
        completion_column: if not found by its name.

    Raises:
        UsageError, DatasetError: the settings lack a reward function, or the data a column.
    """
    script = settings.script
    name = Path(source).name or source
    form = PromptForm(script.prompt_template, script.system_prompt, script.conversational)
    if script.task is None and script.dataset_name is None:
        return _own(settings, _read(source, script, completion_column, script.question_column), form, name)
    inputs = load_inputs(settings, held_out=False)
    try:
        found = _read(source, ScriptArguments(), completion_column, script.question_column)
    except DatasetError:  # that is the dataset's column
        found = _read(source, ScriptArguments(), completion_column, None)
    return _of_run(inputs, found, form, name)


def _read(source: str, script: ScriptArguments, completion_column: str | None, question: str | None) -> AnsweredRows:
    return read_completions(
        source,
        split=script.train_split,
        config_name=script.dataset_config,
        question_column=question,
        completion_column=completion_column,
        limit=script.limit,
    )


def _own(settings: Settings, found: AnsweredRows, form: PromptForm, name: str) -> Answered:
    """Use the data's own questions and answers."""
    script = settings.script
    rewards = [get_reward(function) for function in script.reward_funcs or ()]
    if not rewards:
        raise UsageError("there is no reward function: set reward_funcs, for example numeric_reward; or give --config.")
    kept = [row.row for row in found.rows]
    keep = script.keep_columns or []
    if kept:
        answer = find_column("answer", script.answer_column, kept, found.source)
        if missing := [column for column in keep if column not in columns_of(kept)]:
            raise DatasetError(f"{found.source}: keep_columns names {missing[0]!r}, but there is no such column.")
    questions: list[dict[str, Any]] = []
    read = list[tuple[AnsweredRow, int]]()
    bad = list(found.bad)
    for row in found.rows:
        try:
            of_row = {
                "prompt": form.prompt(row.row, found.question, row.place),
                script.answer_name: answer_of(row.row, answer, row.place),
            }
        except DatasetError as error:
            bad.append(str(error))
            continue
        read.append((row, len(questions)))
        questions.append(of_row | {column: row.row.get(column) for column in keep})
    total = len(found.rows) + len(found.bad)
    if not questions:
        raise DatasetError(f"{found.source}: none of {total:,} rows can be used. The first: {bad[0]}")
    inputs = RunInputs(Dataset.from_list(questions), None, rewards, None)
    return Answered(name, total, bad, inputs, _each(read))


def _of_run(inputs: RunInputs, found: AnsweredRows, form: PromptForm, name: str) -> Answered:
    """Use the run's questions that are answered, matched by their prompts."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, prompt in enumerate(inputs.train["prompt"]):
        places[_key(prompt)].append(place)
    result = Answered(name, len(found.rows) + len(found.bad), list(found.bad), inputs)
    read, answered = list[tuple[AnsweredRow, int]](), dict[int, int]()
    for row in found.rows:
        try:
            prompt = form.prompt(row.row, found.question, row.place)
        except DatasetError as error:
            result.bad.append(str(error))
            continue
        rows = places.get(_key(prompt)) or places.get(_key(row.row.get(found.question)), [])
        if len(rows) == 1:
            read.append((row, answered.setdefault(rows[0], len(answered))))
        else:
            reason = (
                "whose prompt several questions of the run have" if rows else "whose question the run does not have"
            )
            result.left_out[reason] += [row.place] * len(row.completions)
    if not answered:
        here, there = repr(_first(found, form))[:200], repr(inputs.train[0]["prompt"])[:200]
        raise DatasetError(
            f"{found.source}: none of its {result.rows:,} questions is one of the run's. They are compared as prompts: the "
            f"first is {here}, the run's first {there}. Give the run's prompt_template, system_prompt and conversational, and "
            "a question column with the question alone."
        )
    inputs.train = inputs.train.select(list(answered))
    result.demonstrations = _each(read)
    return result


def _first(found: AnsweredRows, form: PromptForm) -> Any:
    try:
        return form.prompt(found.rows[0].row, found.question, found.rows[0].place)
    except (DatasetError, IndexError):
        return None


def _key(prompt: Any) -> str:
    return json.dumps(prompt, sort_keys=True, default=str)


def _each(rows: list[tuple[AnsweredRow, int]]) -> list[Demonstration]:
    return [Demonstration(row.place, number, completion) for row, number in rows for completion in row.completions]
