"""Run what of a study has not been run yet, on a few processes."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from ...tasks import Family, get_task
from .recipe_regime import RecipeRegime
from .regime import Regime
from .results import Results
from .study import Cell, Study
from .workers import THREAD_VARIABLES, Job, run_jobs

SET_UP = "exgrpo.lab.studies.arm:set_up_worker"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
SECONDS_PER_TOKEN = 5e-5
"""Seconds to generate a completion token and train on it: tiny policy, one thread of a server's processor (2026)."""
SECONDS_PER_STEP = 0.1
SECONDS_PER_BATCH = 0.06  # of the warm-up
SECONDS_PER_CELL = 2.0
SECONDS_PER_PROCESS = 10.0  # until it has imported everything
SURPLUS = 1.3  # steps over those of on-policy training: replayed completions cost none of the budget of tokens


def estimated_seconds(cells: Sequence[Cell], tokens_of: Callable[[Cell], float], workers: int = 1) -> float:
    """Time that cells need on so many idle cores, roughly, with the warm-ups that they begin with.

    Arms wait for the start of their seed: a study takes no less than its longest start and arm together.
    """
    if not cells:
        return 0.0
    times = {cell.key: _seconds(cell, tokens_of(cell)) for cell in cells}
    starts = {(cell.setting.name, cell.seed): times[cell.key] for cell in cells if cell.arm is None}
    chains = [
        times[cell.key] + starts.get((cell.setting.name, cell.seed), 0.0) for cell in cells if cell.arm is not None
    ]
    return SECONDS_PER_PROCESS + max(sum(times.values()) / workers, *chains, *times.values())


def _seconds(cell: Cell, tokens: float) -> float:
    regime = cell.setting.regime
    assert isinstance(regime, Regime)
    if cell.arm is None:
        task = get_task(regime.task, **regime.knobs)
        assert isinstance(task, Family)
        steps = SECONDS_PER_BATCH * (regime.warm_up_batches or task.warm_up.batches)
    else:
        steps = SECONDS_PER_STEP * SURPLUS * regime.steps * cell.arm.budget
    return SECONDS_PER_CELL + steps + SECONDS_PER_TOKEN * tokens


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
        results.done(study.cells(), discard_changed)
        results.collect(study.cells())
        done = results.done(study.cells())
        todo = [cell for cell in cells if cell.key not in done]
        results.describe(about, runs=bool(todo))  # not before everything that may refuse
        if todo:
            _run(todo, results, workers, display)
        results.order(study.cells())


def _run(todo: Sequence[Cell], results: Results, workers: int, display: Any) -> None:
    by_key = {cell.key: cell for cell in todo}
    width = max(map(len, by_key))
    began, finished = time.perf_counter(), 0
    with display, closing(run_jobs(_jobs(todo, workers), workers, SET_UP, OFFLINE)) as events:
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


def environment_of(regime: Regime | RecipeRegime, workers: int) -> dict[str, str] | None:
    """Return variables of a process that trains on a recipe alone; None where processes are shared."""
    if isinstance(regime, Regime):
        return None
    threads = 1 if regime.is_tiny else max(1, (os.cpu_count() or 1) // workers)
    given = {str(name): str(value) for name, value in (regime.recipe.get("env") or {}).items()}
    hub = {} if regime.is_tiny else {"HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "0")}
    return dict.fromkeys(THREAD_VARIABLES, str(threads)) | hub | given


def _jobs(todo: Sequence[Cell], workers: int) -> list[Job]:
    """List jobs, the start of a seed before its arms.

    One process then warms the policy up and the others find it.
    """
    starts = {(cell.setting.name, cell.seed): cell.key for cell in todo if cell.arm is None}
    return [
        Job(
            cell.key,
            "exgrpo.lab.studies.cells:run_cell",
            {"cell": cell},
            after=tuple(
                start for start in (starts.get((cell.setting.name, cell.seed)),) if start and cell.arm is not None
            ),
            reports=True,
            environment=environment_of(cell.setting.regime, workers),
        )
        for cell in todo
    ]


def duration(seconds: float) -> str:
    """Format a duration: `40 s`, `12 min`, `3 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
