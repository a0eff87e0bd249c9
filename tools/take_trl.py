"""Put another version of TRL into the environment, for the matrix of CI.

Usage: python -m tools.take_trl 1.15.0

TRL 1.15 computes log-probs by Triton alone, which no CPU has; so that the rest of it can be tested, it gets the kernel of 1.16.
"""

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def folder_of_trl() -> Path:
    found = importlib.util.find_spec("trl")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def install(version: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", f"trl=={version}"], check=True)
    importlib.invalidate_caches()


def main() -> None:
    [version] = sys.argv[1:]
    if not version.startswith("1.15."):
        install(version)
        return
    install("1.16.0")
    with tempfile.TemporaryDirectory() as kept:
        shutil.copytree(folder_of_trl() / "kernels", Path(kept, "kernels"))
        install(version)
        trl = folder_of_trl()
        shutil.rmtree(trl / "kernels")
        shutil.copytree(Path(kept, "kernels"), trl / "kernels")
    utils = trl / "trainer" / "utils.py"
    text = utils.read_text(encoding="utf-8")
    fused = r"from \.\.kernels import selective_log_softmax_and_entropy as _fused_logprob_entropy"
    changed, times = re.subn(fused, "_fused_logprob_entropy = None", text, count=1)  # by Triton too; not used on CPUs
    assert times == 1, f"{utils} is not that of TRL 1.15"
    utils.write_text(changed, encoding="utf-8")


if __name__ == "__main__":
    main()
