"""One memory budget over all engines: who has which part of it, and what they have reported.

This module has no tasks: it keeps each engine's part and reports, and returns the limits that the fleet must
send (`rebalance`). The server does not know the device: the first engine, which is loaded without a part,
reports the limit that follows from the operator's option, the device and the machine, and that is the budget.
If it reports none, there is no budget, and no engine is sent a limit.

A part is an engine's from the moment that it is granted until its process has ended. An engine that has died
keeps it, and is loaded with it again.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator
from dataclasses import dataclass
from enum import Enum

from scheduler.fleet.memory_shares import EngineMemory, granted, shares
from scheduler.shared.messages import Counters, Ready, SetMemoryLimit

_ACTIVITY_SECONDS = 30.0
"""Time over which an engine's activity is averaged: the seconds that it computes, of those that pass."""
_WAITING_ACTIVITY = 0.25
"""Requests that wait in an engine count as much as computing for a quarter of the time."""
_REPORT_SECONDS = 5.0
"""An engine that uses more than its part is asked again after this long: an idle one does not report."""
_MOST_PART = 16
"""The most that an engine may get is sent again when it has changed by a sixteenth."""


class _Phase(Enum):
    ABSENT = 1
    """There is no process; a part is kept for it."""
    LOADING = 2
    READY = 3


@dataclass(slots=True)
class _Engine:
    """`floor_bytes`, `least_bytes` and `kept_bytes` are those of `EngineMemory`. `limit_bytes`: its part, as
    sent last; `asked_bytes`: the part that it has confirmed; `used_bytes`: the larger of its use and the
    limit in force."""

    name: str
    need_bytes: int
    """The floor of a new process."""
    floor_bytes: int = 0
    least_bytes: int = 0
    kept_bytes: int = 0
    limit_bytes: int = 0
    asked_bytes: int = 0
    used_bytes: int = 0
    sharers: int = 1
    most_bytes: int = 0
    phase: _Phase = _Phase.ABSENT
    reported_at: float = -math.inf
    busy_seconds: float = 0.0
    activity: float = 0.0
    activity_at: float = -math.inf
    waiting: bool = False

    def starts(self, phase: _Phase) -> None:
        """Take note that a process has started or that there is none: it has neither rows nor prefixes."""
        self.phase = phase
        self.floor_bytes = self.least_bytes = self.kept_bytes = self.need_bytes
        self.used_bytes, self.busy_seconds, self.asked_bytes = 0, 0.0, self.limit_bytes

    @property
    def held_bytes(self) -> int:
        """Return what it may be using at this moment."""
        return max(self.limit_bytes, self.used_bytes)

    @property
    def least(self) -> int:
        """Return what it cannot give back."""
        return self.limit_bytes if self.phase is _Phase.LOADING else self.least_bytes

    def memory(self, now: float) -> EngineMemory:
        waiting = _WAITING_ACTIVITY if self.waiting else 0.0
        return EngineMemory(
            self.name,
            self.floor_bytes,
            self.least_bytes,
            self.kept_bytes,
            self.limit_bytes,
            self.activity_now(now) + waiting,
            fixed=self.phase is _Phase.LOADING,
        )

    def activity_now(self, now: float) -> float:
        return self.activity * math.exp(-max(0.0, now - self.activity_at) / _ACTIVITY_SECONDS)


