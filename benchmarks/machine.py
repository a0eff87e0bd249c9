"""Where benchmarks write their results, with what they were measured on."""

from pathlib import Path
from typing import Any

from exgrpo.lab.bench import machine as bench_machine

RESULTS = Path(__file__).parent / "results"


def save(name: str, command: str, figures: dict[str, Any]) -> Path:
    """Write a result to `benchmarks/results/NAME.json`."""
    path = RESULTS / f"{name}.json"
    bench_machine.save(path, {"command": command, "machine": bench_machine.describe(), **figures})
    return path
