"""`choice_reward`: one option, and no other."""

import logging
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.rewards import choice_reward, completion
from exgrpo.rewards.choice import final_choice, parse_label


@pytest.mark.parametrize(
    ("text", "label"),
    [
        (r"\boxed{C}", "C"), (r"\boxed{\text{(C)}}", "C"), (r"\boxed{c}", "C"), (r"\boxed{C) Planet days}", "C"),
        (r"\boxed{a}", "A"),
        (r"\boxed{A} or \boxed{B}", None), (r"\boxed{A, B}", None), (r"\boxed{A and B}", None),
        (r"\boxed{}", None), (r"\boxed{C", None),
        ("The answer is C.", "C"), ("The answer is (C)", "C"), ("answer: **C**", "C"), ("the answer is (b)", "B"),
        ("Answer: A\nB", "A"),
        ("The answer is A because it is", "A"), ("The answer is C) A planet", "C"), ("Answer: C. I know", "C"),
        ("Answer: 2", "2"),
        ("The correct answer is option D: x", "D"), ("The answer is: \\text{B}", "B"),
        ("The answer is A. B is wrong", "A"),
        ("Answer: A) 4", "A"), ("The answer is B. No, the answer is C.", "C"),
        ("The answer is A or B", None), ("answer is both A and C", None), ("The answer is A, B, C, D", None),
        ("Answer: A/B", None),
        ("The answer is a planet", None), ("The answer is A planet", None), ("The answer is Carbon", None),
        ("The answer is 25", None),
        ("(A) is wrong.\nSo (C)", "C"), ("I choose (c)", "C"), ("(A) or (C)", None), ("The answer is (A) (B)", None),
        ("C", "C"), ("C.", "C"), ("C) Mars", "C"), ("**C**", "C"), ("A B C D", None), ("A. x\nB. y\nC. z", None),
        ("A planet", None),
        ("I think so", None), ("A and B are right", None), ("", None),
        (r"\boxed{C: 5 or D: 6}", None), (r"\boxed{C, and also D}", None), (r"\boxed{C or possibly D}", None),
        (r"\boxed{C|D}", None), (r"\boxed{C? D?}", None), (r"\boxed{C maybe D}", None), (r"\boxed{2: 5 or 3}", None),
        ("The answer is (C) or maybe (D)", None), ("The answer is C, also D", None), ("It is not (C).", None),
        ("I exclude (C)", None), ("(C) isn't right", None), ("C++", None), (r"\boxed{C \boxed{D}}", None),
        ("The correct option is C", "C"), ("The best choice is (C).", "C"), ("The correct option is C or D", None),
        ("The answer is c.", "C"), ("The answer is c, or d", None), ("The answer is C or d", None),
        ("The answer is C (d)", None),
        ("The answer is C, because D is too small.", "C"), ("The answer is C, D, because both fit.", None),
        ("The answer is C. Or D.", None), ("The answer is C. Other than D, all fail.", "C"), ("A.B.C.D", None),
        (r"\boxed{C.D}", None), ("(A) 5\n(B) 6\n(C) 7", None), ("(A) 5\n(B) 6\n(C) 7\n\n(B) 6", "B"),
        ("Ｃ", "C"), ("The answer is （Ｃ）", "C"), (r"\boxed{Ｃ}", "C"), (r"\boxed{𝐂}", "C"), (r"\boxed{{\bf C}}", "C"),
        (r"\boxed{\textcolor{red}{C}}", "C"), (r"\boxed{\left(C\right)}", "C"), (r"\boxed{\,\textit{C}\ }", "C"),
        (r"\boxed{C or Ｄ}", None), (r"\boxed{C 𝐃}", None), (r"\boxed{C \mathsf{D}}", None), (r"\boxed{C\\D}", None),
        (r"\boxed{C\quad\text{D}}", None), (r"\boxed{\overline{C}}", None), (r"\boxed{C}, D", None),
        (r"$\boxed{C}$ or $D$.", None), (r"\boxed{C}, and D is wrong", "C"), (r"\boxed{C}, 12.", "C"),
        (r"\boxed{\boxed{C}}", "C"), (r"\boxed{C: a planet}", "C"), ("The answer is C, which is a planet.", "C"),
    ],
)  # fmt: skip
def test_the_final_choice(text, label):
    assert final_choice(text) == label


@pytest.mark.parametrize(
    ("gold", "label"),
    [
        ("C", "C"),
        ("(c)", "C"),
        ("C)", "C"),
        ("C.", "C"),
        ("2", "2"),
        (2, "2"),
        ("CD", None),
        ("", None),
        (None, None),
        (True, None),
        (["C"], None),
        (b"C", None),
    ],
)
def test_gold(gold, label):
    assert parse_label(gold) == label


def test_a_huge_gold_is_unscorable_and_logged_without_an_error(caplog, monkeypatch):
    monkeypatch.setattr(completion, "_warned", set())
    with caplog.at_level(logging.WARNING):
        assert choice_reward([""], ["C"], [10**5000]) == [None]
    assert "an object that cannot be shown" in caplog.text


def test_reward_in_both_formats_after_thinking():
    texts = ["<think>(B)</think> The answer is C.", [{"role": "assistant", "content": "\\boxed{C}"}], "(B)"]
    assert choice_reward([""] * 3, texts, ["C"] * 3) == [1.0, 1.0, 0.0]


def test_unscorable_gold(caplog, monkeypatch):
    monkeypatch.setattr(completion, "_warned", set())
    with caplog.at_level(logging.WARNING):
        assert choice_reward([""] * 2, ["C", "C"], ["Carbon", "C"]) == [None, 1.0]
    assert len(caplog.records) == 1


FORMS = (
    "\\boxed{%s}",
    "\\boxed{\\text{%s}}",
    "The answer is %s.",
    "Answer: (%s)",
    "So (%s)",
    "%s",
    "Final answer: **%s**",
)


@given(st.sampled_from("ABCDEFGHJ12345"), st.sampled_from("ABCDEFGHJ12345"), st.sampled_from(FORMS))
def test_an_option_scores_itself_and_no_other(chosen, gold, form):
    assert choice_reward([""], [form % chosen], [gold]) == [float(chosen == gold)]


@given(
    st.lists(st.sampled_from("ABCDEFGH"), min_size=2, max_size=8, unique=True),
    st.sampled_from([", ", " or ", " and ", "/", "; ", " "]),
)
def test_a_list_of_options_is_wrong(labels, separator):
    listed = separator.join(labels)
    for text in (
        f"\\boxed{{{listed}}}",
        f"The answer is {listed}.",
        "".join(f"\\boxed{{{label}}}" for label in labels),
    ):
        assert all(choice_reward([""], [text], [label]) == [0.0] for label in labels)


@pytest.mark.slow
@given(st.text(max_size=60))
def test_no_text_raises(text):
    assert choice_reward([""], [text], ["C"])[0] in (0.0, 1.0)


@pytest.mark.parametrize("text", ["(A)" * 700_000, "A " * 700_000, "answer is " * 200_000, "\n" * 2_000_000 + "(A)"])
def test_hostile_text_is_fast(text):
    start = time.process_time()
    assert choice_reward([""], [text], ["B"]) == [0.0]
    assert time.process_time() - start < 10.0  # quadratic time would take minutes