class MemoryBudget:
    """The parts of all engines. `sharers`: the number of engines that share the device, as in `EngineConfig`;
    the first one's limit is an equal part of the budget."""

    def __init__(self, sharers: int = 1) -> None:
        self.budget_bytes: int | None = None
        """The budget of all engines together. 0 is no limit; None means that the first engine is not ready
        yet."""
        self.unplaced: tuple[str, ...] = ()
        """Engines that do not fit beside the others, as of the last `rebalance`."""
        self._sharers = sharers
        self._engines: dict[str, _Engine] = {}

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Yield each engine's part in bytes, for operators; 0 while it has none."""
        return iter([(one.name, one.limit_bytes) for one in self._engines.values()])

    # --- what happens to engines

    def reserve(self, engine: str, need_bytes: int) -> None:
        """Keep a part for an engine that is to be loaded, and needs at least this much (`memory_need.py`)."""
        one = self._engines.setdefault(engine, _Engine(engine, need_bytes))
        if one.phase is _Phase.ABSENT:
            one.need_bytes = need_bytes
            one.starts(_Phase.ABSENT)

    def may_load(self, engine: str) -> bool:
        """Return whether a process may be started now. Ask again after `rebalance`."""
        one = self._engines[engine]
        if self.budget_bytes is None:
            return all(other.phase is _Phase.ABSENT for other in self._others(engine))
        return self.budget_bytes == 0 or one.limit_bytes >= min(one.need_bytes, self.budget_bytes)

    def given(self, engine: str) -> SetMemoryLimit | None:
        """Return the part that a new process is loaded with (`config.load_message`), or None if the
        operator's option sets it, as for an engine without others. An engine for which nothing was reserved
        gets what is free at this moment."""
        one = self._engines.setdefault(engine, _Engine(engine, 0))
        free_bytes = (self.budget_bytes or 0) - sum(other.held_bytes for other in self._others(engine))
        one.limit_bytes = one.limit_bytes or max(0, free_bytes)
        one.starts(_Phase.LOADING)
        if not self.budget_bytes or (not self._others(engine) and one.limit_bytes == self.budget_bytes):
            return None
        message = self._message(one, max(1, one.limit_bytes))
        one.sharers, one.most_bytes = message.sharers, message.most_bytes
        return message

    def ready(self, engine: str, ready: Ready) -> None:
        """Take the report of an engine that has been loaded."""
        one = self._engines[engine]
        alone = all(other.phase is _Phase.ABSENT for other in self._others(engine))
        if self.budget_bytes is None:
            for other in self._others(engine):
                # They are loaded in the same way, at the same time.
                other.limit_bytes = ready.memory_limit_bytes
        if self.budget_bytes is None or (alone and not one.most_bytes):
            # Other programs may leave a later engine less, or more.
            self.budget_bytes = ready.memory_limit_bytes * self._sharers
        one.need_bytes = ready.memory_floor_bytes
        one.limit_bytes = ready.memory_limit_bytes
        one.starts(_Phase.READY)
        one.used_bytes = one.limit_bytes
        if not one.most_bytes:
            # No limit was sent to it, and none is before its part changes.
            one.sharers, one.most_bytes = self._sharers, self._message(one, one.limit_bytes).most_bytes

    def observe(self, engine: str, counters: Counters, now: float, waiting: bool = False) -> None:
        """Take an engine's counters. `waiting`: whether requests wait in it for a slot."""
        if (one := self._engines.get(engine)) is None:
            return  # It has no part any more.
        one.activity = one.activity_now(now)
        one.activity += max(0.0, counters.busy_seconds - one.busy_seconds) / _ACTIVITY_SECONDS
        one.activity_at, one.busy_seconds = now, counters.busy_seconds
        one.waiting = waiting
        guard = counters.guard
        if guard.floor:
            one.reported_at, one.asked_bytes = now, guard.asked
            one.floor_bytes, one.least_bytes, one.kept_bytes = guard.floor, guard.least, guard.kept
            one.used_bytes = max(guard.used, guard.limit)
        if not counters.running:
            # The reading may be older than the end of its rows.
            one.least_bytes = one.floor_bytes

    def ended(self, engine: str) -> None:
        """Keep the part of an engine whose process has ended, for the next one."""
        if (one := self._engines.get(engine)) is not None:
            one.starts(_Phase.ABSENT)
            one.most_bytes = 0

    def forget(self, engine: str) -> None:
        """Free the part of an engine whose process has ended, or was never started, if none is to follow."""
        self._engines.pop(engine, None)

    # --- what follows

    def need_bytes(self, engine: str) -> int:
        """Return what it holds and cannot give back, or needs to be loaded."""
        return self._engines[engine].least

    def room_bytes(self, without: Container[str] = ()) -> int | None:
        """Return what the engines can make free for a newcomer, each down to what its rows need and those in
        `without` unloaded, or None if there is no bound."""
        if not self.budget_bytes:
            return None
        held = [one.least for one in self._engines.values() if one.name not in without]
        return max(0, self.budget_bytes - sum(held))

    def rebalance(self, now: float) -> list[tuple[str, SetMemoryLimit]]:
        """Return the limits to send now, by engine. Call it every second, and whenever an engine is to be
        loaded or has ended."""
        if not self.budget_bytes:
            return []
        found = shares(self.budget_bytes, [one.memory(now) for one in self._engines.values()])
        self.unplaced = found.unplaced
        targets = dict(found.limits)
        for name in found.unplaced:
            one = self._engines[name]
            targets[name] = 0 if one.phase is _Phase.ABSENT else min(one.limit_bytes, one.least_bytes)
            if one.phase is _Phase.ABSENT:
                one.limit_bytes = 0
        targets = {name: target for name, target in targets.items() if self._moves(self._engines[name])}
        held = {one.name: one.held_bytes for one in self._engines.values()}
        least = {one.name: one.least_bytes for one in self._engines.values()}
        messages: list[tuple[str, SetMemoryLimit]] = []
        for name, limit_bytes in granted(self.budget_bytes, targets, held, least).items():
            one = self._engines[name]
            if one.phase is _Phase.ABSENT:
                one.limit_bytes = limit_bytes
            elif self._differs(one, message := self._message(one, limit_bytes), now):
                one.limit_bytes, one.reported_at = limit_bytes, now
                one.sharers, one.most_bytes = message.sharers, message.most_bytes
                messages.append((name, message))
        return messages

    def _others(self, engine: str) -> list[_Engine]:
        return [one for one in self._engines.values() if one.name != engine]

    @staticmethod
    def _moves(one: _Engine) -> bool:
        """Return whether its limit may change: it gets one message at a time, so that its possible use is
        known."""
        confirmed = one.asked_bytes == one.limit_bytes
        return one.phase is _Phase.ABSENT or (one.phase is _Phase.READY and confirmed)

    def _message(self, one: _Engine, limit_bytes: int) -> SetMemoryLimit:
        others = self._others(one.name)
        sharers = 1 + sum(other.phase is not _Phase.ABSENT for other in others)
        floors = sum(other.floor_bytes for other in others)
        return SetMemoryLimit(limit_bytes, sharers, max(limit_bytes, (self.budget_bytes or 0) - floors))

    def _differs(self, one: _Engine, message: SetMemoryLimit, now: float) -> bool:
        if (message.limit_bytes, message.sharers) != (one.limit_bytes, one.sharers):
            return True
        if abs(message.most_bytes - one.most_bytes) * _MOST_PART >= message.most_bytes:
            return True
        exceeds = one.used_bytes > one.limit_bytes and len(self._engines) > 1
        return exceeds and now - one.reported_at >= _REPORT_SECONDS
