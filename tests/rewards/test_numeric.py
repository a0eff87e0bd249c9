"""`numeric_reward`: one final answer, exactly compared, hostile text included."""

import logging
import subprocess
import sys
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.errors import ConfigurationError
from exgrpo.rewards import completion, numeric_reward
from exgrpo.rewards.numeric import final_number, parse_gold


def reward(text, gold="42"):
    return numeric_reward([""], [text], [gold])[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"so \boxed{5} and \boxed{6}", None), (r"\boxed{0.5} ok \boxed{\frac{1}{2}}", "1/2"),
        (r"\boxed{\boxed{5}}", 5),
        (r"\boxed{5} and \boxed{x}", None), (r"first 7, then \boxed{4", None), (r"\fbox{5}", 5), (r"\boxed {5}", 5),
        (r"\boxed{\left\{5\right.} 6", None), (r"\boxed{}", None), (r"\boxed{5, 6}", None), (r"\boxed{5} of 6", 5),
        ("#### 42\nQuestion: 7", 42), ("#### $1,000.00", 1000), ("#### Step 2: add\nThe answer is 42.", 42),
        ("#### 1. First\nthe answer is 7", 7), ("#### 5\n#### 6", 6),
        ("The answer is 42 apples, since 6*7=43.", 42), ("the answer is: **42**", 42), ("**Answer:** 42", 42),
        ("Answer:\n42", 42), ("answer is \\(42\\).", 42), ("The answer is\n\n$$42$$", 42),
        ("The answer is $x = 42$.", 42),
        ("The answer is as follows:\n42", 42), ("The answer is 5 + 3 = 8", 8),
        ("The answer is 42.\n\nQuestion: how many of 7 are no fruit?", 42), ("The answer is 72. Indeed 24+48=72.", 72),
        ("The answer is 48+24 = 72 clips. ok 5", 72), ("The answer is 48+24 = 72 clips.", 72),
        ("The final answer is approximately 3.5.", "7/2"), ("Answer: 3/4 of the pie", "3/4"),
        ("answer is 5 (2*5=10)", None),
        ("The answer is 42 for the 3 children.", None),
        ("The answer is 42 for the children.", 42), ("The answer is negative 5.", -5),
        ("answer is \\frac{1}{2}.", "1/2"),
        ("The answer is 1. No: the answer is 2.", 2),
        ("The answer is 42 or 43", None), ("The answer is 42, 43", None), ("The answer is 42/1, 43", None),
        ("The answer is 5/6 or 6/7", None), ("The answer is 12 (or 13)", None), ("The answer is 42-43", None),
        ("The answer is 5 + 3", None), ("The answer is $5x$", None), ("The answer is not 42", None),
        ("The answer is between 3 and 5", None), ("The answer is 2^5", None),
        ("He pays 3 and then -$5.", -5), ("pages 3-4", None), ("we get 1,234 in all", 1234), ("1,2,3", None),
        ("He has 5 million", 5000000), ("it is 2^10", None), ("in total 5x", None), ("nothing", None), ("", None),
        ("The answer is less than 4", None), ("The answer is 4 less than x", None), ("The answer is at least 4", None),
        ("The answer is 4 or more", None), ("The answer is 4 x", None), ("The answer is 4 if n is odd", None),
        ("The answer is 4; five", None), ("The answer is 4. Hmm, no, five.", None), ("The answer is 7 p.m.", 7),
        ("The answer is 5 as 6", None), ("The answer is 4 therefore 5", None), ("The answer is 4!", None),
        ("My answer is 4. Wait no. I mean 5.", None), ("The answer is 4 if n is odd, 5 if n is even.", None),
        ("The answer is 5, or maybe 6", None), ("maybe x = 6; maybe x =5", None), ("The answer is 5 or six", None),
        ("The answer is 5 times two.", None), ("The answer is 5.\n\nSo we have 5.", 5), ("The answer is 5 apples!", 5),
        (r"\boxed{6 \boxed{5}}", None), (r"\boxed{\boxed{5}6}", None), (r"\boxed{x \neq \boxed{5}}", None),
        (r"\boxed{ \boxed{5} }", 5), (r"\boxed{\boxed{\boxed{5}}}", 5),
        ("It is 43 - 1", None), ("60 + 12", None), ("60 + 12 = 72", 72), ("x > 42", None), ("x ≠ 42", None), ("x = 42", 42),
        ("=> 42", 42), ("<b>42</b>", 42), ("It is less than 42", None), ("It is 42", 42), ("40 to 42", None), ("5 or 42", None),
        ("√42", None), ("log 42", None), ("42²", None), ("42 squared", None), ("42 dozen", None), ("42 eggs", 42),
        ("40, 41, 42", None), ("In 2019, 42", 42), ("at 12:42", None), ("Total: 42", 42), ("x_{42}", None),
        ("between 40 and 42", None), ("Step 3: 42", 42), ("**3** 42", 42), ("He has 42. The answer is unknown.", None),
        (f"The answer is, {'so ' * 84}42", 42), (f"The answer is {'so ' * 70} 42", 42),
    ],
)  # fmt: skip
def test_the_final_answer(text, value):
    assert final_number(text) == (None if value is None else Fraction(value))


