"""`penstock service upgrade`: judge what it needs, ask the running service for it, and keep what worked."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import click
import trio

from api.operator.errors import OperatorError
from api.operator.service import environment_file, installation
from api.operator.service.control import (
    AskUpgrade,
    Order,
    Progress,
    Refused,
    RolledBack,
    ServeState,
    Upgraded,
    asked,
)
from api.operator.service.managers import manager_of, unit_of
from api.operator.service.serve_arguments import checked, metrics_url_of
from api.operator.service.service_options import Places, Platform
from api.operator.service.status import ask_status
from api.operator.service.upgrade_room import available_bytes, fetch_engines, room, tree_bytes
from api.settings import ServeSettings
from scheduler.errors import OptionError

Echo = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class UpgradeOptions:
    program: tuple[str, ...] | None
    arguments: tuple[str, ...] | None
    """None: as they are."""
    order: Order | None
    """None: beside, where that loses nothing."""
    ready_seconds: float
    streams_seconds: float


def upgrade_service(
    name: str, places: Places, platform: Platform, options: UpgradeOptions, echo: Echo
) -> None:
    """Raise OperatorError if the service goes on with what it had."""
    running = trio.run(ask_status, places.control)
    if running is None:
        raise OperatorError(f"the service {name} does not run: nothing answers at {places.control}")
    variables = environment_file.read(places.environment)
    settings = checked(running.serving.arguments, variables)
    if options.arguments is not None and options.program is None:
        # Another program knows its own options, and refuses those that it does not.
        settings = checked(options.arguments, variables)
    order = options.order or safe_order(settings, running.pid, _memory_max(places), echo)
    ask = AskUpgrade(
        options.program, options.arguments, order, options.ready_seconds, options.streams_seconds
    )
    serving = trio.run(_ask, places, ask, echo)
    echo(f"serving    process {serving.pid}, version {serving.version}")
    if order is Order.BESIDE:
        echo(f"old        process {running.serving.pid} ends when its connections have")
    _keep(name, places, platform, serving, echo)


async def _ask(places: Places, ask: AskUpgrade, echo: Echo) -> ServeState:
    async with asked(places.control, ask) as replies:
        while True:
            match await replies.next():
                case Progress(text):
                    echo(f"upgrade    {text}")
                case Upgraded(serving):
                    return serving
                case RolledBack(reason):
                    raise OperatorError(f"rolled back, the service goes on as before: {reason}")
                case Refused(reason):
                    raise OperatorError(f"not upgraded: {reason}")
                case _:
                    raise OperatorError("the service ended during the upgrade: penstock service status")


def safe_order(settings: ServeSettings, supervisor: int, memory_max: int | None, echo: Echo) -> Order:
    """Return the order that loses nothing. Raise OperatorError where the operator must choose."""
    choose = (
        "--order one-at-a-time lets the old process end its streams first; new connections wait meanwhile,"
        " and until the model is loaded"
    )
    if settings.on_cluster:
        raise OperatorError(f"a cluster's devices have one engine each.\n{choose}")
    if settings.kv_disk is not None:
        raise OperatorError(
            "--kv-disk is locked by the old process, so a new one beside it would keep no prefixes on disk.\n"
            f"{choose}; --order beside does without"
        )
    held = tree_bytes(supervisor)
    left = None if memory_max is None or held is None else memory_max - held
    judged = room(fetch_engines(metrics_url_of(settings)), available_bytes(), left)
    echo(f"memory     {judged.text}")
    if not judged.fits:
        raise OperatorError(f"two engines do not fit.\n{choose}; --order beside tries nevertheless")
    return Order.BESIDE


def _memory_max(places: Places) -> int | None:
    try:
        return installation.recorded(places).memory_max_bytes
    except OperatorError:
        return None


def _keep(name: str, places: Places, platform: Platform, serving: ServeState, echo: Echo) -> None:
    """Let the next start of the service be that of the new version."""
    if not places.record.exists():
        # Started by something else than install, which knows what it starts.
        return
    old = installation.recorded(places)
    drain_seconds = old.drain_seconds
    # Of another version it may have options that this one does not know.
    with suppress(OptionError, OperatorError, click.UsageError):
        drain_seconds = checked(serving.arguments, environment_file.read(places.environment)).drain_seconds
    new = replace(old, program=serving.program, arguments=serving.arguments, drain_seconds=drain_seconds)
    if new == old:
        return
    try:
        installation.write(installation.plan(new, places, unit_of(new, places), {}), new.run_as)
        note = manager_of(platform, name, places, system=new.system).reread()
    except OperatorError as error:
        raise OperatorError(f"upgraded, but the next start is still the old version: {error}") from error
    echo(f"wrote      {places.unit}")
    if note:
        echo(f"note       {note}")
