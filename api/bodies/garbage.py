"""When Python's cycle collector runs, and when freed memory returns to the system.

A full collection visits all that waits, and stops the event loop: 0.3 s with a thousand waiting
conversations. So one comes while no request waits or runs, and never by itself; what only a full one finds is
garbage in cycles that outlived two of the partial ones, which visit what was made lately.

The collector is off during large work, and a moment after it freed memory returns. A collection visits every
object made since the last one and stops all threads: 95 ms for 62,000 validated messages, which have no
cycles and are freed 0.1 s later, when the request is decoded.

glibc keeps freed memory, in an arena for each thread that allocated some: 700 MB after tokenizing 10 MB of
text. macOS keeps it in its zones until the machine is short of memory. Other allocators are left alone.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from threading import Lock, Thread

import trio

LOOK_SECONDS = 10.0
LATEST_SECONDS = 1800.0
"""A server that is never idle collects this long after its last full collection, so that garbage has a
bound."""
OUT_OF_REACH = 1_000_000_000
"""The number of partial collections between two full ones."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of `mallopt` in `malloc.h`."""
_LARGE_BLOCK_BYTES = 1 << 20
_KEPT_BYTES = 2 << 20
"""Bound on each thread's freed memory that is kept: what a turn of 100,000 tokens uses again and again.
glibc's own bound, which would follow the other one if that were not set, is 128 KB."""
_TOGETHER_SECONDS = 0.25
"""Work that ends within this time shares one return."""
MOST_SECONDS = 5.0
"""Bound on a pause of the collector while large work never ceases: objects with cycles (errors with their
frames) are kept that long."""

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


class LargeWork:
    """Thread-safe. Memory is returned once for all work that ends within a quarter of a second: each return
    holds up every thread that allocates, and memory used again must be mapped again."""

    def __init__(
        self,
        give_back: Callable[[], None] = return_small_blocks,
        wait: Callable[[], object] = lambda: time.sleep(_TOGETHER_SECONDS),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._give_back, self._wait, self._clock = give_back, wait, clock
        self._lock = Lock()
        self._working = 0
        self._since: float | None = None
        """When the collector was turned off."""
        self._comes = False

    def begin(self) -> None:
        with self._lock:
            self._working += 1
            self._since = self._clock() if self._since is None else self._since
            gc.disable()

    def end(self) -> None:
        """The collector stays off for a moment, in which the next stage has time to begin."""
        with self._lock:
            self._working -= 1
            if self._since is not None and self._clock() - self._since > MOST_SECONDS:
                # What was made since is in the youngest generation, and would be visited in one piece.
                gc.freeze()
                self._resume()
        self.return_soon()

    def return_soon(self) -> None:
        """Return what is free, when more of such work has had time to end."""
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
            if not self._working:
                self._resume()
        self._give_back()

    def _resume(self) -> None:
        self._since = None
        gc.enable()


LARGE_WORK = LargeWork()
"""All of this process."""


async def collect_when_idle(is_busy: Callable[[], bool]) -> None:
    """Never returns by itself. Without requests since the last one there is no garbage to speak of."""
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, OUT_OF_REACH)
    collected_at, worked = trio.current_time(), False
    while True:
        await trio.sleep(LOOK_SECONDS)
        now, busy = trio.current_time(), is_busy()
        worked = worked or busy
        if worked and not (busy and now - collected_at < LATEST_SECONDS):
            gc.unfreeze()  # What a long pause has frozen.
            gc.collect()
            collected_at, worked = now, busy
