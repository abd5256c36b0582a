"""Rows for measurements on a device that may be small."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from loadtests.device.rows import fitting_tokens
from scheduler.engine.budget.limits import MemoryLimit
from scheduler.shared.row_bytes import RowBytes


@pytest.mark.parametrize(
    ("rows", "token_bytes", "tokens"), [(1, 1000, 2500), (4, 1000, 625), (1, 0, 2_500_000)]
)
def test_measurements_take_a_quarter_of_the_budget_at_most(rows: int, token_bytes: int, tokens: int) -> None:
    """Here of 10 MB; a model without keys and values has any number of tokens."""
    limit, row_bytes = MemoryLimit(0, kv_bytes=10_000_000), RowBytes(token_bytes)
    backend: Any = SimpleNamespace(facts=SimpleNamespace(memory_limit=limit, row_bytes=row_bytes))
    assert fitting_tokens(backend, rows) == tokens
