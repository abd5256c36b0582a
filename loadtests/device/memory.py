"""Memory: chunks' peaks against what the guard would have reserved, growth, the pool, copies, buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from mlx.utils import tree_flatten

from loadtests.device.finding import Figure, Finding, attempt
from loadtests.device.rows import DECODE, EMIT, decoding, fitting_tokens, leave, words
from scheduler.engine.budget.learned import ChunkPeak
from scheduler.engine.mlx.backend import MlxBackend
from scheduler.engine.mlx.device import device
from scheduler.engine.mlx.kv.cache_layout import CacheLayout
from scheduler.engine.plan import Admit, StepPlan
from scheduler.engine.prefill import Chunk
from scheduler.engine.sequence import EngineSequence
from scheduler.shared.messages import Sampling, Submit
from scheduler.shared.token_ids import compact

_LEARNING_CHUNKS = 6
"""Chunks until the guard knows more than its first guess, or than one size of chunk."""
_NOISE_BYTES = 4 << 20
_MEGABYTE = 1e6
_STEPS = 20


def findings(backend: MlxBackend, context_tokens: int, chunks: Sequence[int], rows: int) -> Iterator[Finding]:
    """Measure one prompt of `context_tokens`, computed in chunks of these sizes in turn; then `rows` that
    decode."""
    yield from _peaks(backend, min(context_tokens, fitting_tokens(backend, 1)), chunks)
    yield attempt("pool of freed buffers", lambda: _pool(backend))
    yield attempt("steps and a row that leaves", lambda: _copies(backend, rows))
    yield attempt("buffers", lambda: _buffers(backend))


def _transient_bytes(work: Callable[[], object]) -> int:
    """Return the bytes at the peak, beyond what is held before or after."""
    before = device().memory().active
    device().restart_peak()
    work()
    after = device().memory()
    return after.peak - max(before, after.active)


def _peaks(backend: MlxBackend, context_tokens: int, sizes: Sequence[int]) -> Iterator[Finding]:
    limit = backend.facts.memory_limit
    peak = ChunkPeak(limit.first_peak_bytes, max(sizes))
    row = EngineSequence.of(
        Submit(1, compact([*words(backend, context_tokens, 1), 1]), 1, (), Sampling(temperature=0.0))
    )
    backend.execute(StepPlan(admit=(Admit(row),)))
    started = device().memory().active
    most_pool, done, exceeded, number = 0, 0, 0, 0
    while done + max(sizes) <= context_tokens:
        size = sizes[number % len(sizes)]
        expected = peak.needed_bytes(size, done)
        chunk = StepPlan(chunks=(Chunk(1, size),), predicted_seconds=0.0)
        taken = _transient_bytes(partial(backend.execute, chunk))
        peak.observe(size, done, taken)
        most_pool = max(most_pool, device().memory().cached)
        learned = number >= _LEARNING_CHUNKS
        over = learned and taken > expected + _NOISE_BYTES
        exceeded += over
        figures: dict[str, Figure] = {
            "expected_MB": expected / _MEGABYTE,
            "measured_MB": taken / _MEGABYTE,
            "ratio": taken / max(1, expected),
        }
        yield Finding(
            f"chunk of {size} behind {done}", "measured", figures, "more than expected" if over else ""
        )
        done, number = done + size, number + 1
    held = device().memory().active - started
    token_bytes = backend.facts.row_bytes.token_bytes
    yield Finding(
        "growth of a prompt",
        "measured",
        {
            "tokens": done,
            "bytes_per_token": held / max(1, done),
            "expected_bytes_per_token": token_bytes,
            "chunks_above_expectation": exceeded,
            "pool_at_most_MB": most_pool / _MEGABYTE,
            "pool_limit_MB": limit.pool_bytes / _MEGABYTE,
        },
    )
    leave(backend, [1])


def _pool(backend: MlxBackend) -> Finding:
    """The pool is right if clearing empties it, and if it kept within its limit before."""
    before = device().memory().cached
    device().clear_pool()
    after = device().memory().cached
    limit = backend.facts.memory_limit.pool_bytes
    right = after <= _NOISE_BYTES and before <= limit + _NOISE_BYTES
    return Finding(
        "pool of freed buffers",
        "right" if right else "wrong",
        {
            "before_MB": before / _MEGABYTE,
            "cleared_MB": after / _MEGABYTE,
            "limit_MB": limit / _MEGABYTE,
        },
    )


def _copies(backend: MlxBackend, rows: int) -> Finding:
    """G9: a write into keys and values that are still read copies all of them, in every step or where a row
    leaves. Wrong if the peak shows it."""
    ids = decoding(backend, [words(backend, 256, seed) for seed in range(rows)])
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
    return Finding(
        "steps and a row that leaves",
        "wrong" if copied else "right",
        {
            "batch_MB": batch_bytes / _MEGABYTE,
            "steps_MB": steps / _MEGABYTE,
            "cancel_MB": left / _MEGABYTE,
        },
        "the batch is copied" if copied else "",
    )


def _buffers(backend: MlxBackend) -> Finding:
    """Count buffers by counting arrays: MLX reports no number of buffers, and trying would end the
    process."""
    of_segment, of_snapshot = CacheLayout(backend._model).arrays
    weights = len(tree_flatten(backend._model.parameters()))
    most = device().traits.most_buffers
    figures: dict[str, Figure] = {
        "weights": weights,
        "of_a_cached_prefix": of_segment,
        "of_a_cached_state": of_snapshot,
        "limit": "none" if most is None else most,
    }
    if most is not None and of_segment + of_snapshot:
        figures["cached_prefixes_at_most"] = most // 2 // (of_segment + of_snapshot)
    return Finding("buffers", "measured", figures)
