"""The socket pair between two processes of one machine."""

from __future__ import annotations

import socket
from contextlib import suppress

BUFFER_BYTES = 1 << 20
"""Size of each end's two buffers. macOS gives a pair 8 KiB: a few step frames, after which the engine waits
in every pause of the server's loop. With 8 KiB on Linux, steps of 4 ms and pauses of 50 ms in every 100, the
engine waited 181 ms a second (203 steps/s); with these buffers 2 to 8 (247 steps/s). Beside a thread that
computes, a prompt of 100,000 tokens was read in 51 pieces and 183 ms; with these buffers in 2 pieces and 16
ms. Linux gives 208 KiB unasked, and at most `wmem_max`."""


def link_pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends, each with room for what a pause of its reader accumulates. Raise OSError."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            # macOS refuses what is above `kern.ipc.maxsockbuf` (8 MiB, unless it was changed).
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
    return ours, theirs
