"""One rank that loads a folder as the engine does, and answers requests: what `test_loading.py` asks
of it."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec

from scheduler.engine.backend import started
from scheduler.engine.load_failure import LoadRefused
from scheduler.engine.loop import EngineLoop
from scheduler.engine.mlx import loading
from scheduler.engine.mlx.sharding.rank import Rank
from scheduler.engine.pace import PrefillPace
from scheduler.shared.messages import AdapterSource, StepOutput
from tests.contracts.journal import GREEDY, SEEDED, prompt_of, request
from tests.scheduler.engine.mlx.loads import load_of


def load_over(folder: str, rank: Rank | None, changes: dict[str, Any]) -> dict[str, Any]:
    """What the engine says of itself and answers, or why it does not load. `changes`: of its Load, and
    "silent" where nobody asks it anything."""
    adapters = tuple(AdapterSource(*each) for each in changes.get("adapters", ()))
    group = None if rank is None else rank.group
    fields = {name: value for name, value in changes.items() if name != "silent"}
    command = load_of(Path(folder), **(fields | {"adapters": adapters, "ranks": group}))
    gc.collect()
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    try:
        backend = loading.load(command, lambda stage: None, rank)
    except LoadRefused as refused:
        return {"refused": str(refused)}
    peak_bytes = mx.get_peak_memory() - before
    ready = started(backend, command)
    said: dict[str, Any] = {
        "ready": {field: getattr(ready, field) for field in ready.__struct_fields__},
        "budget_bytes": None if backend.cache is None else backend.cache.prefixes.budget_bytes,
        "disk": backend._disk is not None,
        "peak_bytes": peak_bytes,
        "group_cost_tokens": backend._rows._group_cost_tokens,
    }
    return (
        said
        if changes.get("silent")
        else said | _answers(EngineLoop(backend, 8, PrefillPace(64), clock=lambda: 0.0))
    )


def _answers(loop: EngineLoop) -> dict[str, Any]:
    """Prompts behind one prefix and others, greedy and sampled with penalties, in two bursts."""
    prefix = prompt_of(40, 1)
    prompts = [prefix + prompt_of(9, 2), prompt_of(70, 3), prompt_of(3, 4), prefix + prompt_of(20, 5)]
    tokens: dict[int, list[int]] = {}
    logprobs: dict[int, list[float]] = {}
    for burst in (prompts[:3], prompts[3:] + prompts[:1]):
        submits = [
            msgspec.structs.replace(
                request(len(tokens) + at, prompt, 8, sampling=SEEDED if at % 2 else GREEDY), top_logprobs=0
            )
            for at, prompt in enumerate(burst)
        ]
        tokens |= {submit.request_id: [] for submit in submits}
        logprobs |= {submit.request_id: [] for submit in submits}
        frames = loop.iterate(submits)
        while True:
            for frame in frames:
                assert isinstance(frame, StepOutput)
                for token in frame.tokens:
                    assert token.logprobs is not None
                    tokens[token.request_id].append(token.token)
                    logprobs[token.request_id].append(token.logprobs.chosen)
            if loop.idle:
                break
            frames = loop.iterate([])
    return {"tokens": list(tokens.values()), "logprobs": list(logprobs.values())}


def run(rank: Rank, *told: str) -> dict[str, Any]:
    """`told`: of each rank, its folder and the changed fields of its Load, as JSON."""
    folder, changes = json.loads(told[rank.number])
    return load_over(folder, rank, changes)
