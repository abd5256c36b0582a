"""Memory that is short: prompts of many lengths, a full KV budget, an allocation that is refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from unittest.mock import patch

import mlx.core as mx
import msgspec

from loadtests.device.branches import Subject
from loadtests.device.finding import Figure, Finding, attempt
from loadtests.device.rows import words
from scheduler.engine import memory
from scheduler.engine.loop import EngineLoop
from scheduler.engine.mlx.backend import MlxBackend
from scheduler.engine.mlx.device import device
from scheduler.engine.pace import PrefillPace
from scheduler.engine.plan import StepPlan
from scheduler.shared.counters import Counters
from scheduler.shared.device_errors import device_fault, is_device_error
from scheduler.shared.messages import Sampling, StepOutput, Submit
from scheduler.shared.token_ids import compact

_NOISE_BYTES = 16 << 20
_ROWS, _CHUNK_TOKENS = 8, 256
_IMPOSSIBLE = (1 << 24, 1 << 24)
"""Bytes: more than a process can address, so that no system gives them and pays later."""
_FILLED_PARTS = 16
_PROMPT_TOKENS, _ANSWER_TOKENS = 20, 60
_RESERVED_TOKENS = 8
"""Reserved for an answer when its row is admitted. The product reserves all of one this short, so that no row
would outgrow its part of the budget."""
_GREEDY = Sampling(temperature=0.0)


def findings(backend: MlxBackend, subject: Subject, prompts: int, most_tokens: int) -> Iterator[Finding]:
    yield attempt(f"{prompts} prompts", lambda: _growth(backend, prompts, most_tokens))
    yield attempt("a full KV budget", lambda: _preempted(subject))
    if device().traits.kind != "cpu":  # There MLX writes to what it was not given, and the process ends.
        yield attempt("an allocation that cannot be", _refused)
    if device().traits.kind == "cuda":
        yield attempt("a full device", _filled)


def _growth(backend: MlxBackend, prompts: int, most_tokens: int) -> Finding:
    """Each length makes plans and graphs of its own, which CUDA keeps. What is live must not grow."""
    loop = EngineLoop(backend, _ROWS, PrefillPace(_CHUNK_TOKENS))
    held: list[int] = []
    seconds: list[float] = []
    fifth = max(_ROWS, prompts // 5)
    for begin in range(0, prompts, fifth):
        started = time.perf_counter()
        lengths = [
            1 + 37 * number * number % most_tokens for number in range(begin, min(prompts, begin + fifth))
        ]
        loop.iterate(
            [
                Submit(begin + at, compact(words(backend, length, begin + at)), 2, (), _GREEDY)
                for at, length in enumerate(lengths)
            ]
        )
        while not loop.idle:
            loop.iterate(())
        seconds.append(time.perf_counter() - started)
        backend.execute(StepPlan(clear=True))
        device().clear_pool()
        held.append(device().memory().active)
    growth = held[-1] - held[0]
    figures: dict[str, Figure] = {
        "growth_MB": growth / 1e6,
        "live_MB": held[-1] / 1e6,
        "footprint_MB": device().system().footprint_bytes / 1e6,
        "first_fifth_seconds": seconds[0],
        "last_fifth_seconds": seconds[-1],
    }
    return Finding(f"{prompts} prompts", "right" if growth <= _NOISE_BYTES else "wrong", figures)


def _preempted(subject: Subject) -> Finding:
    """Six rows behind prompts of their own, admitted together and in room for two: some must leave and come
    back, and all answers are those with room for all."""
    prompts = [[1 + (97 * row + 31 * at) % 500 for at in range(_PROMPT_TOKENS)] for row in range(6)]
    roomy, undisturbed = _answers(subject, prompts, 1 << 30)
    tight_bytes = 2 * (_PROMPT_TOKENS + _ANSWER_TOKENS) * max(1, subject.row_bytes.token_bytes)
    tight, disturbed = _answers(subject, prompts, tight_bytes)
    same = sum(mine == its for mine, its in zip(tight, roomy, strict=True))
    figures: dict[str, Figure] = {
        "rows": len(prompts),
        "as_with_room": same,
        "preemptions": disturbed.preemptions,
        "preemptions_with_room": undisturbed.preemptions,
        "budget_MB": tight_bytes / 1e6,
    }
    detail = "" if disturbed.preemptions > undisturbed.preemptions == 0 else "the budget preempted no row"
    right = same == len(prompts) and not detail
    return Finding("a full KV budget", "right" if right else "wrong", figures, detail)


def _answers(subject: Subject, prompts: list[list[int]], kv_bytes: int) -> tuple[list[list[int]], Counters]:
    load = msgspec.structs.replace(subject.load, kv_cache_bytes=kv_bytes)
    backend = subject.backend(load)
    loop = EngineLoop(backend, len(prompts), PrefillPace(64))
    answers: list[list[int]] = [[] for _ in prompts]
    commands = [Submit(at, compact(one), _ANSWER_TOKENS, (), _GREEDY) for at, one in enumerate(prompts)]
    counters = Counters()
    with patch.object(memory, "GROWTH_TOKENS", _RESERVED_TOKENS):
        while commands or not loop.idle:
            frames, commands = loop.iterate(commands), []
            for frame in frames:
                assert isinstance(frame, StepOutput)
                counters = frame.counters
                for token in frame.tokens:
                    answers[token.request_id].append(token.token)
                assert all(retired.reason == "length" for retired in frame.retired), frame.retired
    return answers, counters


def _refused() -> Finding:
    """The device's own words for it must be known: they end the engine, and nobody else is blamed."""
    try:
        mx.eval(mx.contiguous(mx.broadcast_to(mx.array(1, mx.uint8), _IMPOSSIBLE)))
    except Exception as error:
        return _known("an allocation that cannot be", error, {})
    return Finding("an allocation that cannot be", "wrong", detail="it was made")


def _filled() -> Finding:
    held: list[mx.array] = []
    part = int(device().facts()["total_memory"]) // _FILLED_PARTS
    error: Exception | None = None
    try:
        for _ in range(2 * _FILLED_PARTS):
            held.append(mx.zeros((part,), mx.uint8) + 1)
            mx.eval(held[-1])
    except Exception as raised:  # Whatever the driver says.
        error = raised
    parts = len(held)
    held.clear()
    device().clear_pool()
    product = mx.ones((64, 64)) @ mx.ones((64, 64))
    figures: dict[str, Figure] = {"parts_of_a_16th": parts, "product_afterwards": float(product[0, 0])}
    if error is None:
        return Finding("a full device", "measured", figures, "it never refused: memory is paged")
    return _known("a full device", error, figures)


def _known(name: str, error: Exception, figures: dict[str, Figure]) -> Finding:
    figures |= {"fault": str(device_fault(str(error))), "text": str(error)[:160]}
    return Finding(name, "right" if is_device_error(error) else "wrong", figures)
