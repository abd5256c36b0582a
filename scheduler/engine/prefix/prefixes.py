"""The prefix cache as the engine loop sees it, to be read only, and the changes that a plan makes to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from scheduler.engine.adapter_files import salted
from scheduler.engine.plan import StepPlan
from scheduler.engine.prefix.cache_statistics import CacheStatistics, Reason
from scheduler.engine.prefix.prefix_cache import PrefixCache


class Prefixes(Protocol):
    """As `prefix_cache.PrefixCache` documents it."""

    @property
    def query_tokens(self) -> int: ...
    @property
    def hit_tokens(self) -> int: ...
    @property
    def stored_tokens(self) -> int: ...
    @property
    def evicted_tokens(self) -> Mapping[Reason, int]: ...
    @property
    def budget_bytes(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def held_tokens(self) -> int: ...
    def pinned_bytes(self) -> int: ...
    def match_length(self, tokens: Sequence[int], salt: str) -> int: ...
    def statistics(self, top: int = 10, head_tokens: int = 0) -> CacheStatistics: ...
    def check_integrity(self) -> list[str]: ...


def changed(prefixes: PrefixCache[Any, Any], plan: StepPlan) -> tuple[int, tuple[str, ...]]:
    """Carry out what a plan says of the prefix cache, but for what rows put into it. Return the bytes freed
    by `clear`, and the names in `unpin` that were pinned."""
    if plan.budget is not None and plan.budget.kv_bytes is not None:
        prefixes.set_budget(plan.budget.kv_bytes)
    for turn in plan.ended:
        prefixes.ended(salted(turn.adapter, turn.salt), turn.session, turn.kind)
    freed = prefixes.clear() if plan.clear else 0
    return freed, tuple(name for name in plan.unpin if prefixes.unpin(name))
