"""The format reward, beside TRL's: where they agree, and the differences that are meant."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.rewards import format_reward
from exgrpo.rewards.format import is_well_formed


@pytest.mark.parametrize(
    "text", ["<think>a</think>b", "<think>\n</think>\n\nb", "\n<think>a\nb</think> <answer>c</answer>"]
)
def test_well_formed(text):
    assert format_reward(["q"], [text]) == [1.0]
    assert format_reward(None, [[{"role": "assistant", "content": text}]]) == [1.0]


@pytest.mark.parametrize(
    "text",
    [
        "", "b", "<think>a", "a</think>b", "b<think>a</think>b", "<think>a</think>", "<think>a</think> \n",
        "<think><think>a</think>b", "<think>a</think>b<think>", "<think>a</think></think>b", "<THINK>a</THINK>b",
    ],
)  # fmt: skip
def test_not_well_formed(text):
    assert format_reward(["q"], [text]) == [0.0]


def test_a_prompt_may_open_the_thinking():
    prompts = ["q <think>\n", "q <think>\n", "q", "<think> q"]
    assert format_reward(prompts, ["a</think>b", "<think>a</think>b", "a</think>b", "a</think>b"]) == [
        1.0,
        1.0,
        0.0,
        0.0,
    ]


@given(st.lists(st.sampled_from(["<think>", "</think>", "a", "\n", " "]), max_size=8).map("".join))
def test_what_passes_here_passes_with_trl(text):
    from trl.rewards import think_format_reward

    if is_well_formed(text):
        assert think_format_reward([[{"role": "assistant", "content": text.lstrip()}]]) == [1.0]


@pytest.mark.parametrize("piece", ["<think>", "</think>", "<think></think>", "<", " ", "a"])
def test_time_is_linear_in_hostile_text(piece):
    start = time.process_time()
    format_reward(["q"], [piece * 300_000])
    assert time.process_time() - start < 5
