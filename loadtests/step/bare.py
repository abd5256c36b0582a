"""Decode steps of a bare `BatchGenerator`, in a process of its own: `python -m loadtests.step.bare FOLDER`.

It reads a job a line, `{"prompts": [[ids]], "steps": N, "counting": false}`, and answers with a run.
"""

from __future__ import annotations

import inspect
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, GenerationBatch
from mlx_lm.utils import load_model

from loadtests.step.counts import Calls, counted_calls, usage
from loadtests.step.parts import Parts
from loadtests.step.record import Run, Step
from loadtests.step.submitted import Submissions


def main() -> None:
    model, _ = load_model(Path(sys.argv[1]), lazy=True)
    if mx.default_device() == mx.cpu:
        model.set_dtype(mx.float32)  # As the engine does.
    mx.eval(model.parameters())
    parts = Parts()
    submissions = Submissions(parts, "read")
    parts.measure(type(model), "__call__", "graph")
    parts.measure(GenerationBatch, "_step", "sample")
    parts.measure(GenerationBatch, "next", "emit")
    parts.measure(BatchGenerator, "next", "plan")
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        run = _run(model, parts, submissions, **json.loads(line))
        print(json.dumps(asdict(run)), flush=True)


def _run(
    model: Any, parts: Parts, submissions: Submissions, prompts: list[list[int]], steps: int, counting: bool
) -> Run:
    generator = BatchGenerator(model, completion_batch_size=max(32, len(prompts)))
    generator.insert(prompts, max_tokens=[1 << 30] * len(prompts))
    while len(generator.next()[1]) < len(prompts):
        pass
    run, call = Run(), inspect.unwrap(type(model).__call__)
    parts.end_step()
    for number in range(steps):
        before, calls = usage(), Calls()
        if counting and number % 2:
            with counted_calls(lambda code: code is call.__code__) as calls:
                rows = len(generator.next()[1])
        else:
            submissions.counting = counting
            rows = len(generator.next()[1])
            submissions.counting = False
        found = [now - was for now, was in zip(usage(), before, strict=True)]
        step = Step(rows, parts.end_step(), *found)
        if counting and number % 2:
            step.model_calls, step.other_calls = calls.model, calls.others
        elif counting:
            step.operations, step.evaluations = submissions.take()
        run.steps.append(step)
    generator.close()
    return run


if __name__ == "__main__":
    main()
