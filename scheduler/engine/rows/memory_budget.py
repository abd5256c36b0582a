"""How many bytes of keys and values there may be, where the operator does not say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_OF_DEVICE = 0.85
"""Of what Metal recommends, which leaves the system its part; the rest is for activations."""
_OF_MACHINE = 0.4
"""Of the memory of a machine that runs everything else too, the parent process among it."""
_LEAST_BYTES = 64 << 20


def default_budget_bytes(device: Mapping[str, Any], weights_bytes: int, memory_bytes: int) -> int:
    """`device` is MLX's device_info(). On Metal and CUDA what it recommends counts (not run by us); on a
    CPU the machine's memory does."""
    recommended = recommended_bytes(device)
    room = int(recommended * _OF_DEVICE) if recommended else int(memory_bytes * _OF_MACHINE)
    return max(_LEAST_BYTES, room - weights_bytes)


def recommended_bytes(device: Mapping[str, Any]) -> int:
    """What the device says that a process should not exceed; 0 where it says nothing."""
    return int(device.get("max_recommended_working_set_size") or device.get("memory_size") or 0)


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
