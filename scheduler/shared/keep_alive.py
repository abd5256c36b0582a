"""Notice a peer that is gone without a word: its machine frozen, its cable pulled.

The kernel probes a silent connection, and gives up one whose data is not acknowledged. Without this TCP waits
15 minutes for an acknowledgement, and for ever in silence.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable

SILENCE_SECONDS = 9
"""Time from the peer's last sign of life to the connection's end."""
_PROBE_SECONDS = 2
_PROBES = 3
_IDLE_SECONDS = SILENCE_SECONDS - _PROBES * _PROBE_SECONDS

_MACOS_IDLE = 0x10
"""TCP_KEEPALIVE, which is TCP_KEEPIDLE elsewhere."""
_MACOS_UNACKNOWLEDGED = 0x80
"""TCP_RXT_CONNDROPTIME in <netinet/tcp.h>, in seconds."""


def keep_alive(setsockopt: Callable[[int, int, int], None]) -> None:
    """Make the system end a TCP connection after SILENCE_SECONDS without a sign of the peer, and send small
    frames at once. `setsockopt`: the socket's. Raise OSError."""
    setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
    setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    if sys.platform == "darwin":
        setsockopt(socket.IPPROTO_TCP, _MACOS_IDLE, _IDLE_SECONDS)
        setsockopt(socket.IPPROTO_TCP, _MACOS_UNACKNOWLEDGED, SILENCE_SECONDS)
    else:
        setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_SECONDS)
        setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_SECONDS * 1000)
