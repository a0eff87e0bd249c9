"""The mathematical reward: it never raises, gives the same twice, a gold scores itself, and what differs does not."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exgrpo.rewards.math.answer import MAX_CHARS, final_answers, sentence_end
from exgrpo.rewards.math.form import read
from exgrpo.rewards.math.latex import clean
from exgrpo.rewards.math.reward import parse_gold, verify_math
from exgrpo.rewards.math.symbolic import prepare

pytest.importorskip("math_verify")

PIECES = (
    "a", "1", "23", " ", "{", "}", "(", ")", "[", "]", r"\text{a}", r"\text{", r"\frac", r"\frac{1}{2}", "$", "-",
    ",", r"\pm", "^", "_", "=",
    r"\le", "<", "cm", ".", r"\degree", "%", "'", ":", r"\!", " and ", " or ", "x=", r"\boxed{", "&", r"\\",
    r"\begin{pmatrix}",
    r"\end{pmatrix}", "|", "!", r"\sqrt", "/", "e", "≈", "1,000", r"\{", r"\}", r"\cup", r"\infty", "\u202e",
    "\ud800", "\x00", "\n",
    "The answer is ", "#### ", "</think>", r"\pi", r"\sin", "i", "²", "∞",
    r"\color{red}", r"{\bf ", r"\over ", r"\choose ", "{,}", "{,}000", r"\,", r"\begin{array}{c}", r"\end{array}", "½",
    "，", "√", r"\ldots", "f(2)=", "|AB|=", "_2", r"\text{ base }", "3-1", "x", r"\left", r"\binom",
)  # fmt: skip
noise = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)
anything = st.text(st.characters(codec=None), max_size=80)
integers = st.integers(-999, 999)


@st.composite
def expressions(draw, depth=2):
    """Polynomial-like LaTeX that every part of the reward can read."""
    if depth == 0:
        return draw(st.sampled_from(["x", "y", "n", r"\pi", "a"]) | st.integers(1, 99).map(str))
    inner = expressions(depth=depth - 1)
    form = draw(st.sampled_from([
        "{0}+{1}", "{0}-{1}", r"\frac{{{0}}}{{{1}}}", r"\sqrt{{{0}}}", "({0})({1})", "({0})^2", r"{0}\cdot({1})",
        r"\sin({0})",
    ]))  # fmt: skip
    return form.format(draw(inner), draw(inner))


numbers = integers.map(str) | st.tuples(integers, st.integers(1, 99)).map(lambda p: rf"\frac{{{p[0]}}}{{{p[1]}}}")
scalars = numbers | expressions()
collections = st.lists(numbers, min_size=2, max_size=4).flatmap(
    lambda parts: st.sampled_from(
        [("(", ")"), ("[", ")"), ("(", "]"), (r"\{", r"\}"), ("", ""), (r"\left(", r"\right)")]
    ).map(lambda pair: pair[0] + ", ".join(parts) + pair[1])
)
golds = (
    scalars
    | collections
    | st.sampled_from([r"\text{even}", r"\text{(B)}", "x=5", "101_2", "3:45", r"90^\circ", r"12\%", r"(-\infty,3]"])
)


@pytest.mark.slow
@given(noise | anything, noise | anything)
@settings(max_examples=300)
def test_nothing_raises_and_the_score_is_the_same_twice(text, gold):
    for completion in (text, f"\\boxed{{{text}}}", f"The answer is {text}."):
        scores = [verify_math(completion, gold, strict) for strict in (False, True, False)]
        assert scores[0] in (None, 0.0, 1.0)
        assert scores[0] == scores[2]
        assert (scores[0] is None) == (scores[1] is None)
        assert not scores[1] or scores[0]  # strict accepts nothing that is otherwise wrong


@given(golds)
@settings(max_examples=200)
def test_a_gold_scores_itself(gold):
    assert parse_gold(gold) == gold
    for text in (
        f"\\boxed{{{gold}}}",
        f"So the answer is ${gold}$.",
        f"<think>\\boxed{{7}}</think>\\boxed{{ {gold} }}",
    ):
        assert verify_math(text, gold) == 1.0
        assert verify_math(text, gold, strict=True) == 1.0


DRESSES = (
    r"\color{red}{%s}", r"\textcolor{blue}{%s}", r"{\bf %s}", r"\mathbf{%s}", r"\displaystyle %s", r"{\color{red} %s}",
    "{{%s}}", r"\,%s\;",
)  # fmt: skip


@given(scalars | collections, st.sampled_from(DRESSES))
@settings(max_examples=100)
def test_a_dress_says_nothing(gold, dress):
    assert read(dress.replace("%s", gold)) == read(gold)
    assert verify_math(f"\\boxed{{{dress.replace('%s', gold)}}}", gold, strict=True) == 1.0


@pytest.mark.slow
@given(expressions(), st.integers(2, 9))
@settings(max_examples=40)
def test_a_changed_expression_is_wrong_and_a_respelled_one_right(expression, factor):
    if read(expression).number == 0 or prepare(read(expression).text) is None:
        return
    assert verify_math(f"\\boxed{{{expression} + {factor}}}", expression) == 0.0
    assert verify_math(f"\\boxed{{\\frac{{{factor}({expression})}}{{{factor}}}}}", expression) in (0.0, 1.0)


@given(numbers, numbers)
def test_numbers_are_exact(left, right):
    equal = read(left).number == read(right).number
    assert (
        verify_math(f"\\boxed{{{left}}}", right)
        == verify_math(f"\\boxed{{{left}}}", right, strict=True)
        == float(equal)
    )


@given(st.lists(numbers, min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_lists_have_no_order_and_tuples_do(parts, rng):
    shuffled = list(parts)
    rng.shuffle(shuffled)
    values = [[read(part).number for part in some] for some in (parts, shuffled)]
    for opening, closing, ordered in (("", "", False), (r"\{", r"\}", False), ("(", ")", True)):
        gold, answer = (f"{opening}{', '.join(some)}{closing}" for some in (parts, shuffled))
        assert verify_math(f"\\boxed{{{answer}}}", gold) == float(not ordered or values[0] == values[1])
        assert verify_math(f"\\boxed{{{opening}{', '.join(parts[1:])}{closing}}}", gold) == 0.0


@given(noise)
def test_reading_is_idempotent_and_bounded(text):
    cleaned = clean(text[:MAX_CHARS])
    if cleaned is not None and clean(cleaned) is not None:
        assert clean(clean(cleaned)) == clean(cleaned)
    assert sum(map(len, final_answers(text))) <= 4 * MAX_CHARS
    assert 0 <= sentence_end(text) <= len(text)
