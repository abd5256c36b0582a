"""A back end with rows that decode, for measurements that step it themselves."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from scheduler.config import EngineConfig, load_message
from scheduler.engine.mlx import loading
from scheduler.engine.mlx.backend import MlxBackend
from scheduler.engine.mlx.device import device
from scheduler.engine.plan import Admit, StepPlan
from scheduler.engine.prefill import share
from scheduler.engine.prefill_batches import next_batch
from scheduler.engine.sequence import EngineSequence
from scheduler.models.random_qwen3 import FIRST_ADDED_TOKEN_ID
from scheduler.shared.messages import KvCacheDtype, Sampling, Submit
from scheduler.shared.token_ids import compact

MOST_ROWS = 32
KNOWN_TOKENS = FIRST_ADDED_TOKEN_ID
"""Tokens of random models below this number have text."""
_CHUNK_TOKENS = 512


DECODE = StepPlan(decode=(0,))
"""The plan of a step in which all rows that decode do so."""
EMIT = StepPlan(emit_pending=True)


def loaded(folder: Path, kv_cache_dtype: KvCacheDtype = "auto") -> MlxBackend:
    """Load the model with the weights' dtype that a server would take, and without the check at load."""
    config = EngineConfig(
        "mlx", str(folder), max_slots=MOST_ROWS, load_check="off", kv_cache_dtype=kv_cache_dtype
    )
    return loading.load(load_message(config), lambda stage: None)


def free_bytes() -> int:
    """Return what the device can still give, or the system's memory where they are one."""
    free = device().facts().get("free_memory")
    return int(free) if free is not None else device().system().available_bytes or 0


def fitting_tokens(backend: MlxBackend, rows: int) -> int:
    """Return how many tokens these rows may have with a quarter of the KV budget: a device that is out of
    memory may end the process, and rows are copied when they leave."""
    limit = backend.facts.memory_limit
    budget_bytes = limit.kv_budget_bytes(limit.first_peak_bytes) // 4
    return budget_bytes // (rows * max(1, backend.facts.row_bytes.token_bytes))


def words(backend: MlxBackend, count: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(1, backend.describe().vocabulary) for _ in range(count)]


def decoding(backend: MlxBackend, prompts: Sequence[Sequence[int]]) -> list[int]:
    """Admit a greedy row for each prompt, and step until all decode. Return their request ids; rows do not
    end by themselves."""
    greedy = Sampling(temperature=0.0)
    rows = [
        EngineSequence.of(Submit(number, compact([*prompt]), 1 << 30, (), greedy))
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
