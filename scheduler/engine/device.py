"""The engine's device as policies see it: what it is, its memory, and the few things that can be asked of it.

`mlx/device.py` is MLX's (CPU, Metal, CUDA); the scripted back end has one without limits, and tests one with
scripted limits, latencies and deaths. Nothing here imports MLX.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, Protocol, TypeAlias

from scheduler.shared.messages import DeviceMemory

DeviceKind: TypeAlias = Literal["cpu", "metal", "cuda"]


class Pressure(IntEnum):
    """The system's memory pressure: macOS's levels; on Linux from stalls (PSI)."""

    NORMAL = 0
    WARN = 1
    CRITICAL = 2


@dataclass(frozen=True, slots=True)
class SystemMemory:
    """`available_bytes`: what the system, or the tightest control group, can still give, or None if
    unknown."""

    footprint_bytes: int = 0
    available_bytes: int | None = None
    pressure: Pressure = Pressure.NORMAL


@dataclass(frozen=True, slots=True)
class Traits:
    """What every branch of the engine that depends on the device asks for. Tests force the traits of another
    device (`mlx/device.py`: `forced`), so that both sides of each branch run on a CPU."""

    kind: DeviceKind
    exp_is_slow: bool = False
    """MLX's exponential is one libm call per number, 11 to 20 ns: nine tenths of attention over a long
    prefix. Then NumPy or a power of two made from bits computes softmax and gate, all attention is ours, and
    NumPy computes penalties, cut-offs and random numbers, too."""
    submission_waits: bool = False
    """`async_eval` returns only when most of what it was given is computed: MLX's CPU has about a hundred
    operations in flight."""
    wide_weights: bool = False
    """16-bit and packed weights have no fast path, so `--weights-dtype auto` is float32."""
    multiplies_packed: bool = False
    """Products with packed keys and values need no unpacking. Elsewhere those of many queries do."""
    most_score_bytes: int = 1 << 30
    """Bound on the memory for the scores of one attention product and what is computed from them, where the
    memory limit allows as much: longer chunks over longer runs are computed in pieces."""
    evaluation_seconds: float | None = None
    """A chunk that takes longer is evaluated in slices (`mlx/upstream/layer_slices.py`), on a device that
    ends long work or that draws the screen; None never slices."""
    most_buffers: int | None = None
    """Allocations that the device can hold at a time, whatever their size, or None if unbounded."""


class Readings(Protocol):
    """The device's memory, read by one thread, between steps."""

    def memory(self) -> DeviceMemory:
        """Return the allocator's counters, `peak` since `restart_peak`. Called in every step, so it must be
        cheap."""
        ...

    def system(self) -> SystemMemory:
        """Return the operating system's figures; at most a few times a second."""
        ...

    def restart_peak(self, host: bool = False) -> None:
        """Measure the peak anew from here. `host`: what NumPy and libraries allocate, too, where the system
        reports it, at 0.05 ms a step."""
        ...

    def transient_bytes(self) -> int:
        """Return the most memory since `restart_peak` beyond what was held then or is held now, whichever is
        more."""
        ...


class Device(Readings, Protocol):
    """Called by one thread, between steps. Only a back end changes it, following its plan
    (`budget/policy.py`)."""

    @property
    def traits(self) -> Traits: ...

    def clear_pool(self) -> None:
        """Return freed buffers to the system."""
        ...

    def limit_pool(self, most_bytes: int) -> None:
        """Keep no more than this in freed buffers, from now on."""
        ...
