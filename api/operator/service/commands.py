"""`penstock service install|uninstall|status|logs|upgrade|run`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import trio

from api.operator.errors import OperatorError
from api.operator.service import environment_file, installation
from api.operator.service.control import Order
from api.operator.service.managers import Manager, manager_of, unit_of
from api.operator.service.rotating_log import RotatingLog
from api.operator.service.run import RunOptions, own_program, standard_output
from api.operator.service.run import run as run_service
from api.operator.service.serve_arguments import check_ports, checked, own_variables, url_of
from api.operator.service.service_options import (
    NAME,
    Places,
    Platform,
    Restart,
    ServiceOptions,
    places_of,
)
from api.operator.service.status import ask_status, described, wait_started
from api.operator.service.supervisor import ServeCommand
from api.operator.service.upgrade import UpgradeOptions, upgrade_service
from api.option_values import byte_count

_REST = {"ignore_unknown_options": False, "allow_interspersed_args": False}
_READY_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class _Which:
    """The service that a command is about."""

    name: str
    system: bool
    platform: Platform

    @property
    def places(self) -> Places:
        surroundings = dict(os.environ)
        own = Path(f"/run/user/{os.getuid()}")
        if "XDG_RUNTIME_DIR" not in surroundings and own.is_dir():
            # As after `su`: the service itself has it.
            surroundings["XDG_RUNTIME_DIR"] = str(own)
        return places_of(self.name, self.platform, system=self.system, environment=surroundings)

    @property
    def manager(self) -> Manager:
        return manager_of(self.platform, self.name, self.places, system=self.system)


def _which(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that name the service."""
    command = click.option("--system", is_flag=True, help="The machine's, not the user's own.")(command)
    return click.option("--name", default=NAME, show_default=True, help="Name of the service.")(command)


def _here(name: str, system: bool) -> _Which:
    return _Which(name, system, Platform.of(sys.platform))


@click.group()
def service() -> None:
    """Run the server under launchd or systemd, and upgrade it without a refused connection."""


@service.command(context_settings=_REST, short_help="Install and start a service.")
@_which
@click.option("--run-as", metavar="USER", help="User of a --system service.  [default: who called sudo]")
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

    ARGUMENTS are those of penstock serve. Keys come from PENSTOCK_API_KEY or --api-keys-file.
    """
    if platform is not None and not shows:
        raise click.UsageError("--for needs --print")
    which = _Which(name, system, Platform(platform) if platform else Platform.of(sys.platform))
    places = which.places
    exists = places.environment.exists()
    variables = environment_file.read(places.environment) if exists else own_variables(os.environ)
    settings = checked(arguments, variables)
    check_ports(settings)
    options = ServiceOptions(
        name=name,
        program=own_program(sys.argv[0]),
        arguments=arguments,
        platform=which.platform,
        system=system,
        run_as=run_as or (os.environ.get("SUDO_USER") if system else None),
        memory_max_bytes=None if memory_max is None else _size("--memory-max", memory_max),
        restart=Restart(restart),
        drain_seconds=settings.drain_seconds,
        log_bytes=_size("--log-bytes", log_bytes),
        log_files=log_files,
    )
    if shows:
        # Without a manager: what would be written does not depend on one that runs.
        for file in installation.plan(options, places, unit_of(options, places), variables):
            click.echo(installation.shown(file, exists=exists))
        return
    manager = which.manager
    if trio.run(ask_status, places.control) is not None:
        raise OperatorError(
            f"{name} runs already: penstock service upgrade -- ARGUMENTS changes what it serves,\n"
            "and penstock service uninstall ends it"
        )
    files = installation.plan(options, places, unit_of(options, places), variables)
    for path in installation.write(files, options.run_as):
        click.echo(f"wrote      {path}")
    installation.make_log_folder(places, options.run_as)
    manager.start()
    for hint in manager.hints():
        click.echo(f"note       {hint}")
    wait_started(manager, places, url_of(settings), ready_seconds)
    click.echo(f"ready      {url_of(settings)}")


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
    described_text, is_ready = described(which.name, which.places, which.platform, system, as_json=as_json)
    click.echo(described_text)
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


@service.command(context_settings=_REST, short_help="Let another version take over.")
@_which
@click.option("--program", metavar="PATH", help="Another version's penstock.  [default: the service's own]")
@click.option(
    "--order", type=click.Choice([one.value for one in Order]), help="beside needs memory for both."
)
@click.option("--ready-seconds", type=click.FloatRange(min=1), default=_READY_SECONDS, show_default=True)
@click.option("--streams-seconds", type=click.FloatRange(min=0), default=3600.0, show_default=True)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def upgrade(
    name: str,
    system: bool,
    program: str | None,
    order: str | None,
    ready_seconds: float,
    streams_seconds: float,
    arguments: tuple[str, ...],
) -> None:
    """Let a new process take the service over, and go back to the old one where it does not get ready.

    No connection is refused, and no stream is cut: the old process ends when its streams have. Without
    ARGUMENTS of penstock serve the new process has the old one's.
    """
    which = _here(name, system)
    options = UpgradeOptions(
        None if program is None else (os.path.abspath(program),),
        arguments or None,
        None if order is None else Order(order),
        ready_seconds,
        streams_seconds,
    )
    upgrade_service(which.name, which.places, which.platform, options, click.echo)


@service.command(context_settings=_REST, short_help="Serve in the foreground, as the manager does.")
@_which
@click.option("--log-file", type=click.Path(path_type=Path, dir_okay=False), help="Instead of stdout.")
@click.option("--log-bytes", metavar="SIZE", default="10MiB", show_default=True)
@click.option("--log-files", type=click.IntRange(1, 100), default=5, show_default=True)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    name: str, system: bool, log_file: Path | None, log_bytes: str, log_files: int, arguments: tuple[str, ...]
) -> None:
    """Serve so that upgrade works, in the foreground: what the service manager starts, or a container."""
    places = _here(name, system).places
    surroundings = dict(os.environ)
    variables = {**surroundings, **environment_file.read(places.environment)}
    settings = checked(arguments, variables)
    output = standard_output()
    if log_file is not None:
        try:
            output = RotatingLog(log_file, _size("--log-bytes", log_bytes), log_files).write
        except OSError as error:
            raise OperatorError(f"cannot write {log_file}: {error}") from error
    command = ServeCommand(own_program(sys.argv[0]), arguments)
    options = RunOptions(command, settings, places.run, places.environment, output, surroundings)
    sys.exit(trio.run(run_service, options))
