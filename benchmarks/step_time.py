"""The training steps of docs/cost.md, by `exgrpo bench step`; results go to `benchmarks/results/step_CASE.json`.

python benchmarks/step_time.py                                    # all cases of the tiny policy
python benchmarks/step_time.py smollm2_half --model DIRECTORY     # SmolLM2-135M (benchmarks/smollm2_from_gguf.py)
"""

import argparse
import sys

from machine import RESULTS

from exgrpo.cli.main import main as exgrpo

SCRIPTED = ["--rounds", "5", "--no-memory", "--variance"]
SMALL = ["--no-memory", "--questions", "2", "--variance"]
CASES = {
    "tiny": [],
    "tiny_half": [*SCRIPTED, "half"],
    "tiny_all": [*SCRIPTED, "all"],
    "tiny_memory": [
        "--variance",
        "all",
        "--arms",
        "stock",
        "exgrpo",
        "rescue",
        "--rounds",
        "1",
        "--steps",
        "2",
        "--warm-up",
        "5",
    ],
    "tiny_presets": [
        "--presets",
        "--skip-rows",
        "off",
        "--rounds",
        "5",
        "--steps",
        "4",
        "--warm-up",
        "8",
        "--no-memory",
    ],
    "smollm2_half": [*SMALL, "half", "--rounds", "5"],
    "smollm2_all": [*SMALL, "all", "--rounds", "3", "--warm-up", "1", "--arms", "stock", "exgrpo", "rescue"],
}
TINY = [case for case in CASES if case.startswith("tiny")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", default=TINY, help=f"of {', '.join(CASES)}")
    parser.add_argument(
        "--model", default="tiny", help="the directory of a model, for cases that are not of the tiny policy"
    )
    options = parser.parse_args()
    for case in options.cases:
        model = "tiny" if case in TINY else options.model
        code = exgrpo(["bench", "step", "--model", model, *CASES[case], "--out", str(RESULTS / f"step_{case}.json")])
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
