"""`penstock service`: the server under systemd or launchd: texts of their units, and what is asked of them.

systemd has the sockets: while one process drains and the next loads its model, connections wait in the
socket's backlog, and none is refused. launchd has none for it.
"""

from __future__ import annotations

import os
import plistlib
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from api.cli.errors import OperatorError
from api.cli.join import engine as engine_command
from api.cli.serve_command import serve_settings
from api.options.options import ENVIRONMENT_PREFIX, options, variable
from api.options.settings import ServeSettings
from api.rotating_log import RotatingLog, print_into
from scheduler.engine.join.joining import TOKEN_VARIABLE

_REST = {"ignore_unknown_options": True, "allow_interspersed_args": False}
_NAMES = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
_KEPT = ("HF_TOKEN", "HF_HOME", "HF_ENDPOINT", "HF_HUB_CACHE", "CUDA_VISIBLE_DEVICES", TOKEN_VARIABLE)
"""Variables that `install` takes over from its own environment, beside every option of `serve`."""
_LOG_BYTES, _LOG_FILES = 10 << 20, 5
_STOP_MARGIN_SECONDS = 15
"""Time after the drain until systemd or launchd kills what is left."""
_ENDED_SECONDS, _BOOTSTRAP_SECONDS, _POLL_SECONDS = 3700.0, 30.0, 0.2
_STILL_THERE, _NO_DOMAIN = (5, 37), 125
"""Exit codes of `launchctl bootstrap` while the previous job has not quite ended, and where a user has no
desktop login."""
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "%": "%%", "$": "$$", "\t": "\\t"})
_PLAIN = re.compile(r"[A-Za-z0-9_./=:,+@-]+")

_UNIT = """\
# Written by penstock service install, which writes it anew; your own settings go into systemctl edit {name}
[Unit]
Description=Penstock
{needs}

[Service]
{kind}
ExecStart={command}
EnvironmentFile={environment}
RestartSec=5
# A refused option would be refused again.
RestartPreventExitStatus=2
# Loading a model, or fetching it first, takes minutes.
TimeoutStartSec=infinity
TimeoutStopSec={stop_seconds}
# SIGTERM, for the drain, goes to the main process only; the SIGKILL in the end goes to all.
KillMode=mixed
UMask=0077
NoNewPrivileges=yes
# Connections and engines; the server lowers its limits to what it gets.
LimitNOFILE=65536
{user}

[Install]
WantedBy={target}
"""
# The sockets come first, and stay when the service ends. What cannot be loaded is not retried without end.
_SERVER = (
    "Requires={name}.socket\nAfter={name}.socket\nStartLimitIntervalSec=600\nStartLimitBurst=5",
    "Type=notify\nNotifyAccess=main\nRestart=on-failure",
)
# An engine waits for its server without end, which says when it has joined.
_ENGINE = ("StartLimitIntervalSec=0", "Type=exec\nRestart=always")
_SOCKET = """\
# Written by penstock service install, which writes it anew
[Unit]
Description=Connections of Penstock

[Socket]
{addresses}
# IPv4 and IPv6 addresses are listed separately, as the server would listen on them.
BindIPv6Only=ipv6-only
# systemd keeps the sockets open, so that connections wait here while no process serves.
Backlog=4096
# At boot they are open before the machine has its address.
FreeBind={system}

[Install]
WantedBy=sockets.target
"""


@dataclass(frozen=True, slots=True)
class Service:
    """A service's name, and where its files are."""

    name: str
    system: bool
    """Whether it is the machine's, not the user's."""

    @property
    def unit(self) -> Path:
        on_mac = sys.platform == "darwin"
        if on_mac:
            kind = "Daemons" if self.system else "Agents"
            return self._library / f"Launch{kind}" / f"penstock.{self.name}.plist"
        return self._config / "systemd" / ("system" if self.system else "user") / f"{self.name}.service"

    @property
    def socket(self) -> Path:
        return self.unit.with_suffix(".socket")

    @property
    def environment(self) -> Path:
        """systemd's file of variables; launchd has them in the property list."""
        return self._config / "penstock" / f"{self.name}.env"

    @property
    def log(self) -> Path:
        """launchd's; systemd has a journal."""
        return self._library / "Logs" / "penstock" / f"{self.name}.log"

    @property
    def _config(self) -> Path:
        own = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        return Path("/etc") if self.system else Path(own)

    @property
    def _library(self) -> Path:
        return Path("/Library") if self.system else Path.home() / "Library"

    @property
    def targets(self) -> list[str]:
        """launchd's names of the job: a user at the screen has the first domain, one with ssh the second."""
        domains = ["system"] if self.system else [f"gui/{os.getuid()}", f"user/{os.getuid()}"]
        return [f"{domain}/penstock.{self.name}" for domain in domains]

    def systemctl(self, *arguments: str, may_fail: bool = False, shows: bool = False) -> int:
        own = () if self.system else ("--user",)
        return _ask("systemctl", *own, *arguments, may_fail=may_fail, shows=shows)


