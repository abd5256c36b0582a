"""The prefix cache's statistics for operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from scheduler.engine.prefix.radix_tree import CacheSize

Reason: TypeAlias = Literal["budget", "superseded", "cleared"]
"""Why an entry was evicted."""


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """A prefix that branches or was hit."""

    tokens: int
    references: int  # Cached continuations.
    hits: int
    head: tuple[int, ...]  # The first token ids, as many as requested.


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """Current contents, and totals since the start."""

    size: CacheSize
    leases: int
    query_tokens: int
    hit_tokens: int
    stored_tokens: int
    evicted_tokens: Mapping[Reason, int]
    evicted_bytes: int
    top_prefixes: tuple[SharedPrefix, ...]
