"""What one row that asks for log-probabilities costs a batch: `python -m tests.mlx.logprobs_cost`.

A measurement, no test. Two batches of 32 greedy rows take turns on one model, a few steps each: in one nobody
asks, in the other some ask for the 20 likeliest (none first, for a scale). Each pair of turns gives a ratio,
and the median is what noise leaves standing; on a machine with other work the processor's time says more.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

import mlx.core as mx
import msgspec

from scheduler.engine import model_loading
from scheduler.engine.backend import Backend
from scheduler.engine.sequence import Sequence
from scheduler.link.fast_blas import prepare
from scheduler.models.random_qwen3 import BENCH_13M, ensure_model, user_cache_folder
from tests.contracts.journal import prompt_of, request
from tests.mlx.loads import load_of

_ROWS = 32
_TURNS = 40
_STEPS = 4
_PROMPT_TOKENS = 64


def _batch(folder: Path, asking: int) -> Backend:
    """Decoding already; `asking` of its rows want the 20 likeliest."""
    backend = model_loading.load(load_of(folder), lambda stage: None)
    for row in range(_ROWS):
        submit = request(row, prompt_of(_PROMPT_TOKENS, row), _TURNS * _STEPS + 100)
        top = 20 if row < asking else None
        backend.admit(Sequence.of(msgspec.structs.replace(submit, top_logprobs=top)))
    while len(backend.step().tokens) < _ROWS:
        pass
    return backend


def _turn(backend: Backend) -> tuple[float, float]:
    """Seconds a step on the clock and on the processor, with the work that the last step has begun."""
    mx.synchronize()
    started, worked = time.perf_counter(), time.process_time()
    for _ in range(_STEPS):
        backend.step()
    mx.synchronize()
    return (time.perf_counter() - started) / _STEPS, (time.process_time() - worked) / _STEPS


def main() -> None:
    cache = user_cache_folder(os.environ)
    blas = prepare("auto", cache)
    if "PENSTOCK_PRELOADED" not in os.environ:
        # As the engine is started: a library can be preloaded only before a process begins.
        environment = blas.environment(os.environ) | {"PENSTOCK_PRELOADED": "1"}
        os.execve(
            sys.executable, [sys.executable, "-m", "tests.mlx.logprobs_cost", *sys.argv[1:]], environment
        )
    folder = ensure_model(BENCH_13M, "bench-13m", cache)
    for asking in (0, 1, _ROWS):
        plain, other = _batch(folder, 0), _batch(folder, asking)
        pairs = []
        for turn in range(_TURNS):
            # In turn first, so that what comes second is not always the same.
            if turn % 2:
                without, with_ = _turn(plain), _turn(other)
            else:
                with_, without = _turn(other), _turn(plain)
            pairs.append((*without, *with_))
        clock = statistics.median(b / a for a, _, b, _ in pairs)
        processor = statistics.median(b / a for _, a, _, b in pairs)
        _, none_ms, _, some_ms = (1000 * statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"{asking} of {_ROWS} rows ask: {clock:.3f} of a step without, by the clock; {processor:.3f}")
        print(f"    by the processor: {some_ms:.2f} ms a step, {none_ms:.2f} ms without", flush=True)


if __name__ == "__main__":
    main()
