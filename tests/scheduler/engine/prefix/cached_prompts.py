"""Prompts that are runs of numbers, and a prefix cache for them.

`words(0, 4000)` is a shared prefix, `words(9000, 20)` a tail.
"""

from __future__ import annotations

from array import array
from itertools import count

from scheduler.engine.prefix.prefix_cache import PrefixCache
from scheduler.engine.prefix.retention import BufferBound, Retention
from scheduler.shared.token_ids import KEY_BYTES
from tests.scheduler.engine.prefix.test_radix_tree import RUN_BYTES, Run, State, at, cut_of

TOKEN_BYTES = RUN_BYTES + KEY_BYTES
PLENTY = 10**9


def words(start: int, length: int) -> array[int]:
    return array("I", range(start, start + length))


def cache_of(
    tokens: int = PLENTY,
    needs_snapshot: bool = False,
    retention: Retention | None = None,
    buffers: BufferBound | None = None,
) -> PrefixCache[Run, State]:
    """Room for `tokens` tokens; a second passes with every look at the clock."""
    ticks = count(1)
    return PrefixCache(
        tokens * TOKEN_BYTES, RUN_BYTES, needs_snapshot, lambda: float(next(ticks)), retention, buffers
    )


def keep(
    cache: PrefixCache[Run, State], tokens: array[int], session: str | None = None, system: int = 0
) -> int:
    return cache.insert(at(tokens), cut_of(tokens), session, system)


def serve(
    cache: PrefixCache[Run, State], tokens: array[int], session: str | None = None, system: int = 0
) -> int:
    """A whole request: look up, compute, store, release. The tokens that were found."""
    lease = cache.match_and_lease(at(tokens), system)
    found = lease.length
    keep(cache, tokens, session, system)
    cache.release(lease)
    assert cache.check_integrity() == []
    return found
