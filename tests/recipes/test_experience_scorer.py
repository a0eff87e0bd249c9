"""The recipe "success and diversity" under its own name."""

import math
import subprocess
import sys

import numpy as np
import pytest

from exgrpo.errors import ConfigurationError
from exgrpo.recipes import ExperienceScorer
from exgrpo.rewards import get_reward

UNIT = {"x": [1.0, 0.0], "y": [0.0, 1.0], "xy": [3.0, 4.0], "-x": [-1.0, 0.0]}


def embedder(texts):
    return np.array([UNIT[text] for text in texts])


def verifier(prompts, completions, answer, **columns):
    return [None if gold is None else float(gold) for gold in answer]


def scorer(**options) -> ExperienceScorer:
    return ExperienceScorer(verifier, embedder, **options)


def values(scores) -> list[tuple[float, ...]]:
    return [(s.success, round(s.diversity, 6), round(s.quality, 6)) for s in scores]


def test_a_batch_by_hand():
    """Of question q: x first; xy has cosine 0.6 to it; y has 0 and 0.8, mean 0.4. Of r: x is its first."""
    got = scorer().score_batch(["q", "q", "r", "q"], ["x", "xy", "x", "y"], answer=[1, 0, 0, 1])
    assert values(got) == [(1, 1, 1), (0, 0.4, 0.12), (0, 1, 0.3), (1, 0.6, 0.88)]


def test_one_by_one_is_the_batch():
    batch, single = scorer(), scorer()
    questions, completions, answers = ["q", "q", "r", "q", "q"], ["x", "xy", "x", "y", "x"], [1, 0, 0, 1, None]
    expected = batch.score_batch(questions, completions, answer=answers)
    got = [single.score(*row[:2], answer=row[2]) for row in zip(questions, completions, answers, strict=True)]
    assert repr(got) == repr(expected)
    assert (single.seen("q"), single.seen("r"), single.seen("s")) == (4, 1, 0)


def test_a_later_batch_knows_the_earlier():
    s = scorer()
    s.score_batch(["q"], ["x"], answer=[1])
    assert values(s.score_batch(["q"], ["x"], answer=[1])) == [(1, 0, 0.7)]
    s.forget()
    assert values(s.score_batch(["q"], ["x"], answer=[1])) == [(1, 1, 1)]


def test_without_remembering_nothing_changes():
    s = scorer()
    s.score("q", "x", answer=1)
    got = s.score_batch(["q", "q", "r", "r"], ["y", "y", "x", "x"], remember=False, answer=[1] * 4)
    assert [score.diversity for score in got] == [1, 1, 1, 1]
    assert (s.seen("q"), s.seen("r")) == (1, 0)


def test_what_cannot_be_scored_has_no_quality_but_was_seen():
    s = scorer()
    for nothing in (None, math.nan):
        score = s.score("q", "x", answer=nothing)
        assert math.isnan(score.success)
        assert math.isnan(score.quality)
    assert score.diversity == 0
    assert values([s.score("q", "x", answer=1)]) == [(1, 0, 0.7)]


@pytest.mark.parametrize(("reward", "success"), [(1, 1), (0.51, 1), (0.5, 0), (0, 0), (-1, 0), (3, 1)])
def test_a_reward_above_a_half_is_a_success(reward, success):
    assert scorer().score("q", "x", answer=reward).success == success


def test_a_negative_cosine_is_a_diversity_of_1():
    s = scorer()
    s.score("q", "x", answer=1)
    assert values([s.score("q", "-x", answer=0)]) == [(0, 1, 0.3)]


def test_the_success_weight():
    s = scorer(success_weight=0.5)
    s.score("q", "x", answer=1)
    assert values([s.score("q", "xy", answer=1)]) == [(1, 0.4, 0.7)]
    with pytest.raises(ConfigurationError, match="success_weight"):
        scorer(success_weight=2)


def test_the_embedding_is_there_to_be_kept():
    kept = scorer().score("q", "xy", answer=1).embedding
    assert kept.dtype == np.float16
    assert kept.tolist() == [3, 4]


def test_a_reward_of_this_package_and_completions_of_messages():
    s = ExperienceScorer(get_reward("numeric"), lambda texts: [[len(text), 1.0] for text in texts])
    messages = [{"role": "assistant", "content": "It is \\boxed{4}."}]
    got = s.score_batch([("2+2", 0), 5], [messages, "It is \\boxed{5}."], answer=["4", "4"])
    assert [score.success for score in got] == [1, 0]
    assert got[0].embedding.tolist() == got[1].embedding.tolist() == [16, 1], "the text, not its form"


