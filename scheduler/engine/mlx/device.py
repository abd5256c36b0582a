"""MLX's devices behind the engine's `Device`: CPU, Metal and CUDA.

There is one device per process: attention and the feed-forward gate read it, and mlx-lm's models, which call
them, can pass no argument of ours. Callers read `device()` at each call, not at import, so that tests on a
CPU can run the branches of Metal and CUDA (`forced`). The CPU's and CUDA's were run, Metal's never.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import mlx.core as mx

from scheduler.engine.budget.limits import (
    MemoryLimit,
    memory_limit,
    recommended_bytes,
)
from scheduler.engine.budget.readings import (
    host_memory,
    machine_bytes,
    restart_host_peak,
    return_free_blocks,
    system_reader,
)
from scheduler.engine.device import SystemMemory, Traits
from scheduler.engine.mlx.environment import tf32_allowed
from scheduler.shared.messages import DeviceMemory, Float32, Load

X86 = Traits("cpu", exp_is_slow=True, submission_waits=True, wide_weights=True, most_score_bytes=64 << 20)
"""The bound keeps pieces of scores near the sizes of caches, because several operations pass over them."""
ARM = Traits("cpu", submission_waits=True, wide_weights=True)
METAL = Traits("metal", multiplies_packed=True, evaluation_seconds=2.0, most_buffers=499_000)
"""Metal's watchdog has been seen to end work after 5 s (mlx#3830), and a prediction may be too low by half.
The number of buffers is Metal's (`resource_limit` in MLX's device_info, where it reports it)."""
CUDA = Traits("cuda")


_FIRST_SCORE_BYTES = 256 << 20
"""Bound on a piece's scores before a model is loaded, when the memory limit is not known."""


def _detected() -> Traits:
    if mx.default_device() == mx.cpu:
        return X86 if platform.machine() in ("x86_64", "AMD64") else ARM
    if not mx.metal.is_available():
        return CUDA
    return replace(METAL, most_buffers=int(mx.device_info().get("resource_limit") or METAL.most_buffers or 0))


class MlxDevice:
    """The allocator's counters and limits, and the operating system's figures beside them."""

    def __init__(self, traits: Traits) -> None:
        self.traits = traits
        self.waits = 0
        """How many times a graph was evaluated while it was built."""
        self._score_bytes = _FIRST_SCORE_BYTES
        self._system = system_reader()
        self._held_bytes = self._pool_bytes = 0
        self._host_bytes: int | None = None
        """Resident bytes when the peak was restarted, or None if the host's memory is not measured."""
        self._recommended_bytes = recommended_bytes(self.facts())

    @staticmethod
    def facts() -> dict[str, Any]:
        """Return MLX's device_info(), whose names and sizes differ between back ends."""
        return dict(mx.device_info())

    @property
    def score_bytes(self) -> int:
        """Return the bound on the scores of one piece of an attention product."""
        return min(self._score_bytes, self.traits.most_score_bytes)

    @property
    def float32(self) -> Float32:
        """Return what products of float32 numbers are computed in, on a device that has TF32: an M5, and
        CUDA."""
        return "tf32" if self.traits.kind != "cpu" and tf32_allowed() else "float32"

    @property
    def name(self) -> str:
        if self.traits.kind == "cpu":
            return "cpu"
        return str(self.facts().get("device_name", "gpu"))

    def memory(self) -> DeviceMemory:
        # The three take 0.1 µs: they are counters of MLX's allocator.
        return DeviceMemory(
            mx.get_active_memory(), mx.get_cache_memory(), mx.get_peak_memory(), self._recommended_bytes
        )

    def system(self) -> SystemMemory:
        return self._system()

    def restart_peak(self, host: bool = False) -> None:
        mx.reset_peak_memory()
        self._held_bytes = mx.get_active_memory()
        self._pool_bytes = mx.get_cache_memory()
        self._host_bytes = restart_host_peak() if host and self.traits.kind == "cpu" else None

    def transient_bytes(self) -> int:
        active = mx.get_active_memory()
        taken = mx.get_peak_memory() - max(self._held_bytes, active)
        if self._host_bytes is not None:
            # What the C heap keeps afterwards was taken, too. Only arrays and the pool, which has a bound of
            # its own, count as held.
            stays = max(0, active - self._held_bytes) + max(0, mx.get_cache_memory() - self._pool_bytes)
            taken = max(taken, host_memory().peak - self._host_bytes - stays)
        return max(0, taken)

    def wait(self) -> None:
        """Wait on Metal for all that was submitted, and raise what failed of it. An evaluation returns when
        its last command buffer signals, and may do so before the handler of an earlier one reports that it
        failed: what outlives the step (keys and values, vectors, files) is used after this."""
        if self.traits.kind == "metal":
            mx.synchronize()

    def free_buffers(self) -> None:
        """Return freed buffers to the driver. On Metal nothing is in flight meanwhile: command buffers hold
        no references to what they use."""
        self.wait()
        mx.clear_cache()

    def clear_pool(self) -> None:
        self.free_buffers()
        if self.traits.kind == "cpu":
            return_free_blocks()

    def limit_pool(self, most_bytes: int) -> None:
        mx.set_cache_limit(most_bytes)

    def limit_scores(self, most_bytes: int) -> None:
        """Compute attention in pieces with no more scores than this, or fewer where the traits need it."""
        self._score_bytes = most_bytes

    def wire_weights(self, limit_bytes: int) -> None:
        """Keep what is allocated at this moment resident from now on. Called once, after the weights are
        evaluated and while nothing runs: each change of the limit moves buffers in and out of the driver's
        residency sets (README, Wired memory)."""
        if self.traits.kind != "metal":  # Elsewhere MLX raises, or does nothing.
            return
        self.free_buffers()
        most_bytes = min(limit_bytes, mx.get_active_memory())
        # More than the recommendation raises.
        mx.set_wired_limit(min(most_bytes, self._recommended_bytes or most_bytes))


_device = MlxDevice(_detected())


def device() -> MlxDevice:
    return _device


def limit_of(load: Load, weights_bytes: int) -> MemoryLimit:
    """Return the memory limit of this process. Raise MemoryTooSmall if the weights do not fit."""
    return memory_limit(
        load.memory_limit,
        _device.facts(),
        machine_bytes(),
        weights_bytes,
        None if load.kv_cache_bytes < 0 else load.kv_cache_bytes,
        load.kv_cache_share,
        load.sharers,
        load.memory_part,
    )


@contextmanager
def forced(traits: Traits) -> Iterator[None]:
    """Run as if on another device. Existing rows keep their way of sampling."""
    before, _device.traits = _device.traits, traits
    try:
        yield
    finally:
        _device.traits = before
