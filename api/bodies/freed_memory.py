"""Return freed memory to the system.

glibc keeps it, in an arena for each thread that allocated some: 700 MB after tokenizing 10 MB of text. macOS
keeps it in its zones until the machine is short of memory. Other allocators are left alone.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from threading import Lock, Thread

from api.bodies.collector_pause import COLLECTOR

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of `mallopt` in `malloc.h`."""
_LARGE_BLOCK_BYTES = 1 << 20
_KEPT_BYTES = 2 << 20
"""Bound on each thread's freed memory that is kept: what a turn of 100,000 tokens uses again and again.
glibc's own bound, which would follow the other one if that were not set, is 128 KB."""
_TOGETHER_SECONDS = 0.25
"""Work that ends within this time shares one return."""

_libc = ctypes.CDLL(None)


def return_large_blocks() -> None:
    """Map each large block separately from now on, so that a body of megabytes returns to the system when it
    is freed. Otherwise glibc raises its threshold, up to 32 MB, to the size of the first one freed, and keeps
    later ones in its heap."""
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)
        _libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def return_small_blocks() -> None:
    """Return the small blocks that are free by now. Takes some 50 ms for hundreds of megabytes (glibc)."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)
    elif hasattr(_libc, "malloc_zone_pressure_relief"):
        # None means all zones, 0 means as much as possible.
        _libc.malloc_zone_pressure_relief(None, ctypes.c_size_t(0))


def _after_large_work() -> None:
    COLLECTOR.resume()
    return_small_blocks()


class SmallBlocks:
    """Returns small blocks once for all work that ends within a quarter of a second. Each return holds up
    every thread that allocates, and memory used again must be mapped again: a tenth of a long turn's cost."""

    def __init__(
        self,
        give_back: Callable[[], None] = _after_large_work,
        wait: Callable[[], object] = lambda: time.sleep(_TOGETHER_SECONDS),
    ) -> None:
        self._give_back = give_back
        self._wait = wait
        self._lock = Lock()
        self._comes = False

    def return_soon(self) -> None:
        """Call it in any thread, when work has ended."""
        with self._lock:
            if self._comes:
                return
            self._comes = True
        Thread(target=self._return, name="freed memory", daemon=True).start()

    def _return(self) -> None:
        self._wait()
        # This return may miss work that ends from here on, which must start another.
        with self._lock:
            self._comes = False
        self._give_back()


return_soon = SmallBlocks().return_soon
"""Returns the freed memory of this process, and ends the pause of its cycle collector."""
