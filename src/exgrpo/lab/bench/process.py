"""Measurements in a separate process, with its own memory and imports. Imports nothing heavy.

`python -m exgrpo.lab.bench.process package.module:name JSON` calls that function, and prints what it returns as JSON.
"""

import json
import os
import subprocess
import sys
from typing import Any

from ..studies.workers import THREAD_VARIABLES, WorkerError, find

OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def in_a_process(function: str, **arguments: Any) -> Any:
    """Call `package.module:name` in a process of its own; arguments and result are JSON values.

    Raises:
        WorkerError: it failed, or its process died; `details` holds what it wrote to stderr.
    """
    command = [sys.executable, "-m", "exgrpo.lab.bench.process", function, json.dumps(arguments)]
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1"), **OFFLINE}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise WorkerError(
            f"The process of {function} ended with exit code {done.returncode}: {lines[-1] if lines else 'no message'}",
            done.stderr,
        )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    function, arguments = sys.argv[1:]
    result = find(function)(**json.loads(arguments))
    sys.stdout.write("\n" + json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
