"""The machine that a figure was measured on, and this process's memory. Imports nothing heavy."""

import json
import os
import platform
import resource
import sys
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ... import __version__

MEASURED = ("exgrpo", "numpy", "torch", "trl", "transformers", "accelerate", "datasets")
STATUS = Path("/proc/self/status")
CPUS = Path("/proc/cpuinfo")


def describe(*more: str) -> dict[str, Any]:
    """Describe the machine, and the versions of the packages that figures depend on and of `more` packages."""
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_average": [round(load, 1) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "versions": {name: _version(name) for name in (*MEASURED, *more)},
        "date": time.strftime("%Y-%m-%d"),
    }


def _version(package: str) -> str | None:
    if package == "exgrpo":  # of the source that runs, whatever was installed once
        return __version__
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    if CPUS.exists():
        for line in CPUS.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def save(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result as JSON; makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


def resident() -> int:
    """Return the bytes of this process in memory now; its peak where the system does not say."""
    return _status("VmRSS") or _peak_of_the_system()


def peak() -> int:
    """Return the peak bytes of this process in memory so far.

    Linux carries `ru_maxrss` over from the process that started this one; its own is in /proc.
    """
    return _status("VmHWM") or _peak_of_the_system()


def _status(name: str) -> int | None:
    if not STATUS.exists():
        return None
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None


def _peak_of_the_system() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
