"""What the engine gives up when memory runs short, and when it takes it back. Pure: `now` is an argument.

Two bounds. The operator's limit is kept by arithmetic: the KV budget is what weights, the allocator's pool
and the learned peak of a chunk (`learned.py`) leave of it. What other programs take cannot be planned: the
guard reads how much is left, and gives up, one level a reading, while it is less than the next chunk needs or
while the system's pressure is critical (a mere warning, which a Mac with many programs may show for hours,
costs three quarters of the cached prefixes and no more):

    EVICT         cached prefixes, as many bytes as are short (with them the pool of freed buffers)
    SMALL_CHUNKS  prefill chunks no larger than fit
    HOLD          no admission beside a running row
    PREEMPT       rows, one reading after another, until one is left

Relief is taken back one level at a time, after a calm that doubles when it did not last: memory that another
program takes and gives back every few seconds must not make the engine evict and prefill again each time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import msgspec

from scheduler.engine.budget.limits import MemoryLimit
from scheduler.engine.budget.room import StepRoom
from scheduler.engine.device import Device, Pressure
from scheduler.engine.planning.prefill import LEAST_CHUNK_TOKENS

CALM_SECONDS = 2.0
"""How long memory must suffice before a level is taken back."""
MOST_CALM_SECONDS = 64.0
"""The longest calm asked for, after it was broken again and again."""
_PRESSED_PART = 8
"""Divisor under the system's pressure: each reading releases an eighth of the KV, because the shortage is
unknown."""
_WARNED_PART = 4
"""A warning leaves a quarter of the KV budget."""
_RETURNED_PART = 16
"""An eighth given up comes back in two calm readings."""
BUDGET_STEP = 32
"""The KV budget follows the learned peak in steps of a 32nd: each change may evict. So does a limit that is
lowered as rows end."""
_POOL_PART = 4
"""Divisor of the pool: a quarter of what the next chunk leaves may be freed buffers."""
CLOSE = 4
"""Read memory before every step once headroom is below this multiple of the next chunk or the last step: a
few steps could otherwise take the rest before the next reading."""


class Relief(IntEnum):
    """What is given up; each level includes those before it."""

    NONE = 0
    EVICT = 1
    SMALL_CHUNKS = 2
    HOLD = 3
    PREEMPT = 4


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """Memory at one time, in bytes. `used`: this engine's memory, the allocator's pool included. `limit`: 0
    if there is none. `available`: what the system or container can still give, or None if unknown. `kv`:
    cached prefixes and running rows; `fixed_kv`: the part of it that only preemption frees. `pool`: freed
    buffers, which an eviction returns. `rows`: the arrays of the rows. `active`: all arrays."""

    used: int
    limit: int
    available: int | None
    pressure: Pressure
    kv: int
    fixed_kv: int
    pool: int = 0
    rows: int = 0
    active: int = 0

    @property
    def idle(self) -> int:
        """Return what is held beside arrays."""
        return self.used - self.active

    @property
    def headroom(self) -> int | None:
        """Return what may still be allocated, or None if nothing bounds it. It is negative if the limit is
        exceeded."""
        bounds = [self.limit - self.used] if self.limit else []
        if self.available is not None:
            bounds.append(self.available)
        return min(bounds, default=None)


@dataclass(frozen=True, slots=True)
class Allowance:
    """What the next steps may use; None allows what is configured."""

    relief: Relief = Relief.NONE
    chunk_tokens: int | None = None
    room: StepRoom | None = None
    """What a step may take, or None if unbounded."""

    @property
    def admits(self) -> bool:
        """Return whether sequences may join running rows; one alone always runs."""
        return self.relief < Relief.HOLD


def pool_bytes(limit: MemoryLimit, reading: MemoryReading, needed_bytes: int) -> int:
    """Return the bound on freed buffers that MLX keeps. The limit has room for it, so that only what the
    system can still give lowers it."""
    if reading.available is None:
        return limit.pool_bytes
    free = reading.available + reading.pool - needed_bytes
    return min(limit.pool_bytes, max(0, free) // _POOL_PART)


@dataclass(frozen=True, slots=True)
class GivenUp:
    """What is given up now, and since when memory suffices: all that one decision leaves to the next."""

    relief: Relief = Relief.NONE
    kv_bytes: int | None = None
    """The KV budget under relief, or None for the whole one."""
    calm_since: float | None = None
    calm_seconds: float = CALM_SECONDS
    returned_at: float | None = None


def allowed(given_up: GivenUp, fitting_tokens: int) -> Allowance:
    chunk_tokens = None
    if given_up.relief >= Relief.SMALL_CHUNKS:
        chunk_tokens = max(LEAST_CHUNK_TOKENS, fitting_tokens)
    return Allowance(given_up.relief, chunk_tokens)


def relieved(
    before: GivenUp, reading: MemoryReading, whole_bytes: int, needed_bytes: int, now: float
) -> GivenUp:
    """Give up one level where memory is short, take one back where it has sufficed for long enough.
    `whole_bytes`: the KV budget without relief; `needed_bytes`: at the peak of the next chunk."""
    short = _short_bytes(reading, whole_bytes, needed_bytes)
    if short > 0:
        return _more(before, reading, short, now)
    if before.relief and _suffices(reading, needed_bytes):
        return _less(before, whole_bytes, now)
    return replace(before, calm_since=None)


def _short_bytes(reading: MemoryReading, whole_bytes: int, needed_bytes: int) -> int:
    headroom = reading.headroom
    short = 0 if headroom is None else needed_bytes - headroom
    match reading.pressure:
        case Pressure.NORMAL:
            return short
        case Pressure.WARN:
            spare = min(reading.kv - reading.fixed_kv, reading.kv - whole_bytes // _WARNED_PART)
            return max(short, min(spare, reading.kv // _PRESSED_PART))
        case Pressure.CRITICAL:
            # An empty cache has nothing to give, but chunks and admission still have.
            return max(short, reading.kv // _PRESSED_PART, 1)


def _suffices(reading: MemoryReading, needed_bytes: int) -> bool:
    """Return whether there is room for twice what is needed: what is taken back must not be short at once."""
    headroom = reading.headroom
    return reading.pressure is Pressure.NORMAL and (headroom is None or headroom >= 2 * needed_bytes)


def _more(before: GivenUp, reading: MemoryReading, short: int, now: float) -> GivenUp:
    relief, calm_seconds = before.relief, before.calm_seconds
    if before.returned_at is not None and now - before.returned_at < calm_seconds:
        # What was taken back was short at once.
        calm_seconds = min(MOST_CALM_SECONDS, 2 * calm_seconds)
    evictable = reading.kv - reading.fixed_kv + reading.pool
    if relief is Relief.NONE or (evictable < short and relief < Relief.PREEMPT):
        relief = Relief(relief + 1)
    left = max(0, reading.kv - max(0, short - reading.pool))
    if before.kv_bytes is not None:
        left = min(before.kv_bytes, left)
    if relief < Relief.PREEMPT:
        # Below what rows hold, which may have grown, they would be preempted.
        left = max(reading.fixed_kv, left)
    return GivenUp(relief, left, calm_seconds=calm_seconds)


def _less(before: GivenUp, whole_bytes: int, now: float) -> GivenUp:
    if before.calm_since is None:
        before = replace(before, calm_since=now)
    assert before.calm_since is not None
    if now - before.calm_since < before.calm_seconds:
        return before
    returned = replace(before, calm_since=now, returned_at=now)
    if before.relief > Relief.EVICT:
        return replace(returned, relief=Relief(before.relief - 1))
    assert before.kv_bytes is not None
    kv_bytes = before.kv_bytes + max(1, whole_bytes // _RETURNED_PART)
    if kv_bytes >= whole_bytes:
        return GivenUp(calm_since=now, returned_at=now)
    return replace(returned, kv_bytes=kv_bytes)


class BudgetChange(msgspec.Struct, frozen=True):
    """What memory allows from now on; None leaves it as before."""

    kv_bytes: int | None = None
    """Bytes for the prefix cache and running rows; prefixes that do not fit are evicted."""
    pool_bytes: int | None = None
    """Most bytes of freed buffers that the device may keep."""
    clear_pool: bool = False
    """Return freed buffers to the system."""


class Evict(msgspec.Struct, frozen=True):
    """Evict this many bytes, after admissions have leased what they use. `clear_pool`: for the system."""

    nbytes: int
    clear_pool: bool = False


def keep_to(device: Device, change: BudgetChange) -> None:
    """Carry out the part of a plan's budget that is about the device."""
    if change.pool_bytes is not None:
        device.limit_pool(change.pool_bytes)
    if change.clear_pool:
        device.clear_pool()
