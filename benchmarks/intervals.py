"""How often the intervals of `exgrpo evaluate` and of the lab hold the truth, where the truth is known.

    python benchmarks/intervals.py [--draws N] [--output benchmarks/results/intervals.json]

Questions have accuracies drawn from beta distributions, some of them near 0 or 1; each is answered with 1, 4 or 2 to 8
samples. A rate is that of the distribution, a difference that of two models on the same questions; pairs of seeds are normal,
or tie often.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np

from exgrpo.evaluation.intervals import of_difference, of_mean
from exgrpo.evaluation.paired import paired_difference, ties_spoil

SIZES = (5, 8, 30, 500)
SAMPLES = {"1": (1, 1), "4": (4, 4), "2 to 8": (2, 8)}
QUESTIONS = {
    "even": (1.0, 1.0, 0.0),
    "hard": (0.2, 2.0, 0.0),
    "nearly all right": (20.0, 0.4, 0.0),
    "known or not": (0.05, 0.05, 0.0),
    "one model better": (1.0, 1.0, 0.15),
    "all right": (1e9, 1e-3, 0.0),
    "all wrong": (1e-3, 1e9, 0.0),
}
"""Parameters of the beta distribution, and how much better the second model is where a question is half known."""
PAIRS = {"normal": 0.0, "every tenth ties": 0.1, "every third ties": 1 / 3}
"""Share of exact ties; where more than a fifth do, no interval is printed, and none is wrong."""


def better(p: np.ndarray, by: float) -> np.ndarray:
    return np.clip(p + 4 * by * p * (1 - p), 0, 1)


def drawn(rng: np.random.Generator, p: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return rng.binomial(counts, p) / counts


def questions(draws: int, rng: np.random.Generator) -> list[dict]:
    rows = []
    for name, (a, b, by) in QUESTIONS.items():
        many = rng.beta(a, b, 400_000)
        truth, truth_of_difference = many.mean(), (better(many, by) - many).mean()
        for label, (low, high) in SAMPLES.items():
            for n in SIZES:
                held = np.zeros(2)
                for _ in range(draws):
                    p, counts = rng.beta(a, b, n), rng.integers(low, high + 1, n)
                    x, y = drawn(rng, p, counts), drawn(rng, better(p, by), counts)
                    rate, difference = of_mean(x, int(counts.sum())), of_difference(y, x)
                    held += [
                        rate.low <= truth <= rate.high,
                        difference.low <= truth_of_difference <= difference.high,
                    ]
                for interval, share in zip(("rate", "difference"), held / draws, strict=True):
                    rows.append(row(interval, name, label, n, share, draws))
    return rows


def pairs(draws: int, rng: np.random.Generator) -> list[dict]:
    rows = []
    for name, ties in PAIRS.items():
        for n in SIZES:
            held = 0
            for _ in range(draws):
                d = np.where(rng.random(n) < ties, 0.0, rng.normal(0.03 / (1 - ties), 0.05, n))
                found = paired_difference(list(d), [0.0] * n, resamples=1)
                held += ties_spoil(list(d)) or found.t_low <= 0.03 <= found.t_high
            rows.append(row("pairs of seeds", name, "", n, held / draws, draws))
    return rows


def row(interval: str, truth: str, samples: str, n: int, share: float, draws: int) -> dict:
    return {
        "interval": interval, "truth": truth, "samples": samples, "n": n, "coverage": round(float(share), 4),
        "standard_error": round(math.sqrt(0.95 * 0.05 / draws), 4),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "intervals.json")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    rows = questions(args.draws, rng) + pairs(args.draws, rng)
    args.output.write_text(json.dumps({"nominal": 0.95, "draws": args.draws, "rows": rows}, indent=1) + "\n")
    worst = min(rows, key=lambda one: one["coverage"])
    print(f"{len(rows)} cases; the lowest coverage: {worst}")


if __name__ == "__main__":
    main()
