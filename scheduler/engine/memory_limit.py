"""All that this engine may use: from the operator's option, the device and the machine. Plain arithmetic.

limit = weights + KV budget + pool of freed buffers + the peak of one prefill chunk
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scheduler.engine.load_failure import LoadRefused

_OF_DEVICE = 0.95
"""Fraction of Metal's recommendation, which leaves the system its part, or of a CUDA device's memory."""
_OF_MACHINE = 0.5
"""Fraction of the memory of a machine that also runs everything else, such as the parent process."""
_LEAST_KV_BYTES = 64 << 20
_FIRST_PEAK = 0.15
"""Expected peak of the largest chunk before one was measured, as a fraction of what the weights leave."""
_POOL = 0.05
"""Fraction of the limit that freed buffers may take: enough to reuse a chunk's activations. Without a bound
MLX keeps them up to 0.95 of the working set, wired."""
_LEAST_POOL_BYTES, _MOST_POOL_BYTES = 256 << 20, 2 << 30
PROCESS_BYTES = 256 << 20
"""The interpreter, libraries and what is not in arrays."""
_STARTED_BYTES = 115 << 20
"""The same before the first request, on Linux."""
_RESERVE_BYTES, _RESERVE_PART = 32 << 20, 32
"""Of what the system can still give: a fixed part, or a part of a small limit."""
_SCORES = 1 / 64
"""Fraction of the limit that the scores of one attention product may take: 85 MB of 8 GB of unified memory, a
gigabyte of a large GPU, where smaller pieces would leave it idle."""
_LEAST_SCORE_BYTES, _MOST_SCORE_BYTES = 32 << 20, 1 << 30


class MemoryTooSmall(LoadRefused):
    """The model cannot run within the limit."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """`limit_bytes` 0: none is known, so that only `kv_bytes` bounds. `kv_bytes`: the operator's KV budget;
    None: what the others leave."""

    limit_bytes: int
    weights_bytes: int = 0
    pool_bytes: int = 0
    kv_bytes: int | None = None
    share: float = 1.0
    """Of the KV budget: less than 1 after an engine ran out of memory."""
    sharers: int = 1
    """Engines that use the device's memory: each has this part of what the system can still give."""

    @property
    def score_bytes(self) -> int:
        """Of one piece of an attention product."""
        return max(_LEAST_SCORE_BYTES, min(_MOST_SCORE_BYTES, int(self.limit_bytes * _SCORES)))

    @property
    def reserve_bytes(self) -> int:
        """Left of what the system can give: for the parent, and for what no arithmetic covers."""
        return min(_RESERVE_BYTES, self.limit_bytes // _RESERVE_PART or _RESERVE_BYTES)

    @property
    def first_peak_bytes(self) -> int:
        """Expected of the largest chunk before any was measured."""
        return int(max(0, self.limit_bytes - self.weights_bytes) * _FIRST_PEAK)

    def whole_kv_bytes(self, peak_bytes: int) -> int:
        """Return the KV budget beside chunks of this peak, of which engines use a share."""
        if self.kv_bytes is not None:
            return self.kv_bytes
        fixed_bytes = self.weights_bytes + self.pool_bytes + PROCESS_BYTES
        return max(_LEAST_KV_BYTES, self.limit_bytes - fixed_bytes - peak_bytes)

    def kv_budget_bytes(self, peak_bytes: int) -> int:
        return int(self.whole_kv_bytes(peak_bytes) * self.share)


def memory_limit(
    option: float,
    device: Mapping[str, Any],
    machine_bytes: int,
    weights_bytes: int,
    kv_bytes: int | None,
    share: float,
    sharers: int = 1,
) -> MemoryLimit:
    """Return the limit: this engine's part, if several use the device. `option`: bytes, or up to 1 a share of
    the device's memory; 0: the default. `device`: MLX's device_info() before the weights are loaded. Raises
    MemoryTooSmall if they do not fit."""
    whole = recommended_bytes(device)
    default = int(whole * _OF_DEVICE) if whole else int(machine_bytes * _OF_MACHINE)
    limit = default
    if option > 0:
        limit = int(option if option > 1 else (whole or machine_bytes) * option)
    limit //= sharers
    if not option and (free := device.get("free_memory")) is not None:
        limit = min(limit, int(int(free) * _OF_DEVICE))  # Other programs use the device, too.
    # An option may ask for more than a control group allows.
    most = min(limit, whole or machine_bytes)
    if weights_bytes + _STARTED_BYTES + _LEAST_KV_BYTES > most:
        raise MemoryTooSmall(
            f"the weights take {_gigabytes(weights_bytes)}, the process {_gigabytes(_STARTED_BYTES)}, and"
            f" {_gigabytes(_LEAST_KV_BYTES)} must be left for the KV cache, but the limit is"
            f" {_gigabytes(limit)} of {_gigabytes(whole or machine_bytes)}"
            + (f" for each of {sharers} engines:" if sharers > 1 else ":")
            + " take a smaller or quantised model, or raise --memory-limit"
        )
    pool = min(_MOST_POOL_BYTES, max(_LEAST_POOL_BYTES, int(limit * _POOL)))
    return MemoryLimit(
        limit, weights_bytes, min(pool, (limit - weights_bytes) // 4), kv_bytes, share, sharers
    )


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB"


def recommended_bytes(device: Mapping[str, Any]) -> int:
    """Return the recommended bound on memory of the device; 0 if MLX does not report it. Metal has a
    recommendation, CUDA only the device's total (`total_memory`)."""
    for key in ("max_recommended_working_set_size", "memory_size", "total_memory"):
        if size := int(device.get(key) or 0):
            return size
    return 0
