"""Samples a second of the pool of verifiers against the same verifiers in this process.

    python benchmarks/verifiers.py [--samples 20000]

A trivial verifier shows what the pool costs a sample; the others show when it pays. `with_hangs` are samples of which
five never end: in this process they would never be scored at all.
"""

import argparse
import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from machine import save

from exgrpo.rewards import choice_reward, numeric_reward, pool

REPEATS = 5
HANGS = 5
LIMIT = 0.5  # seconds


def trivial(number: int) -> int:
    return number


def choice(texts: list[str], golds: list[str]) -> list[float | None]:
    return choice_reward(None, texts, golds)


def numeric(texts: list[str], golds: list[str]) -> list[float | None]:
    return numeric_reward(None, texts, golds)


def some_hang(number: int, hanging: list[int]) -> int:
    while number in hanging:
        pass
    return number


def samples(number: int) -> dict[str, list[tuple]]:
    """Completions of about 1,200 characters that end in an answer."""
    rng = random.Random(0)
    words = ["so", "we", "add", "12", "to", "x", "and", "get", "= 7,", "which", "is", "(b)", "\\frac{1}{2}"]
    texts = [" ".join(rng.choices(words, k=250)) for _ in range(200)]
    rows: dict[str, list[tuple]] = {"trivial": [(i,) for i in range(number)]}
    rows["choice"] = [([f"{rng.choice(texts)} The answer is ({rng.choice('ABCD')})."], ["B"]) for _ in range(number)]
    rows["numeric"] = [([f"{rng.choice(texts)} \\boxed{{{rng.randrange(9)}}}"], ["7"]) for _ in range(number)]
    return rows


def seconds(function, calls) -> float:
    """Median of several runs, after one that starts what must be started."""
    pool.score(function, calls[:2000])
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        results = pool.score(function, calls)
        times.append(time.perf_counter() - start)
        assert all(scored.failure is None for scored in results)
    return statistics.median(times)


def first_score(function) -> float:
    """From nothing to the first score: what starting a worker costs."""
    pool.close()
    start = time.perf_counter()
    pool.score(function, [(1,)])
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=20_000)
    args = parser.parse_args()
    import verifiers  # by its name, under which workers import it

    figures: dict[str, dict[str, int]] = {}
    for name, calls in samples(args.samples).items():
        function = getattr(verifiers, name)
        rates = {}
        for way, options in (
            ("in process", {"enabled": False}),
            ("1 worker", {"enabled": True, "workers": 1}),
            ("2 workers", {"enabled": True, "workers": 2}),
        ):
            pool.configure(**options, time_limit=10.0)
            rates[way] = round(len(calls) / seconds(function, calls))
        figures[name] = rates
        print(f"{name:<10}" + "".join(f"{way}: {rate:>8,}/s   " for way, rate in rates.items()))
    pool.configure(enabled=True, workers=2)
    start = time.perf_counter()
    hanging = [args.samples * i // HANGS for i in range(HANGS)]
    results = pool.score(verifiers.some_hang, [(i, hanging) for i in range(args.samples)], time_limit=LIMIT)
    took = time.perf_counter() - start
    assert [i for i, scored in enumerate(results) if scored.failure] == hanging
    starts = statistics.median(first_score(verifiers.trivial) for _ in range(REPEATS))
    print(
        f"{HANGS} of {args.samples:,} hang, limit {LIMIT} s: {took:.2f} s; first score of a new pool: {starts * 1000:.0f} ms"
    )
    print(save("verifiers", f"python benchmarks/verifiers.py --samples {args.samples}", {
        "samples": args.samples, "repeats": REPEATS, "unit": "samples a second, median", "rates": figures,
        "with_hangs": {"hanging": HANGS, "time_limit": LIMIT, "seconds": round(took, 2)},
        "first_score_seconds": round(starts, 3),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
