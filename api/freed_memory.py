"""Return freed memory to the system.

glibc keeps it, in an arena for each thread that allocated some: 700 MB after tokenizing 10 MB of text. Other
allocators (macOS has one) are left alone.
"""

from __future__ import annotations

import ctypes

_M_MMAP_THRESHOLD = -3
"""From `malloc.h`."""
_LARGE_BLOCK_BYTES = 1 << 20

_libc = ctypes.CDLL(None)


def return_large_blocks() -> None:
    """Map each large block separately from now on, so that a body of megabytes returns to the system when it
    is freed. Otherwise glibc raises its threshold, up to 32 MB, to the size of the first one freed, and keeps
    later ones in its heap."""
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)


def return_small_blocks() -> None:
    """Return the small blocks that are free by now. Takes some 50 ms for hundreds of megabytes."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)
