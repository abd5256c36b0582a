"""`penstock serve` from options to exit: connects the scheduler, the application and the server."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING, TypeVar

import click
import structlog
import trio

from api import freed_memory
from api.allowed_hosts import ANY_HOST, AllowedHosts
from api.announcement import announce
from api.app import make_app
from api.assembly import assemble
from api.cache import LONG_BODIES
from api.exposition import make_metrics_app
from api.http_metrics import ServerMetrics
from api.identity import Identity
from api.inherited_sockets import inherited_listeners
from api.responses.store import ResponseStore
from api.server.limits import Limits, fit_descriptors, raise_descriptor_limit, wanted_descriptors
from api.server.server import Server
from api.service_notice import ServiceNotice
from api.settings import ServeSettings
from api.version import own_version
from scheduler.errors import OptionError, StartupError
from scheduler.fleet.fleet import Fleet
from scheduler.telemetry import logging

if TYPE_CHECKING:
    pass

_log = structlog.get_logger("serving")
_T = TypeVar("_T")

_SERVER_NAME = "penstock"
"""The `server` header of every response."""
_LAST_WORDS_SECONDS = 2.0
"""After the drain, how long the server may take to hand the last frames to clients that read."""
_PROBES = ("/health", "/ready", "/metrics")
"""Answered also when agents hold all connections."""
_METRICS_LIMITS = Limits(connections=16, refusals=4)
"""Within the server's reserve of descriptors."""


def serve(settings: ServeSettings) -> None:
    """Serve until SIGTERM or Ctrl-C, then drain. Raise StartupError if it cannot start."""
    logging.configure(settings.log_format, settings.log_level)
    try:
        trio.run(_serve, settings)
    except BaseExceptionGroup as group:
        # Whichever nursery wrapped it, show the operator the one error.
        if (startup := _first(group, StartupError)) is not None:
            raise startup from group
        raise


def _first(group: BaseExceptionGroup[BaseException], kind: type[StartupError]) -> StartupError | None:
    matching = group.subgroup(kind)
    while isinstance(matching, BaseExceptionGroup):
        inner = matching.exceptions[0]
        if isinstance(inner, kind):
            return inner
        assert isinstance(inner, BaseExceptionGroup)
        matching = inner
    return None


async def _serve(settings: ServeSettings) -> None:
    freed_memory.return_large_blocks()
    notice = ServiceNotice.of(os.environ)
    click.echo(f"penstock {own_version()}")
    keys = settings.keys()
    limits = _limits(settings)
    # Early, so that a port in use is not discovered after a download.
    listeners = await _listen_for_clients(settings)
    metrics_listeners = await _listen_for_metrics(settings)
    is_loopback = _is_loopback(listeners)
    if not (is_loopback or keys.keys):
        _log.warning(
            "no_api_keys", host=settings.host, hint="everyone who can reach it can use it: set --api-key"
        )
    hosts = AllowedHosts.of(settings.host_names(), listen_host=settings.host, is_loopback=is_loopback)
    assembled = assemble(settings, keys)
    models, fleet = assembled.models, assembled.models.fleet
    # Reads a server that is created after its application.
    server_metrics = ServerMetrics(assembled.metrics, lambda: server.statistics())
    server = Server(
        make_app(
            models,
            keep_alive_seconds=settings.sse_keepalive_seconds,
            stall_seconds=settings.stall_seconds,
            keys=keys,
            cors_origins=settings.origins(),
            hosts=hosts,
            responses=ResponseStore(settings.max_stored_responses, settings.max_stored_bytes),
            identity=Identity(settings.tenant_header),
            metrics=not metrics_listeners,
            server=server_metrics,
            media=settings.media,
            refuse_unknown_fields=settings.unknown_fields == "refuse",
            front_name=settings.front_name or "",
            reports=assembled.reports,
        ),
        limits,
        on_error=_log_handler_error,
        server_name=_SERVER_NAME,
        always_answered=_PROBES,
        long_bodies=LONG_BODIES,
    )
    # A generation-2 collection of the heap that the imports leave would stall every stream.
    gc.collect()
    gc.freeze()
    servers = [(server, listeners)]
    if metrics_listeners:
        # Without a drain of its own: it answers until the last request has ended. It checks no host
        # names: scrapers use other names than clients, and its metrics have no text of prompts.
        app = make_metrics_app(
            models,
            settings.stall_seconds,
            hosts if is_loopback else ANY_HOST,
            server_metrics,
            has_keys=bool(keys.keys),
        )
        watched = Server(app, _METRICS_LIMITS, on_error=_log_handler_error, server_name=_SERVER_NAME)
        servers.append((watched, metrics_listeners))
    async with trio.open_nursery() as nursery:

        def accept() -> None:
            for one, its_listeners in servers:
                nursery.start_soon(one.run, its_listeners)

        async def start() -> None:
            # Of a socket that another process may still accept from, take only what can be answered.
            if not settings.listen_fds:
                accept()
            url = _url(listeners)
            await announce(models, url, _url(metrics_listeners or listeners))
            if settings.listen_fds:
                accept()
            notice.send(READY="1", STATUS=f"serving on {url}", X_PENSTOCK_VERSION=str(own_version()))

        nursery.start_soon(fleet.run)
        if assembled.cluster is not None:
            nursery.start_soon(assembled.cluster.run)
        nursery.start_soon(start)
        nursery.start_soon(_follow_manager, notice)
        await _signalled_end(fleet, [one for one, _ in servers], settings.drain_seconds)
        notice.send(STOPPING="1")
        nursery.cancel_scope.cancel()
    for tracer in assembled.tracers:
        with trio.move_on_after(_LAST_WORDS_SECONDS):
            await trio.to_thread.run_sync(tracer.close, abandon_on_cancel=True)
    click.echo("stopped")


