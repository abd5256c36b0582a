"""All that this engine may use: from the operator's option, the device and the machine. Plain arithmetic.

limit = weights + KV budget + pool of freed buffers + the peak of one prefill chunk

Where several models share the memory, the server gives each engine a part, and changes it while it runs
(`SetMemoryLimit`): a limit is a value, and a changed one another value (`resized`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from scheduler.engine.load_failure import LoadRefused
from scheduler.shared.gigabytes import gigabytes

_OF_DEVICE = 0.95
"""Fraction of Metal's recommendation, which leaves the system its part, or of a CUDA device's memory."""
_OF_MACHINE = 0.5
"""Fraction of the memory of a machine that also runs everything else, such as the server."""
_LEAST_KV_BYTES = 64 << 20
_FIRST_PEAK = 0.15
"""Expected peak of the largest chunk before one was measured, as a fraction of what the weights leave."""
_POOL = 0.05
"""Fraction of the limit that freed buffers may take: enough to reuse a chunk's activations. Without a bound
MLX keeps them up to 0.95 of the working set, wired."""
_LEAST_POOL_BYTES, _MOST_POOL_BYTES = 256 << 20, 2 << 30
_POOL_DIVISOR = 4
"""The pool has at most a quarter of what the weights leave."""
PROCESS_BYTES = 256 << 20
"""The interpreter, libraries and what is not in arrays."""
_STARTED_BYTES = 115 << 20
"""The same before the first request, on Linux."""
_RESERVE_BYTES, _RESERVE_PART = 32 << 20, 32
"""How much of what the system can still give is left to it: 32 MiB, or a 32nd of a small limit."""
_SCORES = 1 / 64
"""Fraction of the limit that the scores of one attention product may take: 85 MB of 8 GB of unified memory, a
gigabyte of a large GPU, where smaller pieces would leave it idle."""
_LEAST_SCORE_BYTES, _MOST_SCORE_BYTES = 32 << 20, 1 << 30


class MemoryTooSmall(LoadRefused):
    """The model cannot run within the limit."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The limit of this engine. With `limit_bytes` 0 it is unknown, and only `kv_bytes` bounds. `kv_bytes` is
    the operator's KV budget, or None for what the other parts of the limit leave."""

    limit_bytes: int
    weights_bytes: int = 0
    pool_bytes: int = 0
    kv_bytes: int | None = None
    share: float = 1.0
    """Share of the KV budget: less than 1 after an engine ran out of memory."""
    sharers: int = 1
    """Engines that use the device's memory: each has this part of what the system can still give."""
    most_bytes: int = 0
    """The highest limit that the server may set. With 0 the server sets none, and an operator's KV budget
    stands whatever the limit."""
    process_bytes: int = PROCESS_BYTES
    least_kv_bytes: int = _LEAST_KV_BYTES

    @property
    def score_bytes(self) -> int:
        """Return the score bytes of one piece of an attention product."""
        return max(_LEAST_SCORE_BYTES, min(_MOST_SCORE_BYTES, int(self.limit_bytes * _SCORES)))

    @property
    def reserve_bytes(self) -> int:
        """Return how much of the system's memory is not to be taken: for the server, and for what no
        arithmetic covers."""
        return min(_RESERVE_BYTES, self.limit_bytes // _RESERVE_PART or _RESERVE_BYTES)

    @property
    def first_peak_bytes(self) -> int:
        """Return the expected peak of the largest chunk before any was measured."""
        return int(max(0, self.limit_bytes - self.weights_bytes) * _FIRST_PEAK)

    def whole_kv_bytes(self, peak_bytes: int) -> int:
        """Return the KV budget beside chunks of this peak, before `share` is applied."""
        if self.kv_bytes is not None and not self.most_bytes:
            return self.kv_bytes
        fixed_bytes = self.weights_bytes + self.pool_bytes + self.process_bytes
        left = max(self.least_kv_bytes, self.limit_bytes - fixed_bytes - peak_bytes)
        return left if self.kv_bytes is None else min(self.kv_bytes, left)

    def kv_budget_bytes(self, peak_bytes: int) -> int:
        return int(self.whole_kv_bytes(peak_bytes) * self.share)

    @property
    def most_kv_bytes(self) -> int:
        """Return the most KV that one request may ever get, by which it is refused: a refusal is final, but
        chunks can be made smaller, and a limit raised."""
        most = self.resized(max(self.limit_bytes, self.most_bytes)) if self.most_bytes else self
        return most.whole_kv_bytes(0)

    def resized(self, limit_bytes: int) -> MemoryLimit:
        """Return this limit with other bytes: the pool follows, and all that is computed from them."""
        pool_bytes = _pool_bytes(limit_bytes, self.weights_bytes)
        return replace(self, limit_bytes=limit_bytes, pool_bytes=pool_bytes)

    def least_bytes(self, kv_bytes: int = 0, peak_bytes: int | None = None) -> int:
        """Return the least limit that leaves a KV budget of `kv_bytes` beside chunks of this peak. Without a
        measured peak, the expected one follows the limit."""
        part = 0.0 if peak_bytes is not None else _FIRST_PEAK
        wanted = self.process_bytes + (peak_bytes or 0) + max(self.least_kv_bytes, kv_bytes / self.share)
        # The pool is the least of three bounds, one of which is the larger of two (`_pool_bytes`).
        of_limit = (wanted + _POOL * self.weights_bytes) / (1 - _POOL - part)
        beyond_weights = min(
            wanted / (1 - 1 / _POOL_DIVISOR - part),
            (wanted + _MOST_POOL_BYTES) / (1 - part),
            max((wanted + _LEAST_POOL_BYTES) / (1 - part), of_limit),
        )
        return self.weights_bytes + math.ceil(beyond_weights)


def memory_limit(
    option: float,
    device: Mapping[str, Any],
    machine_bytes: int,
    weights_bytes: int,
    kv_bytes: int | None,
    share: float,
    sharers: int = 1,
    most_bytes: int = 0,
) -> MemoryLimit:
    """Return the limit: this engine's part, if several use the device. `option`: bytes, or up to 1 a share of
    the device's memory, or 0 for the default; with `most_bytes`, the part in bytes that the server gives this
    engine. `device`: MLX's device_info() before the weights are loaded. Raise MemoryTooSmall if they do not
    fit."""
    whole = recommended_bytes(device)
    default = int(whole * _OF_DEVICE) if whole else int(machine_bytes * _OF_MACHINE)
    limit = default
    if option > 0:
        limit = int(option if option > 1 else (whole or machine_bytes) * option)
    if not most_bytes:
        limit //= sharers
    if not option and (free := device.get("free_memory")) is not None:
        limit = min(limit, int(int(free) * _OF_DEVICE))  # Other programs use the device, too.
    # An option may ask for more than a control group allows.
    most = min(limit, whole or machine_bytes)
    if weights_bytes + _STARTED_BYTES + _LEAST_KV_BYTES > most:
        raise MemoryTooSmall(
            f"the weights take {gigabytes(weights_bytes, 3)}, the process {gigabytes(_STARTED_BYTES, 3)}, and"
            f" {gigabytes(_LEAST_KV_BYTES, 3)} must be left for the KV cache, but the limit is"
            f" {gigabytes(limit, 3)} of {gigabytes(whole or machine_bytes, 3)}"
            + _part(sharers, most_bytes)
            + " take a smaller or quantised model (`penstock models` says which fit), or raise --memory-limit"
        )
    pool_bytes = _pool_bytes(limit, weights_bytes)
    return MemoryLimit(limit, weights_bytes, pool_bytes, kv_bytes, share, sharers, most_bytes)


def _pool_bytes(limit_bytes: int, weights_bytes: int) -> int:
    pool = min(_MOST_POOL_BYTES, max(_LEAST_POOL_BYTES, int(limit_bytes * _POOL)))
    return min(pool, max(0, limit_bytes - weights_bytes) // _POOL_DIVISOR)


def _part(sharers: int, most_bytes: int) -> str:
    if most_bytes:
        return ", the part of this engine beside others:"
    return f" for each of {sharers} engines:" if sharers > 1 else ":"


def recommended_bytes(device: Mapping[str, Any]) -> int:
    """Return the recommended bound on memory of the device; 0 if MLX does not report it. Metal has a
    recommendation, CUDA only the device's total (`total_memory`)."""
    for key in ("max_recommended_working_set_size", "memory_size", "total_memory"):
        if size := int(device.get(key) or 0):
            return size
    return 0
