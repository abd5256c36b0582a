"""Decode steps of one engine in a process of its own: ours, or a bare `BatchGenerator`.

`python -m loadtests.device.step_process ours|bare MODEL_FOLDER` reads a job a line, `{"rows": R,
"prefix": P, "private": T, "steps": N}`: R rows with the same first P tokens, followed by T of their own. The
answer has the seconds of each step, and bytes of keys and values. The bare one also computes the prefix once,
and copies it for each row, as mlx-lm's batches require. They need two processes, because ours replaces
mlx-lm's attention. Weights are as they are stored.
"""

from __future__ import annotations

import copy
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from loadtests.asked_process import answer_each
from scheduler.engine.backend import Backend
from scheduler.engine.plan import Admit, StepPlan
from scheduler.engine.prefill import share
from scheduler.engine.prefill_batches import next_batch
from scheduler.engine.sequence import EngineSequence
from scheduler.shared.messages import Load, Sampling, ScriptedPlan, Submit
from scheduler.shared.token_ids import compact

_VOCABULARY = 8192
_MOST_ROWS = 64
_CHUNK_TOKENS = 512
_WARM_STEPS = 3
Job = dict[str, int]


def _prompts(job: Job) -> tuple[list[int], list[list[int]]]:
    words = random.Random(json.dumps(job))
    prefix = [words.randrange(_VOCABULARY) for _ in range(job["prefix"])]
    return prefix, [[words.randrange(_VOCABULARY) for _ in range(job["private"])] for _ in range(job["rows"])]


def _timed(step: Callable[[], object], steps: int) -> list[float]:
    for _ in range(_WARM_STEPS):
        step()
    seconds = []
    for _ in range(steps):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    return seconds


def bare(folder: Path) -> Callable[[Job], dict[str, Any]]:
    model, _ = load_model(folder, lazy=True)
    mx.eval(model.parameters())

    def measure(job: Job) -> dict[str, Any]:
        prefix, rests = _prompts(job)
        kept = make_prompt_cache(model)
        for start in range(0, len(prefix), _CHUNK_TOKENS):
            model(mx.array([prefix[start : start + _CHUNK_TOKENS]]), cache=kept)
            mx.eval([layer.state for layer in kept])
        generator = BatchGenerator(model, completion_batch_size=_MOST_ROWS, prefill_step_size=_CHUNK_TOKENS)
        generator.insert(
            rests,
            max_tokens=[10_000] * len(rests),
            caches=[copy.deepcopy(kept) for _ in rests] if prefix else None,
        )
        while len(generator.next()[1]) < len(rests):
            pass  # Until all rows decode.
        seconds = _timed(generator.next, job["steps"])
        held = generator.prompt_cache_nbytes
        generator.close()
        return {"seconds": seconds, "kv_bytes": held}

    return measure


def ours(folder: Path) -> Callable[[Job], dict[str, Any]]:
    from scheduler.engine.mlx import loading as model_loading

    load = Load(
        "mlx",
        str(folder),
        _MOST_ROWS,
        _CHUNK_TOKENS,
        8,
        "stored",
        ScriptedPlan(),
        kv_cache_bytes=8 << 30,
    )
    backend = model_loading.load(load, lambda stage: None)
    greedy = Sampling(temperature=0.0)

    def measure(job: Job) -> dict[str, Any]:
        common, rests = _prompts(job)
        if common:
            _decode_all(backend, [Submit(1, compact([*common, 1]), 1, (), greedy)])
        _decode_all(
            backend,
            [
                Submit(number, compact(common + rest), 10_000, (), greedy)
                for number, rest in enumerate(rests, 2)
            ],
        )
        decoding = StepPlan(decode=tuple(range(2, len(rests) + 2)))
        seconds = _timed(lambda: backend.execute(decoding), job["steps"])
        held = backend.execute(StepPlan()).kv_bytes
        if backend.cache is not None:  # A model that the check at load has left without prefixes has none.
            held += backend.cache.prefixes.nbytes
        backend.execute(StepPlan(release=decoding.decode, clear=True))
        return {"seconds": seconds, "kv_bytes": held}

    return measure


def _decode_all(backend: Backend, submits: list[Submit]) -> None:
    """Admit these rows, and step until each has a token."""
    rows = [EngineSequence.of(submit) for submit in submits]
    result = backend.execute(StepPlan(admit=tuple(Admit(row) for row in rows)))
    decode = tuple(row.request_id for row in rows)
    while True:
        limits = backend.facts.limits
        batch = next_batch([row for row in rows if row.chunkable_tokens], result.begun, limits.rows)
        chunks = share(batch, _CHUNK_TOKENS * len(rows), limits)
        result = backend.execute(StepPlan(chunks=chunks, decode=decode))
        if len(result.tokens) == len(rows):
            return


def main() -> None:
    kind, folder = sys.argv[1], Path(sys.argv[2])
    measure = ours(folder) if kind == "ours" else bare(folder)

    def answer(job: Job) -> dict[str, Any]:
        mx.clear_cache()
        return measure(job)

    answer_each(answer)


if __name__ == "__main__":
    main()
