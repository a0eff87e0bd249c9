"""Numbers of questions in a run and in its log, each from the other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.log.question_map import NONE, QuestionMap, snapshot_from_log


@given(
    st.lists(st.sampled_from("abcdefgh"), unique=True), st.lists(st.sampled_from("abcdefghij"), unique=True), st.data()
)
def test_each_number_follows_from_the_other(keys, listed, data):
    """Also those of questions that the log meets later; and no number is given twice."""
    questions = QuestionMap(keys, list(enumerate(listed, 1)))
    plain = {question: listed.index(key) + 1 for question, key in enumerate(keys) if key in listed}
    for question in data.draw(st.permutations(sorted(set(range(len(keys))) - plain.keys()))):
        assert questions.number_of(question) == NONE
        plain[question] = len(listed) + 1 + sum(number > len(listed) for number in plain.values())
        assert questions.add(question) == plain[question]
    assert [questions.number_of(question) for question in range(len(keys))] == [plain[q] for q in range(len(keys))]
    back = {number: question for question, number in plain.items()}
    numbers = np.arange(len(listed) + len(keys) + 5)
    assert questions.questions_of(numbers).tolist() == [back.get(number, NONE) for number in numbers.tolist()]
    assert [questions.question_of(number) for number in numbers.tolist()] == questions.questions_of(numbers).tolist()


def test_a_snapshot_of_other_questions_is_refused():
    arrays = {"seen": np.array([1, 2])}
    with pytest.raises(ValueError, match="question 2 is not among the questions of this run"):
        snapshot_from_log(arrays, 1, QuestionMap(["a"], [(1, "a"), (2, "b")]))
