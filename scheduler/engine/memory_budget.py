"""How many bytes of keys and values there may be, where the operator does not say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_OF_DEVICE = 0.85
"""Of what Metal recommends, which leaves the system its part, or of what a CUDA device has; the rest is for
activations."""
_OF_MACHINE = 0.4
"""Of the memory of a machine that runs everything else too, the parent process among it."""
_LEAST_BYTES = 64 << 20


def default_budget_bytes(device: Mapping[str, Any], weights_bytes: int, memory_bytes: int) -> int:
    """`device` is MLX's device_info() with the weights on the device, `memory_bytes` the machine's. Metal's
    recommendation or CUDA's memory bounds the budget (neither was run by us), and so does what is free of
    CUDA's; on a CPU the machine's memory does."""
    recommended = recommended_bytes(device)
    room = int(recommended * _OF_DEVICE) if recommended else int(memory_bytes * _OF_MACHINE)
    budget = room - weights_bytes
    if (free := device.get("free_memory")) is not None:
        budget = min(budget, int(int(free) * _OF_DEVICE))
    return max(_LEAST_BYTES, budget)


def recommended_bytes(device: Mapping[str, Any]) -> int:
    """What a process should not exceed on the device; 0 where MLX does not say. Metal has a recommendation,
    CUDA no more than the device's total (`total_memory`)."""
    for key in ("max_recommended_working_set_size", "memory_size", "total_memory"):
        if size := int(device.get(key) or 0):
            return size
    return 0


def machine_memory_bytes(root: Path = Path("/")) -> int:
    """Physical memory, or the container's limit where that is less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")
    for name in limits:
        try:
            text = (root / name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():  # "max" says that there is none.
            return min(physical, int(text))
    return physical
