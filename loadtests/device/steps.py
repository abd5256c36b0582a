"""Times of steps: the host's part, the gain of overlap, the cost of a shared group, long chunks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import mlx.core as mx

from loadtests.device.finding import Figure, Finding, attempt
from loadtests.device.rows import DECODE, EMIT, decoding, fitting_tokens, leave, loaded, words
from scheduler.engine.mlx.backend import MlxBackend
from scheduler.engine.mlx.device import device, forced
from scheduler.engine.mlx.group_cost import ROWS, agreed_cost, cost_in_tokens, step_times
from scheduler.engine.mlx.sampling.draw import Cuts
from scheduler.engine.plan import Admit, StepPlan
from scheduler.engine.prefill import Chunk
from scheduler.engine.row_sharing import GROUP_COST_TOKENS
from scheduler.engine.sequence import EngineSequence
from scheduler.shared.messages import KvCacheDtype, Sampling, Submit
from scheduler.shared.token_ids import compact

_PROMPT_TOKENS = 64
_STEPS_A_TURN = 8
_MOST_SECONDS = 4.0
"""Bound on one evaluation; Metal's watchdog waits a little longer."""


def findings(
    backend: MlxBackend, rows: Sequence[int], turns: int, group_tokens: Sequence[int], chunks: Sequence[int]
) -> Iterator[Finding]:
    """Measure `turns` of eight steps for each number of rows, then the rest. Runs and chunks are in
    tokens."""
    yield from decode_findings(backend, rows, turns)
    yield attempt("even and ragged rows", lambda: _padded(backend, max(rows)))
    yield attempt("cut-offs", lambda: _cut_offs(backend, max(rows)))
    for tokens in group_tokens:
        name = f"a group of {tokens} tokens"
        yield attempt(name, lambda: _group(name, backend, tokens))  # noqa: B023
    for tokens in chunks:
        name = f"a chunk of {tokens} tokens"
        yield attempt(name, lambda: _chunk(name, backend, tokens))  # noqa: B023


def decode_findings(backend: MlxBackend, rows: Sequence[int], turns: int) -> Iterator[Finding]:
    for count in rows:
        name = f"decode steps of {count} rows"
        yield attempt(name, lambda: _decode(name, backend, count, turns))  # noqa: B023  # Called at once.


def packed_findings(folder: Path, rows: int, tokens: int, turns: int) -> Iterator[Finding]:
    """The same rows with keys and values as they are, and in 8 bits."""
    kinds: tuple[KvCacheDtype, ...] = ("auto", "q8")
    for kind in kinds:
        name = f"{rows} rows of {tokens} tokens, {kind}"
        yield attempt(name, lambda: _packed(name, loaded(folder, kind), rows, tokens, turns))  # noqa: B023


def _packed(name: str, backend: MlxBackend, rows: int, tokens: int, turns: int) -> Finding:
    tokens = min(tokens, fitting_tokens(backend, rows))
    ids = decoding(backend, [words(backend, tokens, seed) for seed in range(rows)])
    backend.execute(DECODE)
    step = min(_seconds(lambda: backend.execute(DECODE)) for _ in range(turns * _STEPS_A_TURN))
    held_bytes = backend.execute(StepPlan()).kv_bytes
    figures: dict[str, Figure] = {"step_ms": 1000 * step, "kv_MB": held_bytes / 1e6, "tokens": tokens}
    leave(backend, ids)
    device().clear_pool()
    return Finding(name, "measured", figures)


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _decode(name: str, backend: MlxBackend, count: int, turns: int) -> Finding:
    """Let steps with and without overlap take turns, so that other work slows both. The host's part is what a
    step takes when the device has finished everything before it.

    Deferred: the next model call is built ahead, and submitted when it is wanted. On Metal a command buffer
    ends with 50 operations or 50 MB of weights, and MLX holds more than ten back: where a model is larger
    than ten of them, submission may wait for the step, and each token with it, as on a CPU."""
    ids = decoding(backend, [words(backend, _PROMPT_TOKENS, seed) for seed in range(count)])

    def apart() -> None:
        backend._batch.decode(overlap=False, drafts={})

    def steps() -> float:
        backend.execute(DECODE)  # It computes two tokens of each row where none is pending.
        return median(_seconds(lambda: backend.execute(DECODE)) for _ in range(_STEPS_A_TURN))

    overlapped: list[float] = []
    deferred: list[float] = []
    waiting: list[float] = []
    host: list[float] = []
    for _ in range(turns):
        with forced(replace(device().traits, submission_waits=True)):
            deferred.append(steps())
            backend.execute(EMIT)
        overlapped.append(steps())
        for _ in range(2):
            time.sleep(2 * overlapped[-1])
            host.append(_seconds(lambda: backend.execute(DECODE)))
        backend.execute(EMIT)
        waiting.append(median(_seconds(apart) for _ in range(_STEPS_A_TURN)))
    leave(backend, ids)
    step = min(overlapped)
    # What a step takes beyond its host's part when nothing overlaps is the device's, and what reaches it.
    device_seconds = max(0.0, min(waiting) - min(host))
    return Finding(
        name,
        "measured",
        {
            "step_ms": 1000 * step,
            "step_without_overlap_ms": 1000 * min(waiting),
            "overlap_ratio": median(mine / its for mine, its in zip(overlapped, waiting, strict=True)),
            "deferred_ratio": median(mine / its for mine, its in zip(deferred, overlapped, strict=True)),
            "host_ms": 1000 * min(host),
            "host_share": min(host) / step,
            "device_ms": 1000 * device_seconds,
            "idle_ms": 1000 * max(0.0, step - device_seconds),
            "busy_share": min(1.0, device_seconds / step),
            "tokens_per_second": count / step,
        },
    )


