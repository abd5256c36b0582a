"""The engine's memory limit: from the option, the device and the machine, and what it leaves for KV."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.budget.limits import (
    PROCESS_BYTES,
    MemoryLimit,
    MemoryTooSmall,
    _pool_bytes,
    memory_limit,
)
from scheduler.shared.messages import MemoryPart

_GB = 10**9
_WEIGHTS = 3 * _GB
_X86 = {"architecture": "x86_64", "device_name": "AMD EPYC"}
_METAL = {
    "max_recommended_working_set_size": 12 * _GB,
    "memory_size": 16 * _GB,
    "resource_limit": 499000,
}


def _cuda(free_bytes: int) -> dict[str, Any]:
    """As mlx/backend/cuda/device_info.cpp fills it (MLX 0.32.4), of a 24 GB device."""
    return {
        "device_name": "NVIDIA RTX 4090",
        "architecture": "sm_89",
        "uuid": "GPU-00000000-0000-0000-0000-000000000000",
        "pci_bus_id": "0000:01:00.0",
        "compute_capability_major": 8,
        "compute_capability_minor": 9,
        "free_memory": free_bytes,
        "total_memory": 24 * _GB,
    }


def _limit(
    device: dict[str, Any], machine_bytes: int = 16 * _GB, option: float = 0, weights: int = _WEIGHTS
) -> MemoryLimit:
    return memory_limit(option, device, machine_bytes, weights, None, 1.0)


@pytest.mark.parametrize(
    ("device", "machine_bytes", "limit_bytes"),
    [
        (_cuda(free_bytes=24 * _GB), 128 * _GB, 24 * _GB * 0.95),
        (_cuda(free_bytes=24 * _GB), 16 * _GB, 24 * _GB * 0.95),
        (_cuda(free_bytes=8 * _GB), 16 * _GB, 8 * _GB * 0.95),
        (_METAL, 16 * _GB, 12 * _GB * 0.95),
        (_X86, 32 * _GB, 16 * _GB),
    ],
    ids=["CUDA's own", "whatever the machine has", "others hold some", "Metal's recommendation", "half"],
)
def test_the_default_limit_is_the_device_s(
    device: dict[str, Any], machine_bytes: int, limit_bytes: float
) -> None:
    """On a CPU half of the machine's memory: the rest is other processes', the parent among them."""
    assert _limit(device, machine_bytes).limit_bytes == int(limit_bytes)


@pytest.mark.parametrize(("option", "limit"), [(0.5, 6 * _GB), (1.0, 12 * _GB), (7e9, 7 * _GB)])
def test_the_option_is_a_share_of_the_device_or_bytes(option: float, limit: int) -> None:
    assert _limit(_METAL, option=option).limit_bytes == limit


def test_engines_that_share_a_device_have_equal_parts() -> None:
    """They divide the default and the operator's limit; a part that is too small says how many there are."""
    for option, whole in ((0.0, int(12 * _GB * 0.95)), (0.5, 6 * _GB), (8e9, 8_000_000_000)):
        assert memory_limit(option, _METAL, 0, _GB, None, 1.0, sharers=4).limit_bytes == whole // 4
    with pytest.raises(MemoryTooSmall, match=r"3\.00 GB of 12\.0 GB for each of 4 engines"):
        memory_limit(1.0, _METAL, 0, 9 * _GB, None, 1.0, sharers=4)


@pytest.mark.parametrize("option", [0.0, 1.0, 4e9])
def test_a_control_group_without_room_for_a_request_is_refused_with_the_numbers(option: float) -> None:
    """Whatever the option asks for: the process itself takes memory, too."""
    with pytest.raises(MemoryTooSmall, match=r"the process 121 MB.*of 240 MB.*--memory-limit"):
        _limit(_X86, machine_bytes=240_000_000, option=option, weights=60_000_000)
    _limit(_X86, machine_bytes=600_000_000, option=option, weights=60_000_000)


@given(st.floats(0.3, 1.0), st.integers(1, 3 * _GB), st.integers(0, _GB))
def test_weights_kv_pool_and_peak_are_within_the_limit(option: float, weights: int, peak: int) -> None:
    limit = _limit(_METAL, option=option, weights=weights)
    kv = limit.kv_budget_bytes(peak)
    least_kv = 64 << 20
    assert kv == least_kv or weights + limit.pool_bytes + PROCESS_BYTES + peak + kv == limit.limit_bytes
    assert kv >= least_kv
    assert limit.pool_bytes > 0


@settings(deadline=None)
@given(weights=st.integers(0, 200 * _GB))
def test_the_least_limit_leaves_what_is_needed_and_hardly_more(weights: int) -> None:
    """Whatever the pool takes of it, which grows with the limit."""
    least = MemoryLimit(0, weights).least_bytes

    def left(limit_bytes: int) -> int:
        limit = MemoryLimit(limit_bytes, weights, _pool_bytes(limit_bytes, weights))
        return limit_bytes - weights - limit.pool_bytes - PROCESS_BYTES - limit.first_peak_bytes

    assert left(least) >= (64 << 20) - 2
    assert left(least - 1 - (least - weights) // 100) < 64 << 20


def test_a_part_of_one_budget_is_not_divided_again() -> None:
    """`sharers` divides what the operator has set, and what the system has left; not what was divided."""
    part = MemoryPart(4 * _GB, 9 * _GB)
    given_part = memory_limit(0.5, _METAL, 0, _GB, None, 1.0, sharers=3, part=part)
    assert (given_part.limit_bytes, given_part.whole_bytes, given_part.sharers) == (4 * _GB, 9 * _GB, 3)
    with pytest.raises(MemoryTooSmall, match=r"4\.00 GB of 12\.0 GB, the part of this engine beside others"):
        memory_limit(0, _METAL, 0, 9 * _GB, None, 1.0, sharers=3, part=part)


@pytest.mark.parametrize("sharers", [1, 2])
@pytest.mark.parametrize("on_cpu", [False, True])
def test_the_first_engine_leaves_room_for_the_models_that_fit_beside_it(sharers: int, on_cpu: bool) -> None:
    """By what they need on its device; the others are no concern of its."""
    device = _X86 if on_cpu else _METAL
    whole = memory_limit(0, device, 32 * _GB, _GB, None, 1.0).limit_bytes // sharers * sharers
    need = sharers * MemoryLimit(0, _GB).least_bytes
    part = MemoryPart(beside=((4 * _GB, 2 * _GB), (2 * whole, 2 * whole)))
    found = memory_limit(0, device, 32 * _GB, _GB, None, 1.0, sharers, part)
    other = (4 if on_cpu else 2) * _GB
    assert found.limit_bytes == whole * need // (need + other) // sharers
    assert (found.whole_bytes, found.sharers) == (whole, sharers + 1)


def test_an_operator_s_kv_budget_stays_within_a_part() -> None:
    """Beside other models it is a bound, and the engine's part another."""
    for kv_bytes in (_GB, 100 * _GB):
        limit = memory_limit(0, _METAL, 0, _GB, kv_bytes, 1.0, part=MemoryPart(4 * _GB, 9 * _GB))
        assert limit.whole_kv_bytes(0) == min(kv_bytes, 3 * _GB - limit.pool_bytes - PROCESS_BYTES)


def test_the_operator_s_kv_budget_stands_whatever_a_chunk_takes() -> None:
    limit = memory_limit(0, _METAL, 0, _WEIGHTS, kv_bytes=_GB, share=0.8)
    assert limit.whole_kv_bytes(5 * _GB) == _GB
    assert limit.kv_budget_bytes(5 * _GB) == int(0.8 * _GB)
