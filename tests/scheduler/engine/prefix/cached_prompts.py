"""Prompts that are runs of numbers, what is kept of them, and a prefix cache for both.

`words(0, 4000)` is a shared prefix, `words(9000, 20)` a tail.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from scheduler.engine.prefix.nodes import Known
from scheduler.engine.prefix.prefix_cache import PrefixCache
from scheduler.engine.prefix.retention import BufferBound, Retention
from scheduler.shared.token_ids import KEY_BYTES, compact
from tests.scheduler.engine.prefix.integrity import check_integrity

RUN_BYTES = 3
STATE_BYTES = 20


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A segment whose content is its tokens. `grain`: sizes are rounded up to it, as real buffers are."""

    values: tuple[int, ...]
    grain: int = 1

    @property
    def tokens(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        return -(-len(self.values) // self.grain) * self.grain * RUN_BYTES

    def split(self, at: int) -> tuple[Run, Run]:
        assert 0 < at < len(self.values)
        return Run(self.values[:at], self.grain), Run(self.values[at:], self.grain)


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """A snapshot that knows after which tokens it was taken."""

    prefix: tuple[int, ...]
    nbytes: int = STATE_BYTES


def cut_of(tokens: Sequence[int], grain: int = 1) -> Callable[[int, int], Run]:
    return lambda start, end: Run(tuple(tokens[start:end]), grain)


def at(tokens: Sequence[int], salt: str = "") -> Known[Run, State]:
    """These tokens, of which nothing is known yet."""
    return Known(compact(tokens), salt)


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
    check_integrity(cache)
    return found
