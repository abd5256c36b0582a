"""`python -m loadtests.speculation MODEL_FOLDER ROWS WORKLOADS TOKENS TURNS CLOCK`, in a process that was
started with the engine's BLAS. ROWS and WORKLOADS are lists with commas between."""

from __future__ import annotations

import sys
from pathlib import Path

from loadtests.speculation.measure import CLOCKS, Bench, described


def main() -> None:
    folder, rows, workloads, tokens, turns, clock = sys.argv[1:]
    bench = Bench(Path(folder), int(tokens), next(known for known in CLOCKS if known == clock))
    for width in map(int, rows.split(",")):
        for workload in workloads.split(","):
            print(described(workload, width, list(bench.pairs(workload, width, int(turns)))), flush=True)


if __name__ == "__main__":
    main()
