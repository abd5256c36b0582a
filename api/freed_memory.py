"""What the process freed goes back to the system.

glibc keeps it, in an arena for each thread that had any: 700 MB where 10 MB of text were tokenized. Other
allocators (macOS has one) are left as they are.
"""

from __future__ import annotations

import ctypes

_M_MMAP_THRESHOLD = -3
"""Of `malloc.h`."""
_LARGE_BLOCK_BYTES = 1 << 20

_libc = ctypes.CDLL(None)


def return_large_blocks() -> None:
    """From now on each is mapped by itself, so that a body of megabytes goes back when it is freed. Without,
    glibc takes the first that is freed for a sign to put the next, up to 32 MB, among the small ones."""
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)


def return_small_blocks() -> None:
    """Those that are free by now. Takes some 50 ms where they are hundreds of megabytes."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)
