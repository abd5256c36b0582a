"""Decode steps of a bare `BatchGenerator`, in a process of its own: `python -m loadtests.step.bare FOLDER`.

It reads pickled jobs, `(prompts, steps, counting)`, and answers each with a pickled run.
"""

from __future__ import annotations

import inspect
import pickle
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, GenerationBatch
from mlx_lm.utils import load_model

from loadtests.step.graph import count_graphs
from loadtests.step.steps import Run, Steps


def main() -> None:
    model, _ = load_model(Path(sys.argv[1]), lazy=True)
    if mx.default_device() == mx.cpu:
        model.set_dtype(mx.float32)  # As the engine does.
    mx.eval(model.parameters())
    steps = Steps()
    steps.model = inspect.unwrap(type(model).__call__).__code__
    count_graphs(steps)
    for owner, name, part in (
        (type(model), "__call__", "graph"),
        (GenerationBatch, "_step", "sample"),
        (GenerationBatch, "next", "emit"),
        (BatchGenerator, "next", "plan"),
    ):
        steps.parts.measure(owner, name, part)
    with suppress(EOFError):
        while job := pickle.load(sys.stdin.buffer):
            pickle.dump(_run(model, steps, *job), sys.stdout.buffer)
            sys.stdout.flush()


def _run(model: Any, steps: Steps, prompts: list[list[int]], count: int, counting: bool) -> Run:
    generator = BatchGenerator(model, completion_batch_size=max(32, len(prompts)))
    generator.insert(prompts, max_tokens=[1 << 30] * len(prompts))
    while len(generator.next()[1]) < len(prompts):
        pass
    steps.begin(counting)
    for _ in range(count):
        steps.rows = len(generator.next()[1])
        steps.end()
    steps.rest()
    generator.close()
    return steps.run


if __name__ == "__main__":
    main()
