"""`exgrpo env`: installed versions, to paste into an issue; and checks for what a command needs."""

import importlib.util
import json
import platform
import re
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

from ..errors import MissingExtraError
from .parser import Parser

PACKAGES = (
    "exgrpo", "torch", "trl", "transformers", "accelerate", "datasets", "peft", "vllm", "deepspeed", "numpy",
)  # fmt: skip


def require(module: str, extra: str, purpose: str) -> None:
    """Raise `MissingExtraError` unless the module can be imported; without importing it."""
    if importlib.util.find_spec(module) is None:
        raise MissingExtraError(module, extra, purpose)


def installed_versions() -> dict[str, str | None]:
    """Return versions of Python and of the packages that matter, importing none; None where not installed."""
    return {"python": platform.python_version(), **{package: _version(package) for package in PACKAGES}}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def describe() -> dict[str, Any]:
    """Return everything that `exgrpo env` shows."""
    return {
        "versions": installed_versions(),
        "trl_supported": trl_support(),
        "platform": platform.platform(),
        "cuda": cuda_devices(),
    }


def trl_support() -> dict[str, Any]:
    """Return the supported range of TRL versions, from the metadata, and whether it is met."""
    installed, wanted = _version("trl"), supported_trl()
    if installed is None or wanted is None:
        return {"range": wanted, "met": False}
    from packaging.specifiers import SpecifierSet

    return {"range": wanted, "met": SpecifierSet(wanted).contains(installed, prereleases=True)}


def supported_trl() -> str | None:
    """Return the TRL requirement from the metadata; `exgrpo.trl` cannot be imported beside another TRL."""
    try:
        wanted = [text for text in requires("exgrpo") or () if re.match(r"trl\b", text) and "extra" in text]
    except PackageNotFoundError:
        return None
    return wanted[0].partition(";")[0].removeprefix("trl").strip() if wanted else None


def cuda_devices() -> list[str] | str:
    """Return names of the CUDA devices that torch sees, or why there are none."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return f"torch cannot be imported: {error}"
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def run(argv: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    parser = Parser(prog="exgrpo env", description="Print versions and devices, to paste into an issue.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    found = describe()
    sys.stdout.write(json.dumps(found, indent=2) + "\n" if args.json else as_text(found))
    return 0


def as_text(found: dict[str, Any]) -> str:
    """Format as two aligned columns."""
    support, cuda = found["trl_supported"], found["cuda"]
    trl = f"{support['range'] or 'unknown'} ({'met' if support['met'] else 'NOT met'})"
    devices = cuda if isinstance(cuda, str) else ", ".join(cuda) or "none"
    rows = {name: value or "not installed" for name, value in found["versions"].items()}
    rows |= {"trl supported": trl, "platform": found["platform"], "CUDA devices": devices}
    width = max(map(len, rows))
    return "".join(f"{name:<{width}}  {value}\n" for name, value in rows.items())
