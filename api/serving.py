"""`penstock serve` from options to exit: connects the scheduler, the application and the server."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import click
import structlog
import trio

from api.access.allowed_hosts import AllowedHosts
from api.access.api_keys import ApiKeys
from api.access.auth import account_of
from api.access.identity import Identity
from api.announcement import announce, end_stages
from api.app import make_app
from api.assembly import Assembled, assemble
from api.bodies.garbage import LARGE_WORK, collect_when_idle, return_large_blocks
from api.dialects.responses.running import RunningResponses
from api.dialects.responses.store import ResponseStore
from api.http.exchange import Service
from api.http.limits import Limits, fit_descriptors, raise_descriptor_limit, wanted_descriptors
from api.http.listening import Listening, ServiceNotice, listening
from api.http.server import Server
from api.options.option_values import between_commas, host_names
from api.options.settings import ServeSettings
from api.rotating_log import RotatingLog
from api.sleep_prevention import stay_awake
from api.version import own_version
from scheduler.errors import StartupError
from scheduler.fleet.fleet import Fleet
from scheduler.telemetry import logging

_log = structlog.get_logger("serving")

_SERVER_NAME = "penstock"
"""The `server` header of every response."""
_LAST_WORDS_SECONDS = 2.0
"""How long the server may take after the drain to hand the last frames to clients that read."""
_QUIET_SECONDS = 1.0
"""How long a kept connection is idle before it is closed: a client whose stream has just ended may send its
next request at once, whose answer announces the close."""
_PROBES = ("/health", "/ready", "/metrics")
"""Answered also when agents hold all connections."""


def serve(settings: ServeSettings, log: RotatingLog | None = None) -> None:
    """Serve until SIGTERM or Ctrl-C, then drain. `log`: where the log goes instead of standard error. Raise
    StartupError if it cannot start."""
    logging.configure(settings.log_format, settings.log_level, None if log is None else log.write_line)
    try:
        trio.run(_serve, settings, None if log is None else log.path)
    except BaseExceptionGroup as group:
        # Whichever nursery wrapped it, show the operator the one error.
        startup: BaseException | None = group.subgroup(StartupError)
        while isinstance(startup, BaseExceptionGroup):
            startup = startup.exceptions[0]
        if startup is not None:
            raise startup from group
        raise
    finally:
        end_stages()


async def _serve(settings: ServeSettings, log: Path | None) -> None:
    return_large_blocks()
    notice = ServiceNotice(os.environ)
    click.echo(f"penstock {own_version()}")
    keys = settings.keys()
    limits = _limits(settings)
    # Early, so that a port in use is not discovered after a download.
    sockets = await listening(settings.host, settings.port, os.environ)
    if not (sockets.is_loopback or keys.keys):
        _log.warning(
            "no_api_keys", host=settings.host, hint="everyone who can reach it can use it: set --api-key"
        )
    assembled = assemble(settings, keys)
    models, fleet = assembled.models, assembled.models.fleet
    responses = RunningResponses()
    server, describe = _server(settings, keys, limits, sockets, assembled, responses)
    # A generation-2 collection of the heap that the imports leave would stall every stream.
    gc.collect()
    gc.freeze()
    async with trio.open_nursery() as nursery:

        async def start() -> None:
            # It takes 0.8 s, while engines load; the first to ask for it would wait on the event loop.
            await trio.to_thread.run_sync(describe)
            # The service manager's socket stays, and connections wait in it: take only what can be answered.
            if not sockets.inherited:
                nursery.start_soon(server.run, sockets.clients)
            await announce(models, sockets.url, log, has_keys=bool(keys.keys))
            if sockets.inherited:
                nursery.start_soon(server.run, sockets.clients)
            notice.send(READY="1", STATUS=f"version {own_version()}, serving on {sockets.url}")

        nursery.start_soon(fleet.run)
        nursery.start_soon(responses.run)
        nursery.start_soon(collect_when_idle, lambda: fleet.busy)
        if assembled.remote_engines is not None:
            nursery.start_soon(assembled.remote_engines.run)
        nursery.start_soon(start)
        if sys.platform == "darwin":
            nursery.start_soon(stay_awake, lambda: fleet.busy)
        end = partial(_hand_over if sockets.inherited else _drain, fleet, server, settings.drain_seconds)
        await _signalled_end(end)
        notice.send(STOPPING="1")
        nursery.cancel_scope.cancel()
    end_stages()
    click.echo("stopped")


def _server(
    settings: ServeSettings,
    keys: ApiKeys,
    limits: Limits,
    sockets: Listening,
    assembled: Assembled,
    responses: RunningResponses,
) -> tuple[Server, Callable[[], object]]:
    """Return the API's server, and what makes the API's description, which is kept."""
    hosts = AllowedHosts.of(
        host_names(settings.allowed_hosts),
        listen_host=settings.host,
        is_loopback=sockets.is_loopback,
        own_name=socket.gethostname(),
    )
    remote = assembled.remote_engines
    identity = Identity(settings.tenant_header)
    app = make_app(
        assembled.models,
        stall_seconds=settings.stall_seconds,
        keys=keys,
        cors_origins=between_commas(settings.cors_origins),
        hosts=hosts,
        identity=identity,
        responses=ResponseStore.by_default(settings.max_stored_bytes),
        running=responses,
        server=lambda: server.statistics(),  # It is created after its application.
        reports={} if remote is None else {"cluster": remote.report},
    )

    def _log_failure(error: BaseException, request: str) -> None:
        _log.error("handler_failed", request=request, exc_info=error)

    service = Service(app, _log_failure, _SERVER_NAME, _PROBES, partial(account_of, identity=identity))
    server = Server(service, limits, LARGE_WORK.return_soon)
    return server, app.openapi


def _limits(settings: ServeSettings) -> Limits:
    """Return the server's limits, with no more connections than there are file descriptors for."""
    usual = Limits()
    wanted = Limits(
        connections=max(usual.connections, settings.max_queue),
        body_bytes=settings.max_body_bytes,
        held_body_bytes=max(usual.held_body_bytes, 4 * settings.max_body_bytes),
        account_body_bytes=max(usual.account_body_bytes, 2 * settings.max_body_bytes),
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


async def _signalled_end(end: Callable[[], Awaitable[None]]) -> None:
    """Call `end` at the first SIGTERM or Ctrl-C. Return when it has returned, or at the second signal."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        await anext(signals)
        async with trio.open_nursery() as nursery:

            async def stop_at_once() -> None:
                await anext(signals)
                _log.warning("stopping_at_once")
                nursery.cancel_scope.cancel()

            nursery.start_soon(stop_at_once)
            await end()
            nursery.cancel_scope.cancel()


def _requests(fleet: Fleet) -> tuple[int, int]:
    """Return how many requests are queued, and how many are in the engines."""
    each = [model.scheduler.operations.statistics() for model in fleet]
    return sum(one.queued for one in each), sum(one.in_engine for one in each)


def _log_end(event: str, fleet: Fleet, **fields: float) -> None:
    queued, in_engine = _requests(fleet)
    _log.info(event, queued=queued, in_engine=in_engine, **fields)


async def _hand_over(fleet: Fleet, server: Server, drain_seconds: float) -> None:
    """End behind a socket that stays open. Accept no more, so that new connections wait there for the next
    process; serve the open ones until no request has come for a moment, so that none gets 503."""
    _log_end("handing_over", fleet, seconds=drain_seconds, connections=server.statistics().open_connections)
    fleet.retiring = True
    server.retire()
    with trio.move_on_after(drain_seconds):
        now = server.statistics()
        while now.open_connections:
            await fleet.wait_idle()
            with trio.move_on_after(_QUIET_SECONDS):
                await server.wait_ended()
            before, now = now, server.statistics()
            if now.requests_total == before.requests_total and not now.active_requests:
                break
    await _end(fleet, server)


async def _drain(fleet: Fleet, server: Server, drain_seconds: float) -> None:
    """End, and close the socket. Until the last request has ended the server still answers: new requests get
    503, and `/ready` reports it, which a load balancer handles better than a refused connection."""
    fleet.start_drain()
    _log_end("draining", fleet, seconds=drain_seconds)
    if left := sum(_requests(fleet)):
        requests = f"{left} request{'' if left == 1 else 's'}"
        click.echo(f"draining   {requests}, {drain_seconds:g} s at most; Ctrl-C again stops at once")
    with trio.move_on_after(drain_seconds):
        await fleet.wait_idle()
    await _end(fleet, server)


async def _end(fleet: Fleet, server: Server) -> None:
    fleet.end_all()
    await server.drain(_LAST_WORDS_SECONDS)
