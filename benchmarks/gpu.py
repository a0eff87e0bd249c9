"""A check on a GPU, in minutes: GRPO against presets, on one small model and a task that it can learn. See docs/gpu.md.

    benchmarks/gpu.sh                                       # SmolLM2-135M-Instruct, 8 minutes at most
    benchmarks/gpu.sh --model DIRECTORY --output gpu.json   # any causal model; nothing is downloaded
    benchmarks/gpu.sh --smoke                               # on a CPU, with the built-in tiny policy

`benchmarks/gpu.sh` sees to the packages and runs this file. Exit codes: 0 all is well, 1 an arm or a check failed, 2 what was
asked for cannot be done, 3 the time was over.
"""

import argparse
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
DEFAULT_PRESETS = ("on-policy", "positive-weight", "exgrpo", "rescue")
SIZES = dict(
    steps="of an arm, at most (60)", questions="of a step (32)", generations="completions of a question (8)",
    learning_rate="constant (1e-5)", train="training questions (512)", held_out="held-out questions (256)",
    samples="completions of a held-out question (4)", warm_up="steps that are not timed (3)",
)  # fmt: skip
CHECKS_SHARE = 0.35  # of the time; a check that would begin later is left out
SPARE = 2.0  # seconds at the end, for the last file and the table
FAILED, USAGE, LATE = 1, 2, 3


@dataclass(frozen=True)
class Sizes:
    """Of a run. `train` and `held_out` count questions, `samples` completions of a held-out one; the first `warm_up` steps
    are not timed."""

    steps: int = 60
    questions: int = 32
    generations: int = 8
    learning_rate: float = 1e-5
    train: int = 512
    held_out: int = 256
    samples: int = 4
    warm_up: int = 3


SMOKE = Sizes(6, 16, 4, 8e-4, 64, 64, 4, 1)
SMOKE_MODEL = Sizes(3, 2, 4, 1e-5, 16, 4, 2, 1)


class Budget:
    """Seconds until the end. The process ends then, whatever it is in.

    Args:
        seconds: of all.
        since: when they began, as `time.time()` says it.
        scratch: a folder that is removed at the end.
    """

    def __init__(self, seconds: float, since: float, scratch: Path):
        self.seconds, self.scratch = seconds, scratch
        self._end = time.monotonic() + seconds - max(0.0, time.time() - since)
        self._guard = threading.Timer(max(0.0, self.left()), self._late)
        self._guard.daemon = True
        self._guard.start()

    def left(self) -> float:
        return self._end - time.monotonic()

    def done(self) -> None:
        self._guard.cancel()

    def _late(self) -> None:
        say(
            f"{self.seconds / 60:g} minutes are over; the result holds what was finished. Set --minutes, or fewer --presets."
        )
        shutil.rmtree(self.scratch, ignore_errors=True)
        os._exit(LATE)


# All of it --------------------------------------------------------------------------------------------------------------


def everything(
    options: argparse.Namespace, sizes: Sizes, budget: Budget, result: dict[str, Any], keep: Callable[[], None]
) -> None:
    """The start, checks, then arms, each with an equal share of the time that is left; what is finished is kept at once."""
    import gpu_run

    checks: dict[str, Callable[[Path], dict[str, Any]]] = {
        "fp32": lambda folder: gpu_run.check_precision(work, folder, "fp32"),
        "bf16": lambda folder: gpu_run.check_precision(work, folder, "bf16"),
        "resume": lambda folder: gpu_run.check_resume(work, folder),
    }
    work = gpu_run.Work(options, sizes)
    result["start"], evaluation = work.start()
    say(f"start: held-out Pass@1 {result['start']['pass_at_1']:.2f}")
    for name in () if options.no_checks else checks:
        if budget.left() < (1 - CHECKS_SHARE) * budget.seconds:
            result["checks"][name] = {"holds": None, "why": "no time was left for it"}
        else:
            result["checks"][name] = attempt(checks[name], budget.scratch / name, work.gpu)
        say(f"check {name}: {verdict(result['checks'][name])}")
        keep()
    for place, preset in enumerate(options.presets):
        share = (budget.left() - SPARE) / (len(options.presets) - place)
        deadline = time.monotonic() + share - 1.5 * evaluation

        def run(folder: Path, preset: str = preset, deadline: float = deadline) -> dict[str, Any]:
            return gpu_run.arm(work, preset, folder, deadline)

        result["presets"][preset] = found = attempt(run, budget.scratch / preset, work.gpu)
        say(f"{preset}: {found['error'] if 'error' in found else str(found['steps']) + ' steps'}")
        keep()