@pytest.mark.parametrize(
    "wrapper", [r"\boxed{%s}", "#### %s", "The answer is %s.", "The answer is %s of it.", "so we get %s"]
)
@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("0.25", "0.25%", 0), ("0.5%", "0.5", 0), ("1/4", "0.25 percent", 0), ("1.5", r"1.5^\circ", 0), ("25", "25%", 1),
        ("25%", "25", 1),
        ("0.5%", "0.5%", 1), ("25%", "25°", 0), ("22.5", "22.5°", 1), ("1000", "1{,}000", 1), ("1,000", "1{,}00", 0),
    ],
)  # fmt: skip
def test_a_sign_on_one_side_does_not_change_the_value(gold, answer, right, wrapper):
    assert reward(wrapper.replace("%s", answer), gold) == right


def test_boxes_with_and_without_a_sign_must_agree():
    assert reward(r"\boxed{25\%} or \boxed{25}", "25") == 1.0
    assert reward(r"\boxed{0.25\%} or \boxed{0.25}", "0.25") == 0.0


def test_text_before_the_end_of_thinking_does_not_count():
    assert reward("<think>\\boxed{42}</think> It is 7.") == 0.0
    assert reward("<think>\\boxed{7} \\boxed{8}</think> It is \\boxed{42}.") == 1.0
    assert reward("<think>\\boxed{42}</think>") == 0.0
    assert reward("<think>\\boxed{42}") == reward("<think>7</think> <think> The answer is 42.") == 0.0


def test_both_dataset_formats():
    parts = [{"type": "text", "text": "the answer "}, {"type": "image"}, {"type": "text", "text": "is 42"}]
    conversations = [
        [
            {"role": "assistant", "content": "7"},
            {"role": "tool", "content": "9"},
            {"role": "assistant", "content": "42"},
        ],
        [{"role": "assistant", "content": parts}],
        [{"role": "assistant", "content": None}],
        [],
    ]
    assert numeric_reward([""] * 4, conversations, ["42"] * 4) == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("bad", [None, 42, [{"role": "user", "content": "42"}], [{"role": "assistant", "content": 42}]])
def test_what_is_not_a_completion_raises_and_is_not_a_score(bad):
    with pytest.raises(ConfigurationError):
        reward(bad)


def test_lengths_must_agree():
    with pytest.raises(ValueError):
        numeric_reward(["", ""], ["42", "42"], ["42"])


@pytest.mark.parametrize(
    ("gold", "value"),
    [
        ("She has 6*7=<<6*7=42>>42.\n#### 42", 42), ("#### 1,000", 1000), (r"thus \boxed{\frac{1}{2}}", "1/2"), (7, 7),
        (142.0, 142), ("142.0", 142), (Fraction(1, 3), "1/3"), (10**400, 10**400), ("$\\frac{25}{2}$", "25/2"),
        (None, None), (True, None), (float("nan"), None), ("p - q", None), (r"\sqrt{2}", None), ("", None),
        ("3, 5", None),
        ("#### none", None), (r"\boxed{1}, \boxed{2}", None), ("9" * 5000, None), ([42], None), (b"42", None),
    ],
)  # fmt: skip
def test_gold(gold, value):
    assert parse_gold(gold) == (None if value is None else Fraction(value))