def _of_service(command: Callable[..., None]) -> Callable[..., None]:
    """Give a click command the options that name the service, and the service in their place."""

    @click.option("--name", default="penstock", show_default=True, help="Name of the service.")
    @click.option("--system", is_flag=True, help="The machine's, not the user's own; by sudo.")
    @wraps(command)
    def of_service(*, name: str, system: bool, **given: Any) -> None:
        if _NAMES.fullmatch(name) is None:
            raise OperatorError(f"{name!r} is no name of a service: a letter, then letters, digits, - and _")
        command(Service(name, system), **given)

    return of_service


@click.group()
def service() -> None:
    """Run the server under launchd or systemd."""


@service.command(context_settings=_REST | {"ignore_unknown_options": False})
@_of_service
@click.option(
    "--engine", is_flag=True, help="An engine for a server elsewhere: -- --join HOST:PORT --token-file FILE."
)
@click.option("--print", "shows", is_flag=True, help="Show what would be written, and stop.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def install(installed: Service, engine: bool, shows: bool, arguments: tuple[str, ...]) -> None:
    """Install and start a service, or change it: penstock service install -- --model MODEL ...

    ARGUMENTS are those of penstock serve. Keys come from PENSTOCK_API_KEY or --api-keys-file. With
    --engine they are those of penstock engine.
    """
    kept = {*_KEPT, *(variable(option.field) for option in options())}
    variables = {name: value for name, value in sorted(os.environ.items()) if name in kept}
    on_mac = sys.platform == "darwin"
    if not on_mac and installed.environment.exists():
        lines = shlex.split(installed.environment.read_text("utf-8"), comments=True)
        variables = dict(line.split("=", 1) for line in lines if "=" in line)
    settings = None if engine else _checked(arguments, variables)
    if engine:
        engine_command.make_context("penstock engine", list(arguments))
    if shows:
        # A terminal keeps what it shows.
        variables = dict.fromkeys(variables, "...")
    if on_mac:
        files = plist(installed, settings, arguments, variables)
    else:
        own = {} if installed.environment.exists() else {installed.environment: _lines(variables)}
        files = own | units(installed, settings, arguments)
    if shows:
        click.echo("\n".join(f"# {path}\n{text}" for path, text in files.items()))
        return
    sockets = installed.socket
    moved = sockets in files and sockets.exists() and sockets.read_text("utf-8") != files[sockets]
    for path, text in files.items():
        _write(path, text, private=on_mac or path == installed.environment)
        click.echo(f"wrote      {path}")
    if on_mac:
        _start_job(installed)
        click.echo(f"starts; it writes {installed.log}")
        return
    names = [path.name for path in (sockets, installed.unit) if path in files]
    installed.systemctl("daemon-reload")
    installed.systemctl("enable", *names)
    if moved:
        # systemd keeps listening on the addresses that it knew when it opened its sockets.
        installed.systemctl("stop", *names)
    click.echo("starting   after the drain of what runs; until the model is loaded")
    installed.systemctl("restart", *names[-1:])
    click.echo(f"it runs; its log: journalctl {'' if installed.system else '--user '}-u {installed.name}")
    if not installed.system:
        click.echo("note       it runs while you are logged in; always: loginctl enable-linger")


@service.command()
@_of_service
def uninstall(installed: Service) -> None:
    """Stop the service after its drain, and remove what install wrote, but for the file of keys."""
    if sys.platform == "darwin":
        _stop_job(installed)
    else:
        installed.systemctl("disable", "--now", installed.socket.name, installed.unit.name, may_fail=True)
    for path in (installed.unit, installed.socket):
        with suppress(FileNotFoundError):
            path.unlink()
            click.echo(f"removed    {path}")
    if sys.platform != "darwin":
        installed.systemctl("daemon-reload")
        if installed.environment.exists():
            click.echo(f"kept       {installed.environment}, which may hold keys")


@service.command()
@_of_service
def status(installed: Service) -> None:
    """Show what systemd or launchd says of the service, with its exit code."""
    if sys.platform == "darwin":
        ended = [subprocess.run(["launchctl", "print", one], check=False) for one in installed.targets]
        sys.exit(min(done.returncode for done in ended))
    sys.exit(installed.systemctl("--no-pager", "status", installed.unit.name, may_fail=True, shows=True))


@service.command(hidden=True, context_settings=_REST)
@click.argument("log", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run(ctx: click.Context, log: Path, arguments: tuple[str, ...]) -> None:
    """Serve, with a log of bounded size: launchd appends to one file without end, and starts this."""
    from api.cli.command_line import penstock

    print_into(RotatingLog(log, _LOG_BYTES, _LOG_FILES))
    penstock.main(["serve", *arguments], prog_name="penstock", standalone_mode=False)


def units(installed: Service, settings: ServeSettings | None, arguments: Sequence[str]) -> dict[Path, str]:
    """Return systemd's units: an engine, which has no `settings`, has no sockets."""
    needs, kind = _ENGINE if settings is None else _SERVER
    unit = _UNIT.format(
        name=installed.name,
        needs=needs.format(name=installed.name),
        kind=kind,
        command=" ".join(map(quoted, [*_program(), "engine" if settings is None else "serve", *arguments])),
        environment=str(installed.environment).replace("%", "%%"),
        stop_seconds=int(0 if settings is None else settings.drain_seconds) + _STOP_MARGIN_SECONDS,
        user=f"User={_user()}" if installed.system else "",
        target="multi-user.target" if installed.system else "default.target",
    )
    if settings is None:
        return {installed.unit: unit}
    addresses = "\n".join(f"ListenStream={address}" for address in addresses_of(settings))
    listening = _SOCKET.format(addresses=addresses, system="yes" if installed.system else "no")
    return {installed.socket: listening, installed.unit: unit}


def plist(
    installed: Service, settings: ServeSettings | None, arguments: Sequence[str], variables: Mapping[str, str]
) -> dict[Path, str]:
    """Return launchd's property list, which holds keys, so that it is for its owner alone."""
    what = ["engine"] if settings is None else ["service", "run", str(installed.log)]
    entries: dict[str, Any] = {
        "Label": f"penstock.{installed.name}",
        "ProgramArguments": [*_program(), *what, *arguments],
        "EnvironmentVariables": dict(variables),
        "RunAtLoad": True,
        "KeepAlive": True if settings is None else {"SuccessfulExit": False},
        "ThrottleInterval": 5,
        "ExitTimeOut": int(0 if settings is None else settings.drain_seconds) + _STOP_MARGIN_SECONDS,
        # No background throttling of I/O or CPU.
        "ProcessType": "Interactive",
        "Umask": 0o077,
        "SoftResourceLimits": {"NumberOfFiles": 10240},
        "StandardErrorPath": str(installed.log.with_suffix(".crash.log")),
    }
    if installed.system:
        entries["UserName"] = _user()
    else:
        # Also in the domain of a user who is logged in by ssh alone: a machine without a screen has no other.
        entries["LimitLoadToSessionType"] = ["Aqua", "Background"]
    return {installed.unit: plistlib.dumps(entries, sort_keys=False).decode()}


def quoted(word: str) -> str:
    """Quote a word so that systemd reads it unchanged: no specifier (%), no variable ($), no split."""
    if "\n" in word:
        raise OperatorError("a line break cannot be in a unit")
    return word if _PLAIN.fullmatch(word) else f'"{word.translate(_ESCAPES)}"'


def addresses_of(settings: ServeSettings) -> list[str]:
    """Return every IP address and port that `serve` would listen on: systemd takes no host names. Raise
    OperatorError."""
    port = settings.port
    try:
        each = socket.getaddrinfo(settings.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise OperatorError(f"cannot find the address of {settings.host}: {error}") from error
    hosts = dict.fromkeys(str(address[0]) for *_, address in each)
    return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts]


def _checked(arguments: Sequence[str], variables: Mapping[str, str]) -> ServeSettings:
    """Return the settings of `serve` with these variables in place of this process's. Raise OperatorError,
    OptionError or click.UsageError."""
    if any(one == "--api-key" or one.startswith("--api-key=") for one in arguments):
        raise OperatorError(
            "--api-key would be on a command line, which others can read: set PENSTOCK_API_KEY instead"
        )
    others = {name: text for name, text in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
    settings = serve_settings(arguments, {**others, **variables})
    if settings.port == 0:
        raise OperatorError("--port 0 is another port at each start: a service needs one that stays")
    # This reads the files that the key options name, too.
    settings.keys()
    return settings


def _program() -> list[str]:
    """Return the command line of this `penstock`. A link is not resolved: Homebrew's leads to the newest."""
    found = shutil.which(sys.argv[0])
    own = found is not None and Path(found).name == "penstock"
    return [os.path.abspath(found)] if own and found else [sys.executable, "-m", "api"]


def _user() -> str:
    if not (user := os.environ.get("SUDO_USER")):
        raise OperatorError("--system installs a service that runs as the user who calls sudo: there is none")
    return user


def _lines(variables: Mapping[str, str]) -> str:
    """Return the file of variables. Raise OperatorError for a value that no line can hold."""
    for name, value in variables.items():
        if len(f"{value}.".splitlines()) > 1:
            raise OperatorError(f"{name} has a line break, which the environment file cannot hold")
    escaped = {name: re.sub(r'(["\\])', r"\\\1", value) for name, value in variables.items()}
    return "# Keys belong here, not in the unit.\n" + "".join(
        f'{name}="{escaped[name]}"\n' for name in escaped
    )


def _write(path: Path, text: str, *, private: bool) -> None:
    """Write a file, from its beginning with the mode that it keeps. Raise OperatorError."""
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.touch(mode=0o600 if private else 0o644)
        path.write_text(text, "utf-8")
    except OSError as error:
        raise OperatorError(f"cannot write {path}: {error}") from error


def _start_job(installed: Service) -> None:
    """Start launchd's job, after a running one has drained. Raise OperatorError."""
    _stop_job(installed)
    installed.log.parent.mkdir(parents=True, exist_ok=True)
    for target in installed.targets:
        domain = target.rpartition("/")[0]
        _ask("launchctl", "enable", target, may_fail=True)
        code = 0
        for _ in _polls(_BOOTSTRAP_SECONDS):
            code = _ask("launchctl", "bootstrap", domain, str(installed.unit), may_fail=True)
            if code not in _STILL_THERE:
                break
        if code not in (0, _NO_DOMAIN):
            raise OperatorError(f"launchctl bootstrap {domain} {installed.unit} failed: {code}")
        if code == 0:
            return
    raise OperatorError(
        f"launchd has no domain of this user ({', '.join(installed.targets)}): log in once at the screen, or"
        " install with --system"
    )


def _stop_job(installed: Service) -> None:
    for target in installed.targets:
        _ask("launchctl", "bootout", target, may_fail=True)
        # bootout returns before the job has ended: the job is draining.
        for _ in _polls(_ENDED_SECONDS):
            if _ask("launchctl", "print", target, may_fail=True):
                break


def _polls(seconds: float) -> Iterator[None]:
    """Yield at each time to look again, the first at once, until `seconds` have passed."""
    end = time.monotonic() + seconds
    yield
    while time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
        yield


def _ask(*command: str, may_fail: bool = False, shows: bool = False) -> int:
    """Return the command's exit code. Raise OperatorError if it is not there, or fails and may not."""
    try:
        done = subprocess.run(
            command, capture_output=not shows, text=True, check=False, stdin=subprocess.DEVNULL
        )
    except OSError as error:
        raise OperatorError(
            f"{command[0]}: {error.strerror}. Without it, let what this machine starts by itself run"
            " `penstock serve`, which takes sockets that are handed over (LISTEN_FDS)"
        ) from error
    if done.returncode and not may_fail:
        output = (done.stderr or done.stdout).strip()
        raise OperatorError(f"{' '.join(command)} failed: {output or done.returncode}")
    return done.returncode
