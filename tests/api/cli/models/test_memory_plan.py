"""What fits into a machine's memory, from figures alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from api.cli.machine import Machine, ModelMemory
from api.cli.models.disk_models import DiskModel
from api.cli.models.memory_plan import MemoryPlan, memory_plan
from scheduler.shared.row_bytes import RowBytes, Window

GB = 10**9
ROW = RowBytes(100_000)


def model(weights_bytes: int = 4 * GB, wide_bytes: int = 16 * GB) -> DiskModel:
    return DiskModel(
        "m", Path("m"), "folder", weights_bytes=weights_bytes, wide_weights_bytes=wide_bytes, task="chat"
    )


def mac(gigabytes: int) -> Machine:
    """Metal recommends three quarters of the memory."""
    info: dict[str, Any] = {"max_recommended_working_set_size": gigabytes * GB * 3 // 4}
    return Machine("Apple", "metal", False, gigabytes * GB, info)


def plan(machine: Machine, measured: ModelMemory | None = None) -> MemoryPlan:
    return memory_plan(model(), machine, measured)


def test_a_model_that_fits_has_the_engines_own_limit_and_budget() -> None:
    """95 % of Metal's recommendation; of it weights, pool, process and the peak of a chunk leave the KV."""
    found = plan(mac(16), ModelMemory(4 * GB, ROW))
    assert found.fits
    assert found.limit_bytes == int(12 * GB * 0.95)
    assert 5 * GB < found.kv_bytes < 6 * GB
    assert found.agents(ROW, 32768) == found.kv_bytes // (100_000 * 32768) == 1


def test_a_model_that_does_not_fit_says_so_with_figures() -> None:
    """And serves nobody."""
    found = plan(mac(4), ModelMemory(4 * GB, ROW))
    assert not found.fits
    assert "the weights take 4.00 GB" in found.reason
    assert "limit is 2.85 GB" in found.reason
    assert found.agents(ROW, 1024) == 0


def test_a_processor_computes_in_float32() -> None:
    """So it needs the wide weights, where no process has measured them; rows are then not known."""
    cpu = Machine("cpu", "cpu", True, 64 * GB)
    found = plan(cpu)
    assert (found.weights_bytes, found.row) == (16 * GB, None)
    assert plan(mac(64)).weights_bytes == 4 * GB


@settings(deadline=None)
@given(
    st.integers(1, 512),
    st.integers(0, 300 * GB),
    st.integers(0, 10**6),
    st.integers(0, 10**8),
    st.integers(1, 10**6),
)
def test_agents_that_a_plan_counts_fit_into_its_kv(
    gigabytes: int, weights_bytes: int, token_bytes: int, state_bytes: int, tokens: int
) -> None:
    """One more does not."""
    row = RowBytes(token_bytes, state_bytes, (Window(1024, 1000),))
    found = plan(mac(gigabytes), ModelMemory(weights_bytes, row))
    agents, longest = found.agents(row, tokens), found.longest(row, tokens)
    assert agents * row.held(tokens) <= found.kv_bytes < (agents + 1) * row.held(tokens) or not row.held(
        tokens
    )
    assert (longest == tokens) == (agents > 0)
    assert found.fits or agents == 0
