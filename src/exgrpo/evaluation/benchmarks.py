"""The paper's nine benchmarks by name, from the hub or from a local folder, and any other file, as questions with golds."""

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import DatasetError
from ..spelling import did_you_mean
from ..tasks.datasets import read_rows

LETTERS = "ABCDEFGHIJ"
BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
CHOICE = "Please reason step by step, and put the letter of your final answer within \\boxed{}."

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Item:
    """A question, its gold answer, and the further columns that a reward function reads."""

    question: Any
    answer: str
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: its place on the hub, how its rows are read, and how it is scored.

    Attributes:
        title: as in the paper's table.
        hub, config, split: of the data set.
        samples: completions a question; 32 is the paper's Avg@32.
        reward: what decides what is right.
        read: a row's question and gold.
        instruction: the system prompt, unless another is given.
    """

    title: str
    hub: str
    split: str
    samples: int = 1
    reward: str = "math_reward"
    config: str | None = None
    instruction: str = BOXED
    read: Callable[[Row], Item] = lambda row: plain(row)


def plain(row: Row) -> Item:
    """Read a question with its answer, under the common column names."""
    question = next((row[name] for name in ("question", "problem") if name in row), None)
    answer = next((row[name] for name in ("final_answer", "answer") if name in row), None)
    if isinstance(answer, Sequence) and not isinstance(answer, str):
        answer = ", ".join(map(str, answer))
    if question is None or answer is None:
        raise DatasetError(f"a row needs a question (or problem) and an answer, and has {', '.join(row)}")
    return Item(str(question), _whole(answer))


def _whole(answer: Any) -> str:
    """Write 142.0 as 142."""
    return str(int(answer)) if isinstance(answer, float) and answer.is_integer() else str(answer)


def arc(row: Row) -> Item:
    """Read options in `choices` and the label in `answerKey`; labels are letters or digits."""
    if "choices" not in row:
        return plain(row)
    labels, texts = row["choices"]["label"], row["choices"]["text"]
    return _choice(row["question"], texts, labels.index(row["answerKey"]))


def mmlu_pro(row: Row) -> Item:
    """Read up to ten `options`, the index of the right one in `answer_index`."""
    return _choice(row["question"], row["options"], row["answer_index"]) if "options" in row else plain(row)


def gpqa(row: Row) -> Item:
    """Read one right and three wrong answers, in an order that follows from the question."""
    if "Correct Answer" not in row:
        return plain(row)
    texts = [str(row[name]).strip() for name in ("Correct Answer", *(f"Incorrect Answer {i}" for i in (1, 2, 3)))]
    order = list(range(len(texts)))
    seed = int.from_bytes(hashlib.sha256(row["Question"].encode()).digest()[:8], "big")
    random.Random(seed).shuffle(order)
    return _choice(row["Question"], [texts[i] for i in order], order.index(0))


def _choice(question: str, options: Sequence[str], right: int) -> Item:
    lines = [f"{letter}) {text}" for letter, text in zip(LETTERS, options, strict=False)]
    return Item("\n".join([question.strip(), "", *lines]), LETTERS[right])


BENCHMARKS: Mapping[str, Benchmark] = {
    "aime24": Benchmark("AIME24", "HuggingFaceH4/aime_2024", "train", 32),
    "aime25": Benchmark("AIME25", "math-ai/aime25", "test", 32),
    "amc23": Benchmark("AMC23", "AI-MO/aimo-validation-amc", "train", 32),
    "math500": Benchmark("MATH-500", "HuggingFaceH4/MATH-500", "test"),
    "minerva": Benchmark("Minerva", "math-ai/minervamath", "test"),
    "olympiadbench": Benchmark("OlympiadBench", "Hothan/OlympiadBench", "train", config="OE_TO_maths_en_COMP"),
    "arc_c": Benchmark("ARC-c", "allenai/ai2_arc", "test", 1, "choice_reward", "ARC-Challenge", CHOICE, arc),
    "gpqa_diamond": Benchmark(
        "GPQA-diamond", "Idavidrein/gpqa", "train", 1, "choice_reward", "gpqa_diamond", CHOICE, gpqa
    ),
    "mmlu_pro": Benchmark("MMLU-Pro", "TIGER-Lab/MMLU-Pro", "test", 1, "choice_reward", None, CHOICE, mmlu_pro),
}
"""Benchmarks, in the order of the paper's table."""


def load_benchmark(name: str, folder: Path | None = None, limit: int | None = None) -> list[Item]:
    """Load the questions of a benchmark, from the hub or a local folder.

    In a folder: a file `NAME.*` or a folder `NAME`.

    Raises:
        DatasetError: there is no such benchmark, or its rows are not what they should be.
    """
    if name not in BENCHMARKS:
        raise DatasetError(
            f"There is no benchmark {name!r}.{did_you_mean(name, BENCHMARKS)} Benchmarks: {', '.join(BENCHMARKS)}"
        )
    benchmark = BENCHMARKS[name]
    source = benchmark.hub if folder is None else str(_local(name, folder))
    rows, places = read_rows(source, benchmark.split, benchmark.config if folder is None else None, limit)
    items = []
    for row, place in zip(rows, places, strict=True):
        try:
            items.append(benchmark.read(row))
        except (DatasetError, KeyError, TypeError, ValueError, IndexError) as error:
            raise DatasetError(f"{place} is not a row of {benchmark.title}: {error}") from error
    if not items:
        raise DatasetError(f"{source}: there are no rows.")
    return items


def _local(name: str, folder: Path) -> Path:
    found = sorted(path for path in folder.glob(f"{name}*") if path.name.partition(".")[0] == name)
    if not found:
        raise DatasetError(
            f"{folder} has no {name}.jsonl, .json, .csv or .parquet (also with .gz), and no folder {name}."
        )
    return found[0]
