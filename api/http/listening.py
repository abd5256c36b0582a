"""The sockets that a server listens on: its own, or those that a service manager keeps open over restarts."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

import trio

from api.http.service_manager import inherited_listeners
from scheduler.errors import StartupError


@dataclass(frozen=True, slots=True)
class Listening:
    """`metrics` is empty if metrics have no port of their own. `inherited`: whether a service manager keeps
    `clients` open."""

    clients: Sequence[trio.SocketListener]
    metrics: Sequence[trio.SocketListener]
    inherited: bool

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine's clients can connect."""
        return all(ip_address(one.socket.getsockname()[0]).is_loopback for one in self.clients)

    @property
    def url(self) -> str:
        return _url(self.clients)

    @property
    def metrics_url(self) -> str:
        return _url(self.metrics or self.clients)


async def listening(
    host: str, port: int, metrics_port: int | None, environment: MutableMapping[str, str]
) -> Listening:
    """Take the service manager's sockets out of `environment`, and open those that it has not. Raise
    StartupError if one cannot be opened."""
    inherited = inherited_listeners(environment, port, metrics_port)
    clients = inherited.clients or await _opened(host, port)
    metrics: Sequence[trio.SocketListener] = inherited.metrics
    if metrics_port is not None and not metrics:
        metrics = await _opened(host, metrics_port)
    return Listening(clients, metrics, bool(inherited.clients))


async def _opened(host: str, port: int) -> Sequence[trio.SocketListener]:
    try:
        # The longest listen backlog that the kernel allows (Linux: net.core.somaxconn, 4096; macOS: 128). A
        # client that does not fit is not reset either: it repeats its SYN after a second.
        return await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        raise StartupError(f"cannot listen on {host}:{port}: {error}") from error


def _url(listeners: Sequence[trio.SocketListener]) -> str:
    host, port = listeners[0].socket.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
