"""`penstock service install|restart|uninstall|status|logs`, and the command that the units start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from api.cli import join
from api.cli.errors import OperatorError
from api.cli.service import environment_file, installation
from api.cli.service.managers import Manager, manager_of
from api.cli.service.serve_arguments import (
    addresses_of,
    check_engine,
    check_ports,
    checked,
    own_variables,
    url_of,
)
from api.cli.service.service_options import (
    NAME,
    Platform,
    Restart,
    ServiceFiles,
    ServiceOptions,
    places_of,
)
from api.cli.service.status import described, wait_started
from api.options.option_values import byte_count
from api.rotating_log import RotatingLog, print_into

_REST = {"ignore_unknown_options": False, "allow_interspersed_args": False}
_READY_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class _Which:
    """The service that a command is about."""

    name: str
    system: bool
    platform: Platform

    @property
    def places(self) -> ServiceFiles:
        return places_of(self.name, self.platform, system=self.system, environment=os.environ)

    @property
    def manager(self) -> Manager:
        return manager_of(self.platform, self.name, self.places, system=self.system)


def _which(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a click command the options that name the service."""
    command = click.option("--system", is_flag=True, help="The machine's, not the user's own.")(command)
    return click.option("--name", default=NAME, show_default=True, help="Name of the service.")(command)


def _here(name: str, system: bool) -> _Which:
    return _Which(name, system, Platform.of(sys.platform))


@click.group()
def service() -> None:
    """Run the server under launchd or systemd, and restart it without a refused connection (systemd)."""


@service.command(context_settings=_REST, short_help="Install and start a service.")
@_which
@click.option("--run-as", metavar="USER", help="User of a --system service.  [default: who called sudo]")
@click.option(
    "--engine", is_flag=True, help="An engine for a server elsewhere: -- --join HOST:PORT --token-file FILE."
)
@click.option("--memory-max", metavar="SIZE", help="Bound on all processes together, as 24GiB (systemd).")
@click.option(
    "--restart",
    type=click.Choice([one.value for one in Restart]),
    default=Restart.ON_FAILURE.value,
    show_default=True,
)
@click.option(
    "--log-bytes", metavar="SIZE", default="10MiB", show_default=True, help="Of one file (launchd)."
)
@click.option("--log-files", type=click.IntRange(1, 100), default=5, show_default=True)
@click.option("--print", "--dry-run", "shows", is_flag=True, help="Show what would be written, and stop.")
@click.option(
    "--for",
    "platform",
    type=click.Choice([one.value for one in Platform]),
    help="With --print: another platform's.",
)
@click.option("--ready-seconds", type=click.FloatRange(min=1), default=_READY_SECONDS, show_default=True)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def install(
    name: str,
    system: bool,
    run_as: str | None,
    engine: bool,
    memory_max: str | None,
    restart: Restart,
    log_bytes: str,
    log_files: int,
    shows: bool,
    platform: Platform | None,
    ready_seconds: float,
    arguments: tuple[str, ...],
) -> None:
    """Install and start a service: penstock service install -- --model MODEL ...

    ARGUMENTS are those of penstock serve. Keys come from PENSTOCK_API_KEY or --api-keys-file. With
    --engine they are those of penstock engine.
    """
    if platform is not None and not shows:
        raise click.UsageError("--for needs --print")
    which = _Which(name, system, Platform(platform) if platform else Platform.of(sys.platform))
    places = which.places
    exists = places.environment.exists()
    variables = environment_file.read(places.environment) if exists else own_variables(os.environ)
    served = _served(engine, arguments, variables)
    options = ServiceOptions(
        name=name,
        program=_own_program(sys.argv[0]),
        engine=engine,
        arguments=arguments,
        platform=which.platform,
        system=system,
        run_as=run_as or (os.environ.get("SUDO_USER") if system else None),
        memory_max_bytes=None if memory_max is None else _size("--memory-max", memory_max),
        # An engine ends with its server, and must then wait for the next one.
        restart=Restart.ALWAYS if engine else Restart(restart),
        addresses=served.addresses,
        drain_seconds=served.drain_seconds,
        log_bytes=_size("--log-bytes", log_bytes),
        log_files=log_files,
    )
    if shows:
        # --print needs no running manager: the files do not depend on it.
        for file in installation.plan(options, places, variables):
            click.echo(installation.shown(file, exists=exists))
        return
    manager = which.manager
    if manager.state().pid is not None:
        raise OperatorError(
            f"{name} runs already: penstock service restart -- ARGUMENTS changes what it serves,\n"
            "and penstock service uninstall ends it"
        )
    files = installation.plan(options, places, variables)
    for path in installation.write(files, options.run_as):
        click.echo(f"wrote      {path}")
    installation.make_log_folder(places, options.run_as)
    manager.start()
    for hint in manager.hints():
        click.echo(f"note       {hint}")
    wait_started(manager, None, served.url, ready_seconds)
    click.echo(
        f"ready      {served.url}" if served.url else "runs       its server says whether it has joined"
    )


@dataclass(frozen=True, slots=True)
class _Served:
    """What follows from a service's arguments. `url` is None for an engine, which has no port."""

    url: str | None = None
    addresses: tuple[str, ...] = ()
    drain_seconds: float = 0.0


