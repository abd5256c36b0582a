"""What the engine loop changes beside the back end itself, sent to the other ranks: the prefix cache's size,
and the device's pool of freed buffers.

Readings are rank 0's own: the other ranks hold the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from scheduler.engine.device import Device, SystemMemory, Traits
from scheduler.engine.prefix.cache_statistics import CacheStatistics, Reason
from scheduler.engine.prefix.prefixes import Prefixes
from scheduler.engine.ranks.calls import (
    Call,
    Clear,
    ClearPool,
    EndTurn,
    Evict,
    LimitPool,
    LimitScores,
    SetBudget,
    Unpin,
)
from scheduler.link.messages import DeviceMemory


class ToldPrefixes:
    """The prefix caches of all ranks: rank 0's is read."""

    def __init__(self, own: Prefixes, tell: Callable[[Call], None]) -> None:
        self._own = own
        self._tell = tell

    @property
    def query_tokens(self) -> int:
        return self._own.query_tokens

    @property
    def hit_tokens(self) -> int:
        return self._own.hit_tokens

    @property
    def stored_tokens(self) -> int:
        return self._own.stored_tokens

    @property
    def evicted_tokens(self) -> Mapping[Reason, int]:
        return self._own.evicted_tokens

    @property
    def budget_bytes(self) -> int:
        return self._own.budget_bytes

    @property
    def nbytes(self) -> int:
        return self._own.nbytes

    @property
    def held_tokens(self) -> int:
        return self._own.held_tokens

    def pinned_bytes(self) -> int:
        return self._own.pinned_bytes()

    def match_length(self, tokens: Sequence[int], salt: str) -> int:
        return self._own.match_length(tokens, salt)

    def set_budget(self, budget_bytes: int) -> None:
        self._tell(SetBudget(budget_bytes))
        self._own.set_budget(budget_bytes)

    def evict(self, need: int) -> int:
        self._tell(Evict(need))
        return self._own.evict(need)

    def clear(self) -> int:
        self._tell(Clear())
        return self._own.clear()

    def unpin(self, name: str) -> bool:
        self._tell(Unpin(name))
        return self._own.unpin(name)

    def ended(self, salt: str, session: str, kind: str) -> None:
        self._tell(EndTurn(salt, session, kind))
        self._own.ended(salt, session, kind)

    def statistics(self, top: int = 10, head_tokens: int = 0) -> CacheStatistics:
        return self._own.statistics(top, head_tokens)

    def check_integrity(self) -> list[str]:
        return self._own.check_integrity()


class ToldDevice:
    """The devices of all ranks: rank 0's is read."""

    def __init__(self, own: Device, tell: Callable[[Call], None]) -> None:
        self._own = own
        self._tell = tell

    @property
    def traits(self) -> Traits:
        return self._own.traits

    def memory(self) -> DeviceMemory:
        return self._own.memory()

    def system(self) -> SystemMemory:
        return self._own.system()

    def restart_peak(self, host: bool = False) -> None:
        self._own.restart_peak(host)

    def transient_bytes(self) -> int:
        return self._own.transient_bytes()

    def clear_pool(self) -> None:
        self._tell(ClearPool())
        self._own.clear_pool()

    def limit_pool(self, most_bytes: int) -> None:
        self._tell(LimitPool(most_bytes))
        self._own.limit_pool(most_bytes)

    def limit_scores(self, most_bytes: int) -> None:
        self._tell(LimitScores(most_bytes))
        self._own.limit_scores(most_bytes)

    def limit_wired(self, most_bytes: int) -> None:
        """What stays resident is each rank's own matter: decided at its load, from its own limit."""
        self._own.limit_wired(most_bytes)