def attempt(what: Callable[[Path], dict[str, Any]], folder: Path, gpu: bool) -> dict[str, Any]:
    """What it gives, with its seconds; or the error that ended it. Its files and its memory are given back."""
    from gpu_run import released

    from exgrpo.errors import ExGRPOError

    began = time.monotonic()
    with released(gpu):
        try:
            found = what(folder)
        except (ExGRPOError, RuntimeError, OSError) as error:
            found = {"holds": False, "error": f"{type(error).__name__}: {error}"}
    shutil.rmtree(folder, ignore_errors=True)
    return found | {"seconds": time.monotonic() - began}


def run(options: argparse.Namespace, sizes: Sizes, scratch: Path) -> int:
    """Everything, under the budget; returns the exit code."""
    began = time.monotonic()
    budget = Budget(60 * options.minutes, options.since or time.time(), scratch)
    import torch
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    from exgrpo.cli.main import UsageError
    from exgrpo.lab.bench.machine import describe, peak, save
    from exgrpo.trl.quiet import quiet_host

    if not options.smoke:
        if not torch.cuda.is_available():
            raise UsageError("torch sees no GPU here. Add --smoke to try everything in small on a CPU.")
        options.model = options.model or SMOLLM2
    result: dict[str, Any] = {
        "command": " ".join(["benchmarks/gpu.sh", *sys.argv[1:]]), "complete": False,
        "machine": describe("tokenizers") | {"gpu": gpu_of()}, "model": options.model or "tiny", "seed": options.seed,
        "minutes": options.minutes, "smoke": options.smoke, "sizes": asdict(sizes), "start": None, "checks": {}, "presets": {},
    }  # fmt: skip

    def keep() -> None:
        save(options.output, result | {"seconds": time.monotonic() - began, "process_peak_mb": peak() / 1e6})

    disable_progress_bar()
    set_verbosity_error()
    logging.getLogger("exgrpo").setLevel(logging.ERROR)
    keep()  # a place that cannot be written is told now
    with quiet_host():
        everything(options, sizes, budget, result, keep)
    result["complete"] = True
    keep()
    budget.done()
    show(result)
    say(f"written: {options.output}")
    well = all(check["holds"] is not False for check in result["checks"].values())
    return 0 if well and all(row.get("loss_finite") for row in result["presets"].values()) else FAILED


def gpu_of() -> dict[str, Any] | None:
    """The device, as torch tells it; None without one."""
    import torch

    if not torch.cuda.is_available():
        return None
    about = torch.cuda.get_device_properties(0)
    return {
        "name": about.name, "memory_mb": about.total_memory / 1e6, "capability": f"{about.major}.{about.minor}",
        "cuda": torch.version.cuda, "bf16": torch.cuda.is_bf16_supported(),
    }  # fmt: skip


# Text -------------------------------------------------------------------------------------------------------------------


def show(result: dict[str, Any]) -> None:
    """A table of the presets, and a line for each check."""
    from exgrpo.cli.experience.output import write, write_table

    rows = [
        {"preset": name, "steps": row["error"]} if "error" in row else row_of(name, row, result["start"])
        for name, row in result["presets"].items()
    ]
    columns = dict.fromkeys(name for row in rows for name in row)
    write_table(rows, [name for name in columns if any(row.get(name) is not None for row in rows)])
    write("".join(f"\ncheck {name}: {verdict(check)}" for name, check in result["checks"].items()) + "\n")


def row_of(preset: str, row: dict[str, Any], start: dict[str, Any]) -> dict[str, Any]:
    def number(value: float | None, form: str) -> str | None:
        return None if value is None else format(value, form)

    return {
        "preset": preset, "steps": row["steps"], "ms a step": number(1e3 * row["seconds_per_step"], ".0f"),
        "tokens/s": number(row["tokens_per_second"], ".0f"), "peak MB": number(row["peak_gpu_mb"], ".0f"),
        "fresh Pass@1": f"{number(row['first_pass_at_1'], '.2f')} to {number(row['last_pass_at_1'], '.2f')}",
        "held-out Pass@1": f"{start['pass_at_1']:.2f} to {row['held_out']['pass_at_1']:.2f}",
        "share": number(row["replay/share"], ".0%"), "ratio": number(row["replay/ratio_mean"], ".3f"),
        "ess": number(row["replay/ess"], ".3f"),
    }  # fmt: skip


