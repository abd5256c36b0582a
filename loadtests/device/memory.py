"""Memory: chunks' peaks against what the guard would have reserved, growth, copies, and a refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import mlx.core as mx

from loadtests.device.finding import Figure, Finding, attempt
from loadtests.device.steps import DECODE, EMIT, GREEDY, decoding, fitting_tokens, leave, words
from scheduler.engine.budget.learned import ChunkPeak
from scheduler.engine.mlx.backend import MlxBackend
from scheduler.engine.mlx.device import device
from scheduler.engine.plan import Admit, StepPlan
from scheduler.engine.planning.prefill import Chunk
from scheduler.engine.sequence import EngineSequence
from scheduler.shared.device_errors import device_fault, is_device_error
from scheduler.shared.messages import Submit
from scheduler.shared.token_ids import compact

_LEARNING_CHUNKS = 6
"""Chunks until the guard knows more than its first guess, or than one size of chunk."""
_NOISE_BYTES = 4 << 20
_MEGABYTE = 1e6
_STEPS = 20
_IMPOSSIBLE = (1 << 24, 1 << 24)
"""Bytes: more than a process can address, so that no system gives them and pays later."""


def findings(backend: MlxBackend, context_tokens: int, chunks: Sequence[int], rows: int) -> Iterator[Finding]:
    """Measure one prompt of `context_tokens`, computed in chunks of these sizes in turn; then `rows` that
    decode."""
    context_tokens = min(context_tokens, fitting_tokens(backend, 1))
    yield attempt("memory of a prompt", lambda: _peaks(backend, context_tokens, chunks))
    yield attempt("steps and a row that leaves", lambda: _copies(backend, rows))
    if device().traits.kind != "cpu":  # There MLX writes to what it was not given, and the process ends.
        yield attempt("an allocation that cannot be", refused)


def _transient_bytes(work: Callable[[], object]) -> int:
    """Return the bytes at the peak, beyond what is held before or after."""
    before = device().memory().active
    device().restart_peak()
    work()
    after = device().memory()
    return after.peak - max(before, after.active)


def _peaks(backend: MlxBackend, context_tokens: int, sizes: Sequence[int]) -> Finding:
    """`error`: how much more a chunk took than the guard expected from those before it, as a part of that;
    the first six teach it."""
    limit = backend.facts.memory_limit
    peak = ChunkPeak(limit.first_peak_bytes, max(sizes))
    row = EngineSequence.of(Submit(1, compact(words(context_tokens + 1, 1)), 1, (), GREEDY))
    backend.execute(StepPlan(admit=(Admit(row),)))
    started = device().memory().active
    errors: list[float] = []
    most_pool = most_chunk = done = number = 0
    while done + max(sizes) <= context_tokens:
        size = sizes[number % len(sizes)]
        expected = peak.needed_bytes(size, done)
        chunk = StepPlan(chunks=(Chunk(1, size),), predicted_seconds=0.0)
        taken = _transient_bytes(partial(backend.execute, chunk))
        peak.observe(size, done, taken)
        most_pool, most_chunk = max(most_pool, device().memory().cached), max(most_chunk, taken)
        if number >= _LEARNING_CHUNKS:
            errors.append((taken - _NOISE_BYTES) / max(1, expected) - 1)
        done, number = done + size, number + 1
    held = device().memory().active - started
    leave(backend, [1])
    device().clear_pool()
    figures: dict[str, Figure] = {
        "tokens": done,
        "largest_error": max(errors, default=0.0),
        "chunks_above_expectation": sum(error > 0 for error in errors),
        "chunks": number,
        "chunk_at_most_MB": most_chunk / _MEGABYTE,
        "bytes_per_token": held / max(1, done),
        "expected_bytes_per_token": backend.facts.row_bytes.token_bytes,
        "pool_at_most_MB": most_pool / _MEGABYTE,
        "pool_limit_MB": limit.pool_bytes / _MEGABYTE,
    }
    right = most_pool <= limit.pool_bytes + _NOISE_BYTES
    return Finding("memory of a prompt", "right" if right else "wrong", figures)


def _copies(backend: MlxBackend, rows: int) -> Finding:
    """G9: a write into keys and values that are still read copies all of them, in every step or where a row
    leaves. Wrong if the peak shows it."""
    ids = decoding(backend, [words(256, seed) for seed in range(rows)])
    backend.execute(DECODE)
    batch_bytes = backend.execute(StepPlan()).kv_bytes
    steps = _transient_bytes(lambda: [backend.execute(DECODE) for _ in range(_STEPS)])

    def cancel() -> None:
        backend.execute(StepPlan(release=(ids[0],)))
        backend.execute(DECODE)
        backend.execute(DECODE)

    left = _transient_bytes(cancel)
    backend.execute(EMIT)
    leave(backend, ids[1:])
    copied = max(steps, left) > batch_bytes / 2 + _NOISE_BYTES
    sizes = {"batch_MB": batch_bytes, "steps_MB": steps, "cancel_MB": left}
    figures = {name: size / _MEGABYTE for name, size in sizes.items()}
    detail = "the batch is copied" if copied else ""
    return Finding("steps and a row that leaves", "wrong" if copied else "right", figures, detail)


def refused() -> Finding:
    """The device's own words for it must be known: they end the engine, and nobody else is blamed."""
    name = "an allocation that cannot be"
    try:
        mx.eval(mx.contiguous(mx.broadcast_to(mx.array(1, mx.uint8), _IMPOSSIBLE)))
    except Exception as error:
        figures: dict[str, Figure] = {"fault": str(device_fault(str(error))), "text": str(error)[:160]}
        return Finding(name, "right" if is_device_error(error) else "wrong", figures)
    return Finding(name, "wrong", detail="it was made")
