"""Run what of a study has not been run yet, on a few processes with one thread each."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from .results import Results
from .study import Cell, Study
from .workers import Job, run_jobs

OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
SECONDS_PER_TOKEN = 6.5e-5
"""Of the tiny policy on one thread of a server's processor (2026): generating a completion token and learning from it."""
SECONDS_PER_ARM = 2.0


def estimated_seconds(cells: Sequence[Cell], tokens_of: Callable[[Cell], float]) -> float:
    """Processor time that cells need, roughly: by the completion tokens that they train on and are evaluated with."""
    return sum(SECONDS_PER_ARM + SECONDS_PER_TOKEN * tokens_of(cell) for cell in cells)


def run_study(
    study: Study,
    cells: Sequence[Cell],
    results: Results,
    about: Mapping[str, Any],
    workers: int,
    display: Any,
    discard_changed: bool = False,
) -> None:
    """Run the cells that `results` does not have; each is on disk as soon as it is done.

    Args:
        study: whose order the results have in the end.
        cells: of the study.
        results: where they go.
        about: machine, versions and command, kept beside them.
        workers: processes.
        display: of `exgrpo.cli.progress`, or anything with its methods.
        discard_changed: run those again that were made with other options; otherwise they are refused.

    Raises:
        ConfigurationError: the folder belongs to another process, other versions or other options. WorkerError: a run
            failed; those that were done are kept.
    """
    with results.locked():
        results.check_versions(about)
        done = results.done(study.cells(), discard_changed)
        todo = [cell for cell in cells if cell.key not in done]
        results.describe(about, runs=bool(todo))  # not before everything that may refuse
        if todo:
            _run(todo, results, workers, display)
        results.order(study.cells())


def _run(todo: Sequence[Cell], results: Results, workers: int, display: Any) -> None:
    by_key = {cell.key: cell for cell in todo}
    width = max(map(len, by_key))
    began, finished = time.perf_counter(), 0
    with display, closing(run_jobs(_jobs(todo), workers, "exgrpo.lab.arm:set_up_worker", OFFLINE)) as events:
        for kind, job, payload in events:
            name = job.name.ljust(width)
            if kind == "start":
                display.begin(name)
            elif kind == "progress":
                display.update(name, payload)
            else:
                row, times = payload
                results.add(row, times)
                finished += 1
                left = (time.perf_counter() - began) / finished * (len(todo) - finished)
                accuracy = row["curve"][-1]["pass_at_1"]
                display.finish(
                    name, f"held-out Pass@1 {accuracy:.3f}; {finished}/{len(todo)}, about {duration(left)} left"
                )


def _jobs(todo: Sequence[Cell]) -> list[Job]:
    """The start of a seed comes before its arms, so that one process warms the policy up and the others find it."""
    starts = {(cell.setting.name, cell.seed): cell.key for cell in todo if cell.arm is None}
    return [
        Job(
            cell.key,
            "exgrpo.lab.cells:run_cell",
            {"cell": cell},
            after=tuple(
                start for start in (starts.get((cell.setting.name, cell.seed)),) if start and cell.arm is not None
            ),
            reports=True,
        )
        for cell in todo
    ]


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