def _served(engine: bool, arguments: tuple[str, ...], variables: dict[str, str]) -> _Served:
    """Check the arguments, and return what follows from them. Raise OperatorError, OptionError or
    click.UsageError for those that would be refused."""
    if engine:
        check_engine(arguments, variables)
        return _Served()
    settings = checked(arguments, variables)
    check_ports(settings)
    return _Served(url_of(settings), addresses_of(settings), settings.drain_seconds)


def _size(option: str, text: str) -> int:
    try:
        size = int(byte_count(text))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from error
    if size < 1 << 16:
        raise click.BadParameter("at least 64KiB", param_hint=option)
    return size


@service.command(short_help="Stop the service, and remove its files.")
@_which
@click.option("--keep/--remove", "keep", default=None, help="The environment file, which may hold keys.")
def uninstall(name: str, system: bool, keep: bool | None) -> None:
    """Stop the service after its drain, and remove what install wrote."""
    which = _here(name, system)
    places = which.places
    installation.recorded(places)
    manager = which.manager
    if keep is None:
        keep = not (
            places.environment.exists()
            and sys.stdin.isatty()
            and click.confirm(f"Remove {places.environment}, which may hold keys?", default=False)
        )
    click.echo("stopping   after the drain of what runs")
    manager.stop()
    for path in installation.remove(places, keep_environment=keep):
        click.echo(f"removed    {path}")
    if keep and places.environment.exists():
        click.echo(f"kept       {places.environment}")
    manager.reread()


@service.command(short_help="Show whether it runs and is ready.")
@_which
@click.option("--json", "as_json", is_flag=True, help="For a machine.")
def status(name: str, system: bool, as_json: bool) -> None:
    """Show whether the service runs and is ready. Exit code 1 if it is not."""
    which = _here(name, system)
    options = installation.recorded(which.places)
    variables = environment_file.read(which.places.environment)
    url = None if options.engine else url_of(checked(options.arguments, variables))
    text, is_ready = described(which.manager, options, url, as_json=as_json)
    click.echo(text)
    if not is_ready:
        sys.exit(1)


@service.command()
@_which
@click.option("-f", "--follow", is_flag=True, help="Show what comes, until Ctrl-C.")
@click.option("-n", "--lines", type=click.IntRange(min=0), default=50, show_default=True)
def logs(name: str, system: bool, follow: bool, lines: int) -> None:
    """Show the service's log."""
    command = _here(name, system).manager.log_command(lines, follow=follow)
    try:
        sys.exit(subprocess.run(command, check=False).returncode)
    except OSError as error:
        raise OperatorError(f"{command[0]}: {error.strerror}") from error


@service.command(context_settings=_REST, short_help="Start it anew: another version, other arguments.")
@_which
@click.option("--ready-seconds", type=click.FloatRange(min=1), default=_READY_SECONDS, show_default=True)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def restart(name: str, system: bool, ready_seconds: float, arguments: tuple[str, ...]) -> None:
    """Drain the service and start it again: with a new version of its program, with a changed environment
    file, or with other ARGUMENTS of penstock serve.

    Under systemd no client is refused: connections wait until the new process is ready. Under launchd they
    are refused meanwhile.
    """
    which = _here(name, system)
    places = which.places
    before = installation.recorded(places)
    variables = environment_file.read(places.environment)
    served = _served(before.engine, arguments or before.arguments, variables)
    after = replace(
        before,
        arguments=arguments or before.arguments,
        addresses=served.addresses,
        drain_seconds=served.drain_seconds,
    )
    manager = which.manager
    old = manager.state().pid
    if after.addresses != before.addresses:
        # systemd keeps listening on the addresses that it knew when it opened its sockets.
        manager.stop()
    installation.write(installation.plan(after, places, variables), after.run_as)
    click.echo("restarting after the drain of what runs")
    manager.start()
    wait_started(manager, old, served.url, ready_seconds)
    click.echo(
        f"ready      {served.url}" if served.url else "runs       its server says whether it has joined"
    )


@service.command(context_settings=_REST, hidden=True)
@_which
@click.option("--log-file", type=click.Path(path_type=Path, dir_okay=False), help="Instead of stdout.")
@click.option("--log-bytes", metavar="SIZE", default="10MiB", show_default=True)
@click.option("--log-files", type=click.IntRange(1, 100), default=5, show_default=True)
@click.option("--engine", is_flag=True)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    name: str,
    system: bool,
    log_file: Path | None,
    log_bytes: str,
    log_files: int,
    engine: bool,
    arguments: tuple[str, ...],
) -> None:
    """Serve, or be an engine, with the variables of the environment file. The service manager starts this."""
    if log_file is not None:
        try:
            print_into(RotatingLog(log_file, _size("--log-bytes", log_bytes), log_files))
        except OSError as error:
            raise OperatorError(f"cannot write {log_file}: {error}") from error
    os.environ.update(environment_file.read(_here(name, system).places.environment))
    if engine:
        join.engine.main(list(arguments), prog_name="penstock engine", standalone_mode=False)
        raise AssertionError("the engine took this process's place")
    settings = checked(arguments, dict(os.environ))
    # Imported here, because a refused option does not need it and it takes seconds.
    from api import serving

    serving.serve(settings)


def _own_program(argv0: str) -> tuple[str, ...]:
    """Return the command line of this `penstock`. A link is not resolved: Homebrew's leads to the newest."""
    found = shutil.which(argv0)
    if found is not None and Path(found).name == "penstock":
        return (os.path.abspath(found),)
    return (sys.executable, "-m", "api")
