"""The checkers and rewards of the single families: what is right, what is luck, what is neither."""

import itertools
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.tasks import get_task
from exgrpo.tasks.chains import chains_final_reward, chains_strict_reward
from exgrpo.tasks.free_order import free_order_reward
from exgrpo.tasks.sums import read_sum, sums_final_reward, sums_strict_reward

CHAINS, WIDE, FREE, SUMS = get_task("chains"), get_task("chains", modulus=37), get_task("free_order"), get_task("sums")


def any_question(task):
    return st.tuples(st.integers(0, len(task.strata()) - 1), st.integers(0, 10**12)).map(
        lambda pick: task.unrank(pick[0], pick[1] % task.strata()[pick[0]].count)
    )


def test_chains_by_hand():
    question = CHAINS.unrank(0, 3 + 10 * (0 + 3 * (4 + 10 * (2 + 3 * 2))))
    assert (question.prompt, question.answer, question.columns["trace"]) == ("3+4x2=", "4", "74")
    assert CHAINS.is_valid("3-4x2+1=", "989")  # no precedence, and never below zero
    assert WIDE.is_valid("30+10x2=", "3 6")
    assert not WIDE.is_valid("30+10x2=", "36")


def test_chains_rewards_by_hand():
    columns = {"answer": ["4"] * 5, "trace": ["74"] * 5, "modulus": [10] * 5}
    texts = ["74", "04", "7", "744", "74x"]
    assert chains_strict_reward(texts, texts, **columns) == [1, 0, 0, 0, 0]
    assert chains_final_reward(texts, texts, **columns) == [1, 1, 0, 1, 0]
    wide = ["3 6", "36", "6", "3 06", "3 6 ", "x6"]
    columns = {"answer": ["6"] * 6, "modulus": [37] * 6}
    assert chains_final_reward(wide, wide, **columns) == [1, 0, 1, 0, 1, 1]


@pytest.mark.parametrize("task", [CHAINS, WIDE], ids=["one digit", "decimals"])
@given(data=st.data())
def test_any_single_changed_running_result_is_invalid(task, data):
    question = data.draw(any_question(task))
    separator = "" if task.modulus <= 11 else " "
    results = list(question.columns["trace"]) if not separator else question.columns["trace"].split()
    assert task.is_valid(question.prompt, separator.join(results))
    at = data.draw(st.integers(0, len(results) - 1))
    other = data.draw(st.integers(0, task.modulus - 1).map(str).filter(lambda text: text != results[at]))
    changed = separator.join([*results[:at], other, *results[at + 1 :]])
    assert not task.is_valid(question.prompt, changed)
    assert task.reward_function(
        [question.prompt], [changed], answer=[question.answer], **{k: [v] for k, v in question.columns.items()}
    ) == [0.0]
    final = chains_final_reward([question.prompt], [changed], answer=[question.answer], modulus=[task.modulus])
    assert final == [float(at < len(results) - 1)]


def test_free_order_by_hand():
    question = "a+3b-4c+2="
    assert FREE.is_valid(question, "b7aTc1")
    assert FREE.is_valid(question, "a3bTc1")
    for lucky in ("c1", "b7a8c1", "a1", "b7aTc1c1", "a3a6c1"):
        assert not FREE.is_valid(question, lucky)
        assert free_order_reward([question], [lucky], answer=["1"], modulus=[11]) == [1.0]
    assert not FREE.is_valid("b+3a-4c+2=", "b7aTc1")  # not a question


@given(any_question(FREE))
def test_all_orders_and_only_they_are_valid(question):
    operands = [int(text) for text in re.findall(r"[+-][0-9]", question.prompt)]
    texts = {FREE.fold(operands, order) for order in itertools.permutations(range(len(operands)))}
    assert len(texts) == FREE.valid_count(question)
    assert all(FREE.is_valid(question.prompt, text) for text in texts)
    assert all(text.endswith(question.answer) for text in texts)


@given(st.data())
def test_any_single_changed_step_of_free_order_is_invalid(data):
    question = data.draw(any_question(FREE))
    text = FREE.solution(question, random.Random(data.draw(st.integers(0, 99))))
    at = data.draw(st.integers(0, len(text) - 1))
    pool = "abcde" if at % 2 == 0 else "0123456789T"
    other = data.draw(st.sampled_from([c for c in pool if c != text[at]]))
    changed = text[:at] + other + text[at + 1 :]
    # the letter of one operand for that of an equal one is a double, so that never counts as valid either
    assert not FREE.is_valid(question.prompt, changed)


def test_sums_by_hand():
    assert SUMS.is_valid("47+85=", "2131")
    assert read_sum("2131") == "132"
    columns = {"answer": ["132"] * 4, "trace": ["2131"] * 4}
    texts = ["2131", "2031", "2130", "231"]
    assert sums_strict_reward(texts, texts, **columns) == [1, 0, 0, 0]
    assert sums_final_reward(texts, texts, **columns) == [1, 1, 0, 0]
    assert read_sum("0000") == "0"
    assert not SUMS.is_valid("47+085=", "2131")


@given(any_question(SUMS))
def test_sums_agree_with_the_arithmetic(question):
    assert question.answer == str(sum(int(part) for part in question.prompt[:-1].split("+")))
    assert read_sum(question.columns["trace"]) == question.answer


@given(st.data())
def test_any_single_changed_digit_of_a_sum_is_invalid(data):
    question = data.draw(any_question(SUMS))
    text = question.columns["trace"]
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from([c for c in "0123456789" if c != text[at]]))
    assert not SUMS.is_valid(question.prompt, text[:at] + other + text[at + 1 :])
