"""Numbers of questions: a run counts its own from 0, a log those that it has met. Only `QuestionMap` translates."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..experience.replayed import BY_QUESTION, FILL, OF_QUESTIONS
from ..experience.trajectory import IntArray

NONE = -1

Arrays = Mapping[str, NDArray[Any]]


class QuestionMap:
    """The map between question numbers of a run and of a log.

    Args:
        keys: of the questions of the run, in the order of their numbers.
        listed: number and key of each question of the log, in the order of their numbers.

    Attributes:
        num_questions: of the run.
    """

    def __init__(self, keys: Sequence[str], listed: Iterable[tuple[int, str]] = ()):
        self.num_questions = len(keys)
        here = {key: question for question, key in enumerate(keys)}
        pairs = [(number, here.get(key, NONE)) for number, key in listed]
        numbers, questions = np.array(pairs, np.int32).reshape(-1, 2).T
        self._next = int(numbers.max(initial=0)) + 1
        self._numbers = np.full(len(keys), NONE, np.int32)
        self._questions = np.full(max(self._next, len(keys) + 1), NONE, np.int32)
        self._questions[numbers] = questions
        known = questions != NONE
        self._numbers[questions[known]] = numbers[known]

    def add(self, question: int) -> int:
        """Assign the next number of the log to a question of the run."""
        number, self._next = self._next, self._next + 1
        if number == len(self._questions):
            self._questions = np.concatenate([self._questions, np.full(number, NONE, np.int32)])
        self._numbers[question], self._questions[number] = number, question
        return number

    def number_of(self, question: int) -> int:
        """Return the number in the log of a question of the run; NONE: it has none."""
        return int(self._numbers[question])

    def question_of(self, number: int) -> int:
        """Return the number in the run of a question of the log; NONE: it is not among its questions."""
        return int(self._questions[number]) if number < len(self._questions) else NONE

    def questions_of(self, numbers: IntArray) -> IntArray:
        """Return the run's numbers for questions of the log, (n,); NONE for those it does not have."""
        known = numbers < len(self._questions)
        return np.where(known, self._questions[np.where(known, numbers, 0)], NONE)

    # Snapshots of a buffer ------------------------------------------------------------------------------------------

    def snapshot_for_log(self, snapshot: Arrays) -> dict[str, NDArray[Any]]:
        """Translate a snapshot of the run's buffer to the log's question numbers, which `seen` names."""
        known = np.flatnonzero(self._numbers != NONE)
        found = dict(snapshot) | {"seen": self._numbers[known]}
        found |= {name: found[name][known] for name in BY_QUESTION}
        return found | {name: self._numbers[found[name]] for name in OF_QUESTIONS}


def snapshot_from_log(arrays: Arrays, num_questions: int, questions: QuestionMap | None = None) -> dict[str, Any]:
    """Translate a snapshot that a log holds, so that every question has its row again.

    Args:
        arrays: as they are in the log.
        num_questions: of the buffer.
        questions: of the buffer; None: it numbers them as the log does.

    Raises:
        ValueError: it tells of a question that is not among those of the buffer.
    """
    found = dict(arrays)
    seen = found.pop("seen")
    here = seen if questions is None else questions.questions_of(seen)
    if (unknown := seen[here == NONE]).size:
        raise ValueError(f"question {unknown[0]} is not among the questions of this run")
    for name in found.keys() & set(BY_QUESTION):
        rows = found[name]
        found[name] = np.full((num_questions, *rows.shape[1:]), FILL.get(name, 0), rows.dtype)
        found[name][here] = rows
    if questions is not None:
        found |= {name: questions.questions_of(found[name]) for name in OF_QUESTIONS}
    return found
