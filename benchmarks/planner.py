"""The buffer of docs/cost.md, by `exgrpo bench buffer`; takes its arguments, and writes `benchmarks/results/bench_buffer.json`.

python benchmarks/planner.py [--sizes 10000 100000 1000000]
"""

import sys

from machine import RESULTS

from exgrpo.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["bench", "buffer", *sys.argv[1:], "--out", str(RESULTS / "bench_buffer.json")]))
