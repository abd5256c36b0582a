"""All that this engine may use: from the operator's option, the device and the machine. Plain arithmetic.

limit = weights + KV budget + pool of freed buffers + the peak of one prefill chunk

Where several models share the memory, each engine has a part of it for its life (`part_of`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scheduler.engine.load_failure import LoadRefused
from scheduler.shared.gigabytes import gigabytes
from scheduler.shared.messages import MemoryPart

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
    whole_bytes: int = 0
    """What the engines of all models may use together, of which this limit is a part. With 0 one model has
    all of it, and an operator's KV budget stands whatever the limit."""
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
        if self.kv_bytes is not None and not self.whole_bytes:
            return self.kv_bytes
        fixed_bytes = self.weights_bytes + self.pool_bytes + self.process_bytes
        left = max(self.least_kv_bytes, self.limit_bytes - fixed_bytes - peak_bytes)
        return left if self.kv_bytes is None else min(self.kv_bytes, left)

    def kv_budget_bytes(self, peak_bytes: int) -> int:
        return int(self.whole_kv_bytes(peak_bytes) * self.share)

    @property
    def most_kv_bytes(self) -> int:
        """Return the most KV that one request may ever get, by which it is refused: a refusal is final, but
        chunks can be made smaller."""
        return self.whole_kv_bytes(0)

    @property
    def least_bytes(self) -> int:
        """Return the least limit with which a process with these weights runs."""
        part, wanted = _FIRST_PEAK, self.process_bytes + self.least_kv_bytes
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
    part: MemoryPart | None = None,
) -> MemoryLimit:
    """Return the limit: this engine's part, if several use the device. `option`: bytes, or up to 1 a share of
    the device's memory, or 0 for the default. `device`: MLX's device_info() before the weights are loaded.
    `part`: this engine's of the memory of several models. Raise MemoryTooSmall if the weights do not fit."""
    whole = recommended_bytes(device)
    default = int(whole * _OF_DEVICE) if whole else int(machine_bytes * _OF_MACHINE)
    limit = default
    if option > 0:
        limit = int(option if option > 1 else (whole or machine_bytes) * option)
    limit //= sharers
    if not option and (free := device.get("free_memory")) is not None:
        limit = min(limit, int(int(free) * _OF_DEVICE))  # Other programs use the device, too.
    whole_bytes = 0
    if part is not None:
        least_bytes = MemoryLimit(0, weights_bytes).least_bytes
        limit, whole_bytes, sharers = divided(limit, part, sharers, least_bytes, on_cpu=not whole)
    # An option may ask for more than a control group allows.
    most = min(limit, whole or machine_bytes)
    if weights_bytes + _STARTED_BYTES + _LEAST_KV_BYTES > most:
        raise MemoryTooSmall(
            f"the weights take {gigabytes(weights_bytes, 3)}, the process {gigabytes(_STARTED_BYTES, 3)}, and"
            f" {gigabytes(_LEAST_KV_BYTES, 3)} must be left for the KV cache, but the limit is"
            f" {gigabytes(limit, 3)} of {gigabytes(whole or machine_bytes, 3)}"
            + _part(sharers, whole_bytes)
            + " take a smaller or quantised model (`penstock show` plans it), or raise --memory-limit"
        )
    pool_bytes = _pool_bytes(limit, weights_bytes)
    return MemoryLimit(limit, weights_bytes, pool_bytes, kv_bytes, share, sharers, whole_bytes)


def divided(
    found_bytes: int, part: MemoryPart, sharers: int, least_bytes: int, *, on_cpu: bool
) -> tuple[int, int, int]:
    """Return this engine's limit, what the engines of all models may use, and how many engines share the
    device. `found_bytes`: the limit of each of `sharers` engines that find it out; `least_bytes`: of which
    each needs so much."""
    if part.whole_bytes or not found_bytes:
        return part.limit_bytes, part.whole_bytes, sharers
    whole_bytes = found_bytes * sharers
    others = [cpu if on_cpu else elsewhere for cpu, elsewhere in part.beside]
    bytes_of_all, fitting = part_of(whole_bytes, least_bytes * sharers, others)
    return bytes_of_all // sharers, whole_bytes, sharers + fitting


def part_of(free_bytes: int, need_bytes: int, others: Sequence[int]) -> tuple[int, int]:
    """Return the part of a model that needs at least `need_bytes` of what is free, and how many of the
    others fit beside it. `others`: their least bytes, in the order in which room is left for them. What is
    free is divided by the needs, so that those that fit by their needs also fit by their parts."""
    need = max(1, need_bytes)
    total_bytes, fitting = need, 0
    for other in (max(1, one) for one in others):
        if total_bytes + other <= free_bytes:
            total_bytes, fitting = total_bytes + other, fitting + 1
    return free_bytes * need // total_bytes if fitting else free_bytes, fitting


def _pool_bytes(limit_bytes: int, weights_bytes: int) -> int:
    pool = min(_MOST_POOL_BYTES, max(_LEAST_POOL_BYTES, int(limit_bytes * _POOL)))
    return min(pool, max(0, limit_bytes - weights_bytes) // _POOL_DIVISOR)


def _part(sharers: int, whole_bytes: int) -> str:
    if whole_bytes:
        return ", the part of this engine beside others:"
    return f" for each of {sharers} engines:" if sharers > 1 else ":"


def recommended_bytes(device: Mapping[str, Any]) -> int:
    """Return the recommended bound on memory of the device; 0 if MLX does not report it. Metal has a
    recommendation, CUDA only the device's total (`total_memory`)."""
    for key in ("max_recommended_working_set_size", "memory_size", "total_memory"):
        if size := int(device.get(key) or 0):
            return size
    return 0
