"""The prefix cache as the engine loop sees it, to be read only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from scheduler.engine.prefix.nodes import Known, Match
from scheduler.shared.counters import CacheCounters
from scheduler.shared.reports import CacheReport


class Prefixes(Protocol):
    """The prefix cache, as `prefix_cache.PrefixCache` documents it."""

    @property
    def budget_bytes(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def pinned_bytes(self) -> int: ...
    def find(
        self, tokens: Sequence[int], salt: str, known: Known[Any, Any] | None = None
    ) -> Match[Any, Any]: ...
    def counters(self) -> CacheCounters: ...
    def statistics(self, top: int = 10, head_tokens: int = 0) -> CacheReport: ...
    def check_integrity(self) -> list[str]: ...
