"""Listening sockets that a service manager opened before it started this process: systemd's sd_listen_fds(3).

They stay open while one process replaces another, so connections wait in their backlog, and none is refused.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from dataclasses import dataclass

import trio

from scheduler.errors import StartupError

_FIRST = 3
_PID, _COUNT, _NAMES = "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"


@dataclass(frozen=True, slots=True)
class InheritedListeners:
    """Each empty if none was opened for it."""

    clients: tuple[trio.SocketListener, ...] = ()
    metrics: tuple[trio.SocketListener, ...] = ()


def inherited_listeners(
    environment: MutableMapping[str, str], port: int, metrics_port: int | None, first: int = _FIRST
) -> InheritedListeners:
    """Take the sockets, and the variables out of `environment`: no process started from here inherits either.
    Port 0 takes any. Raise StartupError for what is no TCP socket that listens on one of these ports."""
    clients: list[trio.SocketListener] = []
    metrics: list[trio.SocketListener] = []
    for taken in _sockets(environment, first):
        found = int(taken.getsockname()[1])
        if found != metrics_port and port not in (0, found):
            taken.close()
            raise StartupError(f"the service manager's socket listens on port {found}, not on {port}")
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(taken))
        (metrics if found == metrics_port else clients).append(listener)
    return InheritedListeners(tuple(clients), tuple(metrics))


def _sockets(environment: MutableMapping[str, str], first: int) -> Iterator[socket.socket]:
    pid, count = environment.pop(_PID, ""), environment.pop(_COUNT, "")
    environment.pop(_NAMES, None)
    # A shell between the manager and this process would inherit them with another's id.
    if pid != str(os.getpid()) or not count.isdigit():
        return
    for descriptor in range(first, first + int(count)):
        try:
            os.set_inheritable(descriptor, False)
            taken = socket.socket(fileno=descriptor)
        except OSError as error:
            raise StartupError(
                f"LISTEN_FDS: descriptor {descriptor} is no socket: {error.strerror}"
            ) from error
        if not _listens(taken):
            taken.close()
            raise StartupError(f"LISTEN_FDS: descriptor {descriptor} is no listening TCP socket")
        yield taken


def _listens(taken: socket.socket) -> bool:
    if taken.family not in (socket.AF_INET, socket.AF_INET6) or taken.type is not socket.SOCK_STREAM:
        return False
    # macOS has the constant and refuses the question (ENOPROTOOPT): there, accept will tell.
    with suppress(OSError):
        return bool(taken.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    return True
