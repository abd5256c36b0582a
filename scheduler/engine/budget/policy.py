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

from dataclasses import dataclass
from enum import IntEnum

from scheduler.engine.budget.limits import MemoryLimit
from scheduler.engine.budget.room import StepRoom
from scheduler.engine.device import Pressure
from scheduler.engine.prefill import LEAST_CHUNK_TOKENS

CALM_SECONDS = 2.0
"""How long memory must suffice before a level is taken back."""
MOST_CALM_SECONDS = 64.0
"""The longest calm asked for, after it was broken again and again."""
_PRESSED_PART = 8
"""Under the system's pressure an eighth of the KV is given up a reading: how much is short is unknown."""
_WARNED_PART = 4
"""A warning leaves a quarter of the KV budget."""
_RETURNED_PART = 16
"""An eighth given up comes back in two calm readings."""


BUDGET_STEP = 32
"""The KV budget follows the learned peak in steps of a 32nd: each change may evict. So does a limit that is
lowered as rows end."""
_POOL_PART = 4
"""Of what the next chunk leaves, a quarter may be freed buffers."""
_LEAST_SCORE_BYTES = 4 << 20
_SCORE_PART = 16
"""Of what is free, a sixteenth may be the scores of one attention product."""


class Relief(IntEnum):
    """What is given up; each level includes those before it."""

    NONE = 0
    EVICT = 1
    SMALL_CHUNKS = 2
    HOLD = 3
    PREEMPT = 4


@dataclass(frozen=True, slots=True)
class Reading:
    """Memory at one time, in bytes. `used`: of this engine, the allocator's pool included. `limit` 0: none.
    `available`: what the system or container can still give; None: unknown. `kv`: cached prefixes and running
    rows; `fixed_kv`: the part of it that only preemption frees. `pool`: freed buffers, which an eviction
    returns. `rows`: the arrays of the rows. `active`: all arrays."""

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
        """What is held beside arrays."""
        return self.used - self.active

    @property
    def limit_binds(self) -> bool:
        """Whether the limit, and not the system, is what there is least of."""
        if self.pressure is not Pressure.NORMAL:
            return False
        return self.available is None or self.available > self.limit - self.used

    @property
    def headroom(self) -> int | None:
        """What may still be allocated; negative: the limit is exceeded. None: nothing bounds it."""
        bounds = [self.limit - self.used] if self.limit else []
        if self.available is not None:
            bounds.append(self.available)
        return min(bounds, default=None)


@dataclass(frozen=True, slots=True)
class Allowance:
    """What the next steps may use. None: as much as is configured."""

    relief: Relief = Relief.NONE
    kv_bytes: int | None = None
    chunk_tokens: int | None = None
    room: StepRoom | None = None
    """What a step may take; None: unbounded."""

    @property
    def admits(self) -> bool:
        """Whether sequences may join running rows; one alone always runs."""
        return self.relief < Relief.HOLD


@dataclass(frozen=True, slots=True)
class Budget:
    """All that memory decides, and that is written anywhere, which `MemoryWatch._keep_to` alone does.
    `kv_bytes`: for the prefix cache and running rows. `pool_bytes`: of freed buffers, `score_bytes`: of the
    scores of one attention product."""

    kv_bytes: int
    pool_bytes: int
    score_bytes: int


def nearest_limit(limit: MemoryLimit, asked_bytes: int, least_bytes: int) -> MemoryLimit:
    """Return the limit that was asked for, or as near as the rows allow, which need `least_bytes`; it is
    lowered in steps, for each may evict."""
    current = limit.limit_bytes
    nearest = max(asked_bytes, min(current, least_bytes))
    if nearest == current or (asked_bytes < nearest and (current - nearest) * BUDGET_STEP < current):
        return limit
    return limit.resized(nearest)


def moved(before_bytes: int, kv_bytes: int) -> bool:
    """Whether a KV budget differs by so much that it is worth an eviction."""
    return abs(kv_bytes - before_bytes) * BUDGET_STEP >= before_bytes