def _limits(settings: ServeSettings) -> Limits:
    """Return the server's limits, with no more connections than there are file descriptors for."""
    wanted = Limits(
        connections=settings.max_connections,
        body_bytes=settings.max_body_bytes,
        write_seconds=settings.write_seconds,
    )
    descriptors = raise_descriptor_limit(wanted_descriptors(wanted))
    limits = fit_descriptors(wanted, descriptors)
    if limits.connections < wanted.connections:
        _log.warning(
            "max_connections_lowered",
            connections=limits.connections,
            asked=wanted.connections,
            descriptors=descriptors,
            hint="raise the hard limit of open files (ulimit -Hn)",
        )
    return limits


async def _listen(host: str, port: int) -> list[trio.SocketListener]:
    try:
        # The longest listen backlog that the kernel allows (Linux: net.core.somaxconn, 4096; macOS: 128). A
        # client that does not fit is not reset either: it repeats its SYN after a second.
        return await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        raise StartupError(f"cannot listen on {host}:{port}: {error}") from error


async def _listen_for_clients(settings: ServeSettings) -> list[trio.SocketListener]:
    if inherited := settings.inherited_sockets():
        return inherited_listeners(inherited, settings.port, "--listen-fds")
    return await _listen(settings.host, settings.port)


async def _listen_for_metrics(settings: ServeSettings) -> list[trio.SocketListener]:
    """Empty if metrics are on the API's port."""
    if inherited := settings.inherited_metrics_sockets():
        if settings.metrics_port is None:
            raise OptionError("--metrics-listen-fds needs --metrics-port")
        return inherited_listeners(inherited, settings.metrics_port, "--metrics-listen-fds")
    return [] if settings.metrics_port is None else await _listen(settings.host, settings.metrics_port)


def _is_loopback(listeners: list[trio.SocketListener]) -> bool:
    return all(ip_address(listener.socket.getsockname()[0]).is_loopback for listener in listeners)


def _url(listeners: list[trio.SocketListener]) -> str:
    host, port = listeners[0].socket.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


async def _signalled_end(fleet: Fleet, servers: Sequence[Server], drain_seconds: float) -> None:
    """Return when every request has ended after a signal, or on a second SIGTERM or Ctrl-C. The clients'
    server is the first.

    During the drain the server still answers: new requests get 503 and `/ready` reports it, which a load
    balancer handles better than a refused connection. SIGUSR2 says that another process accepts from the same
    socket: this one refuses nobody, and ends when its connections have.
    """
    drains = retires = False
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGUSR2) as signals:
        async with trio.open_nursery() as nursery:
            async for received in signals:
                if received == signal.SIGUSR2:
                    if not retires:
                        retires = True
                        nursery.start_soon(_retire, fleet, servers, nursery.cancel_scope)
                elif drains:
                    _log.warning("stopping_at_once")
                    nursery.cancel_scope.cancel()
                else:
                    drains = True
                    nursery.start_soon(_drain, fleet, servers[0], drain_seconds, nursery.cancel_scope)


async def _follow_manager(notice: ServiceNotice) -> None:
    """Drain when the supervisor was killed: the next one needs the port and the memory."""
    if await notice.keep_alive():
        _log.warning("service_manager_gone")
        os.kill(os.getpid(), signal.SIGTERM)


def _log_end(event: str, fleet: Fleet, **fields: float) -> None:
    each = [model.scheduler.operations.statistics() for model in fleet]
    queued, in_engine = sum(one.queued for one in each), sum(one.in_engine for one in each)
    _log.info(event, queued=queued, in_engine=in_engine, **fields)


async def _retire(fleet: Fleet, servers: Sequence[Server], done: trio.CancelScope) -> None:
    _log_end("retiring", fleet, connections=servers[0].statistics().open_connections)
    fleet.retiring = True
    for server in servers:
        server.retire()
    await servers[0].wait_ended()
    await fleet.wait_idle()
    done.cancel()


async def _drain(fleet: Fleet, server: Server, drain_seconds: float, done: trio.CancelScope) -> None:
    fleet.start_drain()
    _log_end("draining", fleet, seconds=drain_seconds)
    with trio.move_on_after(drain_seconds):
        await fleet.wait_idle()
    fleet.end_all()
    await server.drain(_LAST_WORDS_SECONDS)
    done.cancel()


def _log_handler_error(error: BaseException, request: str) -> None:
    _log.error("handler_failed", request=request, exc_info=error)
