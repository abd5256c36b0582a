"""A bare `BatchGenerator` loop: the ceiling for a server's throughput.

It runs in a process of its own (`python -m loadtests.bare_loop MODEL_FOLDER`), with the same BLAS and cores
as a server's engine.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator
from mlx_lm.utils import load_model

from loadtests.asked_process import answer_each


def main() -> None:
    """Answer `{"prompts": [[ids]], "max_tokens": N}` with seconds and tokens."""
    model, _ = load_model(Path(sys.argv[1]), lazy=True)
    model.set_dtype(mx.float32)
    mx.eval(model.parameters())

    def answer(job: dict[str, Any]) -> dict[str, Any]:
        generator = BatchGenerator(model, completion_batch_size=max(32, len(job["prompts"])))
        started = time.perf_counter()
        generator.insert(job["prompts"], max_tokens=[job["max_tokens"]] * len(job["prompts"]))
        tokens = 0
        running = len(job["prompts"])
        while running:
            answers = generator.next()[1]
            tokens += len(answers)
            running -= sum(answer.finish_reason is not None for answer in answers)
        return {"seconds": time.perf_counter() - started, "tokens": tokens}

    answer_each(answer)


if __name__ == "__main__":
    main()
