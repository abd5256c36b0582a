"""The sockets that a server listens on: its own, or those that a service manager keeps open over restarts."""

from __future__ import annotations

import errno
import socket
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

import trio

from api.http.service_manager import inherited_listeners
from scheduler.errors import StartupError


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
