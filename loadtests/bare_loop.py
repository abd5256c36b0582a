"""A bare `BatchGenerator` loop: the ceiling for a server's throughput.

It runs in a process of its own (`python -m loadtests.bare_loop MODEL_FOLDER`), with the same BLAS and cores
as a server's engine. It reads and writes one JSON object a line.
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
    """Read `{"prompts": [[ids]], "max_tokens": N}` from each line; answer with seconds and tokens."""
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
