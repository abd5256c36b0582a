"""A model as loading leaves it, which back ends run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from scheduler.engine.budget.limits import MemoryLimit
from scheduler.engine.mlx.device import limit_of
from scheduler.shared.messages import Load, Ready
from scheduler.shared.row_bytes import RowBytes


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that has computed one token. `row_bytes` are measured on that token's cache."""

    model: Any
    description: Ready
    row_bytes: RowBytes
    limit: MemoryLimit | None = None
    """The limit that was decided at load."""
    config: dict[str, Any] = field(default_factory=dict)
    """Its `config.json`."""

    def memory_limit(self, load: Load) -> MemoryLimit:
        """Return the memory limit of this process: if none was decided at load, that of `load`."""
        return self.limit or limit_of(load, self.description.weights_bytes)
