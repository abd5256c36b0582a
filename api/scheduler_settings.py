"""The scheduler's configuration, from the options of `penstock serve`.

A file of its own because `settings.py` is the list of options, and nothing else.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from api.api_keys import ApiKeys
from api.settings import ServeSettings
from scheduler.config import (
    EngineConfig,
    FairnessConfig,
    IntakeConfig,
    RecoveryConfig,
    SchedulerConfig,
    SupervisionConfig,
)
from scheduler.engine.adapter_files import AdapterRefused
from scheduler.errors import StartupError
from scheduler.link.messages import AdapterSource
from scheduler.link.pooling import Pooler
from scheduler.pool.adapters import MAX_ADAPTERS, source_of
from scheduler.pool.machine_share import gpus_of, sharers_of


def scheduler_config(
    settings: ServeSettings,
    model_folder: Path,
    keys: ApiKeys,
    cache_folder: Path,
    pooler: Pooler | None = None,
    models: int = 1,
) -> SchedulerConfig:
    """`pooler`: of an embedder or a reranker. `models`: how many share the disk tier. Raises StartupError for
    an adapter whose folder cannot be read."""
    return SchedulerConfig(
        engines=0 if settings.engines == "ray" else settings.engines,
        nodes_decide=settings.engines == "ray",
        cache_sharing=_cache_sharing(settings, keys),
        engine=EngineConfig(
            backend=settings.engine,
            model_folder=model_folder,
            max_slots=settings.max_slots,
            prefill_chunk_tokens=settings.prefill_chunk_tokens,
            itl_target_ms=settings.itl_target_ms,
            weights_dtype=settings.weights_dtype,
            scripted=settings.scripted,
            kv_cache_bytes=settings.kv_cache_bytes,
            kv_disk=settings.kv_disk,
            kv_disk_bytes=settings.kv_disk_bytes // (settings.local_engines * models),
            load_check=settings.load_check,
            verdict_folder=cache_folder / "load-checks",
            memory_limit=settings.memory_limit,
            sharers=1 if settings.engines == "ray" else sharers_of(settings.engines, gpus_of(os.environ)),
            adapters=_adapters(settings),
            pooler=pooler,
        ),
        supervision=SupervisionConfig(ready_seconds=settings.ready_seconds),
        intake=IntakeConfig(
            max_queue=settings.max_queue,
            max_queued_tokens=settings.max_queued_tokens or None,
            max_queue_per_tenant=settings.max_queue_per_tenant or None,
            queue_seconds=settings.queue_seconds or None,
            max_running_seconds=settings.max_running_seconds or None,
            fairness=FairnessConfig(aging_seconds=settings.priority_aging_seconds),
            # All rows of a step may end with it, and the next step needs as many.
            **({} if pooler is None else {"lookahead": settings.max_slots}),
        ),
        stall_seconds=settings.stall_seconds,
        recovery=RecoveryConfig(
            max_request_deaths=settings.max_request_deaths,
            max_engine_deaths=settings.max_engine_deaths,
            death_window_seconds=settings.death_window_seconds,
        ),
    )


def _adapters(settings: ServeSettings) -> tuple[AdapterSource, ...]:
    folders = settings.adapters()
    if len(folders) > MAX_ADAPTERS:
        raise StartupError(f"--adapter: there may be {MAX_ADAPTERS} adapters, not {len(folders)}")
    try:
        return tuple(source_of(name, folder) for name, folder in folders.items())
    except AdapterRefused as refused:
        raise StartupError(f"--adapter: {refused}") from refused


def _cache_sharing(settings: ServeSettings, keys: ApiKeys) -> Literal["all", "tenant"]:
    """Choose the default. If tenants shared prefixes, `usage.cached_tokens` would let one tenant test
    what another's prompt contains."""
    if settings.cache_sharing != "auto":
        return settings.cache_sharing
    return "tenant" if settings.tenant_header or len(keys.tenants) > 1 else "all"
