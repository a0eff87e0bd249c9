"""Check what a release would ship: `python -m tools.release` (`make release-check`).

Builds the sdist and the wheel, compares versions and notes, looks at what is inside, and uses the wheel in an environment
that holds nothing but what it requires without extras.
"""

import argparse
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from email.parser import Parser
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).parents[1]
UNWANTED = re.compile(r"(^|/)(tests|benchmarks|tools|\.ci|\.github)/|\.(db|pyc|log)$|/__pycache__/")
COMMANDS = (["--help"], ["--version"], ["experience", "--help"], ["presets"], ["env"])


def problems(metadata: dict[str, str], names: list[str]) -> list[str]:
    """Say what keeps a build from being released.

    Args:
        metadata: of the wheel, by field.
        names: of the wheel's files.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version, found = project["version"], []
    if f"\nversion: {version}\n" not in (ROOT / "CITATION.cff").read_text(encoding="utf-8"):
        found.append(f"CITATION.cff does not name version {version}, which pyproject.toml does")
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    if newest is None or newest[1] != version:
        found.append(f"CHANGELOG.md begins with {newest and newest[1]!r}, not with {version}: name the release there")
    found += [
        f"the metadata has no {field}"
        for field in ("Summary", "License-Expression", "Requires-Python")
        if field not in metadata
    ]
    found += [f"the wheel holds {name}" for name in names if UNWANTED.search(name)]
    found += [f"the wheel lacks {name}" for name in ("exgrpo/py.typed", "exgrpo/cli/fields.json") if name not in names]
    return found + unlicensed(names)


def unlicensed(names: list[str]) -> list[str]:
    """Name third-party files (`vendor/`) whose folder has no licence beside them."""
    folders = {name.rpartition("/")[0] for name in names if "/vendor/" in name}
    return [f"{folder} has no licence file" for folder in sorted(folders) if not any(
        name.startswith(f"{folder}/") and "LICENSE" in name.upper() for name in names)]  # fmt: skip


def build(folder: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it; returns both paths."""
    for target in ("sdist", "wheel"):
        subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)], cwd=ROOT, check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def contents(wheel: Path) -> tuple[dict[str, str], list[str]]:
    """Read a wheel's metadata, and the names of its files."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (of_metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        return dict(Parser().parsestr(archive.read(of_metadata).decode())), names


def required(name: str = "exgrpo") -> set[str]:
    """Name the installed distributions that one requires without extras, with what those require."""
    waiting, found = [name], set()
    while waiting:
        one = waiting.pop()
        if one in found:
            continue
        try:
            needs = distribution(one).requires or []
        except PackageNotFoundError:  # of another platform
            continue
        found.add(one)
        waiting += [re.split(r"[\s;<>=!~\[(]", need)[0] for need in needs if "extra ==" not in need]
    return found - {name}


def bare_environment(folder: Path, wheel: Path) -> Path:
    """Make a virtual environment with the wheel and what it requires, no extra; returns its folder of commands.

    What it requires is linked from this environment, so that nothing is downloaded twice.
    """
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in required():
        for top in {
            str(file).split("/")[0] for file in distribution(name).files or [] if not str(file).startswith(".")
        }:
            source = Path(str(distribution(name).locate_file(top)))
            if source.exists() and not (packages / top).exists():
                (packages / top).symlink_to(source)
    pip = [
        str(folder / "bin" / "pip"),
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-index",
        str(wheel),
    ]
    subprocess.run(pip, check=True)
    return folder / "bin"


def main() -> int:
    """Build, check, and say what is ready or not."""
    argparse.ArgumentParser(description="check what a release would ship").parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sdist, wheel = build(folder)
        metadata, names = contents(wheel)
        found = problems(metadata, names)
        with tarfile.open(sdist) as archive:
            found += [
                f"the sdist lacks {file}"
                for file in ("LICENSE", "README.md")
                if f"{sdist.name[:-7]}/{file}" not in archive.getnames()
            ]
        commands = bare_environment(folder / "bare", wheel)
        for arguments in COMMANDS:
            done = subprocess.run([str(commands / "exgrpo"), *arguments], capture_output=True, text=True, cwd=folder)
            if done.returncode:
                found.append(
                    f"without extras, exgrpo {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}"
                )
        third = ", ".join(sorted(name for name in names if "/vendor/" in name))
        size = wheel.stat().st_size / 1e6
        print(f"{wheel.name}: {len(names)} files, {size:.1f} MB; third-party files: {third or 'none'}")
    for line in found:
        print(f"not ready: {line}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
