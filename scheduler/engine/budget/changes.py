"""What a step plan changes of the memory budget."""

from __future__ import annotations

import msgspec

from scheduler.engine.device import Device


class BudgetChange(msgspec.Struct, frozen=True):
    """What memory allows from now on; None leaves it as before."""

    kv_bytes: int | None = None
    """Bytes for the prefix cache and running rows; prefixes that do not fit are evicted."""
    pool_bytes: int | None = None
    """Most bytes of freed buffers that the device may keep."""
    score_bytes: int | None = None
    """Most bytes of the scores of one attention product."""
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
    if change.score_bytes is not None:
        device.limit_scores(change.score_bytes)
    if change.clear_pool:
        device.clear_pool()