def buffers(limit: MemoryLimit, reading: Reading, needed_bytes: int) -> tuple[int, int, int]:
    """Return the bounds on what MLX keeps of freed buffers, which grows within a step, too, and on the scores
    of attention, by what the system can still give: the limit has room for all of it. And how much both may
    still grow: chunks may have been learned with a lower bound on them."""
    pool, scores, reserved = limit.pool_bytes, limit.score_bytes, 0
    if reading.available is not None:
        free = reading.available + reading.pool
        pool = min(pool, max(0, free - needed_bytes) // _POOL_PART)
        reserved = min(scores, free // _SCORE_PART)
        scores = min(scores, max(_LEAST_SCORE_BYTES, reserved))
    return pool, scores, max(0, pool - reading.pool) + reserved


class MemoryGuard:
    """`assess` at every reading. `budget_bytes`: the KV budget without relief."""

    def __init__(self) -> None:
        self._relief = Relief.NONE
        self._kv_bytes: int | None = None
        self._calm_since: float | None = None
        self._calm_seconds = CALM_SECONDS
        self._returned_at: float | None = None

    @property
    def relief(self) -> Relief:
        return self._relief

    def assess(
        self, reading: Reading, budget_bytes: int, needed_bytes: int, fitting_tokens: int, now: float
    ) -> Allowance:
        """Return what may be used until the next reading. `needed_bytes`: at the peak of the next chunk;
        `fitting_tokens`: the largest chunk that the headroom is enough for."""
        short = self._short_bytes(reading, budget_bytes, needed_bytes)
        if short > 0:
            self._give_up(reading, short, now)
        elif self._relief and self._suffices(reading, needed_bytes):
            self._take_back(budget_bytes, now)
        else:
            self._calm_since = None
        chunk_tokens = None
        if self._relief >= Relief.SMALL_CHUNKS:
            chunk_tokens = max(LEAST_CHUNK_TOKENS, fitting_tokens)
        return Allowance(self._relief, self._kv_bytes, chunk_tokens)

    @staticmethod
    def _short_bytes(reading: Reading, budget_bytes: int, needed_bytes: int) -> int:
        headroom = reading.headroom
        short = 0 if headroom is None else needed_bytes - headroom
        match reading.pressure:
            case Pressure.NORMAL:
                return short
            case Pressure.WARN:
                spare = min(reading.kv - reading.fixed_kv, reading.kv - budget_bytes // _WARNED_PART)
                return max(short, min(spare, reading.kv // _PRESSED_PART))
            case Pressure.CRITICAL:
                # An empty cache has nothing to give, but chunks and admission still have.
                return max(short, reading.kv // _PRESSED_PART, 1)

    @staticmethod
    def _suffices(reading: Reading, needed_bytes: int) -> bool:
        """Whether there is room for twice what is needed: what is taken back must not be short at once."""
        headroom = reading.headroom
        return reading.pressure is Pressure.NORMAL and (headroom is None or headroom >= 2 * needed_bytes)

    def _give_up(self, reading: Reading, short: int, now: float) -> None:
        self._calm_since = None
        if self._returned_at is not None and now - self._returned_at < self._calm_seconds:
            # What was taken back was short at once.
            self._calm_seconds = min(MOST_CALM_SECONDS, 2 * self._calm_seconds)
        self._returned_at = None
        evictable = reading.kv - reading.fixed_kv + reading.pool
        if self._relief is Relief.NONE or (evictable < short and self._relief < Relief.PREEMPT):
            self._relief = Relief(self._relief + 1)
        left = max(0, reading.kv - max(0, short - reading.pool))
        if self._relief < Relief.PREEMPT:
            left = max(reading.fixed_kv, left)
        self._kv_bytes = left if self._kv_bytes is None else min(self._kv_bytes, left)
        if self._relief < Relief.PREEMPT:
            # Rows have grown since: below what they hold, they would be preempted.
            self._kv_bytes = max(reading.fixed_kv, self._kv_bytes)

    def _take_back(self, budget_bytes: int, now: float) -> None:
        if self._calm_since is None:
            self._calm_since = now
        if now - self._calm_since < self._calm_seconds:
            return
        self._calm_since = self._returned_at = now
        if self._relief > Relief.EVICT:
            self._relief = Relief(self._relief - 1)
            return
        assert self._kv_bytes is not None
        self._kv_bytes += max(1, budget_bytes // _RETURNED_PART)
        if self._kv_bytes >= budget_bytes:
            self._relief, self._kv_bytes = Relief.NONE, None
            self._calm_seconds = CALM_SECONDS
