"""Reads the device's and the system's memory between steps, and applies what is decided (`policy.py`).

It learns what each step takes (`learned.py`), keeps the KV budget at what the limit leaves beside that,
lowers it under relief, and clears the pool of freed buffers. One method writes all of it, `_keep_to`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from scheduler.engine.budget.learned import ChunkPeak, CopyPeak
from scheduler.engine.budget.limits import MemoryLimit
from scheduler.engine.budget.policy import (
    BUDGET_STEP,
    CLOSE,
    Allowance,
    BudgetChange,
    Evict,
    GivenUp,
    MemoryReading,
    allowed,
    pool_bytes,
    relieved,
)
from scheduler.engine.budget.room import StepRoom
from scheduler.engine.device import Readings
from scheduler.engine.prefix.prefix_cache import PrefixCache
from scheduler.shared.device_errors import is_device_error
from scheduler.shared.messages import DeviceMemory, MemoryState
from scheduler.shared.row_bytes import RowBytes

_READING_SECONDS = 0.25
"""Time between two readings of the system, of 0.1 to 0.2 ms each. Growth in between is bounded: by a chunk's
peak, which is reserved, and one token a row and step."""
_LEAST_COPY_BYTES = 16 << 20
"""Smaller copies are not worth a reserve."""
_LEAST_CLEARED_BYTES = 16 << 20
"""The fewest freed buffers and free blocks to return: that takes milliseconds, and getting them again causes
page faults."""


class MemoryWatch:
    """Call `allowance` before a plan and `measured` after a step, both in the engine's one thread."""

    def __init__(
        self,
        device: Readings,
        prefixes: PrefixCache[Any, Any] | None,
        apply: Callable[[BudgetChange], None],
        row_bytes: Callable[[], int],
        held: RowBytes,
        limit: MemoryLimit,
        most_chunk_tokens: int,
    ) -> None:
        """`apply` has made a change when it returns. `row_bytes`: what the rows hold."""
        self._device = device
        self._prefixes = prefixes
        self._apply = apply
        self._row_bytes = row_bytes
        self._held = held
        self._limit = limit
        self._given_up = GivenUp()
        self._peak = ChunkPeak(limit.first_peak_bytes, most_chunk_tokens)
        self._copies = CopyPeak()
        self._most_tokens = most_chunk_tokens
        self._longest_context = 0
        self._whole_kv_bytes = limit.kv_budget_bytes(limit.first_peak_bytes)
        """The KV budget without relief."""
        self._kept = self._whole_kv_bytes, limit.pool_bytes
        """The bytes of KV and of freed buffers that are kept to."""
        self._allowance = Allowance()
        self._state = MemoryState()
        self._read_at: float | None = None
        self._peak_bytes = 0
        self._failed = False
        self._last: MemoryReading | None = None
        self._idle_bytes = 0
        """What was held beside arrays after freed buffers were returned last."""
        self._step_bytes = 0
        """The predicted bytes of the last step."""
        self._needed_bytes = 0
        """The bytes that the next chunk needs, at the last reading."""

    @property
    def state(self) -> MemoryState:
        """Return the last reading and what is given up, for operators."""
        return self._state

    @property
    def whole_bytes(self) -> int:
        """Return the most KV that one request may ever get."""
        return self._limit.most_kv_bytes

    def look(self, now: float) -> None:
        """Read memory now. Where that fails the last allowance stands."""
        self._read_at = now
        try:
            self._read(now)
        except Exception as error:
            self._report(error)

    def memory(self) -> DeviceMemory:
        """Return the allocator's counters, with the peak since the engine started."""
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
        """Return whether memory is short, or may be after another step: then each step is preceded by a
        reading."""
        if self._last is None or self._last.headroom is None:
            return False
        return self._last.headroom < CLOSE * max(self._needed_bytes, self._step_bytes)

    def _read(self, now: float) -> None:
        rows, limit = self._row_bytes(), self._limit
        self._follow_learned(rows)
        # Under relief the chunks that run are smaller: what they need is less, or relief would never end.
        needed = self._needed(rows, self._allowance.chunk_tokens)
        reading = self._reading()
        if self._should_clear(reading, needed):
            # Freed buffers go before anything that is in use.
            self._keep_to(*self._kept, clear_pool=True)
            reading = self._reading()
            self._idle_bytes = reading.idle
        self._last, self._needed_bytes = reading, needed
        self._given_up = given_up = relieved(self._given_up, reading, self._whole_kv_bytes, needed, now)
        if (headroom := reading.headroom) is None:
            self._allowance = allowed(given_up, self._most_tokens)
            self._keep_to(self._under_relief(), self._kept[1])
        else:
            fitting = self._peak.fitting_tokens(max(0, headroom), self._longest_context)
            pool = pool_bytes(limit, reading, needed)
            growth = max(0, pool - reading.pool)
            room_bytes = headroom - limit.reserve_bytes - growth + reading.kv - reading.fixed_kv
            saving = room_bytes < max(CLOSE * needed, self._step_bytes)
            room = StepRoom(room_bytes, reading.rows, self._copies.part, self._held, self._peak, saving)
            self._allowance = replace(allowed(given_up, fitting), room=room)
            self._keep_to(self._under_relief(), pool)
        self._state = MemoryState(
            int(given_up.relief),
            reading.used,
            reading.limit,
            -1 if reading.available is None else reading.available,
            int(reading.pressure),
            needed,
        )

    def _needed(self, row_bytes: int, chunk_tokens: int | None = None) -> int:
        """Return what the next step takes at most. `chunk_tokens`: its largest chunk, or None for the largest
        of all."""
        tokens = self._most_tokens if chunk_tokens is None else chunk_tokens
        chunk = self._peak.needed_bytes(tokens, self._longest_context)
        return max(chunk, self._copies.needed_bytes(row_bytes))

    def _under_relief(self) -> int:
        """Return the KV budget, as far as it is not given up."""
        lowered = self._given_up.kv_bytes
        return self._whole_kv_bytes if lowered is None else min(lowered, self._whole_kv_bytes)

    def _keep_to(self, kv_bytes: int, pool_bytes: int, clear_pool: bool = False) -> None:
        """Write what has changed. Prefixes that do not fit are evicted at once."""
        before, self._kept = self._kept, (kv_bytes, pool_bytes)
        change = BudgetChange(
            kv_bytes if self._prefixes is not None and kv_bytes != before[0] else None,
            pool_bytes if pool_bytes != before[1] else None,
            clear_pool,
        )
        if change != BudgetChange():
            self._apply(change)

    def _follow_learned(self, rows: int) -> None:
        """Go to the KV budget that the limit leaves beside what was learned."""
        kv_bytes = self._limit.kv_budget_bytes(self._needed(rows))
        if abs(kv_bytes - self._whole_kv_bytes) * BUDGET_STEP >= self._whole_kv_bytes:
            self._whole_kv_bytes = kv_bytes
            self._keep_to(self._under_relief(), self._kept[1])

    def _should_clear(self, reading: MemoryReading, needed: int) -> bool:
        if reading.headroom is not None and reading.headroom < needed:
            return True
        short = reading.available is not None and reading.available < self._step_bytes
        return short and reading.idle - self._idle_bytes >= _LEAST_CLEARED_BYTES

    def _reading(self) -> MemoryReading:
        memory, system = self._device.memory(), self._device.system()
        rows, cached, pinned = self._row_bytes(), 0, 0
        if self._prefixes is not None:
            cached, pinned = self._prefixes.nbytes, self._prefixes.pinned_bytes()
        available = system.available_bytes
        if available is not None:
            # All engines that share it may take it in the same step.
            available //= self._limit.sharers
        return MemoryReading(
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

    def starting(self, prefills: bool, step_bytes: int) -> Evict | None:
        """Prepare for a step that takes `step_bytes`, as far as is known. Return what it must evict for that,
        or None."""
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
        """Learn from a step that has ended. `chunk_tokens`: the prompt tokens that it computed, padding
        included, behind `context_tokens`."""
        try:
            self._learn(chunk_tokens, context_tokens)
        except Exception as error:
            self._report(error)

    def _learn(self, chunk_tokens: int, context_tokens: int) -> None:
        transient_bytes = self._device.transient_bytes()
        if chunk_tokens:
            self._longest_context = max(self._longest_context, context_tokens)
            self._peak.observe(chunk_tokens, context_tokens, transient_bytes)
        elif transient_bytes >= _LEAST_COPY_BYTES:
            # To sum up the rows' bytes takes a tenth of a millisecond.
            self._copies.observe(self._row_bytes(), transient_bytes)

    def _report(self, error: Exception) -> None:
        """Print the first failure of accounting, which must not end a stream: the last allowance stands.
        Raise the device's errors, which are those of the steps before."""
        if is_device_error(error):
            raise error
        if not self._failed:
            print(f"the memory guard failed: {type(error).__name__}: {error}", file=sys.stderr)
        self._failed = True