def verdict(check: dict[str, Any]) -> str:
    word = {True: "holds", False: "DOES NOT HOLD", None: "not known"}[check["holds"]]
    said = {
        name: f"{value:.2g}" if isinstance(value, float) else value
        for name, value in check.items()
        if name not in ("holds", "seconds")
    }
    return f"{word} ({', '.join(f'{name} {value}' for name, value in said.items())})"


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


# Command line -----------------------------------------------------------------------------------------------------------


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; imports nothing heavy."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/gpu.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )  # fmt: skip
    add = parser.add_argument
    add("--wheels", metavar="DIR", help="install what is missing from this folder, in a virtual environment")
    add("--prepare", action="store_true", help="see to the packages, and stop")
    add("--model", help=f"directory or hub name of a causal model ({SMOLLM2}; with --smoke the built-in tiny policy)")
    add("--presets", nargs="+", default=list(DEFAULT_PRESETS), help=f"({' '.join(DEFAULT_PRESETS)})")
    add("--minutes", type=float, default=8.0, help="for everything, at most (8)")
    add("--output", type=Path, default=Path("gpu.json"), help="file of the result (gpu.json)")
    add("--seed", type=int, default=0, help="of questions and training (0)")
    add("--smoke", action="store_true", help="everything in small, for a CPU")
    add("--no-checks", action="store_true", help="leave out the checks of precision and resuming")
    add("--numbers", type=int, default=4, help="numbers in a question to a model (4); fewer are easier")
    add("--digits", type=int, default=1, help="digits of a number (1)")
    for name, text in SIZES.items():
        add(f"--{name.replace('_', '-')}", type=float if name == "learning_rate" else int, help=text)
    add("--since", type=float, help=argparse.SUPPRESS)  # when the time began
    return parser.parse_args(argv)


def sizes_of(options: argparse.Namespace) -> Sizes:
    """Sizes, once what was asked for makes sense."""
    from exgrpo import PRESETS
    from exgrpo.cli.main import UsageError

    if unknown := [name for name in options.presets if name not in PRESETS]:
        raise UsageError(f"--presets: there is no preset {unknown[0]!r}. Presets: {', '.join(PRESETS)}.")
    if not (1 <= options.digits <= 6 and 2 <= options.numbers < 9 * 10 ** (options.digits - 1)):
        raise UsageError(
            f"--numbers {options.numbers} --digits {options.digits}: 1 to 6 digits, and at least 2 numbers but not all "
            "there are (9 of one digit, 90 of two)."
        )
    given = {f.name: value for f in fields(Sizes) if (value := getattr(options, f.name)) is not None}
    if low := [name for name, value in given.items() if value < (name != "warm_up") and name != "learning_rate"]:
        raise UsageError(f"--{low[0].replace('_', '-')} must be at least 1, but is {given[low[0]]}.")
    base = Sizes() if not options.smoke else SMOKE if options.model is None else SMOKE_MODEL
    sizes = replace(base, **given)
    if sizes.train < 2 * sizes.questions:
        raise UsageError(f"--train ({sizes.train}) must be at least twice --questions ({sizes.questions}).")
    return sizes


def set_up(options: argparse.Namespace) -> None:
    """Before torch is imported: one GPU, repeatable products of matrices, no look at the hub for what is a folder."""
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if (options.model is None and options.smoke) or (options.model is not None and Path(options.model).is_dir()):
        os.environ["HF_HUB_OFFLINE"] = "1"


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    if not options.minutes > 0:
        say(f"--minutes must be above 0, but is {options.minutes:g}.")
        return USAGE
    set_up(options)
    scratch = Path(tempfile.mkdtemp(prefix="exgrpo-gpu-"))
    try:
        from exgrpo.cli.main import UsageError
        from exgrpo.errors import ConfigurationError, HostVersionError, MissingExtraError

        try:
            return run(options, sizes_of(options), scratch)
        except (UsageError, ConfigurationError, HostVersionError, MissingExtraError) as error:
            say(str(error))
            return USAGE
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
