"""A comparison as a script for a shell or a scheduler: one command a run, and one that puts them together."""

import shlex
from collections.abc import Sequence

ALONE = "exgrpo compare"
LAUNCHED = "exgrpo.cli.main compare"


def shell_script(keys: Sequence[str], words: Sequence[str], launcher: str | None, name: str) -> str:
    """Write a line for each run; each may run anywhere, in any order, that sees the same folder."""
    lines = ["#!/bin/bash", "set -e", *(_command(key, words, launcher) for key in keys), _together(words)]
    return "\n".join(lines) + "\n"


def scheduler_script(keys: Sequence[str], words: Sequence[str], launcher: str | None, name: str) -> str:
    """Write a Slurm array job, a task for each run.

    Its resources are for the user to fill in.
    """
    cases = [f"  {i}) {_command(key, words, launcher)} ;;" for i, key in enumerate(keys)]
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name=exgrpo-{name}",
        f"#SBATCH --array=0-{len(keys) - 1}",
        "#SBATCH --output=exgrpo-%A_%a.log",
        "#SBATCH --ntasks=1",
        "# Add what a run needs: --gpus-per-task, --cpus-per-task, --mem, --time, --partition.",
        "case $SLURM_ARRAY_TASK_ID in",
        *cases,
        "esac",
        "# When all have ended, put them together:",
        f"#   {_together(words)}",
    ]
    return "\n".join(lines) + "\n"


def _command(key: str, words: Sequence[str], launcher: str | None) -> str:
    start = f"{launcher} {LAUNCHED}" if launcher else ALONE
    return f"{start} {shlex.join([*words, '--run', key])}"


def _together(words: Sequence[str]) -> str:
    return f"{ALONE} {shlex.join(words)}"
