"""Which packages `exgrpo[trl]` lacks here, for `benchmarks/gpu.sh`: one line each, `needs` or `wants`, and the requirement.

`needs`: it is not there, or not in a version that this package works with. `wants`: another package asks for another version.
Nothing is said of what torch requires. Standard library, and `packaging` (pip's own where there is no other).
"""

import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

try:
    from packaging.requirements import Requirement
except ImportError:
    from pip._vendor.packaging.requirements import Requirement  # type: ignore[assignment]

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def lacking() -> Iterator[tuple[str, str]]:
    """(`needs` or `wants`, requirement), each once, over what is required and what that requires in turn."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    direct = [*project["dependencies"], *project["optional-dependencies"]["trl"]]
    queue, seen = [*direct], set()
    while queue:
        text = queue.pop(0)
        if text in seen:
            continue
        seen.add(text)
        wanted = Requirement(text)
        plain = f"{wanted.name}{wanted.specifier}"
        try:
            found = distribution(wanted.name)
        except PackageNotFoundError:
            yield "needs", plain
            continue
        if not wanted.specifier.contains(found.version, prereleases=True):
            yield ("needs" if text in direct else "wants"), plain
        elif wanted.name != "torch":
            queue += [inner for inner in found.requires or () if _applies(inner, ("", *wanted.extras))]


def _applies(text: str, extras: tuple[str, ...]) -> bool:
    marker = Requirement(text).marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)


if __name__ == "__main__":
    sys.stdout.write("".join(f"{kind} {wanted}\n" for kind, wanted in dict.fromkeys(lacking())))
