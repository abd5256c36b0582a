"""Reads the device's and the system's memory between steps, and carries out what the guard decides.

The thin shell around `memory_guard.py` and `chunk_peak.py`: it measures each chunk's peak, keeps the KV
budget at what the limit leaves beside it, lowers it under relief, and then clears the pool of freed buffers.
The limit itself changes where the parent shares memory among several models.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from scheduler.engine.chunk_peak import ChunkPeak, CopyPeak
from scheduler.engine.device import Readings
from scheduler.engine.memory_guard import Allowance, MemoryGuard, Pressure, Reading
from scheduler.engine.memory_limit import MemoryLimit
from scheduler.engine.plan import Budget, Evict
from scheduler.engine.row_bytes import RowBytes
from scheduler.engine.step_room import StepRoom
from scheduler.link.messages import DeviceMemory, MemoryState, SetMemoryLimit

_READING_SECONDS = 0.25
"""Between two readings of the system, of 0.1 to 0.7 ms each. Growth in between is bounded: by a chunk's
peak, which is reserved, and one token a row and step."""
_LEAST_COPY_BYTES = 16 << 20
"""Smaller copies are not worth a reserve."""
_CLOSE = 4
"""Times what the next chunk needs, or the last step took: with less, a few steps may take the rest before the
next reading."""
_POOL_PART = 4
"""Of what the next chunk leaves, a quarter may be freed buffers."""
_LEAST_SCORE_BYTES = 4 << 20
_SCORE_PART = 16
"""Of what is free, a sixteenth may be the scores of one attention product."""
_LEAST_CLEARED_BYTES = 16 << 20
"""Of freed buffers and free blocks: to return them takes milliseconds, and to get them again page faults."""
_BUDGET_STEP = 32
"""The KV budget follows the learned peak in steps of a 32nd: each change may evict. So does a limit that is
lowered as rows end."""
_GROWTH_PART = 8
"""Running rows need an eighth more than they are charged: what they grow by until the limit is raised."""


class Prefixes(Protocol):
    """The prefix cache, as far as its budget is concerned."""

    @property
    def nbytes(self) -> int: ...
    def pinned_bytes(self) -> int: ...


class MemoryWatch:
    """`allowance` before a plan, `measured` after a step; both in the engine's one thread."""

    def __init__(
        self,
        device: Readings,
        prefixes: Prefixes | None,
        carry_out: Callable[[Budget], None],
        row_bytes: Callable[[], int],
        held: RowBytes,
        limit: MemoryLimit,
        most_chunk_tokens: int,
        charged_bytes: Callable[[], int] | None = None,
    ) -> None:
        """`carry_out`: what is decided takes effect before it returns. `row_bytes`: what the rows hold;
        `charged_bytes`: with the reserve for their answers; None: none is kept."""
        self._device = device
        self._prefixes = prefixes
        self._carry_out = carry_out
        self._row_bytes = row_bytes
        self._charged_bytes = charged_bytes or row_bytes
        self._held = held
        self._limit = limit
        self._asked_bytes = limit.limit_bytes
        """The limit that the parent has asked for; the one in force is higher while rows need it."""
        self._most_chunk_tokens = most_chunk_tokens
        self._guard = MemoryGuard()
        self._peak = ChunkPeak(limit.first_peak_bytes, most_chunk_tokens)
        self._copies = CopyPeak()
        self._budget_bytes = limit.kv_budget_bytes(limit.first_peak_bytes)
        self._longest_context = 0
        self._allowance = Allowance()
        self._state = MemoryState()
        self._read_at: float | None = None
        self._peak_bytes = 0
        self._failed = False
        self._bounds = limit.pool_bytes, limit.score_bytes
        self._last: Reading | None = None
        self._idle_bytes = 0
        """What was held beside arrays after freed buffers were returned last."""
        self._step_bytes = 0
        """Of the last step, as predicted."""
        self._needed_bytes = 0
        """By the next chunk, at the last reading."""

    @property
    def state(self) -> MemoryState:
        """The last reading and what is given up, for operators."""
        return self._state

    @property
    def whole_bytes(self) -> int:
        """The most that one request may ever need."""
        return self._limit.most_kv_bytes

    @property
    def shared(self) -> bool:
        """Whether the parent changes the limit, and so must know what is used, also of an idle engine."""
        return self._limit.most_bytes > 0

    def set_limit(self, command: SetMemoryLimit, now: float) -> None:
        """Use no more than this from now on: prefixes that do not fit are evicted at once. Rows are not
        preempted for it: where they need more, the limit is lowered as they end."""
        if not self._limit.limit_bytes:
            return
        self._limit = replace(self._limit, sharers=command.sharers, most_bytes=command.most_bytes)
        self._asked_bytes = command.limit_bytes
        self.look(now)

    def look(self, now: float) -> None:
        """Read memory now. Where that fails the last allowance stands."""
        self._read_at = now
        try:
            self._read(now)
        except Exception as error:
            self._report(error)

    def memory(self) -> DeviceMemory:
        """The allocator's counters; the peak since the engine started."""
        now = self._device.memory()
        self._peak_bytes = max(self._peak_bytes, now.peak, now.active)
        return DeviceMemory(now.active, now.cached, self._peak_bytes, now.recommended)

    def allowance(self, now: float) -> Allowance:
        """Return what the next step may use; the system is read anew where the last reading is old."""
        if self._read_at is None or self._close or now - self._read_at >= _READING_SECONDS:
            self.look(now)
        return self._allowance

    @property
    def _close(self) -> bool:
        """Memory is short, or may be after another step: each is preceded by a reading."""
        if self._last is None or self._last.headroom is None:
            return False
        return self._last.headroom < _CLOSE * max(self._needed_bytes, self._step_bytes)

    def _read(self, now: float) -> None:
        self._approach_asked()
        self._follow_peak()
        needed = self._peak_bytes_expected()
        if self._allowance.chunk_tokens is not None:
            # The chunks that run are smaller: what they need is less, or relief would never end.
            chunk = self._peak.needed_bytes(self._allowance.chunk_tokens, self._longest_context)
            needed = max(chunk, self._copies.needed_bytes(self._row_bytes()))
        reading = self._reading()
        if self._should_clear(reading, needed):
            # Freed buffers go before anything that is in use.
            self._carry_out(Budget(clear_pool=True))
            reading = self._reading()
            self._idle_bytes = reading.idle
        fitting = self._most_chunk_tokens
        if reading.headroom is not None:
            fitting = self._peak.fitting_tokens(max(0, reading.headroom), self._longest_context)
        before = self._allowance
        allowance = self._guard.assess(reading, self._budget_bytes, needed, fitting, now)
        self._allowance = self._bounded(allowance, reading, needed)
        if self._allowance.kv_bytes != before.kv_bytes:
            self._set_budget()
        self._state = MemoryState(
            int(self._allowance.relief),
            reading.used,
            reading.limit,
            -1 if reading.available is None else reading.available,
            int(reading.pressure),
            needed,
            *self._wanted(reading),
            self._asked_bytes,
        )

    def _should_clear(self, reading: Reading, needed: int) -> bool:
        if reading.headroom is not None and reading.headroom < needed:
            return True
        short = reading.available is not None and reading.available < self._step_bytes
        return short and reading.idle - self._idle_bytes >= _LEAST_CLEARED_BYTES

    def _bounded(self, allowance: Allowance, reading: Reading, needed: int) -> Allowance:
        """Return the allowance with what the next step may take."""
        self._last, self._needed_bytes = reading, needed
        if reading.headroom is None:
            return allowance
        reserved = self._limit.reserve_bytes + self._limit_buffers(reading, needed)
        room_bytes = reading.headroom - reserved + reading.kv - reading.fixed_kv
        saving = room_bytes < max(_CLOSE * needed, self._step_bytes)
        room = StepRoom(room_bytes, reading.rows, self._copies.part, self._held, self._peak, saving)
        return replace(allowance, room=room)

    def _limit_buffers(self, reading: Reading, needed: int) -> int:
        """Bound what MLX keeps of freed buffers, which grows within a step, too, and the scores of attention
        by what the system can still give; the limit has room for all of it. Return how much the pool may
        still grow, and the scores: chunks may have been learned with a lower bound on them."""
        pool, scores, reserved = self._limit.pool_bytes, self._limit.score_bytes, 0
        if reading.available is not None:
            free = reading.available + reading.pool
            pool = min(pool, max(0, free - needed) // _POOL_PART)
            reserved = min(scores, free // _SCORE_PART)
            scores = min(scores, max(_LEAST_SCORE_BYTES, reserved))
        if (pool, scores) != self._bounds:
            self._bounds = pool, scores
            self._carry_out(Budget(pool_bytes=pool, score_bytes=scores))
        return max(0, pool - reading.pool) + reserved

    def _reading(self) -> Reading:
        memory, system = self._device.memory(), self._device.system()
        rows, cached, pinned = self._row_bytes(), 0, 0
        if self._prefixes is not None:
            cached, pinned = self._prefixes.nbytes, self._prefixes.pinned_bytes()
        available = system.available_bytes
        if available is not None:
            # All of them may take it in the same step.
            available //= self._limit.sharers
        return Reading(
            used=max(memory.active + memory.cached, system.footprint_bytes),
            limit=self._limit.limit_bytes,
            available=available,
            pressure=system.pressure,
            kv=rows + cached,
            fixed_kv=rows + pinned,
            pool=memory.cached,
            rows=rows,
            active=memory.active,
        )

    def _approach_asked(self) -> None:
        """Go to the limit that was asked for, or as near as the rows allow."""
        current = self._limit.limit_bytes
        limit_bytes = self._nearest_bytes()
        if limit_bytes == current:
            return
        self._limit = self._limit.resized(limit_bytes)
        self._peak.expect(self._limit.first_peak_bytes)
        self._carry_out(Budget(wired_bytes=limit_bytes))
        if limit_bytes > current and self._limit_bound:
            # What was given up was given up for the old limit.
            self._guard, self._allowance = MemoryGuard(), Allowance()
        self._budget_bytes = self._limit.kv_budget_bytes(self._peak_bytes_expected())
        self._set_budget()
        if limit_bytes < current:
            # The system, or another engine, gets it, and not the pool of freed buffers.
            self._carry_out(Budget(clear_pool=True))

    def _nearest_bytes(self) -> int:
        current, asked = self._limit.limit_bytes, self._asked_bytes
        if asked >= current:
            return asked
        pinned = 0 if self._prefixes is None else self._prefixes.pinned_bytes()
        nearest = max(asked, min(current, self._least_bytes(self._needed_by_rows(pinned))))
        small = nearest > asked and (current - nearest) * _BUDGET_STEP < current
        return current if small else nearest

    def _set_budget(self) -> None:
        """Of the limit, or less under relief."""
        if self._prefixes is not None:
            lowered = self._allowance.kv_bytes
            kv_bytes = self._budget_bytes if lowered is None else min(lowered, self._budget_bytes)
            self._carry_out(Budget(kv_bytes=kv_bytes))

    @property
    def _limit_bound(self) -> bool:
        """Whether the limit, and not the system, was what the last reading was short of."""
        last = self._last
        if last is None or last.pressure is not Pressure.NORMAL:
            return False
        return last.available is None or last.available > last.limit - last.used

    def _needed_by_rows(self, pinned_bytes: int) -> int:
        """Bytes of KV: the rows' charge, or their arrays where padding takes more, and the prefixes that they
        attend to in place."""
        needed = max(self._charged_bytes(), self._row_bytes()) + pinned_bytes
        return needed + needed // _GROWTH_PART

    def _wanted(self, reading: Reading) -> tuple[int, int, int]:
        """The least limits: of the process alone, with its rows, and with all its prefixes."""
        rows = self._needed_by_rows(reading.fixed_kv - reading.rows)
        kept = rows + reading.kv - reading.fixed_kv
        return self._least_bytes(0), self._least_bytes(rows), self._least_bytes(kept)

    def _least_bytes(self, kv_bytes: int) -> int:
        """The least limit that leaves this to KV; 0 without a limit."""
        if not self._limit.limit_bytes:
            return 0
        return self._limit.least_bytes(kv_bytes, self._peak_bytes_expected() if self._peak.learned else None)

    def _follow_peak(self) -> None:
        if self._prefixes is None:
            return
        budget = self._limit.kv_budget_bytes(self._peak_bytes_expected())
        if abs(budget - self._budget_bytes) * _BUDGET_STEP < self._budget_bytes:
            return
        self._budget_bytes = budget
        if self._allowance.kv_bytes is None or budget < self._allowance.kv_bytes:
            self._carry_out(Budget(kv_bytes=budget))

    def _peak_bytes_expected(self) -> int:
        """Of the largest chunk, or of the rows' copies."""
        chunk = self._peak.needed_bytes(self._most_chunk_tokens, self._longest_context)
        return max(chunk, self._copies.needed_bytes(self._row_bytes()))

    def starting(self, prefills: bool, step_bytes: int) -> Evict | None:
        """A step begins that takes this much, as far as is known. Return which prefixes it must evict for
        that."""
        self.memory()
        self._step_bytes = step_bytes
        self._device.restart_peak(host=prefills)
        needed, last = step_bytes + self._limit.reserve_bytes, self._last
        if self._prefixes is None or last is None or last.headroom is None or last.headroom >= needed:
            return None
        # More than is short, or each prefix that is kept from now on would evict another.
        nbytes = max(needed - last.headroom, needed // 2)
        return Evict(nbytes, clear_pool=last.available is not None and last.available < needed)

    def measured(self, chunk_tokens: int, context_tokens: int) -> None:
        """The step has ended, after these prompt tokens, padding included, behind `context_tokens`."""
        try:
            self._learn(chunk_tokens, context_tokens)
        except Exception as error:
            self._report(error)

    def _learn(self, chunk_tokens: int, context_tokens: int) -> None:
        transient_bytes = self._device.transient_bytes()
        if not chunk_tokens:
            if (
                transient_bytes >= _LEAST_COPY_BYTES
            ):  # To sum up the rows' bytes takes a tenth of a millisecond.
                self._copies.observe(self._row_bytes(), transient_bytes)
            return
        self._longest_context = max(self._longest_context, context_tokens)
        self._peak.observe(chunk_tokens, context_tokens, transient_bytes)

    def _report(self, error: Exception) -> None:
        """Accounting must not end a stream: the last allowance stands. Said once: it may come each step."""
        if not self._failed:
            print(f"the memory guard failed: {type(error).__name__}: {error}", file=sys.stderr)
        self._failed = True
