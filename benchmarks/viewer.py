"""What the viewer takes: opening a long log, its answers, first paint, and what a writer loses while two pages follow it.

python -m tests.support.big_log LOG/experience.db --questions 100000 --generations 7400
PYTHONPATH=.:benchmarks python benchmarks/viewer.py LOG [--browser]
"""

import argparse
import json
import multiprocessing
import resource
import shutil
import statistics
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from machine import save
from tests.support.big_log import MadeUpRun

from exgrpo.view.run import Run
from exgrpo.view.server import ViewServer

REPEATS = 15
ROUNDS, GENERATIONS = 5, 200


def answers(folder: str) -> dict:
    """Time of the processor to open and to answer, each answer serialised; the highest memory."""
    began = time.process_time()
    run = Run(folder)
    opened = time.process_time() - began
    questions = run.answer("questions", {"sort": "replays", "down": "1"})["rows"]
    page = run.answer(f"question/{questions[0]['id']}", {})
    kinds = {
        "the run, after it grew": ("overview", {}),
        "a page of questions": ("questions", {"start": "5000"}),
        "questions, sorted and filtered": ("questions", {"only": "relearned", "sort": "regained", "down": "1"}),
        "questions, a new search": ("questions", {"search": "?"}),
        "a question": (f"question/{page['id']}", {}),
        "a trajectory's tokens": (f"trajectory/{page['trajectories'][0]['id']}", {}),
        "a generation": ("step/4000", {}),
        "is there anything new": ("version", {}),
    }
    found = {}
    for name, (what, query) in kinds.items():
        taken = []
        for repeat in range(REPEATS):
            if name == "the run, after it grew":
                run._made.clear()
            if "search" in query:
                query = {"search": f"variant {repeat}"}
            began = time.process_time()
            json.dumps(run.answer(what, query))
            taken.append(1e3 * (time.process_time() - began))
        found[name] = {"median_ms": statistics.median(taken), "most_ms": max(taken)}
    history = run.history
    return {
        "open_s": opened, "answers": found, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
        "trajectories": len(history.trajectories), "groups": len(history.observations), "replays": len(history.replays),
        "questions": int((history.questions.groups > 0).sum()),
    }  # fmt: skip


def serve(folder: str, pipe) -> None:
    server = ViewServer([Run(folder)], port=0)
    server.in_background()
    pipe.send(server.address)
    pipe.recv()
    pipe.send(time.process_time())


def poll(address: str, ends: threading.Event) -> None:
    """What a page does, three times as often: ask every second, and read the run again when there is something new."""
    version = None
    while not ends.wait(1):
        with urllib.request.urlopen(f"{address}api/0/version") as answer:
            now = json.load(answer)["version"]
        if now != version:
            urllib.request.urlopen(f"{address}api/0/overview").read()
        version = now


def slow_down() -> dict:
    """Time of the processor and on the wall of a writer's generation, in turns alone and with two pages that follow."""
    found = {"alone": [], "followed": []}
    with tempfile.TemporaryDirectory() as folder:
        run = MadeUpRun(Path(folder) / "experience.db", 5000)
        run.generations(100, length=2000, every=1)
        ours, theirs = multiprocessing.Pipe()
        server = multiprocessing.get_context("spawn").Process(target=serve, args=(folder, theirs))
        server.start()
        address = ours.recv()
        for _ in range(ROUNDS):
            for name in found:
                ends = threading.Event()
                pages = [threading.Thread(target=poll, args=(address, ends)) for _ in range(2 * (name == "followed"))]
                for page in pages:
                    page.start()
                for _ in range(GENERATIONS):
                    began, wall = time.thread_time(), time.perf_counter()
                    run.generations(1, length=2000)
                    found[name].append((1e3 * (time.thread_time() - began), 1e3 * (time.perf_counter() - wall)))
                ends.set()
                for page in pages:
                    page.join()
        ours.send(None)
        used = ours.recv()
        server.join()
    medians = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in found.items()}
    return {
        "generations": ROUNDS * GENERATIONS, "server_cpu_s": used,
        **{f"{name}_cpu_ms": pair[0] for name, pair in medians.items()},
        **{f"{name}_wall_ms": pair[1] for name, pair in medians.items()},
    }  # fmt: skip


def first_paint(folder: str) -> dict:
    from tests.view.test_browser import Page, start

    server = ViewServer([Run(folder)], port=0)
    server.in_background()
    driver = start()
    page, found = Page(driver), {}
    for place in ("#/0/run", "#/0/questions", "#/0/q/15122", "#/0/step/4000"):
        page.open(server.address, place)
        paint = page.js("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        found[place] = {"first_paint_ms": paint, "drawn_ms": page.js("performance.now()")}
    driver.quit()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="of a long log")
    parser.add_argument("--browser", action="store_true", help="also the first paint, in a headless Chromium")
    args = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        figures = pool.apply(answers, (args.folder,))
    figures["writer"] = slow_down()
    if args.browser and shutil.which("chromedriver"):
        figures["paint"] = first_paint(args.folder)
    print(json.dumps(figures, indent=1))
    print(save("viewer", "python benchmarks/viewer.py LOG --browser", figures))


if __name__ == "__main__":
    main()
