"""How hard a question is now: its accuracy over fresh completions, as a bucket k of K."""

EASY, MEDIUM, HARD, UNSOLVED = "easy", "medium", "hard", "unsolved"


def bucket_of(successes: int, scorable: int, num_generations: int) -> int:
    """The bucket of an accuracy: round(accuracy * K), half up, in 0..K [ExGRPO, sec. 3.1].

    Accuracies over K and over K-1 completions fall into one scale. Exact in integers: 2 of 7 at K=8 is bucket 2.

    Args:
        successes: right ones among the scorable fresh completions.
        scorable: how many of them could be scored, at least 1.
        num_generations: K.
    """
    if not 0 <= successes <= scorable or scorable < 1:
        raise ValueError(f"an accuracy needs 0 <= successes <= scorable and scorable >= 1, not {successes}/{scorable}")
    return (2 * successes * num_generations + scorable) // (2 * scorable)


def tier_of(bucket: int, num_generations: int) -> str:
    """The label for people: Easy [75, 100) %, Medium (25, 75) %, Hard (0, 25] % [ExGRPO, sec. 3.1]; 0 is unsolved."""
    if bucket == 0:
        return UNSOLVED
    if 4 * bucket <= num_generations:
        return HARD
    return MEDIUM if 4 * bucket < 3 * num_generations else EASY
