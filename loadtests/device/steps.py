"""Times of steps by rows, beside a bare `BatchGenerator`; the host's part; the prefill rate."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from loadtests.device.finding import Figure, Finding, attempt
from loadtests.step.commands import bare
from scheduler.config import EngineConfig, load_message
from scheduler.engine.mlx import loading
from scheduler.engine.mlx.backend import MlxBackend
from scheduler.engine.mlx.device import device
from scheduler.engine.plan import Admit, StepPlan
from scheduler.engine.planning.prefill import Chunk, share
from scheduler.engine.planning.prefill_batches import next_batch
from scheduler.engine.sequence import EngineSequence
from scheduler.shared.messages import Sampling, Submit
from scheduler.shared.token_ids import compact

DECODE = StepPlan(decode=(0,))
"""The plan of a step in which all rows that decode do so."""
EMIT = StepPlan(emit_pending=True)
GREEDY = Sampling(temperature=0.0)
_MOST_ROWS, _CHUNK_TOKENS, _PROMPT_TOKENS, _STEPS = 32, 512, 64, 16


@dataclass(frozen=True, slots=True)
class Sizes:
    """`prefix`: tokens that rows share, at the largest number of rows; `chunks`: of prompts, in tokens."""

    rows: tuple[int, ...]
    prefix: int
    chunks: tuple[int, ...]


QUICK, FULL = Sizes((1, 8), 256, (256,)), Sizes((1, 8, 32), 4096, (512, 1024, 2048, 4096))


def loaded(folder: Path) -> MlxBackend:
    """Load the model with the weights' dtype that a server would take, and without the check at load."""
    config = EngineConfig("mlx", str(folder), max_slots=_MOST_ROWS, load_check="off")
    return loading.load(load_message(config), lambda stage: None)


def fitting_tokens(backend: MlxBackend, rows: int) -> int:
    """Return how many tokens these rows may have with a quarter of the KV budget: a device that is out of
    memory may end the process, and rows are copied when they leave."""
    limit = backend.facts.memory_limit
    budget_bytes = limit.kv_budget_bytes(limit.first_peak_bytes) // 4
    return budget_bytes // (rows * max(1, backend.facts.row_bytes.token_bytes))


def words(count: int, seed: int) -> list[int]:
    """Return tokens that every vocabulary has."""
    draw = random.Random(seed)
    return [draw.randrange(1, 1000) for _ in range(count)]


def decoding(backend: MlxBackend, prompts: Sequence[Sequence[int]]) -> list[int]:
    """Admit a greedy row for each prompt, and step until all decode. Return their request ids; rows do not
    end by themselves."""
    rows = [
        EngineSequence.of(Submit(number, compact([*prompt]), 1 << 30, (), GREEDY))
        for number, prompt in enumerate(prompts, 1)
    ]
    result = backend.execute(StepPlan(admit=tuple(Admit(row) for row in rows)))
    limits = backend.facts.limits
    while any(row.prefilling for row in rows):
        batch = next_batch([row for row in rows if row.chunkable_tokens], result.begun, limits.rows)
        result = backend.execute(StepPlan(chunks=share(batch, _CHUNK_TOKENS * len(rows), limits)))
    return [row.request_id for row in rows]


def leave(backend: MlxBackend, request_ids: Sequence[int]) -> None:
    """Remove rows, and forget what they computed."""
    backend.execute(EMIT)
    backend.execute(StepPlan(release=tuple(request_ids), clear=True))


def findings(folder: Path, sizes: Sizes) -> Iterator[Finding]:
    """The bare batch is measured first, in a process of its own: both models may be too large for one
    device."""
    alone: dict[int, float] = {}
    with bare(folder) as steps:
        for rows in sizes.rows:
            prompts = [words(_PROMPT_TOKENS, seed) for seed in range(rows)]
            run = steps(prompts, _STEPS, False)
            alone[rows] = median(sum(wall for wall, _ in step.times.values()) for step in run.steps[2:])
    backend = loaded(folder)
    for rows in sizes.rows:
        name = f"decode steps of {rows} rows"
        yield attempt(name, partial(_decode, name, backend, rows, 0, alone[rows]))
    if (prefix := min(sizes.prefix, fitting_tokens(backend, 2))) > _PROMPT_TOKENS:
        name = f"decode steps of {rows} rows behind {prefix} shared tokens"
        yield attempt(name, partial(_decode, name, backend, rows, prefix, None))
    for tokens in sizes.chunks:
        name = f"a chunk of {tokens} tokens"
        yield attempt(name, partial(_chunk, name, backend, tokens))


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _decode(name: str, backend: MlxBackend, rows: int, prefix: int, alone: float | None) -> Finding:
    """The host's part is what a step takes when the device has finished everything before it. What a step
    takes beyond that when nothing overlaps is the device's."""
    shared = words(prefix, 99)
    if shared:
        leave_one = decoding(backend, [[*shared, 1]])
        backend.execute(EMIT)
        backend.execute(StepPlan(release=tuple(leave_one)))  # Its prefix is kept, and the others share it.
    ids = decoding(backend, [[*shared, *words(_PROMPT_TOKENS, seed)] for seed in range(rows)])
    backend.execute(DECODE)  # It computes two tokens of each row where none is pending.
    backend.execute(DECODE)
    step = median(_seconds(lambda: backend.execute(DECODE)) for _ in range(_STEPS))
    host = []
    for _ in range(4):
        time.sleep(2 * step)
        host.append(_seconds(lambda: backend.execute(DECODE)))
    backend.execute(EMIT)
    apart = median(_seconds(lambda: backend._batch.decode(overlap=False, drafts={})) for _ in range(_STEPS))
    held_bytes = backend.execute(StepPlan()).kv_bytes
    leave(backend, ids)
    device_seconds = max(0.0, apart - min(host))
    figures: dict[str, Figure] = {
        "step_ms": 1000 * step,
        "bare_ms": "not run" if alone is None else 1000 * alone,
        "tokens_per_second": rows / step,
        "without_overlap_ms": 1000 * apart,
        "host_ms": 1000 * min(host),
        "device_ms": 1000 * device_seconds,
        "busy_share": min(1.0, device_seconds / step),
        "rows_MB": held_bytes / 1e6,
    }
    return Finding(name, "measured", figures)


def _chunk(name: str, backend: MlxBackend, tokens: int) -> Finding:
    """The faster of two: the first compiles."""
    seconds = []
    for seed in range(2):
        row = EngineSequence.of(Submit(1, compact(words(tokens + 2, seed)), 1, (), GREEDY))
        backend.execute(StepPlan(admit=(Admit(row),)))
        seconds.append(_seconds(lambda: backend.execute(StepPlan(chunks=(Chunk(1, tokens),)))))
        leave(backend, [1])
    device().clear_pool()
    return Finding(name, "measured", {"seconds": min(seconds), "tokens_per_second": tokens / min(seconds)})
