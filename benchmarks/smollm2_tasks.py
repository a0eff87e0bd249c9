"""Short generated questions for a small language model, and the reward function that reads their answers.

    python benchmarks/smollm2_tasks.py DIRECTORY

writes `TASK-train.jsonl` and `TASK-test.jsonl`; the two share no question. Prompts are texts to be continued, of about 15
tokens; the answer is the first whole number of the continuation, of at most 4 digits (a digit is a token to SmolLM2).
"""

import json
import random
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

TRAIN, TEST = 2048, 256
FIRST_NUMBER = re.compile(r"-?\d+")

Question = tuple[str, int]


def first_number_reward(completions: Sequence[str], answer: Sequence[str], **columns: Any) -> list[float]:
    """1 where the first whole number of a completion is the answer."""
    found = (FIRST_NUMBER.search(text) for text in completions)
    return [float(match is not None and match[0] == gold) for match, gold in zip(found, answer, strict=True)]


def sequence(rng: random.Random) -> Question:
    """The next of four numbers whose differences grow or shrink evenly: 3, 5, 9, 15, -> 23."""
    start, step, growth = rng.randint(1, 40), rng.randint(1, 12), rng.choice((0, 1, 2, 3, 4, 5))
    terms = [start]
    for i in range(4):
        terms.append(terms[-1] + step + i * growth)
    if rng.random() < 0.3:
        terms.reverse()
    return f"Sequence: {', '.join(map(str, terms[:4]))},", terms[4]


def largest(rng: random.Random) -> Question:
    """The largest of four numbers of two digits."""
    numbers = rng.sample(range(10, 100), 4)
    return f"Numbers: {', '.join(map(str, numbers))}. The largest is", max(numbers)


def digits(rng: random.Random) -> Question:
    """The largest of four digits."""
    numbers = rng.sample(range(10), 4)
    return f"Digits: {', '.join(map(str, numbers))}. The largest is", max(numbers)


def total(rng: random.Random) -> Question:
    """The sum of three small numbers."""
    numbers = [rng.randint(1, 30) for _ in range(3)]
    return f"{' + '.join(map(str, numbers))} =", sum(numbers)


def difference(rng: random.Random) -> Question:
    """The difference of two numbers of two digits, never negative."""
    low, high = sorted(rng.sample(range(10, 100), 2))
    return f"{high} - {low} =", high - low


TASKS: dict[str, Callable[[random.Random], Question]] = {
    task.__name__: task for task in (sequence, largest, digits, total, difference)
}


def questions(task: str, seed: int = 0, size: int = TRAIN + TEST) -> list[Question]:
    """Distinct questions, in random order."""
    rng, found = random.Random(f"{task}/{seed}"), dict[str, int]()
    while len(found) < size:
        prompt, answer = TASKS[task](rng)
        if 0 <= answer < 10_000:
            found[prompt] = answer
    return list(found.items())


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for task in TASKS:
        rows = [json.dumps({"question": prompt, "answer": str(answer)}) + "\n" for prompt, answer in questions(task)]
        (folder / f"{task}-train.jsonl").write_text("".join(rows[:TRAIN]))
        (folder / f"{task}-test.jsonl").write_text("".join(rows[TRAIN:]))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
