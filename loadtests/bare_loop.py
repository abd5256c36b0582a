"""A bare `BatchGenerator` loop: the ceiling that a server's throughput is held against.

A process of its own (`python -m loadtests.bare_loop MODEL_FOLDER`), so that it has the same BLAS and the
same cores to itself as a server's engine. One JSON object a line in, one out.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import mlx.core as mx
from mlx_lm.generate import BatchGenerator
from mlx_lm.utils import load_model


def main() -> None:
    """A line in: `{"prompts": [[ids]], "max_tokens": N}`; the answer: seconds and tokens."""
    model, _ = load_model(Path(sys.argv[1]), lazy=True)
    model.set_dtype(mx.float32)
    mx.eval(model.parameters())
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        generator = BatchGenerator(model, completion_batch_size=max(32, len(job["prompts"])))
        started = time.perf_counter()
        generator.insert(job["prompts"], max_tokens=[job["max_tokens"]] * len(job["prompts"]))
        tokens = 0
        running = len(job["prompts"])
        while running:
            answers = generator.next()[1]
            tokens += len(answers)
            running -= sum(answer.finish_reason is not None for answer in answers)
        print(json.dumps({"seconds": time.perf_counter() - started, "tokens": tokens}), flush=True)


if __name__ == "__main__":
    main()
