"""The law by which questions are drawn, computed exactly by enumeration; and the arithmetic of shares and buckets."""

import math
from fractions import Fraction
from itertools import product

Counts = tuple[int, ...]


def bucket(successes: int, scorable: int, k: int) -> int:
    """round(accuracy * K), half up."""
    return math.floor(Fraction(successes, scorable) * k + Fraction(1, 2))


def share(batch_size: int, rho: str) -> int:
    """floor(rho * B) of the decimal that was written."""
    return math.floor(Fraction(rho) * batch_size)


def weights(choice: str, k: int, sizes: Counts, mu: float = 0.5, sigma: float = 0.125) -> list[float]:
    """The weight of each bucket while it is not empty."""
    if choice == "gaussian":
        return [math.exp(-((b / k - mu) ** 2) / (2 * sigma**2)) for b in range(k + 1)]
    if choice == "variance":
        return [size * (b / k) * (1 - b / k) for b, size in enumerate(sizes)]
    raise ValueError(choice)


def law_of_counts(n: int, bucket_weights: list[float], sizes: Counts) -> dict[Counts, float]:
    """How many questions each bucket gives: multinomial over the buckets with room, overflow redistributed over those
    that still have room, until all n are placed. Where no bucket with room has weight: by room."""

    def after(counts: Counts) -> dict[Counts, float]:
        left = n - sum(counts)
        if left == 0:
            return {counts: 1.0}
        room = [size - count for size, count in zip(sizes, counts, strict=True)]
        w = [bw if r else 0.0 for bw, r in zip(bucket_weights, room, strict=True)]
        if sum(w) == 0:
            w = [float(r) for r in room]
        p = [x / sum(w) for x in w]
        law: dict[Counts, float] = {}
        for drawn in product(*(range(left + 1) if x > 0 else range(1) for x in p)):
            if sum(drawn) != left:
                continue
            chance = math.factorial(left) * math.prod(
                x**d / math.factorial(d) for x, d in zip(p, drawn, strict=True) if d
            )
            placed = tuple(min(c + d, size) for c, d, size in zip(counts, drawn, sizes, strict=True))
            for end, rest in after(placed).items():
                law[end] = law.get(end, 0.0) + chance * rest
        return law

    return after((0,) * len(sizes))


def uniform_law_of_counts(n: int, sizes: Counts) -> dict[Counts, float]:
    """Every set of n questions alike: multivariate hypergeometric."""
    total = math.comb(sum(sizes), n)
    return {
        counts: math.prod(math.comb(s, c) for s, c in zip(sizes, counts, strict=True)) / total
        for counts in product(*(range(s + 1) for s in sizes))
        if sum(counts) == n
    }


def inclusion(law: dict[Counts, float], sizes: Counts) -> list[float]:
    """The chance that one given question of a bucket is drawn: uniform without replacement inside the bucket."""
    return [
        sum(chance * counts[b] for counts, chance in law.items()) / size if size else 0.0
        for b, size in enumerate(sizes)
    ]
