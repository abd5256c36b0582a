"""Listening sockets that the process was started with: `--listen-fds`.

They stay open while one server replaces another, so connections wait in their backlog, and none is refused. A
file of its own because nothing else here takes descriptors that another program opened.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

import trio

from scheduler.errors import StartupError


def inherited_listeners(descriptors: Sequence[int], port: int, option: str) -> list[trio.SocketListener]:
    """Take the sockets; no process started from here inherits them. Raise StartupError, naming `option`, if
    one of them is not a TCP socket that listens on `port` (0: on any)."""
    return [trio.SocketListener(_taken(one, port, option)) for one in descriptors]


def _taken(descriptor: int, port: int, option: str) -> trio.socket.SocketType:
    try:
        os.set_inheritable(descriptor, False)
        taken = socket.socket(fileno=descriptor)
    except OSError as error:
        raise StartupError(f"{option}: descriptor {descriptor} is no socket: {error.strerror}") from error
    is_tcp = taken.family in (socket.AF_INET, socket.AF_INET6) and taken.type is socket.SOCK_STREAM
    if not is_tcp or not taken.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        taken.detach()
        raise StartupError(f"{option}: descriptor {descriptor} is no listening TCP socket")
    if port not in (0, found := taken.getsockname()[1]):
        taken.detach()
        raise StartupError(f"{option}: descriptor {descriptor} listens on port {found}, not on {port}")
    return trio.socket.from_stdlib_socket(taken)
