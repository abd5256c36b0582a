"""Replay a trace against the prefix cache under a rule of eviction, and count what is prefilled again: the
server's rule, least recently used, and the segmented rule that the server once had."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import Self

import numpy as np

from loadtests.retention.traces import Trace, Turn, trace
from scheduler.engine.prefix.eviction_rule import ByReturn, EvictionRule
from scheduler.engine.prefix.nodes import Lease
from scheduler.engine.prefix.prefix_cache import PrefixCache
from scheduler.engine.prefix.retention import Mark, Retention, SessionKey
from scheduler.shared.token_ids import KEY_BYTES

_PLENTY = 1 << 60
_STREAM_IDS = 400_000
"""How many token ids each session has for itself; equal ids are equal text."""
_SYSTEM_IDS = 3_000_000_000


class LeastRecentlyUsed:
    """An `EvictionRule` that learns nothing."""

    def worth(self, mark: Mark, last_used: float, hits: int, now: float) -> tuple[float, float]:
        return last_used, inf

    def hit(self, mark: Mark, now: float) -> None:
        pass

    def evicted(self, mark: Mark, now: float) -> None:
        pass

    def ended(self, key: SessionKey, kind: str, now: float) -> None:
        pass

    def returned(self, key: SessionKey, now: float) -> None:
        pass


class Segmented(LeastRecentlyUsed):
    """What was used again (a continuation, two hits, several branches) counts as used `seconds` later."""

    def __init__(self, seconds: float = 600.0) -> None:
        self._seconds = seconds

    def worth(self, mark: Mark, last_used: float, hits: int, now: float) -> tuple[float, float]:
        return last_used + self._seconds * mark.protected, inf


RULES: Mapping[str, Callable[[], EvictionRule]] = {
    "lru": LeastRecentlyUsed,
    "segmented": Segmented,
    "by return": lambda: ByReturn(Retention().sessions),
}
"""The rules that are compared, by name; the server's own is the last."""


@dataclass(frozen=True, slots=True)
class SegmentOfTokens:
    """A segment without content; a token has a byte."""

    tokens: int

    @property
    def nbytes(self) -> int:
        return self.tokens

    def split(self, at: int) -> tuple[Self, Self]:
        return type(self)(at), type(self)(self.tokens - at)


class NoState:
    nbytes = 0


@dataclass(frozen=True, slots=True)
class Again:
    """One rule on one trace. `again`: prompt tokens prefilled that a cache without bounds would have had."""

    trace: str
    rule: str
    requests: int
    prompt_tokens: int
    room_tokens: int
    again: int


def run(name: str, seconds: float, share: float, seed: int) -> list[Again]:
    """Replay a trace under every rule, with room for this share of what its sessions have at one time."""
    turns = trace(name, seconds, seed)
    room = int(share * working_tokens(turns))
    prompt = sum(turn.system_tokens + turn.own_tokens for turn in turns)
    least = _prefilled(turns, LeastRecentlyUsed(), _PLENTY)
    return [
        Again(name, rule, len(turns), prompt, room, _prefilled(turns, make(), room) - least)
        for rule, make in RULES.items()
    ]


def working_tokens(turns: Trace) -> int:
    """Return the most tokens that sessions between their first and last request have at any time."""
    changes: list[tuple[float, int]] = []
    sizes: dict[int, int] = {}
    systems = {turn.system: turn.system_tokens for turn in turns}
    for turn in turns:
        size = turn.own_tokens + turn.answer_tokens
        changes.append((turn.at, size - sizes.get(turn.stream, 0)))
        sizes[turn.stream] = size
        if turn.last:
            changes.append((turn.ends, -size))
    held = most = 0
    for _, change in sorted(changes):
        held += change
        most = max(most, held)
    return most + sum(systems.values())


def _prefilled(turns: Trace, rule: EvictionRule, tokens: int) -> int:
    now = 0.0
    cache: PrefixCache[SegmentOfTokens, NoState] = PrefixCache(
        tokens * (1 + KEY_BYTES), 1, False, lambda: now, None, None, rule
    )
    running: list[tuple[float, int, Turn, Lease[SegmentOfTokens, NoState]]] = []
    computed = 0

    def end_until(time: float) -> None:
        nonlocal now
        while running and running[0][0] <= time:
            now, _, turn, lease = heappop(running)
            cache.insert(
                _tokens(turn, turn.answer_tokens),
                "",
                lambda start, end: SegmentOfTokens(end - start),
                turn.session,
                turn.system_tokens,
            )
            if turn.session is not None:
                cache.ended("", turn.session, turn.kind)
            cache.release(lease)

    for number, turn in enumerate(turns):
        end_until(turn.at)
        now = turn.at
        prompt = _tokens(turn)
        lease = cache.match_and_lease(prompt, "", turn.system_tokens, turn.session)
        computed += len(prompt) - lease.length
        heappush(running, (turn.ends, number, turn, lease))
    end_until(float("inf"))
    return computed


def _tokens(turn: Turn, more: int = 0) -> array[int]:
    system = _SYSTEM_IDS + turn.system * 10_000
    start = turn.stream * _STREAM_IDS
    tokens = array("I")
    for first, count in ((system, turn.system_tokens), (start, turn.own_tokens + more)):
        tokens.frombytes(np.arange(first, first + count, dtype=np.uint32).tobytes())
    return tokens
