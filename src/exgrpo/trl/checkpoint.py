"""Find the checkpoint that a run continues from."""

import json
import logging
import os
from pathlib import Path

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..errors import CheckpointError
from ..runtime.checkpoint import NAME

logger = logging.getLogger(__name__)

HOST_STATE = "trainer_state.json"


def is_complete(folder: Path) -> bool:
    """Return whether a checkpoint was written to its end: the host's state comes last."""
    try:
        state = json.loads((folder / HOST_STATE).read_text(encoding="utf-8"))
        return isinstance(state["global_step"], int)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _checkpoints(output_dir: Path) -> list[Path]:
    """List all checkpoint folders, the latest step first."""
    numbered = []
    for folder in output_dir.glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        number = folder.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-")
        if number.isdecimal() and folder.is_dir():
            numbered.append((int(number), folder))
    return [folder for _, folder in sorted(numbered, reverse=True)]


def last_checkpoint(output_dir: str | os.PathLike[str]) -> str | None:
    """Return the latest complete checkpoint, from which a restarted job resumes; None if there is none."""
    return next((str(folder) for folder in _checkpoints(Path(output_dir)) if is_complete(folder)), None)


def incomplete_checkpoints(output_dir: str | os.PathLike[str]) -> list[str]:
    """List the checkpoints later than the last complete one: the run stopped while writing them."""
    found: list[str] = []
    for folder in _checkpoints(Path(output_dir)):
        if is_complete(folder):
            break
        found.append(str(folder))
    return found


def checkpoint_to_resume(asked: str | bool | None, output_dir: str | os.PathLike[str]) -> str | None:
    """Return the checkpoint that `resume_from_checkpoint` means; None: start from the beginning.

    Args:
        asked: a path; True: the last complete one, which must exist; `last`: the last complete one, or none where there
            is none, which is what a job that may be restarted wants; None or False: none.
        output_dir: of the run.

    Raises:
        CheckpointError: there is none, or it was not written to its end.
    """
    word = str(asked).lower()
    if asked is None or word in ("false", "none"):
        return None
    if word in ("true", "last"):
        found = last_checkpoint(output_dir)
        if skipped := incomplete_checkpoints(output_dir):
            logger.warning("%s is incomplete and is skipped.", ", ".join(skipped))
        if found is None and word == "true":
            raise CheckpointError(
                f"resume_from_checkpoint=True, but {output_dir} holds no complete checkpoint. Start without it; or pass "
                "'last', which starts from scratch where there is none."
            )
        return found
    place = Path(str(asked)).expanduser()
    if not is_complete(place):
        what = "was not written to its end" if place.is_dir() else "does not exist"
        last = last_checkpoint(output_dir)
        instead = f"The last complete one is {last}." if last else f"{output_dir} holds no complete one."
        raise CheckpointError(f"the checkpoint {asked} {what}. {instead}")
    return str(place)


def mark_incomplete(folder: Path) -> None:
    """Mark a checkpoint that is about to be overwritten: a mixture of both must not look complete."""
    for name in (HOST_STATE, NAME):
        (folder / name).unlink(missing_ok=True)
    for path in folder.glob("exgrpo-rank-*.safetensors"):
        path.unlink()
