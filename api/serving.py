"""`penstock serve` from options to exit: connects the scheduler, the application and the server."""

from __future__ import annotations

import gc
import signal
from importlib.metadata import version
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
from api.responses.store import ResponseStore
from api.server.limits import Limits, fit_descriptors, raise_descriptor_limit, wanted_descriptors
from api.server.server import Server
from api.settings import ServeSettings
from scheduler.errors import StartupError
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
    click.echo(f"penstock {version('penstock')}")
    keys = settings.keys()
    limits = _limits(settings)
    # Early, so that a port in use is not discovered after a download.
    listeners = await _listen(settings.host, settings.port)
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
            cluster=None if assembled.cluster is None else assembled.cluster.report,
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
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fleet.run)
        nursery.start_soon(server.run, listeners)
        if assembled.cluster is not None:
            nursery.start_soon(assembled.cluster.run)
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
            nursery.start_soon(watched.run, metrics_listeners)
        nursery.start_soon(announce, models, _url(listeners), _url(metrics_listeners or listeners))
        await _signalled_drain(fleet, server, settings.drain_seconds)
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


async def _listen_for_metrics(settings: ServeSettings) -> list[trio.SocketListener]:
    """Empty if metrics are on the API's port."""
    return [] if settings.metrics_port is None else await _listen(settings.host, settings.metrics_port)


def _is_loopback(listeners: list[trio.SocketListener]) -> bool:
    return all(ip_address(listener.socket.getsockname()[0]).is_loopback for listener in listeners)


def _url(listeners: list[trio.SocketListener]) -> str:
    host, port = listeners[0].socket.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


async def _signalled_drain(fleet: Fleet, server: Server, drain_seconds: float) -> None:
    """Return when every request has ended, or on a second signal.

    During the drain the server still answers: new requests get 503 and `/ready` reports it, which a load
    balancer handles better than a refused connection.
    """
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        await anext(signals)
        fleet.start_drain()
        each = [model.scheduler.operations.statistics() for model in fleet]
        _log.info(
            "draining",
            queued=sum(one.queued for one in each),
            in_engine=sum(one.in_engine for one in each),
            seconds=drain_seconds,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_drain, fleet, server, drain_seconds, nursery.cancel_scope)
            await anext(signals)
            _log.warning("stopping_at_once")
            nursery.cancel_scope.cancel()


async def _drain(fleet: Fleet, server: Server, drain_seconds: float, done: trio.CancelScope) -> None:
    with trio.move_on_after(drain_seconds):
        await fleet.wait_idle()
    fleet.end_all()
    await server.drain(_LAST_WORDS_SECONDS)
    done.cancel()


def _log_handler_error(error: BaseException, request: str) -> None:
    _log.error("handler_failed", request=request, exc_info=error)
