"""A device with scripted memory: weights, a pool of freed buffers, a chunk's peak, and other programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from scheduler.engine.device import Pressure, SystemMemory, Traits
from scheduler.shared.messages import DeviceMemory


@dataclass(slots=True)
class FakeDevice:
    """`held_bytes`: KV of rows and cached prefixes. All memory counts against `machine_bytes`."""

    machine_bytes: int
    weights_bytes: int = 0
    outside_bytes: int = 0
    """Held by other programs."""
    pressure: Pressure = Pressure.NORMAL
    chunk_bytes: int = 0
    """Activations of the chunk that ran last."""
    pool_bytes: int = 0
    held_bytes: Callable[[], int] = lambda: 0
    traits: Traits = field(default_factory=lambda: Traits("metal"))
    cleared: int = 0
    most_pool_bytes: int | None = None
    """The pool's limit; it has none before it is limited."""

    @property
    def active_bytes(self) -> int:
        return self.weights_bytes + self.held_bytes()

    def memory(self) -> DeviceMemory:
        active = self.active_bytes
        return DeviceMemory(active, self.pool_bytes, active + self.chunk_bytes, self.machine_bytes)

    def system(self) -> SystemMemory:
        used = self.active_bytes + self.pool_bytes
        return SystemMemory(used, self.machine_bytes - used - self.outside_bytes, self.pressure)

    def restart_peak(self, host: bool = False) -> None:
        self.chunk_bytes = 0

    def transient_bytes(self) -> int:
        return self.chunk_bytes

    def clear_pool(self) -> None:
        self.cleared += 1
        self.pool_bytes = 0

    def limit_pool(self, most_bytes: int) -> None:
        self.most_pool_bytes = most_bytes
        self.pool_bytes = min(self.pool_bytes, most_bytes)
