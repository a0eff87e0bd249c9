"""The expression parser against Python's own arithmetic on generated expressions, and against hostile text."""

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.tasks import get_task
from exgrpo.tasks.arithmetic import MAX_DEPTH, MAX_LENGTH, ExpressionError, evaluate
from exgrpo.tasks.countdown import countdown_reward, reaches

# (text, value or None where it divides by zero, strength: 0 sum, 1 product, 2 factor, numbers)
leaves = st.integers(0, 999).map(lambda n: (str(n), Fraction(n), 2, [n]))


def join(operation, left, right):
    """The expression of two expressions, with parentheses where the grammar needs them."""
    strength = 0 if operation in "+-" else 1
    texts = []
    for side, needed in ((left, strength), (right, strength + (operation in "-/" or strength == 1))):
        texts.append(side[0] if side[2] >= needed else f"({side[0]})")
    values = left[1], right[1]
    if None in values or (operation == "/" and values[1] == 0):
        value = None
    else:
        value = {
            "+": lambda a, b: a + b,
            "-": lambda a, b: a - b,
            "*": lambda a, b: a * b,
            "/": lambda a, b: a / b,
        }[operation](*values)
    return texts[0] + operation + texts[1], value, strength, left[3] + right[3]


expressions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(join, st.sampled_from("+-*/"), inner, inner),
        inner.map(lambda e: (f"({e[0]})", e[1], 2, e[3])),
        inner.map(lambda e: (f" {e[0]} ", e[1], e[2], e[3])),
    ),
    max_leaves=8,
)


@given(expressions)
def test_the_parser_agrees_with_fractions(expression):
    text, value, _, numbers = expression
    if value is None or len(text) > MAX_LENGTH or text.count("(") > MAX_DEPTH:
        if value is None:
            with pytest.raises(ExpressionError):
                evaluate(text)
        return
    assert evaluate(text) == (value, numbers)


@given(st.text(alphabet="0123456789+-*/() .e_x", max_size=40) | st.text(max_size=40))
def test_any_text_gives_a_value_or_an_expression_error(text):
    try:
        value, numbers = evaluate(text)
    except ExpressionError:
        return
    assert isinstance(value, Fraction)
    assert numbers
    assert set(text) <= set("0123456789+-*/() ")


HOSTILE = [
    "9**9**9",
    "(" * 100_000 + ")" * 100_000,
    "(" * 100 + "1" + ")" * 100,
    "9" * 200,
    "9" * 3_000_000,
    "*".join(["999999999"] * 25),
    "1/" * 128,
    "__import__('os').system('true')",
    "1e9",
    "0x10",
    "1_0",
    "²",
    "٣",
    "-1",
    "1--1",
    "1/0",
    "1/(2-2)",
    "(1",
    "1)",
    "()",
    "",
    "1;2",
    "1=1",
    "\n",
]


@pytest.mark.parametrize("text", HOSTILE, ids=[repr(text[:20]) for text in HOSTILE])
def test_hostile_text_scores_nothing_and_fast(text):
    start = time.process_time()
    score = countdown_reward(["1,2:3="], [text], answer=["3"], numbers=[[1, 2]])
    assert score == [0.0]
    assert time.process_time() - start < 1


def test_by_hand():
    assert evaluate("2+3*4-6/4") == (Fraction(25, 2), [2, 3, 4, 6, 4])
    assert evaluate("(2+3)*4") == (20, [2, 3, 4])
    assert evaluate("8/4/2") == (1, [8, 4, 2])
    assert reaches("25+3*7", [3, 7, 25], 46)
    assert reaches(" 7*3 + 25 ", [3, 7, 25], 46)
    assert reaches("25-3", [3, 7, 25], 22)  # not every number has to be used
    assert reaches("3/(7/7)", [3, 7, 7], 3)
    assert not reaches("7*7-3", [3, 7, 25], 46)  # a number twice
    assert not reaches("46", [3, 7, 25], 46)  # a number that is not given
    assert not reaches("25+3*7=46", [3, 7, 25], 46)


@pytest.mark.parametrize("knobs", [{}, {"numbers": 5, "largest": 30, "largest_target": 200}])
def test_questions_have_the_solution_they_were_made_from(knobs):
    task = get_task("countdown", **knobs)
    for question in task.draw("train", 500):
        numbers, target = question.columns["numbers"], int(question.answer)
        assert reaches(question.columns["solution"], numbers, target)
        assert numbers == sorted(numbers)
        assert question.prompt == ",".join(map(str, numbers)) + f":{target}="
        assert 1 <= target <= task.largest_target
