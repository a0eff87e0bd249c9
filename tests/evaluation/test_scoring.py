"""Verifiers of an evaluation: math-verify by itself, and what decides by default."""

import pytest

from exgrpo.evaluation.scoring import Verifiers, default_verifiers, math_verify
from exgrpo.evaluation.store import Answer, StoredQuestion

pytest.importorskip("math_verify")


def test_math_verify_finds_and_compares_by_itself():
    texts = ["So \\boxed{\\frac{1}{2}}.", "The answer is $0.5$", "\\boxed{3}", "no idea"]
    messages = [[{"role": "assistant", "content": text}] for text in texts]
    assert math_verify(None, messages, ["\\frac{1}{2}"] * 4) == [1.0, 1.0, 0.0, 0.0]


def test_what_decides_comes_first():
    assert default_verifiers("math_reward") == ("math_reward", "strict_math_reward", "math_verify")
    assert default_verifiers("choice_reward") == ("choice_reward",)
    verifiers = Verifiers.named(default_verifiers("math_reward"))
    assert verifiers.decides == "math_reward"
    question = StoredQuestion(7, "b", 0, [{"role": "user", "content": "1/2?"}], "\\frac{1}{2}", {})
    answers = [Answer(7, 0, "It is \\boxed{0.5}", 5, "stop"), Answer(7, 1, "so 0.4", 5, "stop")]
    [scored] = verifiers.scored([answers], [question], lambda prompt: False)
    assert [answer.rewards["math_reward"] for answer in scored] == [1.0, 0.0]
    assert set(scored[0].rewards) == set(verifiers.functions)
    assert [answer.key for answer in scored] == [(7, 0), (7, 1)]
