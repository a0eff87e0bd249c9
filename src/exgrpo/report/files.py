"""Files of results."""

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Replace a file in one step."""
    new = path.with_name(path.name + ".new")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
