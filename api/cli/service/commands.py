"""`penstock service install|restart|uninstall|status|logs`, and the command that the units start."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import click
import msgspec

from api.cli import join
from api.cli.errors import OperatorError
from api.cli.service import environment_file, installation
from api.cli.service.managers import Manager, manager_of
from api.cli.service.serve_arguments import checked, own_variables, serve_settings_of, url_of
from api.cli.service.service_options import NAME, Platform, ServiceOptions
from api.cli.service.status import lines_of, start, status_of
from api.options.option_values import byte_count
from api.rotating_log import RotatingLog, print_into

_REST = {"ignore_unknown_options": False, "allow_interspersed_args": False}
_LOG_BYTES, _LOG_FILES = 10 << 20, 5
_LEAST_MEMORY_BYTES = 1 << 20


def _of_service(command: Callable[..., None]) -> Callable[..., None]:
    """Give a click command the options that name the service, and the service's manager in their place."""

    @click.option("--name", default=NAME, show_default=True, help="Name of the service.")
    @click.option("--system", is_flag=True, help="The machine's, not the user's own.")
    @wraps(command)
    def of_manager(*, name: str, system: bool, **given: Any) -> None:
        command(manager_of(name, system=system), **given)

    return of_manager


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
    manager: Manager,
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
    places = manager.places
    variables = own_variables(os.environ)
    if places.environment.exists():
        variables = environment_file.read(places.environment)
    options, url = checked(
        ServiceOptions(
            name=manager.name,
            program=_own_program(sys.argv[0]),
            engine=engine,
            arguments=arguments,
            platform=manager.platform,
            system=manager.system,
            run_as=run_as or (os.environ.get("SUDO_USER") if manager.system else None),
            memory_max_bytes=None if memory_max is None else _size("--memory-max", memory_max),
        ),
        variables,
    )
    files = installation.plan(options, places, variables)
    if shows:
        # It needs no running manager: the files do not depend on it.
        for file in files:
            click.echo(installation.shown(file))
        return
    manager.check()
    if manager.state().pid is not None:
        raise OperatorError(
            f"{manager.name} runs already: penstock service restart -- ARGUMENTS changes what it serves,\n"
            "and penstock service uninstall ends it"
        )
    for path in installation.write(files, options.run_as):
        click.echo(f"wrote      {path}")
    if manager.platform is Platform.SYSTEMD and not manager.system:
        click.echo("note       it runs while you are logged in; always: loginctl enable-linger")
    start(manager, None, url)


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
def uninstall(manager: Manager, keep: bool | None) -> None:
    """Stop the service after its drain, and remove what install wrote."""
    places = manager.places
    installation.recorded(places)
    manager.check()
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
def status(manager: Manager, as_json: bool) -> None:
    """Show whether the service runs and is ready. Exit code 1 if it is not."""
    options = installation.recorded(manager.places)
    variables = environment_file.read(manager.places.environment)
    url = None if options.engine else url_of(serve_settings_of(options.arguments, variables))
    manager.check()
    found = status_of(manager, options, url)
    click.echo(msgspec.json.format(msgspec.json.encode(found)) if as_json else "\n".join(lines_of(found)))
    sys.exit(0 if found.is_ready else 1)


@service.command()
@_of_service
@click.option("-f", "--follow", is_flag=True, help="Show what comes, until Ctrl-C.")
@click.option("-n", "--lines", type=click.IntRange(min=0), default=50, show_default=True)
def logs(manager: Manager, follow: bool, lines: int) -> None:
    """Show the service's log."""
    manager.check()
    command = manager.log_command(lines, follow=follow)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise OperatorError(f"{command[0]}: {error.strerror}") from error


@service.command(context_settings=_REST, short_help="Start it anew: another version, other arguments.")
@_of_service
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def restart(manager: Manager, arguments: tuple[str, ...]) -> None:
    """Drain the service and start it again: with a new version of its program, with a changed environment
    file, or with other ARGUMENTS of penstock serve.

    Under systemd no client is refused: connections wait until the new process is ready. Under launchd they
    are refused meanwhile.
    """
    places = manager.places
    before = installation.recorded(places)
    variables = environment_file.read(places.environment)
    after, url = checked(replace(before, arguments=arguments or before.arguments), variables)
    manager.check()
    old = manager.state().pid
    if after.addresses != before.addresses:
        # systemd keeps listening on the addresses that it knew when it opened its sockets.
        manager.stop()
    installation.write(installation.plan(after, places, variables), after.run_as)
    click.echo("restarting after the drain of what runs")
    start(manager, old, url)


@service.command(hidden=True, context_settings={"ignore_unknown_options": True})
@_of_service
@click.argument("rest", nargs=-1, type=click.UNPROCESSED)
def run(manager: Manager, rest: tuple[str, ...]) -> None:
    """Be the service that its record and its environment file describe. The service manager starts this.

    `rest` is what units of version 0.2 say of it, too.
    """
    places = manager.places
    if manager.platform is Platform.LAUNCHD:
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
    settings = serve_settings_of(options.arguments, dict(os.environ))
    # Imported here, because a refused option does not need it and it takes seconds.
    from api import serving

    serving.serve(settings)


def _own_program(argv0: str) -> tuple[str, ...]:
    """Return the command line of this `penstock`. A link is not resolved: Homebrew's leads to the newest."""
    found = shutil.which(argv0)
    if found is not None and Path(found).name == "penstock":
        return (os.path.abspath(found),)
    return (sys.executable, "-m", "api")
