"""`penstock service install|restart|uninstall|status|logs`, and the command that the units start."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import msgspec

from api.cli import join
from api.cli.errors import OperatorError
from api.cli.service import environment_file, installation
from api.cli.service.managers import Manager, manager_of
from api.cli.service.serve_arguments import addresses_of, check_engine, checked, own_variables, url_of
from api.cli.service.service_options import NAME, Platform, ServiceFiles, ServiceOptions, places_of
from api.cli.service.status import lines_of, status_of, wait_started
from api.options.option_values import byte_count
from api.rotating_log import RotatingLog, print_into

_REST = {"ignore_unknown_options": False, "allow_interspersed_args": False}
_LOG_BYTES, _LOG_FILES = 10 << 20, 5
_LEAST_MEMORY_BYTES = 1 << 20


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


def _of_service(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a click command the options that name the service."""
    command = click.option("--system", is_flag=True, help="The machine's, not the user's own.")(command)
    return click.option("--name", default=NAME, show_default=True, help="Name of the service.")(command)


def _here(name: str, system: bool) -> _Which:
    return _Which(name, system, Platform.of(sys.platform))


@click.group()
def service() -> None:
    """Run the server under launchd or systemd, and restart it without a refused connection (systemd)."""


@service.command(context_settings=_REST, short_help="Install and start a service.")
@_of_service
@click.option("--run-as", metavar="USER", help="User of a --system service.  [default: who called sudo]")
@click.option(
    "--engine", is_flag=True, help="An engine for a server elsewhere: -- --join HOST:PORT --token-file FILE."
)
@click.option("--memory-max", metavar="SIZE", help="Bound on all processes together, as 24GiB (systemd).")
@click.option("--print", "--dry-run", "shows", is_flag=True, help="Show what would be written, and stop.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def install(
    name: str,
    system: bool,
    run_as: str | None,
    engine: bool,
    memory_max: str | None,
    shows: bool,
    arguments: tuple[str, ...],
) -> None:
    """Install and start a service: penstock service install -- --model MODEL ...

    ARGUMENTS are those of penstock serve. Keys come from PENSTOCK_API_KEY or --api-keys-file. With
    --engine they are those of penstock engine.
    """
    which = _here(name, system)
    places = which.places
    exists = places.environment.exists()
    variables = environment_file.read(places.environment) if exists else own_variables(os.environ)
    options = ServiceOptions(
        name=name,
        program=_own_program(sys.argv[0]),
        engine=engine,
        arguments=arguments,
        platform=which.platform,
        system=system,
        run_as=run_as or (os.environ.get("SUDO_USER") if system else None),
        memory_max_bytes=None if memory_max is None else _size("--memory-max", memory_max),
    )
    options, url = _checked(options, variables)
    if shows:
        # It needs no running manager: the files do not depend on it.
        for file in installation.plan(options, places, variables):
            click.echo(installation.shown(file))
        return
    manager = which.manager
    if manager.state().pid is not None:
        raise OperatorError(
            f"{name} runs already: penstock service restart -- ARGUMENTS changes what it serves,\n"
            "and penstock service uninstall ends it"
        )
    for path in installation.write(installation.plan(options, places, variables), options.run_as):
        click.echo(f"wrote      {path}")
    if which.platform is Platform.SYSTEMD and not system:
        click.echo("note       it runs while you are logged in; always: loginctl enable-linger")
    _start(manager, None, url)


def _checked(options: ServiceOptions, variables: Mapping[str, str]) -> tuple[ServiceOptions, str | None]:
    """Check the arguments, and return the options with what follows from them, and the server's URL, which an
    engine has not. Raise OperatorError, OptionError or click.UsageError for what would be refused."""
    if options.engine:
        check_engine(options.arguments, variables)
        return options, None
    settings = checked(options.arguments, variables)
    addresses = addresses_of(settings)
    return replace(options, addresses=addresses, drain_seconds=settings.drain_seconds), url_of(settings)