def _padded(backend: MlxBackend, count: int) -> Finding:
    """G22: rows of one length need no mask; rows of different lengths have one that each layer reads."""
    figures: dict[str, Figure] = {"rows": count}
    for name, more in (("even", 0), ("ragged", 1)):
        lengths = [_PROMPT_TOKENS + more * (seed % 2) for seed in range(count)]
        ids = decoding(backend, [words(backend, length, seed) for seed, length in enumerate(lengths)])
        backend.execute(DECODE)
        figures[f"{name}_steps_ms"] = 1000 * median(
            _seconds(lambda: backend.execute(DECODE)) for _ in range(2 * _STEPS_A_TURN)
        )
        figures[f"{name}_wait_ms"] = 1000 * _seconds(device().wait)
        leave(backend, ids)
    return Finding("even and ragged rows", "measured", figures)


def _cut_offs(backend: MlxBackend, count: int) -> Finding:
    """G20: the least logits that are kept, for rows of this model's vocabulary, by MLX's graph."""
    vocabulary = backend.describe().vocabulary
    logits = 3 * mx.random.normal((count, vocabulary))
    mx.eval(logits)
    ways = {"top_k": {"top_k": 20}, "top_k_and_p": {"top_k": 20, "top_p": 0.95}, "top_p": {"top_p": 0.95}}
    figures: dict[str, Figure] = {"rows": count, "vocabulary": vocabulary}
    for name, cut in ways.items():
        cuts = Cuts([Sampling(**cut)] * count, vocabulary)  # type: ignore[arg-type]
        seconds = [_seconds(lambda: mx.eval(cuts.floor(logits))) for _ in range(_STEPS_A_TURN)]  # noqa: B023
        figures[f"{name}_ms"] = 1000 * min(seconds)
    return Finding("cut-offs", "measured", figures)


def _group(name: str, backend: MlxBackend, tokens: int) -> Finding:
    if tokens > (most := fitting_tokens(backend, ROWS)):
        return Finding(name, "measured", detail=f"left out: there is memory for {most} tokens a row")
    both = step_times(backend._model, tokens)
    cost, (times, again) = agreed_cost(both, tokens), both
    return Finding(
        name,
        "measured",
        {
            "cost_tokens": "not measurable" if cost is None else cost,
            "first_cost_tokens": cost_in_tokens(times, tokens) or 0,
            "second_cost_tokens": cost_in_tokens(again, tokens) or 0,
            "default_tokens": GROUP_COST_TOKENS,
            "step_short_ms": 1000 * times.short,
            "step_copied_ms": 1000 * times.copied,
            "step_in_place_ms": 1000 * times.in_place,
        },
    )


def _chunk(name: str, backend: MlxBackend, tokens: int) -> Finding:
    """Evaluate it layer by layer, then at once unless macOS might end the process for that."""
    sliced = min(_chunk_seconds(backend, tokens, seed, 0.0) for seed in range(2))
    figures: dict[str, Figure] = {"sliced_seconds": sliced, "tokens_per_second": tokens / sliced}
    if sliced > _MOST_SECONDS:
        return Finding(name, "measured", figures | {"seconds": "not tried"})
    whole = min(_chunk_seconds(backend, tokens, seed, None) for seed in range(2))
    return Finding(name, "measured", figures | {"seconds": whole})


def _chunk_seconds(backend: MlxBackend, tokens: int, seed: int, evaluation_seconds: float | None) -> float:
    prompt = compact([*words(backend, tokens + 1, seed), 1])
    row = EngineSequence.of(Submit(1, prompt, 1, (), Sampling(temperature=0.0)))
    backend.execute(StepPlan(admit=(Admit(row),)))
    with forced(replace(device().traits, evaluation_seconds=evaluation_seconds)):
        seconds = _seconds(lambda: backend.execute(StepPlan(chunks=(Chunk(1, tokens),))))
    leave(backend, [1])
    return seconds
