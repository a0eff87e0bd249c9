"""What a figure was measured on, written beside it."""

import json
import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def describe() -> dict[str, Any]:
    versions = {}
    for name in ("exgrpo", "numpy", "torch", "trl", "transformers", "accelerate", "datasets"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    processor = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            processor = line.split(":", 1)[1].strip()
            break
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "processor": processor,
        "cores": os.cpu_count(),
        "versions": versions,
        "date": time.strftime("%Y-%m-%d"),
    }


def save(name: str, command: str, figures: dict[str, Any]) -> Path:
    """Write a result to `benchmarks/results/NAME.json`."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"command": command, "machine": describe(), **figures}, indent=1) + "\n")
    return path
