"""The bytes for keys and values where nobody says how many, from what MLX says of a device."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.engine.memory_budget import default_budget_bytes, recommended_bytes

_GB = 10**9
_WEIGHTS = 5 * _GB


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


@pytest.mark.parametrize("machine", [16 * _GB, 128 * _GB])
def test_a_cuda_device_s_own_memory_counts(machine: int) -> None:
    """Not its host's: of 24 GB 0.85, less the weights."""
    device = _cuda(free_bytes=19 * _GB)
    assert recommended_bytes(device) == 24 * _GB
    assert default_budget_bytes(device, _WEIGHTS, machine) == int(24 * _GB * 0.85) - _WEIGHTS


def test_what_other_processes_hold_of_a_cuda_device_is_not_ours() -> None:
    """The weights are there already: 0.85 of what is free now."""
    assert default_budget_bytes(_cuda(free_bytes=4 * _GB), _WEIGHTS, 64 * _GB) == int(4 * _GB * 0.85)


def test_metal_s_recommendation_counts() -> None:
    """Which is less than the machine's memory."""
    device = {"max_recommended_working_set_size": 12 * _GB, "memory_size": 16 * _GB, "resource_limit": 499000}
    assert default_budget_bytes(device, _WEIGHTS, 16 * _GB) == int(12 * _GB * 0.85) - _WEIGHTS


def test_on_a_cpu_a_part_of_the_machine_s_memory_counts() -> None:
    """The rest is other processes', the parent among them."""
    device = {"architecture": "x86_64", "device_name": "AMD EPYC"}
    assert recommended_bytes(device) == 0
    assert default_budget_bytes(device, _WEIGHTS, 32 * _GB) == int(32 * _GB * 0.4) - _WEIGHTS


def test_some_megabytes_are_left_where_the_weights_take_all() -> None:
    """A request has to fit at all."""
    assert default_budget_bytes(_cuda(free_bytes=0), 40 * _GB, 64 * _GB) == 64 << 20
