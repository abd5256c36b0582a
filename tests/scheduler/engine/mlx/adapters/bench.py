"""What adapters cost a decode step and a chunk: `python -m tests.scheduler.engine.mlx.adapters.bench`.

32 rows: without adapters loaded, with 4 loaded that no row has, and 8 rows of each. The kinds take turns
within one run; medians of processor time are compared, which other work on the machine changes little.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from scheduler.engine.mlx.adapters.adapters import Adapters
from scheduler.engine.mlx.backend import MlxBackend  # noqa: F401 (replaces mlx-lm's attention and gate)
from scheduler.engine.mlx.cpu.fast_blas import prepare
from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.models.random_qwen3 import BENCH_13M, Shape, user_cache_folder, write_model
from scheduler.shared.messages import AdapterSource
from tests.scheduler.engine.mlx.adapters.adapted import write_adapter

ROWS, ADAPTERS, RANK = 32, 4, 8
_DECODES = 4
SHAPES = {
    "13M": BENCH_13M,
    "80M": Shape(hidden=768, layers=10, heads=12, kv_heads=4, head_dim=64, feed_forward=2048, seed=1),
}


def loaded(folder: Path) -> Any:
    model, _ = load_model(folder)
    model.set_dtype(mx.float32)
    return model


class Kind:
    """A model with or without adapters, and its rows' keys."""

    def __init__(self, model: Any, sources: Sequence[AdapterSource], *, used: bool) -> None:
        self.model = model
        self.adapters = Adapters(model)
        for source in sources:
            self.adapters.load(source)
        self.keys = [sources[row % len(sources)].key if used else "" for row in range(ROWS)]
        self.cache = make_prompt_cache(model)
        self.decodes: list[float] = []
        self.prefills: list[float] = []
        self.step(16, self.cache)

    def step(self, tokens: int, cache: Any) -> float:
        """Seconds of processor time."""
        inputs = mx.arange(ROWS * tokens).reshape(ROWS, tokens) % 500 + 1
        started = time.process_time()
        with self.adapters.over(self.keys):
            logits = self.model(inputs, cache=cache)
        mx.eval(logits)
        return time.process_time() - started


def measure(name: str, folder: Path, rounds: int, scratch: Path) -> None:
    sources = [
        write_adapter(loaded(folder), scratch / name / str(number), seed=number, rank=RANK)
        for number in range(ADAPTERS)
    ]
    kinds = {
        "none": Kind(loaded(folder), (), used=False),
        "loaded": Kind(loaded(folder), sources, used=False),
        "used": Kind(loaded(folder), sources, used=True),
    }
    order = random.Random(1)
    for _ in range(rounds):
        turns = order.sample(list(kinds.values()), len(kinds))
        for kind in turns:
            # The first step behind another kind's finds none of its weights in the processor's caches.
            kind.step(1, kind.cache)
            kind.decodes += [kind.step(1, kind.cache) for _ in range(_DECODES)]
        for kind in turns:
            kind.prefills.append(kind.step(32, make_prompt_cache(kind.model)))
    base = kinds["none"]
    for label, kind in kinds.items():
        print(
            f"{name} {label}: decode {1e3 * median(kind.decodes):.2f} ms"
            f" ({median(kind.decodes) / median(base.decodes):.2f}),"
            f" {ROWS} x 32 prompt tokens {1e3 * median(kind.prefills):.1f} ms"
            f" ({median(kind.prefills) / median(base.prefills):.2f})",
            flush=True,
        )


def main() -> None:
    choice = prepare(user_cache_folder(os.environ))
    if choice.library is not None and "LD_PRELOAD" not in os.environ:
        os.execve(sys.executable, sys.orig_argv, choice.environment(os.environ))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    rounds: int = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as scratch:
        measure("embedded", EMBEDDED_FOLDER, rounds, Path(scratch))
        for name, shape in SHAPES.items():
            write_model(shape, Path(scratch) / name / "model")
            measure(name, Path(scratch) / name / "model", rounds, Path(scratch))


if __name__ == "__main__":
    main()
