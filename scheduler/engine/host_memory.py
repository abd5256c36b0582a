"""This process's own peak of resident memory, and how to give freed memory back: Linux and glibc.

On a CPU, NumPy and BLAS compute beside MLX, and its allocator does not count what they take. A file of its
own because `system_memory.py` reads what the whole machine has.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_M_MMAP_THRESHOLD = -3
"""From `malloc.h`."""
_LARGE_BLOCK_BYTES = 1 << 20
_RESET_PEAK = "5"
"""See proc(5): the resident set's high water mark becomes its present size."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """In bytes; 0 where the system does not say."""

    resident: int = 0
    peak: int = 0
    """Since the process started, or since `restart_host_peak`."""


def host_memory() -> HostMemory:
    found = {"VmRSS": 0, "VmHWM": 0}
    with suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            name, _, value = line.partition(":")
            if name in found:
                found[name] = int(value.split()[0]) * 1024
    return HostMemory(found["VmRSS"], found["VmHWM"])


def restart_host_peak() -> int | None:
    """Measure the peak from here; returns what is resident. None where that is not possible."""
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:
        return None
    return host_memory().resident


def return_free_blocks() -> None:
    """Return the C heap's free memory to the system, and map each large block separately from now on, so that
    it returns when it is freed; with other allocators, nothing.

    Otherwise glibc keeps freed blocks of up to 32 MB: beside 120 MB of arrays an engine held 460 MB. Only
    called when memory is short, for each new mapping costs page faults.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)
        libc.malloc_trim(0)