def test_unscorable_gold_gives_none_and_one_warning(caplog, monkeypatch):
    monkeypatch.setattr(completion, "_warned", set())
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert numeric_reward([""] * 3, ["1", "2", "3"], [r"\pi", "2", "p"]) == [None, 1.0, None]
    assert len(caplog.records) == 1
    assert r"\\pi" in caplog.text
    assert "numeric_reward" in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        "9" * 4_000_000, "\\boxed{" * 300_000, "\\boxed{" + "9" * 3_000_000 + "}", "\\boxed{1}" * 200_000,
        "answer is " * 200_000, "#### " * 400_000, "1," * 1_500_000, "{" * 2_000_000 + "\\boxed{1}",
        "#### " + "9" * 3_000_000,
        "answer is " + "9" * 3_000_000, "\\boxed{9**9**9**9}", "\\boxed{1e999999999}", "\\boxed{9^{9^{9^9}}}",
        "1e" + "9" * 3_000_000,
        "\\frac{" * 400_000 + "1", "answer" + " " * 2_000_000, "the answer is" + " " * 2_000_000 + "1",
        "- " * 1_000_000 + "1",
    ],
)  # fmt: skip
def test_hostile_text_is_fast_and_wrong(text):
    start = time.process_time()
    assert reward(text) == 0.0
    assert time.process_time() - start < 10.0  # quadratic time would take minutes


numbers = st.fractions(min_value=-(10**7), max_value=10**7, max_denominator=999)


def spellings(value: Fraction) -> list[str]:
    n, d = value.numerator, value.denominator
    sign = "-" if n < 0 else ""
    texts = [f"{n}/{d}", f"\\frac{{{n}}}{{{d}}}", f"{sign}\\dfrac{{{abs(n)}}}{{{d}}}", f"x = {n}/{d}"]
    if d == 1:
        texts += [

        f"{n}", f"{n:,}", f"{n}.0", f"${n:,}", f"{sign}${abs(n)}", f"{n}%", f"{n} apples", f"{n:,}".replace(",", "{,}"),
            f"{n}.", str(n).replace("-", "−"), f"{n}\\text{{ cm}}", f"{n}^\\circ", f"\\({n}\\)",
        ]  # fmt: skip
        if n >= 0:
            texts.append(f"+{n}")
    return texts


WRAPPERS = ("\\boxed{%s}", "#### %s", "The answer is %s.", "**Answer:** %s\n", "<think>\\boxed{1}</think> Answer: %s")


@given(numbers, st.data())
def test_any_spelling_scores_itself_and_not_a_neighbour(value, data):
    text = data.draw(st.sampled_from(WRAPPERS)) % data.draw(st.sampled_from(spellings(value)))
    assert reward(text, data.draw(st.sampled_from(spellings(value)))) == 1.0
    other = value + data.draw(st.sampled_from([1, -1, 10, Fraction(1, 2), Fraction(1, 1000), -2 * value or 3]))
    assert reward(text, data.draw(st.sampled_from(spellings(other)))) == 0.0


@given(st.integers(0, 10**9), st.data())
def test_a_changed_digit_scores_zero(value, data):
    digits = list(str(value))
    position = data.draw(st.integers(0, len(digits) - 1))
    digits[position] = data.draw(st.sampled_from([d for d in "0123456789" if d != digits[position]]))
    assert reward(data.draw(st.sampled_from(WRAPPERS)) % "".join(digits), str(value)) == 0.0


@given(st.text(max_size=60) | st.text(alphabet="0123456789.,-+/$%{}\\()= boxedfracn#*^eansweri:\n", max_size=60))
def test_no_text_raises(text):
    assert reward(text) in (0.0, 1.0)
    assert reward("\\boxed{" + text + "}") in (0.0, 1.0)
    assert numeric_reward([""], ["42"], [text])[0] in (0.0, 1.0, None)


def test_own_rewards_load_without_torch():
    code = (
        "import sys; from exgrpo.rewards import get_reward; get_reward('numeric_reward'); "
        "print({'torch', 'trl', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