def _start(manager: Manager, before: int | None, url: str | None) -> None:
    manager.start()
    wait_started(manager, before, url)
    click.echo(f"ready      {url}" if url else "runs       its server says whether it has joined")


def _size(option: str, text: str) -> int:
    try:
        size = int(byte_count(text))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from error
    if size < _LEAST_MEMORY_BYTES:
        raise click.BadParameter("at least 1MiB", param_hint=option)
    return size


@service.command(short_help="Stop the service, and remove its files.")
@_of_service
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
@_of_service
@click.option("--json", "as_json", is_flag=True, help="For a machine.")
def status(name: str, system: bool, as_json: bool) -> None:
    """Show whether the service runs and is ready. Exit code 1 if it is not."""
    which = _here(name, system)
    options = installation.recorded(which.places)
    variables = environment_file.read(which.places.environment)
    url = None if options.engine else url_of(checked(options.arguments, variables))
    found = status_of(which.manager, options, url)
    click.echo(msgspec.json.format(msgspec.json.encode(found)) if as_json else "\n".join(lines_of(found)))
    sys.exit(0 if found.is_ready else 1)


@service.command()
@_of_service
@click.option("-f", "--follow", is_flag=True, help="Show what comes, until Ctrl-C.")
@click.option("-n", "--lines", type=click.IntRange(min=0), default=50, show_default=True)
def logs(name: str, system: bool, follow: bool, lines: int) -> None:
    """Show the service's log."""
    command = _here(name, system).manager.log_command(lines, follow=follow)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise OperatorError(f"{command[0]}: {error.strerror}") from error


@service.command(context_settings=_REST, short_help="Start it anew: another version, other arguments.")
@_of_service
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def restart(name: str, system: bool, arguments: tuple[str, ...]) -> None:
    """Drain the service and start it again: with a new version of its program, with a changed environment
    file, or with other ARGUMENTS of penstock serve.

    Under systemd no client is refused: connections wait until the new process is ready. Under launchd they
    are refused meanwhile.
    """
    which = _here(name, system)
    places = which.places
    before = installation.recorded(places)
    variables = environment_file.read(places.environment)
    after, url = _checked(replace(before, arguments=arguments or before.arguments), variables)
    manager = which.manager
    old = manager.state().pid
    if after.addresses != before.addresses:
        # systemd keeps listening on the addresses that it knew when it opened its sockets.
        manager.stop()
    installation.write(installation.plan(after, places, variables), after.run_as)
    click.echo("restarting after the drain of what runs")
    _start(manager, old, url)


@service.command(hidden=True, context_settings={"ignore_unknown_options": True})
@_of_service
@click.argument("rest", nargs=-1, type=click.UNPROCESSED)
def run(name: str, system: bool, rest: tuple[str, ...]) -> None:
    """Be the service that its record and its environment file describe. The service manager starts this.

    `rest` is what units of version 0.2 say of it, too.
    """
    which = _here(name, system)
    places = which.places
    if which.platform is Platform.LAUNCHD:
        # launchd appends to one file without end.
        try:
            print_into(RotatingLog(places.log, _LOG_BYTES, _LOG_FILES))
        except OSError as error:
            raise OperatorError(f"cannot write {places.log}: {error}") from error
    options = installation.recorded(places)
    os.environ.update(environment_file.read(places.environment))
    if options.engine:
        join.engine.main(list(options.arguments), prog_name="penstock engine", standalone_mode=False)
        raise AssertionError("the engine took this process's place")
    settings = checked(options.arguments, dict(os.environ))
    # Imported here, because a refused option does not need it and it takes seconds.
    from api import serving

    serving.serve(settings)


def _own_program(argv0: str) -> tuple[str, ...]:
    """Return the command line of this `penstock`. A link is not resolved: Homebrew's leads to the newest."""
    found = shutil.which(argv0)
    if found is not None and Path(found).name == "penstock":
        return (os.path.abspath(found),)
    return (sys.executable, "-m", "api")
