"""Equality of printed output: which text counts as the output, and which space does not."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.errors import ConfigurationError
from exgrpo.rewards import code_output_reward
from exgrpo.rewards.output import blocks, normalised


def reward(text, gold):
    return code_output_reward([""], [text], answer=[gold])[0]


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("```\n1 2\n3\n```", "1 2\n3\n"),
        ("Code:\n```python\nprint(5)\n```\nIt prints\n~~~text\n5\n~~~\nas asked.", "5"),
        ("```\n  indented  \n\tb\t\r\n```", "  indented\n\tb"),
        ("````\n>\n```\n5\n```\n````", ">\n```\n5\n```\n"),
        ("\\boxed{[1, 2]}", "[1, 2]"),
        ("I think \\boxed{a b}, so \\boxed{ a b }", "a b"),
        ("The output is 42.", "42"),
        ("The output is 4.2", "4.2"),
        ("The answer is `[1, 2]`.", "[1, 2]"),
        ("**Output:** True\nbecause it is.", "True"),
        ("Output:\n1\n2\n", "1\n2"),
        ("<think>Output: 1</think>2", "2"),
        ("  5\n\n", "5"),
        ("```\n7\n```", "```\n7\n```"),
    ],
)
def test_equal(text, gold):
    assert reward(text, gold) == 1.0
    assert reward([{"role": "assistant", "content": text}], gold) == 1.0


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("```\n5", "5"),
        ("```\n5\n```\n```\n6\n```", "5"),
        ("\\boxed{5} or \\boxed{6}", "6"),
        ("\\boxed{5", "5"),
        ("The output is 5 or 6", "5"),
        ("The output is not 5", "5"),
        ("TRUE", "True"),
        ("1.0", "1"),
        ("1  2", "1 2"),
        ("a\n\nb", "a\nb"),
        ("```\na\n```", "  a"),
        ("", "5"),
        ("print(5)", "5"),
    ],
)
def test_not_equal(text, gold):
    assert reward(text, gold) == 0.0


@pytest.mark.parametrize("gold", [None, 5, "", " \n\t\n", "```\n```"])
def test_without_a_gold_output_a_row_is_unscorable(gold):
    assert reward("", gold) is None


def test_a_completion_that_is_neither_text_nor_messages_is_an_error():
    with pytest.raises(ConfigurationError):
        reward(5, "5")


lines = st.lists(st.text("ab \t`.", max_size=5), max_size=5).map("\n".join)


@given(lines)
def test_every_output_equals_itself_in_a_block(gold):
    expected = None if not normalised(gold) else 1.0
    if gold.strip().startswith("```") and len(blocks(gold)) == 1:
        return  # a gold that is a block itself stands for its content
    assert reward(f"So:\n``````\n{gold}\n``````", gold) == expected


@given(lines, lines)
def test_different_outputs_are_not_equal(one, other):
    if normalised(one) != normalised(other) and normalised(one) and not blocks(one):
        assert reward(f"``````\n{other}\n``````", one) == 0.0


@pytest.mark.parametrize(
    "piece", ["```\n", "`", "output:", "output is ", "\\boxed{", "\n", " ", "~~~~", "\r", "<think>"]
)
def test_time_is_linear_in_hostile_text(piece):
    start = time.process_time()
    reward(piece * 100_000, "5")
    assert time.process_time() - start < 5
