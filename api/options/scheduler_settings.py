"""The scheduler's configuration, from the options of `penstock serve`."""

from __future__ import annotations

import os
from inspect import signature
from pathlib import Path
from typing import Any, Literal

from api.access.api_keys import ApiKeys
from api.options.settings import ServeSettings
from scheduler.config import (
    EngineConfig,
    IntakeConfig,
    SchedulerConfig,
    SupervisionConfig,
)
from scheduler.engines.adapters import MAX_ADAPTERS, source_of
from scheduler.errors import StartupError
from scheduler.processes.machine_share import gpus_of, sharers_of
from scheduler.prompt.embedder import Embedder
from scheduler.shared.adapter_files import AdapterRefused
from scheduler.shared.messages import AdapterSource

MAX_QUEUED_TOKENS = 8_000_000
"""Prompt tokens of all waiting requests: some hundred megabytes, with their texts."""


def scheduler_config(
    settings: ServeSettings,
    model_folder: Path,
    keys: ApiKeys,
    cache_folder: Path,
    embedder: Embedder | None = None,
    models: int = 1,
) -> SchedulerConfig:
    """Return the configuration. `embedder`: set if the model is one, or a reranker; `models` is how many
    share the disk tier. Raise StartupError for an adapter whose folder cannot be read."""
    engine = {
        **_same(settings, EngineConfig),
        "backend": settings.engine,
        "model_folder": str(model_folder),
        "model": "",
        "kv_disk": "" if settings.kv_disk is None else str(settings.kv_disk),
        "kv_disk_bytes": settings.kv_disk_bytes // (settings.local_engines * models),
        "cache_folder": str(cache_folder),
        "sharers": 1 if settings.engines_join else sharers_of(settings.local_engines, gpus_of(os.environ)),
        "adapters": _adapters(settings),
        "pooler": None if embedder is None else embedder.pooler,
        "yields": embedder is not None,
    }
    # 0 is no bound, and here that is None. All rows of an embedder's step may end with it, and the next step
    # needs as many.
    intake: dict[str, Any] = {name: value or None for name, value in _same(settings, IntakeConfig).items()}
    lookahead: dict[str, Any] = {} if embedder is None else {"lookahead": settings.max_slots}
    return SchedulerConfig(
        engines=0 if settings.engines_join else settings.local_engines,
        engines_join=settings.engines_join,
        cache_sharing=_cache_sharing(settings, keys),
        engine=EngineConfig(**engine),
        supervision=SupervisionConfig(**_same(settings, SupervisionConfig)),
        intake=IntakeConfig(max_queued_tokens=MAX_QUEUED_TOKENS, **intake, **lookahead),
        stall_seconds=settings.stall_seconds,
    )


def _same(settings: ServeSettings, kind: type[Any]) -> dict[str, Any]:
    """Return the fields of a configuration class that are options of the same name."""
    options = ServeSettings.model_fields
    return {name: getattr(settings, name) for name in signature(kind).parameters if name in options}


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