def test_columns_may_have_the_names_of_arguments_and_prompts_are_the_questions():
    seen = {}

    def spy(**given):
        seen.update(given)
        return [1.0]

    s = ExperienceScorer(spy, embedder)
    s.score("q", "x", question="What?", questions="no")
    assert seen == {"prompts": ["q"], "completions": ["x"], "question": ["What?"], "questions": ["no"]}
    s.score("q", "x", prompts="the prompt")
    assert seen["prompts"] == ["the prompt"]


def test_no_rollouts():
    assert scorer().score_batch([], [], answer=[]) == []


@pytest.mark.parametrize(
    ("completions", "columns", "match"),
    [(["x"], {"answer": [1, 1]}, "2 completions, not 1"), (["x", "y"], {"answer": [1]}, "2 answer, not 1"),
     (["x", "y"], {"answer": "11"}, "2 answer, not '11'")],
)  # fmt: skip
def test_lengths_that_differ_are_refused(completions, columns, match):
    with pytest.raises(ConfigurationError, match=match):
        scorer().score_batch(["q", "q"], completions, **columns)


def test_a_verifier_or_an_embedder_that_answers_otherwise_is_refused_and_nothing_is_remembered():
    s = ExperienceScorer(lambda **given: [1.0, 1.0], embedder)
    with pytest.raises(ConfigurationError, match="one reward for each of 1 completions, but gave 2"):
        s.score("q", "x")
    s = ExperienceScorer(verifier, lambda texts: np.full((len(texts), 2), math.nan))
    with pytest.raises(ConfigurationError, match="finite"):
        s.score("q", "x", answer=1)
    assert s.seen("q") == 0


@pytest.mark.parametrize("arguments", [("numeric", embedder), (verifier, "a/model"), (verifier,)])
def test_what_cannot_be_called_is_refused(arguments):
    with pytest.raises(ConfigurationError, match=r"get_reward\(name\).*TextEncoder\(name\)"):
        ExperienceScorer(*arguments)
    with pytest.raises(ConfigurationError, match="verifier or verifier_model, not both"):
        ExperienceScorer(verifier, embedder, verifier_model=verifier)


# As the recipe's text has it ----------------------------------------------------------------------------------------------


class Checks:
    def check(self, rollout, problem):
        return problem == "q" and "x" in rollout


class ChecksInAnotherOrder:
    def check(self, problem, rollout):
        return problem == "q" and "x" in rollout


class EncodesTexts:
    def encode(self, texts):
        return [UNIT[text] for text in texts]


class EncodesText:
    def encode(self, text):
        return np.array(UNIT[text])

    def __call__(self, *anything):
        raise AssertionError("a module can be called too")


@pytest.mark.parametrize("checks", [Checks, ChecksInAnotherOrder])
@pytest.mark.parametrize("encodes", [EncodesTexts, EncodesText])
def test_the_recipe_as_it_is_written(checks, encodes):
    """Of q the previous ones are x and y, right and wrong: xy has cosine 0.6 to one and 0.8 to the other."""
    scorer = ExperienceScorer(verifier_model=checks(), embedding_model=encodes())
    assert values([scorer.score_rollout("xy", "q", ["x", "y"])]) == [(1, 0.3, 0.79)]
    assert values([scorer.score_rollout("y", "q", [])]) == [(0, 1, 0.3)]
    assert scorer.seen("q") == 0, "previous ones were given"
    assert values([scorer.score_rollout(rollout="x", problem="q") for _ in range(2)]) == [(1, 1, 1), (1, 0, 0.7)]
    assert values(scorer.score_batch(["q", "q"], ["y", "xy"])) == [(0, 1, 0.3), (1, 0.333333, 0.8)]


def test_a_problem_may_be_a_row():
    row = {"question": "2+2", "answer": "4"}
    scorer = ExperienceScorer(get_reward("numeric"), lambda texts: [[len(text), 1.0] for text in texts])
    assert scorer.score_rollout("It is \\boxed{4}.", row, ["a"]).success == 1
    assert scorer.score_rollout("It is \\boxed{5}.", row, previous=["a"]).success == 0
    with pytest.raises(ConfigurationError, match="'prompt', 'question' or 'problem'"):
        scorer.score_rollout("4", {"answer": "4"}, [])
    with pytest.raises(ConfigurationError, match="a list of previous rollouts"):
        scorer.score_rollout("4", row, "a")


def test_tiers():
    assert ExperienceScorer.tiers([0.3, 1.0, 0.7, 0.7]).tolist() == [3, 0, 1, 2]


def test_it_loads_no_host():
    code = "import sys; from exgrpo.recipes import ExperienceScorer; print({'torch', 'transformers', 'trl'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
