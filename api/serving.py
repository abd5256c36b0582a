"""`penstock serve` from options to exit: connects the scheduler, the application and the server."""

from __future__ import annotations

import gc
import os
import platform
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
import structlog
import trio

from api import freed_memory
from api.allowed_hosts import ANY_HOST, AllowedHosts
from api.announcement import TASKS, announce
from api.app import make_app
from api.exposition import make_metrics_app
from api.http_metrics import ServerMetrics
from api.identity import Identity
from api.model_defaults import DefaultSettings, from_file, resolve
from api.options import ENVIRONMENT_PREFIX
from api.responses.store import ResponseStore
from api.scheduler_settings import scheduler_config
from api.served_model import ServedModel
from api.server.limits import Limits, fit_descriptors, raise_descriptor_limit, wanted_descriptors
from api.server.server import Server
from api.settings import ServeSettings
from api.worker_threads import WorkerThreads
from scheduler.config import SchedulerConfig
from scheduler.engine.mlx.cpu.fast_blas import BlasChoice, prepare
from scheduler.errors import OptionError, StartupError
from scheduler.link.process import ProcessLauncher
from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.models.random_qwen3 import user_cache_folder
from scheduler.pool.machine_share import cores_of_process, gpus_of, share_of
from scheduler.pool.pool import Launchers
from scheduler.prompt import model_folder, model_types, weight_files
from scheduler.prompt.model_folder import ModelFolder
from scheduler.prompt.preparation import Preparation
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.service import Scheduler
from scheduler.system_sleep import continuous_seconds
from scheduler.telemetry import logging
from scheduler.telemetry.metrics import Metrics
from scheduler.telemetry.vllm_names import VllmNames

if TYPE_CHECKING:
    from scheduler.telemetry.spans import RequestSpans

_log = structlog.get_logger("serving")
_T = TypeVar("_T")

_SERVER_NAME = "penstock"
"""The `server` header of every response."""
_LAST_WORDS_SECONDS = 2.0
"""After the drain, how long the server may take to hand the last frames to clients that read."""
_TOOL_CALLS = {
    "native": "native: as the model's chat template writes them",
    "generic": "generic: described in the system prompt, called as JSON, not by the model's chat template",
    "none": "none: requests with tools are refused",
}
_PROBES = ("/health", "/ready", "/metrics")
"""Answered also when agents hold all connections."""
_METRICS_LIMITS = Limits(connections=16, refusals=4)
"""Within the server's reserve of descriptors."""


@dataclass(frozen=True, slots=True)
class _Model:
    folder: ModelFolder
    name: str
    note: str


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
    model = _find_model(settings)
    click.echo(f"model      {model.note}")
    blas = _prepare_blas(settings)
    click.echo(f"blas       {blas.name}")
    tokenizer = HubTokenizer(
        model.folder.path,
        model_type=model.folder.model_type,
        tool_parser=settings.tool_parser,
        reasoning_parser=settings.reasoning_parser,
    )
    embedder = model.folder.embedder
    pooler = None if embedder is None else embedder.pooler
    config = scheduler_config(settings, model.folder.path, keys, _cache_folder(settings), pooler)
    if embedder is None:
        click.echo(f"tools      {_TOOL_CALLS[tokenizer.answer_format.tool_calls]}")
    else:
        click.echo(f"task       {TASKS[embedder.kind]}")
    sharers = "by everybody" if config.cache_sharing == "all" else "within a tenant"
    if config.engines > 1:
        click.echo(f"engines    {config.engines}, behind one queue (--engines)")
    click.echo(f"prefixes   shared {sharers} (--cache-sharing)")
    served = _served_model(settings, model, tokenizer.answer_format.tool_calls)
    tracer = _tracer(settings, served.name)
    scheduler = Scheduler(
        config,
        Preparation(tokenizer, model.folder, settings.thinking()),
        _launchers(blas, config),
        WorkerThreads(),
        on_loading=_show_loading(config.engines),
        metrics=_metrics(settings, served.name),
        model_name=served.name,
        tracer=tracer,
        continuous=continuous_seconds,
    )
    # Reads a server that is created after its application.
    server_metrics = ServerMetrics(scheduler.metrics, lambda: server.statistics())
    server = Server(
        make_app(
            scheduler,
            served,
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
        ),
        limits,
        on_error=_log_handler_error,
        server_name=_SERVER_NAME,
        always_answered=_PROBES,
    )
    # A generation-2 collection of the heap that the imports leave would stall every stream.
    gc.collect()
    gc.freeze()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scheduler.run)
        nursery.start_soon(server.run, listeners)
        if metrics_listeners:
            # Without a drain of its own: it answers until the last request has ended. It checks no host
            # names: scrapers use other names than clients, and its metrics have no text of prompts.
            app = make_metrics_app(
                scheduler,
                settings.stall_seconds,
                hosts if is_loopback else ANY_HOST,
                server_metrics,
                has_keys=bool(keys.keys),
            )
            watched = Server(app, _METRICS_LIMITS, on_error=_log_handler_error, server_name=_SERVER_NAME)
            nursery.start_soon(watched.run, metrics_listeners)
        nursery.start_soon(
            announce, scheduler, served.kind, _url(listeners), _url(metrics_listeners or listeners)
        )
        await _signalled_drain(scheduler, server, settings.drain_seconds)
        nursery.cancel_scope.cancel()
    if tracer is not None:
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


