"""Names as people write them: hyphens for underscores, and near misses. Standard library only."""

import difflib
from collections.abc import Iterable
from typing import Any


def spelled(name: Any, options: Iterable[str]) -> Any:
    """Return the option that a name means, with hyphens or underscores; the name itself where it means none."""
    if not isinstance(name, str):
        return name
    return {option.replace("-", "_"): option for option in options}.get(name.replace("-", "_"), name)


def did_you_mean(name: Any, options: Iterable[str]) -> str:
    """Return ` Did you mean 'rescue'?`, or nothing where no option is near."""
    near = difflib.get_close_matches(
        str(name).replace("_", "-"), plain := {o.replace("_", "-"): o for o in options}, n=1
    )
    return f" Did you mean {plain[near[0]]!r}?" if near else ""
