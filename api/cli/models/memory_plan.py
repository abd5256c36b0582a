"""Whether a model fits into this machine's memory, and for how many agents. Pure: the engine's arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from api.cli.machine import Machine, ModelMemory
from api.cli.models.disk_models import DiskModel
from scheduler.engine.budget.limits import MemoryTooSmall, memory_limit
from scheduler.shared.row_bytes import RowBytes


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What one engine with this model would have, with `serve`'s default options and nothing else running."""

    weights_bytes: int
    limit_bytes: int
    """Bytes that the engine may use, or 0 if the model does not fit."""
    kv_bytes: int = 0
    """Bytes for running sequences and cached prefixes; 0 if it does not fit."""
    row: RowBytes | None = None
    """Bytes of a row, or None if unknown because mlx-lm could not build the model."""
    reason: str = ""
    """Why it does not fit, with figures; empty if it fits."""
    q8_row: RowBytes | None = None
    """Bytes of a row with `--kv-cache-dtype q8`, or None if that takes no less."""

    @property
    def fits(self) -> bool:
        return not self.reason

    def agents(self, row: RowBytes, tokens: int) -> int:
        """Return how many sequences of `tokens` tokens that share nothing run at a time. More run if they
        share a prefix, which the engine counts once."""
        return self.kv_bytes // max(1, row.held(tokens))

    def longest(self, row: RowBytes, context_tokens: int) -> int:
        """Return the tokens of the longest sequence that runs alone."""
        shortest, longest = 0, context_tokens
        while shortest < longest:
            middle = (shortest + longest + 1) // 2
            if row.held(middle) <= self.kv_bytes:
                shortest = middle
            else:
                longest = middle - 1
        return shortest


def memory_plan(model: DiskModel, machine: Machine, measured: ModelMemory | None) -> MemoryPlan:
    """Return the plan of `model`. `measured` is what a child process found; if None, the weights' bytes come
    from the files, and rows are unknown."""
    of_files = model.wide_weights_bytes if machine.wide_weights else model.weights_bytes
    weights_bytes = of_files if measured is None else measured.weights_bytes
    row = None if measured is None else measured.row
    try:
        limit = memory_limit(0.0, machine.info, machine.machine_bytes, weights_bytes, None, 1.0)
    except MemoryTooSmall as error:
        return MemoryPlan(weights_bytes, 0, row=row, reason=str(error))
    kv_bytes = limit.kv_budget_bytes(limit.first_peak_bytes)
    q8_row = None if measured is None else measured.q8_row
    return MemoryPlan(weights_bytes, limit.limit_bytes, kv_bytes, row, q8_row=q8_row)