def engine_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without PENSTOCK_ options, which the engine gets by message: they include the
    API keys."""
    return {name: value for name, value in environment.items() if not name.startswith(ENVIRONMENT_PREFIX)}


def _launchers(blas: BlasChoice, config: SchedulerConfig) -> Launchers:
    """Each engine gets its share of the machine, where the operator's environment leaves the choice."""
    environment = engine_environment(os.environ)
    cores, gpus = sorted(cores_of_process()), gpus_of(environment)

    def launcher(number: int) -> ProcessLauncher:
        share = share_of(number, config.engines, cores, gpus)
        own = {**share.environment, **environment}
        if gpus and config.engines > 1:
            own["CUDA_VISIBLE_DEVICES"] = share.environment["CUDA_VISIBLE_DEVICES"]
        return ProcessLauncher(blas.environment(own), config.supervision.stop_seconds, share.cores)

    return launcher


def _show_loading(engines: int) -> Callable[[str, str], None]:
    def show(engine: str, stage: str) -> None:
        name = "engine" if engines == 1 else f"engine {engine}"
        click.echo(f"{name:<10} {stage}")

    return show


def _is_loopback(listeners: list[trio.SocketListener]) -> bool:
    return all(ip_address(listener.socket.getsockname()[0]).is_loopback for listener in listeners)


def _find_model(settings: ServeSettings) -> _Model:
    if settings.model is None:
        note = "embedded: tiny, trained to try the server with; --model serves a real one"
        return _Model(model_folder.inspect(EMBEDDED_FOLDER), "penstock-embedded", note)
    folder = model_folder.inspect(
        model_folder.find(settings.model), settings.task, matryoshka=settings.matryoshka == "on"
    )
    if settings.engine == "mlx":
        # Here and not in the engine: a process that can name the file, before the tokenizer takes seconds.
        if not folder.brings_code:
            model_types.check(folder.model_type)
        weight_files.check(folder.path)
    return _Model(folder, settings.model, settings.model)


def _cache_folder(settings: ServeSettings) -> Path:
    return settings.cache or user_cache_folder(os.environ)


def _served_model(settings: ServeSettings, model: _Model, tool_calls: str) -> ServedModel:
    """Logs what applies where a body says nothing, and what of the model's file does not."""
    file, ignored = DefaultSettings(), dict[str, str]()
    if settings.generation_config == "auto":
        file, ignored = from_file(model.folder.generation_config)
    if ignored:
        _log.warning("generation_config_ignored", file=model_folder.GENERATION_CONFIG, values=ignored)
    presets = settings.named_presets(model.name)
    options = settings.default_settings()
    defaults = {named.name: resolve(named.preset, options, file) for named in presets}
    for name, resolved in defaults.items():
        _log.info("model_defaults", model=name, **resolved.described())
    folder = model.folder
    return ServedModel(
        tuple(defaults), int(time.time()), folder.context_tokens, tool_calls, defaults, folder.embedder
    )


def _prepare_blas(settings: ServeSettings) -> BlasChoice:
    if settings.engine == "scripted":
        return BlasChoice("none: the scripted engine multiplies nothing")
    choice = prepare(settings.blas, _cache_folder(settings))
    if choice.warning:
        _log.warning("blas", warning=choice.warning)
    return choice


def _metrics(settings: ServeSettings, model_name: str) -> Metrics:
    metrics = Metrics(settings.named_tenants())
    metrics.describe_build(
        {"version": version("penstock"), "python": platform.python_version(), "mlx": version("mlx")}
    )
    if settings.metrics_compat == "vllm":
        metrics.registry.register(VllmNames(metrics, model_name))
    return metrics


def _tracer(settings: ServeSettings, model_name: str) -> RequestSpans | None:
    if settings.otlp_endpoint is None:
        return None
    try:
        # Imported here: a server that does not trace neither loads it nor needs it installed.
        from scheduler.telemetry.spans import otlp_spans
    except ImportError as error:
        raise OptionError(f"--otlp-endpoint needs pip install 'penstock[otel]' ({error})") from error
    return otlp_spans(settings.otlp_endpoint, model_name)


def _url(listeners: list[trio.SocketListener]) -> str:
    host, port = listeners[0].socket.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


async def _signalled_drain(scheduler: Scheduler, server: Server, drain_seconds: float) -> None:
    """Return when every request has ended, or on a second signal.

    During the drain the server still answers: new requests get 503 and `/ready` reports it, which a load
    balancer handles better than a refused connection.
    """
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        await anext(signals)
        scheduler.start_drain()
        statistics = scheduler.operations.statistics()
        _log.info("draining", queued=statistics.queued, in_engine=statistics.in_engine, seconds=drain_seconds)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_drain, scheduler, server, drain_seconds, nursery.cancel_scope)
            await anext(signals)
            _log.warning("stopping_at_once")
            nursery.cancel_scope.cancel()


async def _drain(scheduler: Scheduler, server: Server, drain_seconds: float, done: trio.CancelScope) -> None:
    with trio.move_on_after(drain_seconds):
        await scheduler.wait_idle()
    scheduler.end_all()
    await server.drain(_LAST_WORDS_SECONDS)
    done.cancel()


def _log_handler_error(error: BaseException, request: str) -> None:
    _log.error("handler_failed", request=request, exc_info=error)
