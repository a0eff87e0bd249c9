"""Overlap of questions with training texts against a plain definition, and how much of a question's rest is recalled."""

import random

import pytest

from exgrpo.evaluation.contamination import overlaps, recalled, split, words


def plainly(question, texts, n):
    """By the definition, with strings."""
    asked = words(question)
    there = [" " + " ".join(words(text)) + " " for text in texts]
    grams = {" ".join(asked[i : i + n]) for i in range(len(asked) - n + 1)}
    whole = any(f" {' '.join(asked)} " in text for text in there)
    if not grams:
        return float(whole), whole
    return sum(any(f" {gram} " in text for text in there) for gram in grams) / len(grams), whole


def test_overlaps_are_those_of_the_definition():
    rng = random.Random(0)
    for _ in range(200):
        texts = [" ".join(rng.choices("abc", k=rng.randint(0, 12))) for _ in range(4)]
        questions = [" ".join(rng.choices("abc", k=rng.randint(1, 6))) for _ in range(5)]
        for n in (2, 4):
            found = overlaps(questions, texts, n)
            assert [(one.share, one.exact) for one in found] == [plainly(q, texts, n) for q in questions], (
                questions,
                texts,
            )


def test_case_and_punctuation_do_not_count():
    question = "Natalia sold clips to 48 of her friends in April, and then half as many."
    longer = f"{question} How many clips did she sell altogether in April and May?"
    another = "Something else entirely, of nine words or more here."
    [same, part, other] = overlaps([question, longer, another], [f"Q: {question.upper()}!"])
    assert (same.share, same.exact, same.is_much) == (1.0, True, True)
    assert 0 < part.share < 0.5
    assert not part.exact
    assert (other.share, other.exact) == (0.0, False)


@pytest.mark.parametrize(
    ("completion", "share"),
    [(" four five", 1.0), (" four, FIVE. And so on", 1.0), (" five four", 0.5), (" so four five", 0.5), ("", 0.0)],
)
def test_the_rest_of_a_question(completion, share):
    first, rest = split("one two three four five")
    assert first == "one two three"
    assert recalled(rest, completion) == share
