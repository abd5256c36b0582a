"""`python -m tests.scheduler.engine.mlx.sharding.bench`: two ranks here against one process, on two
models: time of a decode step and of a chunk, bytes of weights and of a token, the peak while loading.

Two ranks on one machine are slower than one process that has both processors: this shows what a collective
costs, not what a second machine gains.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import mlx.core as mx

from scheduler.engine.mlx import loading
from scheduler.engine.mlx.cpu.fast_blas import prepare
from scheduler.engine.mlx.sharding.rank import Rank
from scheduler.models.random_qwen3 import BENCH_13M, Shape, user_cache_folder, write_model
from tests.contracts.journal import Rows, prefixes_of, prompt_of, request
from tests.scheduler.engine.mlx.loads import load_of
from tests.scheduler.engine.mlx.sharding.ranks import Ranks

SHAPES = {
    "13M": BENCH_13M,
    "80M": Shape(hidden=768, layers=10, heads=12, kv_heads=4, head_dim=64, feed_forward=2048, seed=1),
}
_HERE = "tests.scheduler.engine.mlx.sharding.bench"
_ROWS = (1, 8, 32)
_PROMPT_TOKENS, _STEPS = 128, 40


def run(rank: Rank, folder: str, alone: str = "") -> dict[str, Any]:
    mx.reset_peak_memory()
    load = load_of(Path(folder), load_check="off", ranks=None if alone else rank.group)
    backend = loading.load(load, lambda stage: None, None if alone else rank)
    ready = backend.describe()
    found: dict[str, Any] = {
        "weights_MB": ready.weights_bytes / 1e6,
        "peak_MB": mx.get_peak_memory() / 1e6,
        "token_bytes": ready.kv_bytes_per_token,
    }
    for rows in _ROWS:
        journal = Rows(backend)
        for at in range(rows):
            journal.admit(request(at + 1, prompt_of(_PROMPT_TOKENS, at), _STEPS + 10))
        started = time.perf_counter()
        while any(each.prefilling for each in journal.running.values()):
            journal.step()
        found[f"prompts_of_{rows}_ms"] = 1000 * (time.perf_counter() - started)
        steps = []
        for _ in range(_STEPS):
            started = time.perf_counter()
            journal.step()
            steps.append(time.perf_counter() - started)
        found[f"step_of_{rows}_ms"] = 1000 * median(steps)
        for request_id in list(journal.running):
            journal.remove(request_id)
        prefixes_of(backend).clear()
    return found


def main() -> None:
    choice = prepare(user_cache_folder(os.environ))
    if choice.library is not None and "LD_PRELOAD" not in os.environ:
        os.execve(sys.executable, sys.orig_argv, choice.environment(os.environ))
    with tempfile.TemporaryDirectory() as scratch:
        for name, shape in SHAPES.items():
            folder = str(Path(scratch) / name)
            write_model(shape, Path(folder))
            ranks = Ranks()
            try:
                first, second = ranks.play(_HERE, folder, seconds=500.0)
            finally:
                ranks.close()
            alone = Ranks(1)
            try:
                (one,) = alone.play(_HERE, folder, "alone", seconds=500.0)
            finally:
                alone.close()
            print(f"| {name} | one process | rank 0 | rank 1 |\n|---|---|---|---|")
            for what in one:
                numbers = (f"{each[what]:.1f}" for each in (one, first, second))
                print(f"| {what} | {' | '.join(numbers)} |", flush=True)


if __name__ == "__main__":
    main()
