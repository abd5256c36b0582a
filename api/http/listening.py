"""The sockets that a server listens on: its own, or those that a service manager keeps open over restarts.

The manager opens the sockets before it starts the process: systemd's sd_listen_fds(3). They stay open while
one process replaces another, so connections wait in their backlog, and none is refused. The process notifies
it by systemd's sd_notify, one datagram a message.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address

import trio

from scheduler.errors import StartupError

_FIRST = 3
_PID, _COUNT, _NAMES = "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"


@dataclass(frozen=True, slots=True)
class Listening:
    clients: Sequence[trio.SocketListener]
    inherited: bool
    """Whether a service manager keeps them open."""

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine's clients can connect."""
        return all(ip_address(one.socket.getsockname()[0]).is_loopback for one in self.clients)

    @property
    def url(self) -> str:
        host, port = self.clients[0].socket.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"


async def listening(host: str, port: int, environment: MutableMapping[str, str]) -> Listening:
    """Take the service manager's sockets out of `environment`, or open our own. Raise StartupError if one
    cannot be opened."""
    if inherited := inherited_listeners(environment, port):
        return Listening(inherited, inherited=True)
    try:
        # The longest listen backlog that the kernel allows (Linux: net.core.somaxconn, 4096; macOS: 128). A
        # client that does not fit is not reset either: it repeats its SYN after a second.
        return Listening(await trio.open_tcp_listeners(port, host=host), inherited=False)
    except OSError as error:
        raise StartupError(f"cannot listen on {host}:{port}: {_remedy(error, port)}") from error


def _remedy(error: OSError, port: int) -> str:
    """Return the system's words, and what to type next."""
    # Errors of name resolution have numbers of their own.
    if error.errno == errno.EADDRINUSE and not isinstance(error, socket.gaierror):
        return (
            f"the port is in use. --port {port % 65535 + 1} is the next one, --port 0 takes a free one;"
            f" `penstock doctor --port {port}` says who has it"
        )
    return f"{error.strerror or error}. --host takes an address of this machine, --port one that is free"


def inherited_listeners(
    environment: MutableMapping[str, str], port: int, first: int = _FIRST
) -> list[trio.SocketListener]:
    """Return the sockets, none if the manager opened none, and remove their variables from `environment`: no
    child process inherits either. `port` 0 accepts a socket on any port. Raise StartupError for one that is
    no TCP socket listening on this port."""
    listeners: list[trio.SocketListener] = []
    for taken in _sockets(environment, first):
        found = int(taken.getsockname()[1])
        if port not in (0, found):
            taken.close()
            raise StartupError(f"the service manager's socket listens on port {found}, not on {port}")
        listeners.append(trio.SocketListener(trio.socket.from_stdlib_socket(taken)))
    return listeners


def _sockets(environment: MutableMapping[str, str], first: int) -> Iterator[socket.socket]:
    pid, count = environment.pop(_PID, ""), environment.pop(_COUNT, "")
    environment.pop(_NAMES, None)
    # The variables are for another process if a shell between the manager and this one has passed them on.
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


class ServiceNotice:
    """Notifies a service manager; without one it sends nothing. Sending neither waits nor raises."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        """Take the manager's address out of `environment`: processes started from here have nothing to
        report. One that begins with @ is abstract."""
        address = environment.pop("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address

    def send(self, **fields: str) -> None:
        """Send `READY="1"` and the like, each value on one line."""
        if self._address:
            lines = (f"{name}={' '.join(value.split())}" for name, value in fields.items())
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(lines).encode(), self._address)
